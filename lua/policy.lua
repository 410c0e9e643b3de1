-- How: which architecture file serves a request, which backward algorithm, which tiling, which
-- schedule.
--
-- A file of lua/architectures that returns a table with `name` is an architecture:
--   name       as in the tiling; priority: the highest one that serves wins
--   targets    {[90] = {limits}}: compute capability times ten -> what such a GPU offers
--              (generator/tiling.h: Target); absent: those of others
--   code       the architecture to compile for, where it is not the target's own: "sm_90a"
--   serves     function(request) -> true, or false and the reason
--   tilings    function(request, algorithm) -> its tilings, the one to be preferred first
--              (see lua/architectures/portable.lua), or nil and the reason
-- request = {spec = {...}, direction = "forward" | "backward", aligned = bool, target = {...},
-- mask = its shape as generator/records.h names it, tiling = "auto" or one of them by name,
-- lengths = those to prefer tilings for, {{n_q, n_k}, ...}, or nil: for all lengths}
local configurations = import "lua/configurations.lua"
local names = import "lua/names.lua"
local schedules = import "lua/schedules.lua"
local schedule_name = import "lua/schedule_name.lua"
local pattern = import "lua/pattern.lua"
local sandbox = import "lua/sandbox.lua"

local policy = {}

local architectures = {}
for _, path in ipairs(host.list "lua/architectures/") do
  local architecture = import(path)
  if type(architecture) == "table" and architecture.name then
    architectures[#architectures + 1] = architecture
  end
end
table.sort(architectures, function(a, b)
  if a.priority ~= b.priority then return a.priority > b.priority end
  return a.name < b.name
end)

-- A failure as C reads it: nil, status, message.
local function refuse(status, ...) return nil, status, string.format(...) end

-- Limits of a GPU by name: "sm_90", "sm_90a".
function policy.target(name)
  local sm = math.tointeger(tonumber(string.match(name, "^sm_(%d+)[af]?$")))
  local known, seen = {}, {}
  for _, architecture in ipairs(architectures) do
    for number, limits in pairs(architecture.targets or {}) do
      if number == sm then
        -- Without a device there is no driver either: as new as one likes.
        local target = { name = name, sm = sm, tensor_maps = sm >= 90 }
        for field, amount in pairs(limits) do target[field] = amount end
        return target
      end
      if not seen[number] then known[#known + 1], seen[number] = number, true end
    end
  end
  table.sort(known)
  for i, number in ipairs(known) do known[i] = "sm_" .. number end
  return refuse("UNSUPPORTED", "architecture %s: known are %s", name, table.concat(known, ", "))
end

-- The backward algorithms for "auto", the first that is served. Five matrix products in `ordered`
-- against seven in `two_pass`; but `ordered` keeps an fp32 dK and dV of a kv tile in registers.
-- Above head dim 128 they fit only where eight warps share them (so in blocks of 32) over 160 KB of
-- shared memory: at 256 that is 16 % faster than `two_pass` on an H200. There `materialised` keeps
-- nothing from tile to tile, and is twice as fast.
function policy.backward(spec, target)
  if spec.backward ~= "auto" then return { spec.backward } end
  if spec.dtype == "fp32" then return { "two_pass" } end
  local function in_blocks(dim) return (dim + 15) // 16 % 2 == 0 end
  local largest = math.max(spec.head_dim, spec.head_dim_v)
  if largest <= 128 then return { "ordered" } end
  local fits = largest <= 256 and in_blocks(spec.head_dim) and in_blocks(spec.head_dim_v)
    and target.shared_per_block >= 160 * 1024
  local portable = fits and "ordered" or "two_pass"
  return target.sm == 90 and { "materialised", portable } or { portable }
end

-- The reason why a tiling's launches do not fit the GPU; nil if they do.
local function shared_memory_short(tiling, target)
  for _, launch in ipairs(tiling.launches) do
    if launch.shared_bytes > target.shared_per_block then
      return string.format("%s needs %d bytes of shared memory, %d there", launch.entry,
        launch.shared_bytes, target.shared_per_block)
    end
  end
end

-- Those of an architecture's tilings for an algorithm that fit the GPU; nil and the reason if none
-- does.
local function fitting(architecture, request, algorithm)
  local all, reason = architecture.tilings(request, algorithm)
  local list = {}
  for _, tiling in ipairs(all or {}) do
    local short = shared_memory_short(tiling, request.target)
    if not short then list[#list + 1] = tiling end
    reason = reason or short
  end
  if #list == 0 then return nil, reason end
  return list
end

-- The tilings of the first architecture that serves an algorithm; nil if none does. Adds to
-- `reasons`.
local function find_tilings(request, algorithm, reasons)
  for _, architecture in ipairs(architectures) do
    local list
    local serves, reason = architecture.serves(request)
    if serves then list, reason = fitting(architecture, request, algorithm) end
    for _, tiling in ipairs(list or {}) do
      tiling.architecture, tiling.algorithm = architecture.name, algorithm
      tiling.code, tiling.passed_over = architecture.code, table.concat(reasons, "; ")
    end
    if list then return list end
    reasons[#reasons + 1] = string.format("%s: %s", architecture.name, reason or "no reason given")
  end
end

-- All tilings for a request, the one to be preferred first.
function policy.tilings(request)
  local spec = request.spec
  local algorithms = request.direction == "forward" and { "forward" }
    or policy.backward(spec, request.target)
  local reasons
  for _, algorithm in ipairs(algorithms) do
    reasons = {}
    local list = find_tilings(request, algorithm, reasons)
    if list then return list end
  end
  return refuse("UNSUPPORTED", "head_dim %d/%d %s %s on %s is not served (%s)", spec.head_dim,
    spec.head_dim_v, spec.dtype, algorithms[#algorithms], request.target.name,
    table.concat(reasons, "; "))
end

-- What they are called, in that order.
function policy.tiling_names(request)
  local list, status, message = policy.tilings(request)
  if not list then return nil, status, message end
  local all, seen = {}, {}
  for _, tiling in ipairs(list) do
    local name = configurations.name(tiling)
    if not seen[name] then all[#all + 1], seen[name] = name, true end
  end
  return all
end

-- The one that the request names, or the first.
function policy.tiling(request)
  local list, status, message = policy.tilings(request)
  if not list then return nil, status, message end
  local tiling = configurations.choose(list, request.tiling)
  if tiling then return tiling end
  return refuse("UNSUPPORTED", "tiling.%s '%s': for head_dim %d/%d %s the %s kernels (%s) have %s; "
    .. "name one of these, or leave it out for the first", request.direction, request.tiling,
    request.spec.head_dim, request.spec.head_dim_v, request.spec.dtype, list[1].architecture,
    list[1].algorithm, table.concat(policy.tiling_names(request), ", "))
end

-- The schedule for "auto" is a shipped one; a user's own is found by running his script again:
-- fresh for each call, so that nothing it remembers can make one plan differ from another.
-- request = {schedule = name with options, algorithm, script = {text, name} or nil; where the name
-- may be "auto" also architecture, mask}. Returns entry, options, name; or nil and the reason.
local function find(request)
  local name = request.schedule
  if name == "auto" then name = schedules.auto(request) end
  local base, options = schedule_name.split(name)
  if not base then return nil, options end
  local entry = schedules.rules[base]
  if not entry and request.script then
    local _, own = sandbox.run(request.script)
    entry = own
  end
  if not entry then
    return nil, names.unknown("schedule", base, names.sorted(schedules.rules))
  end
  local chosen, problem = schedule_name.choose(base, entry, options)
  if not chosen then return nil, problem end
  return entry, chosen, name
end

-- What C needs to know of a schedule before it plans.
function policy.schedule(request)
  local entry, options, name = find(request)
  if not entry then return refuse("SCHEDULE", "%s", options) end
  local portable = entry.order == "portable"
  local assignment = entry.assignment or (portable and "tickets" or "lanes")
  return {
    name = name,
    portable = portable,
    batch_variant = entry.batch_variant or false,
    together = options.together or 0,
    assignment = type(assignment) == "function" and "call" or assignment,
  }
end

-- The schedule's functions, while planning (lua/pattern.lua).
function policy.pattern(request)
  local entry, options = find(request)
  if not entry then return refuse("SCHEDULE", "%s", options) end
  if request.script then host.enter(request.script.name) end
  return pattern.call(entry, options, request)
end

function policy.assign(request)
  local entry, problem = find(request)
  if not entry then return refuse("SCHEDULE", "%s", problem) end
  if request.script then host.enter(request.script.name) end
  return pattern.assign(entry, request)
end

return policy
