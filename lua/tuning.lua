-- What `rota tune` tries for a spec: the best few tilings of the forward pass; then backward
-- algorithms, the best few tilings of each, and for `ordered` the schedules.
local names = import "lua/names.lua"
local policy = import "lua/policy.lua"
local schedules = import "lua/schedules.lua"

local tuning = {}

-- Values of options that are worth a try beside their defaults.
local variants = { stagger = { 1, 3 }, together = { 4, 8 } }

-- How many tilings, of those that exist. `ordered` runs each with every schedule.
local FORWARD, BACKWARD = 5, 3

-- Batch-variant schedules would break what a sequence's result may depend on: they are for the
-- user to ask for.
local function worth_a_try(spec)
  local list = {}
  for _, name in ipairs(names.sorted(schedules.rules)) do
    local rule = schedules.rules[name]
    if not rule.batch_variant then
      list[#list + 1] = name
      for _, option in ipairs(names.sorted(rule.options or {})) do
        for _, x in ipairs(variants[option] or {}) do
          list[#list + 1] = string.format("%s:%s=%d", name, option, x)
        end
      end
    end
  end
  local own = string.match(spec.schedule, "^[^:]+")
  if spec.schedule ~= "auto" and not schedules.rules[own] then list[#list + 1] = spec.schedule end
  return list
end

-- The tilings of a pass that are worth a try, by one algorithm backward: the first of those for the
-- shape's lengths, and the one that is taken without tuning. A list of {name, rank}; "auto" alone
-- where none is served, so that preparing it tells why.
local function tilings(request, direction, algorithm, most)
  local spec = setmetatable({ backward = algorithm }, { __index = request.spec })
  local function names_for(lengths)
    return policy.tiling_names {
      spec = spec, direction = direction, target = request.target, aligned = request.aligned,
      lengths = lengths,
    } or { "auto" }
  end
  local default, list = names_for(nil)[1], {}
  local has_lengths = request.n_q > 0 and request.n_k > 0
  for rank, name in ipairs(names_for(has_lengths and { { request.n_q, request.n_k } } or nil)) do
    if rank <= most or name == default then list[#list + 1] = { name = name, rank = rank } end
  end
  return list
end

-- request = {spec, target, aligned, n_q, n_k}: a list of {direction, backward, tiling, schedule,
-- rank}; rank: the tiling's among those of its algorithm for these lengths, 1 the preferred one's.
-- A candidate that the spec's head dim, dtype or device does not allow is found out when it is
-- prepared.
function tuning.candidates(request)
  local list, spec = {}, request.spec
  local function add(direction, backward, schedule_names)
    local most = direction == "forward" and FORWARD or BACKWARD
    local found = tilings(request, direction, backward, most)
    for _, schedule in ipairs(schedule_names) do
      for _, tiling in ipairs(found) do
        list[#list + 1] = {
          direction = direction, backward = backward, schedule = schedule, tiling = tiling.name,
          rank = tiling.rank,
        }
      end
    end
  end
  add("forward", spec.backward, { "auto" })
  add("backward", "ordered", worth_a_try(spec))
  add("backward", "two_pass", { "ascending" })
  -- It moves P and dS through memory, of which the DAG model knows nothing: not where `ordered`
  -- keeps everything on the chip.
  if math.max(spec.head_dim, spec.head_dim_v) > 128 then
    add("backward", "materialised", { "ascending" })
  end
  if not spec.deterministic then add("backward", "atomic", { "ascending" }) end
  return list
end

return tuning
