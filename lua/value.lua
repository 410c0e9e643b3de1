-- Masks and scores as Lua values. A value is an empty, sealed table; what it stands for is kept
-- here, out of a script's reach, so that shared values such as `causal` cannot be changed by one
-- script for the next.
--
-- Nodes: {op = "leaf", text, parameters, file, line}, {op = "and" | "or" | "then", left, right},
-- {op = "not", left}, and for masks {op = "full"} and {op = "none"}, which are simplified away.
local names = import "lua/names.lua"
local fail = names.fail

local value = {}

local NODES = 1000       -- leaves of one mask, counting repetition: evaluation walks them all
local SCORE_USES = 256   -- how often a composed score may evaluate its first part
local NAME_LENGTH = 31   -- generator/expression.h: SYMBOL_NAME_MAX
local PARAMETERS = 24    -- generator/expression.h: PARAMETERS_MAX

local nodes = setmetatable({}, { __mode = "k" })

-- Makes a sealed value for a node.
local function seal(node, metatable)
  local sealed = setmetatable({}, metatable)
  nodes[sealed] = node
  return sealed
end

-- What a user sees a value as: "mask", "score", "model", "constant", or a type of Lua's.
function value.kind(x)
  local node = type(x) == "table" and nodes[x]
  return node and node.kind or type(x)
end

-- The node of a value of that kind, else nil.
local function node_of(x, kind)
  local node = type(x) == "table" and nodes[x] or nil
  if node and node.kind == kind then return node end
end

local function metatable_of(kind)
  return {
    __name = kind,
    __metatable = kind,
    __index = function(_, key) fail("a %s has no field '%s'", kind, tostring(key)) end,
    __newindex = function() fail("a %s cannot be changed", kind) end,
    __call = function(self, ...)
      local call = nodes[self].call
      if not call then fail("this %s takes no arguments", kind) end
      return call(...)
    end,
  }
end

local mask_metatable = metatable_of "mask"
local score_metatable = metatable_of "score"
local constant_metatable = metatable_of "constant"
local model_metatable = metatable_of "model"

---- Leaves

-- Words that mean something else in the generated source; the expression language has its own
-- (generator/expression.h: expression_name_valid).
local reserved = {}
for word in string.gmatch([[
    heads nil if else then end float int
    alignas alignof asm auto bool break case catch char class const consteval constexpr continue
    decltype default delete do double dynamic_cast enum explicit export extern for friend goto
    inline long mutable namespace new noexcept nullptr operator private protected public register
    return short signed sizeof static struct switch template this throw try typedef typeid typename
    union unsigned using virtual void volatile
    wchar_t while xor at arguments]], "%S+") do
  reserved[word] = true
end

-- Checks one entry of a parameter table and returns it as {name, value, constant}.
local function parameter(name, given)
  if type(name) ~= "string" then fail("parameters need names: {window = 4096}") end
  if not string.find(name, "^[%a_][%w_]*$") or #name > NAME_LENGTH then
    fail("parameter '%.64s': a name has up to %d letters, digits and underscores", name,
      NAME_LENGTH)
  end
  if reserved[name] or string.find(name, "^rota_") or string.find(name, "^tensor_") then
    fail("parameter '%s': the name is reserved", name)
  end
  local constant = node_of(given, "constant")
  local number = given
  if constant then number = constant.value end
  if math.type(number) == nil then
    fail("parameter '%s': a number is expected, not a %s", name, type(number))
  end
  return { name = name, value = number, constant = constant ~= nil }
end

