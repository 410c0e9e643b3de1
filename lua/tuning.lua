-- What `rota tune` tries for a spec: backward algorithms, and for `ordered` the schedules.
local schedules = import "lua/schedules.lua"
local names = import "lua/names.lua"

local tuning = {}

-- Values of options that are worth a try beside their defaults.
local variants = { stagger = { 1, 3 }, together = { 4, 8 } }

-- request = {spec}: a list of {backward, schedule}. A candidate that the spec's head dim, dtype or
-- device does not allow is found out when it is prepared. Batch-variant schedules would break what
-- a sequence's result may depend on: they are for the user to ask for.
function tuning.candidates(request)
  local list, spec = {}, request.spec
  local function add(backward, schedule)
    list[#list + 1] = { backward = backward, schedule = schedule }
  end
  for _, name in ipairs(names.sorted(schedules.rules)) do
    local rule = schedules.rules[name]
    if not rule.batch_variant then
      add("ordered", name)
      for _, option in ipairs(names.sorted(rule.options or {})) do
        for _, x in ipairs(variants[option] or {}) do
          add("ordered", string.format("%s:%s=%d", name, option, x))
        end
      end
    end
  end
  local own = string.match(spec.schedule, "^[^:]+")
  if spec.schedule ~= "auto" and not schedules.rules[own] then add("ordered", spec.schedule) end
  add("two_pass", "ascending")
  -- It moves P and dS through memory, of which the DAG model knows nothing: not where `ordered`
  -- keeps everything on the chip.
  if math.max(spec.head_dim, spec.head_dim_v) > 128 then add("materialised", "ascending") end
  if not spec.deterministic then add("atomic", "ascending") end
  return list
end

return tuning
