-- What C may call (generator/script.c): functions of one table argument that return a plain
-- value, or nil, a status and a message.
local names = import "lua/names.lua"
local masks = import "lua/masks.lua"
local scores = import "lua/scores.lua"
local schedules = import "lua/schedules.lua"
local model = import "lua/model.lua"
local sandbox = import "lua/sandbox.lua"
local policy = import "lua/policy.lua"
local costs = import "lua/costs.lua"
local tuning = import "lua/tuning.lua"
local rates = import "lua/rates.lua"

local main = {}

-- A model script, run in the sandbox: {text, name} -> the model's fields. A schedule of its own is
-- functions, which C cannot keep: it keeps the script.
function main.script(request)
  local fields, schedule = sandbox.run(request)
  if schedule then fields.script = { text = request.text, name = request.name } end
  return fields
end

-- The same from plain fields, in which mask and score are Lua expressions.
function main.fields(given)
  for _, name in ipairs { "mask", "score" } do
    if given[name] then
      local chunk = host.compile("return " .. given[name], name, sandbox.environment())
      given[name] = chunk()
      host.leave()
    end
  end
  local fields = model.check(given)
  -- No script, no place: the fields' own names say enough.
  fields.file, fields.line = nil, nil
  return fields
end

function main.target(request) return policy.target(request.name) end
function main.tiling(request) return policy.tiling(request) end
function main.tilings(request) return policy.tiling_names(request) end
function main.schedule(request) return policy.schedule(request) end
function main.pattern(request) return policy.pattern(request) end
function main.assign(request) return policy.assign(request) end
function main.costs(request) return costs.of(request) end
function main.cost_file(request) return costs.file(request) end
function main.rates(request) return rates.of(request) end
function main.candidates(request) return tuning.candidates(request) end

-- Names of a vocabulary table, sorted; or what belongs to each name, in the same order.
function main.names(request)
  local lists = {
    masks = function() return names.sorted(masks) end,
    scores = function() return names.sorted(scores) end,
    schedules = function() return names.sorted(schedules.rules) end,
  }
  local fields = { mask = masks, score = scores, schedule = schedules.rules }
  local kind, field = string.match(request.table, "^(%a+)_(%a+)s$") -- mask_examples
  if kind and fields[kind] then
    local list = names.sorted(fields[kind])
    for i, name in ipairs(list) do list[i] = fields[kind][name][field] or "" end
    return list
  end
  return lists[request.table] and lists[request.table]()
end

return main