local function leaf(kind, text, parameters, call)
  if type(text) ~= "string" then fail("a %s needs a text, not a %s", kind, type(text)) end
  if parameters ~= nil and (type(parameters) ~= "table" or nodes[parameters]) then
    fail("parameters of a %s are a table of names and numbers", kind)
  end
  local list = {}
  for name, given in pairs(parameters or {}) do list[#list + 1] = parameter(name, given) end
  if #list > PARAMETERS then fail("a %s has at most %d parameters", kind, PARAMETERS) end
  table.sort(list, function(a, b) return a.name < b.name end)
  local used = {}
  for word in string.gmatch(text, "[%a_][%w_]*") do used[word] = true end
  for _, given in ipairs(list) do
    -- Most often a slip of the pen; and it would take part in cache keys for nothing.
    if not used[given.name] then
      fail("parameter '%s' is not used in \"%.99s\"", given.name, text)
    end
  end
  local file, line = host.place(3)
  return {
    kind = kind, op = "leaf", text = text, parameters = list, file = file, line = line, size = 1,
    call = call,
  }
end

-- A mask: true where a query may attend to a key. `call`: what value(...) means, if anything.
function value.where(text, parameters, call)
  return (seal(leaf("mask", text, parameters, call), mask_metatable))
end

-- A score: the new score for the scaled score s.
function value.score(text, parameters)
  local node = leaf("score", text, parameters)
  -- How often it evaluates what is put in the place of s.
  node.uses = 0
  for word in string.gmatch(text, "[%a_][%w_]*") do
    if word == "s" then node.uses = node.uses + 1 end
  end
  return (seal(node, score_metatable))
end

-- A parameter baked into the kernel: rota.const(4096).
function value.const(number)
  if math.type(number) == nil then fail("rota.const takes a number, not a %s", type(number)) end
  return (seal({ kind = "constant", value = number }, constant_metatable))
end

-- The argument of a vocabulary function as an integer of at least `low`; rota.const(...) stays one.
function value.integer(name, given, low)
  local constant = node_of(given, "constant")
  local number = constant and constant.value or given
  local integer = math.type(number) and math.tointeger(number)
  if not integer or integer < low or integer > 1 << 30 then
    fail("%s: an integer from %d to 2^30 is expected", name, low)
  end
  return constant and given or integer
end

-- The argument as a float, so that a plan may give any other number; rota.const(...) stays one.
function value.number(name, given)
  local constant = node_of(given, "constant")
  local number = constant and constant.value or given
  if math.type(number) == nil or number ~= number then fail("%s: a number is expected", name) end
  return constant and value.const(number + 0.0) or number + 0.0
end

---- Masks combined

value.full = seal({ kind = "mask", op = "full", size = 0 }, mask_metatable)
local none = seal({ kind = "mask", op = "none", size = 0 }, mask_metatable)

local function expected(kind, example, x)
  if type(x) == "function" then
    fail("a %s is expected; a function such as %s needs its arguments", kind, example)
  end
  fail("a %s is expected, not a %s", kind, value.kind(x))
end

-- A string stands for where(string).
function value.as_mask(x)
  if type(x) == "string" then return (value.where(x)) end
  if not node_of(x, "mask") then expected("mask", "window", x) end
  return x
end

local function combine(op, a, b)
  a, b = value.as_mask(a), value.as_mask(b)
  local left, right = nodes[a], nodes[b]
  if a == b then return a end
  -- full & x = x, none & x = none; the other way round for |.
  local neutral, absorbing = "full", "none"
  if op == "or" then neutral, absorbing = "none", "full" end
  if left.op == neutral or right.op == absorbing then return b end
  if right.op == neutral or left.op == absorbing then return a end
  local size = left.size + right.size
  if size > NODES then fail("a mask of more than %d parts", NODES) end
  return (seal({ kind = "mask", op = op, left = a, right = b, size = size }, mask_metatable))
end

mask_metatable.__band = function(a, b) return (combine("and", a, b)) end
mask_metatable.__bor = function(a, b) return (combine("or", a, b)) end
mask_metatable.__bnot = function(a)
  local node = nodes[a]
  if node.op == "full" then return none end
  if node.op == "none" then return value.full end
  if node.op == "not" then return node.left end
  return (seal({ kind = "mask", op = "not", left = a, size = node.size }, mask_metatable))
end

---- Scores combined

-- A string stands for score(string).
function value.as_score(x)
  if type(x) == "string" then return (value.score(x)) end
  if not node_of(x, "score") then expected("score", "softcap", x) end
  return x
end

-- a >> b: first a, then b with a's result for its s.
score_metatable.__shr = function(a, b)
  a, b = value.as_score(a), value.as_score(b)
  local left, right = nodes[a], nodes[b]
  local uses, size = left.uses * right.uses, left.size + right.size
  if uses > SCORE_USES or size > NODES then fail("a score that evaluates its parts too often") end
  local node = { kind = "score", op = "then", left = a, right = b, uses = uses, size = size }
  return (seal(node, score_metatable))
end

---- For C

-- The nodes below a value as a list in which each names earlier ones by number; nil for `full`.
function value.flatten(x)
  local root = nodes[x]
  if root.op == "full" then return nil end
  if root.op == "none" then
    return { { op = "leaf", text = "0 == 1", file = "lua/masks.lua", line = 1, parameters = {} } }
  end
  local list, number = {}, {}
  local function visit(at)
    if number[at] then return number[at] end
    local node = nodes[at]
    local flat = { op = node.op }
    if node.op == "leaf" then
      flat.text, flat.parameters = node.text, node.parameters
      flat.file, flat.line = node.file, node.line
    else
      flat.left = visit(node.left)
      flat.right = node.right and visit(node.right)
    end
    list[#list + 1] = flat
    number[at] = #list
    return #list
  end
  visit(x)
  return list
end

-- A finished model, and back: nil if x is none.
function value.seal_model(fields)
  return (seal({ kind = "model", fields = fields }, model_metatable))
end

function value.open_model(x)
  local node = node_of(x, "model")
  return node and node.fields
end

return value
