-- rota.attention{...}: a model's attention layer. What is computed first, how last;
-- generator/spec.c checks ranges.
local value = import "lua/value.lua"
local names = import "lua/names.lua"
local schedules = import "lua/schedules.lua"
local fail = names.fail

local model = {}

local function integer(name, x)
  local result = math.type(x) and math.tointeger(x)
  if not result then fail("%s: an integer is expected, not %s", name, tostring(x)) end
  if result < -(1 << 31) or result >= 1 << 31 then fail("%s: %d is out of range", name, result) end
  return result
end

local function boolean(name, x)
  if type(x) ~= "boolean" then
    fail("%s: true or false is expected, not a %s", name, value.kind(x))
  end
  return x
end

local function number(name, x)
  if math.type(x) == nil then fail("%s: a number is expected, not a %s", name, value.kind(x)) end
  if x == 0 then
    fail("%s: zero would make all keys equal; leave it out for 1/sqrt(head_dim)", name)
  end
  return x + 0.0
end

local function one_of(...)
  local known = { ... }
  return function(name, x)
    if type(x) ~= "string" then fail("%s: a name is expected, not a %s", name, value.kind(x)) end
    for _, candidate in ipairs(known) do
      if candidate == x then return x end
    end
    fail("%s: %s", name, names.unknown("name", x, known))
  end
end

-- Field -> function that checks and converts what the script gave.
local fields = {
  -- what
  head_dim = integer,
  head_dim_v = integer,
  heads = integer,
  kv_heads = integer,
  dtype = one_of("bf16", "fp16", "fp32"),
  mask = function(_, x) return (value.flatten(value.as_mask(x))) end,
  score = function(_, x) return (value.flatten(value.as_score(x))) end,
  scale = number,
  sink_logit = boolean,
  -- how
  deterministic = boolean,
  backward = one_of("auto", "ordered", "two_pass", "atomic"),
  schedule = one_of("auto", table.unpack(names.sorted(schedules.rules))),
}
local field_names = names.sorted(fields)

-- Checks the fields and returns them as plain values, with the place of the call.
function model.check(given)
  if type(given) ~= "table" or value.kind(given) ~= "table" then
    fail("rota.attention takes a table: rota.attention{head_dim = 128, heads = 32}")
  end
  local result = {}
  for name in pairs(given) do
    if type(name) ~= "string" then
      fail("rota.attention: fields need names, such as head_dim = 128")
    end
    if not fields[name] then fail("%s", names.unknown("field", name, field_names)) end
  end
  for _, name in ipairs(field_names) do
    if given[name] ~= nil then result[name] = fields[name](name, given[name]) end
  end
  if not result.head_dim then fail("rota.attention: head_dim is missing") end
  result.file, result.line = host.place(2)
  return result
end

function model.attention(given) return (value.seal_model(model.check(given))) end

return model
