-- The world of a user's script: fresh for each, with the vocabulary and the harmless part of
-- Lua's library. Whatever could reach outside (io, os, load, require, debug), outrun the limits
-- (patterns, string.rep: one call may take for ever) or differ from process to process
-- (addresses, order of iteration, random numbers) is not there.
local value = import "lua/value.lua"
local names = import "lua/names.lua"
local masks = import "lua/masks.lua"
local scores = import "lua/scores.lua"
local model = import "lua/model.lua"
local fail = names.fail

local sandbox = {}

local function pick(library, list)
  local picked = {}
  for name in string.gmatch(list, "%S+") do picked[name] = library[name] end
  return picked
end

-- Text of a value; never an address.
local function text_of(x)
  local kind = value.kind(x)
  local plain = { string = true, number = true, boolean = true, ["nil"] = true }
  if plain[kind] then return tostring(x) end
  return kind
end

local function format(pattern, ...)
  if type(pattern) ~= "string" then fail("string.format needs a format") end
  -- %p prints addresses.
  if string.find(pattern, "%%[-#0-9. +]*p") then fail("string.format: %%p is not available") end
  local list = table.pack(...)
  for i = 1, list.n do
    if type(list[i]) ~= "number" then list[i] = text_of(list[i]) end
  end
  return (string.format(pattern, table.unpack(list, 1, list.n)))
end

-- Keys in a fixed order: numbers, then strings, then the rest as it comes.
local function sorted_pairs(t)
  if type(t) ~= "table" then fail("pairs: a table is expected, not a %s", type(t)) end
  local keys = {}
  for key in next, t do keys[#keys + 1] = key end
  local rank = { number = 1, string = 2 }
  table.sort(keys, function(a, b)
    local x, y = rank[type(a)] or 3, rank[type(b)] or 3
    if x ~= y then return x < y end
    return x < 3 and a < b
  end)
  local i = 0
  return function()
    i = i + 1
    local key = keys[i]
    if key ~= nil then return key, t[key] end
  end
end

-- pcall that lets the limits through.
local function checked(ok, message, ...)
  if not ok and (host.exhausted() or message == "not enough memory") then error(message, 0) end
  return ok, message, ...
end
local function protected_call(f, ...) return checked(pcall(f, ...)) end

-- A table that scripts can read only.
local function read_only(kind, fields)
  local known = names.sorted(fields)
  for i, name in ipairs(known) do known[i] = kind .. "." .. name end
  return setmetatable({}, {
    __metatable = kind,
    __index = function(_, name)
      local found = fields[name]
      if found == nil then
        fail("%s", names.unknown("name", kind .. "." .. text_of(name), known))
      end
      return found
    end,
    __newindex = function() fail("%s cannot be changed", kind) end,
  })
end

-- Everything under one name: rota.attention, rota.const, and the masks and scores.
local vocabulary = {}
for name, entry in pairs(masks) do vocabulary[name] = entry.value end
for name, entry in pairs(scores) do vocabulary[name] = entry.value end
local library = { attention = model.attention, const = value.const }
for name, entry in pairs(vocabulary) do library[name] = entry end

-- A fresh environment. What is shared between scripts is either sealed or a function.
function sandbox.environment()
  local environment = {
    assert = assert,
    error = error,
    ipairs = ipairs,
    pairs = sorted_pairs,
    pcall = protected_call,
    select = select,
    tonumber = tonumber,
    tostring = text_of,
    type = value.kind,
    rota = read_only("rota", library),
    math = pick(math, [[abs ceil cos exp floor fmod huge log max maxinteger min mininteger modf pi
      sin sqrt tan tointeger type ult]]),
    table = pick(table, "concat insert pack remove sort unpack"),
    string = pick(string, "byte char len lower reverse sub upper"),
  }
  environment.string.format = format
  for name, entry in pairs(vocabulary) do environment[name] = entry end
  local known = names.sorted(environment)
  return setmetatable(environment, {
    __metatable = "environment",
    __index = function(_, name) fail("%s", names.unknown("name", text_of(name), known)) end,
  })
end

-- Runs a model script {text, name}: the model's fields, and the schedule that it defines, if any.
function sandbox.run(script)
  local chunk = host.compile(script.text, script.name, sandbox.environment())
  local result = chunk()
  local fields = value.open_model(result)
  if not fields then
    fail("the script returned a %s; it should end in `return rota.attention{...}`",
      value.kind(result))
  end
  return fields, model.own_schedule(fields)
end

return sandbox
