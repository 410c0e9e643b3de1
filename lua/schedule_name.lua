-- Names of schedules with their options: "shift", "shift:stagger=3", "a:x=1,y=2".
local names = import "lua/names.lua"

local schedule_name = {}

local NAME_LENGTH = 31 -- generator/expression.h: SYMBOL_NAME_MAX

-- Name and options as given; nil and the reason where it is neither.
function schedule_name.split(text)
  local base, rest = string.match(text, "^([%a_][%w_]*):?(.*)$")
  if not base or #text > NAME_LENGTH then
    return nil, string.format("schedule '%.64s': a name has up to %d letters, digits and "
      .. "underscores, options as in shift:stagger=2", text, NAME_LENGTH)
  end
  local options = {}
  for part in string.gmatch(rest, "[^,]+") do
    local name, digits = string.match(part, "^([%a_][%w_]*)=(%d+)$")
    if not name or #digits > 9 then
      return nil, string.format("schedule '%s': '%s' is no option such as stagger=2", text, part)
    end
    options[name] = math.tointeger(tonumber(digits))
  end
  return base, options
end

-- The options of an entry, with defaults for those not given; nil and the reason.
function schedule_name.choose(base, entry, given)
  local known, chosen = entry.options or {}, {}
  for name, option in pairs(known) do chosen[name] = option.default end
  for _, name in ipairs(names.sorted(given)) do
    local option = known[name]
    if not option then
      if next(known) == nil then
        return nil, string.format("schedule '%s' has no options", base)
      end
      return nil, string.format("schedule '%s': %s", base,
        names.unknown("option", name, names.sorted(known)))
    end
    if given[name] < option.least or given[name] > option.most then
      return nil, string.format("schedule '%s': %s is %d; it goes from %d to %d", base, name,
        given[name], option.least, option.most)
    end
    chosen[name] = given[name]
  end
  return chosen
end

return schedule_name
