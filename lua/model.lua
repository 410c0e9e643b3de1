-- rota.attention{...}: a model's attention layer. What is computed first, how last;
-- generator/spec.c checks ranges.
local value = import "lua/value.lua"
local names = import "lua/names.lua"
local schedules = import "lua/schedules.lua"
local schedule_name = import "lua/schedule_name.lua"
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

local function one_of_type(kind)
  return function(name, x)
    if type(x) ~= kind then fail("%s: a %s is expected, not a %s", name, kind, value.kind(x)) end
    return x
  end
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

---- Schedules

local shipped = names.sorted(schedules.rules)
local known_schedules = { "auto", table.unpack(shipped) }

-- A shipped schedule's name, with options: "shift", "shift:stagger=3".
local function shipped_schedule(name)
  local base, given = schedule_name.split(name)
  if not base then fail("%s", given) end
  if base == "auto" and base == name then return name end
  local entry = schedules.rules[base]
  if not entry then fail("schedule: %s", names.unknown("name", base, known_schedules)) end
  local chosen, problem = schedule_name.choose(base, entry, given)
  if not chosen then fail("%s", problem) end
  return name
end

-- {name = "shift", stagger = 3} -> "shift:stagger=3"
local function shipped_with_options(given)
  local parts = {}
  for _, name in ipairs(names.sorted(given)) do
    if name ~= "name" then
      if math.type(given[name]) ~= "integer" then
        fail("schedule: %s: an integer is expected, not a %s", tostring(name),
          value.kind(given[name]))
      end
      parts[#parts + 1] = string.format("%s=%d", name, given[name])
    end
  end
  local text = given.name
  if #parts > 0 then text = text .. ":" .. table.concat(parts, ",") end
  return (shipped_schedule(text))
end

local assignments = { "cyclic", "lanes", "longest", "mixed", "stretches", "tickets" }
local text_expected = one_of_type "string"
local own_fields = {
  about = text_expected,
  source = text_expected,
  name = function(name, x)
    text_expected(name, x)
    if not string.find(x, "^[%a_][%w_]*$") or #x > 31 then
      fail("schedule: name '%.64s': up to 31 letters, digits and underscores", x)
    end
    if schedules.rules[x] or x == "auto" then
      fail("schedule: name '%s' belongs to a shipped schedule", x)
    end
    return x
  end,
  order = one_of("gang", "portable"),
  batch_variant = boolean,
  pattern = one_of_type "function",
  assignment = function(name, x)
    if type(x) == "function" then return x end
    return one_of(table.unpack(assignments))(name, x)
  end,
}
local own_names = names.sorted(own_fields)

-- Result -> the entry that its script defines, as in lua/schedules.lua.
local own = setmetatable({}, { __mode = "k" })

local function schedule_of(given, result)
  if type(given) == "string" then return (shipped_schedule(given)) end
  if type(given) ~= "table" or value.kind(given) ~= "table" then
    fail("schedule: a name or a table is expected, not a %s", value.kind(given))
  end
  for name in pairs(given) do
    if type(name) ~= "string" then fail("schedule: fields need names, such as pattern = ...") end
  end
  if given.pattern == nil then
    if type(given.name) ~= "string" then
      fail("schedule: {name = \"shift\", ...}, or {pattern = function(map, gang, costs) ... end}")
    end
    return (shipped_with_options(given))
  end
  local entry = {}
  for _, name in ipairs(names.sorted(given)) do
    if not own_fields[name] then
      fail("%s", names.unknown("field of a schedule", name, own_names))
    end
    entry[name] = own_fields[name]("schedule: " .. name, given[name])
  end
  own[result] = entry
  return entry.name or "own"
end

-- The schedule that a model's script defines; nil if it names a shipped one.
function model.own_schedule(fields) return own[fields] end

---- Tilings

-- The fields of a table, which must be names, sorted.
local function named(what, given)
  for field in pairs(given) do
    if type(field) ~= "string" then fail("%s: fields need names", what) end
  end
  return names.sorted(given)
end

-- {tile_q = 128, tile_kv = 64} -> "128x64"
local function tiles_of(name, x)
  if type(x) == "table" and value.kind(x) == "table" then
    for _, field in ipairs(named(name, x)) do
      if field ~= "tile_q" and field ~= "tile_kv" then
        fail("%s: %s", name, names.unknown("field", field, { "tile_kv", "tile_q" }))
      end
    end
    if x.tile_q == nil or x.tile_kv == nil then
      fail("%s: tile_q and tile_kv are both needed", name)
    end
    x = string.format("%dx%d", integer(name .. ".tile_q", x.tile_q),
      integer(name .. ".tile_kv", x.tile_kv))
  end
  if type(x) ~= "string" then
    fail("%s: \"128x64\" or {tile_q = 128, tile_kv = 64} is expected, not a %s", name,
      value.kind(x))
  end
  if x ~= "auto" and not string.find(x, "^[1-9]%d?%d?%d?x[1-9]%d?%d?%d?$") then
    fail("%s: '%.64s' is neither auto nor query and kv rows of a tile, such as 128x64", name, x)
  end
  return x
end

-- {forward = "128x128", backward = "64x128"}: which of the tilings that the architecture has.
local function tiling_of(name, given)
  if given == "auto" then return {} end
  local example = "{forward = \"128x128\", backward = \"64x128\"}"
  if type(given) ~= "table" or value.kind(given) ~= "table" then
    fail("%s: %s is expected, not a %s; each pass has tiles of its own", name, example,
      value.kind(given))
  end
  local result = {}
  for _, pass in ipairs(named(name, given)) do
    if pass ~= "forward" and pass ~= "backward" then
      fail("%s: %s; %s is expected", name, names.unknown("pass", pass, { "backward", "forward" }),
        example)
    end
    result[pass] = tiles_of(name .. "." .. pass, given[pass])
  end
  return result
end

---- Fields

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
  backward = one_of("auto", "ordered", "exact", "two_pass", "materialised", "atomic"),
  bound = one_of("norm", "spread"),
  schedule = function(_, x, result) return (schedule_of(x, result)) end,
  tiling = tiling_of,
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
    if given[name] ~= nil then result[name] = fields[name](name, given[name], result) end
  end
  if not result.head_dim then fail("rota.attention: head_dim is missing") end
  result.file, result.line = host.place(2)
  return result
end

function model.attention(given) return (value.seal_model(model.check(given))) end

return model
