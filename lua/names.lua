-- Messages for the user: where in the script, what is wrong, and which name was probably meant.
local names = {}

-- Raises an error at the user's line; without a script there is none to tell (shipped code never
-- shows).
function names.fail(format, ...)
  local file, line = host.place(2)
  local message = string.format(format, ...)
  if not string.find(file, "^lua/") then
    message = string.format("%s:%d: %s", file, line, message)
  end
  error(message, 0)
end

-- Levenshtein distance; both words are short.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local change = string.byte(a, i) == string.byte(b, j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + change)
    end
  end
  return row[#b]
end

-- Keys of a table, sorted: iteration that is the same in every process.
function names.sorted(table_)
  local list = {}
  for name in pairs(table_) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- "unknown field 'head_dims'; did you mean 'head_dim'?" `known` is a sorted list.
function names.unknown(kind, name, known)
  local best, best_distance = nil, math.max(1, #name // 3) + 1
  if #name <= 64 then
    for _, candidate in ipairs(known) do
      local d = distance(name, candidate)
      if d < best_distance then best, best_distance = candidate, d end
    end
  end
  if best then
    return string.format("unknown %s '%s'; did you mean '%s'?", kind, name, best)
  end
  if #known > 20 then return string.format("unknown %s '%.64s'", kind, name) end
  return string.format("unknown %s '%.64s'; known: %s", kind, name, table.concat(known, ", "))
end

return names
