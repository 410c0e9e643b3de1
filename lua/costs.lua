-- Costs: what the DAG model (generator/dag.h) charges, in microseconds, for a tiling on a device.
--
-- A device's record, of which `rota calibrate` writes one:
--   device, date            where and when it was measured
--   kernels                 architecture (a tiling's) -> how its kernels behave:
--     visit, partial        a tile of 64 x 128 at head dim 128, full or with its mask evaluated
--     start                 a chain's K and V in, dK and dV out
--     staging               finished dQ partials that may wait while the worker computes on
--     reduce                adding 16 KB of dQ
--     handoff               from one worker's addition to the start of another's
local names = import "lua/names.lua"

local costs = {}

-- One H200. `hopper`: kernels with wgmma and a dQ writer warp: 3480 cycles a visit, 6600 a chain,
-- 0.55 us for a bulk add of 16 KB, 0.62 to 0.83 us for a hand-off. `portable`: mma.sync, warps add
-- by themselves; by `rota calibrate`, whose fit misses the times it was made from by 2.4 %.
costs.h200 = {
  device = "NVIDIA H200",
  date = "2026-11-29",
  kernels = {
    hopper = {
      visit = 2.3, partial = 2.4, start = 4.4, staging = 1, reduce = 0.55, handoff = 0.7,
    },
    portable = {
      visit = 4.038, partial = 4.37, start = 2.375, staging = 0, reduce = 0.55, handoff = 2.457,
    },
  },
}

local times = { "visit", "partial", "start", "reduce", "handoff" }

-- Sizes to which the record's figures belong.
local TILE_Q, TILE_KV, HEAD_DIM, REDUCE_BYTES = 64, 128, 128, 16384

-- Multiply-adds of a visit: S, dP, dV, dK, dQ.
local function work(tile_q, tile_kv, head_dim, head_dim_v)
  return tile_q * tile_kv * (3 * head_dim + 2 * head_dim_v)
end

-- Rounded to nanoseconds: no more is known, and all machines agree.
local function rounded(x) return math.floor(x * 1000 + 0.5) / 1000 end

-- A device's record from a cost file: data, not a program.
local function read(text, name)
  local chunk = host.compile(text, name, {})
  local record = chunk()
  host.leave()
  if type(record) ~= "table" or type(record.kernels) ~= "table" then
    return nil, string.format("%s: a cost file returns {device = ..., kernels = {...}}", name)
  end
  for architecture, kernel in pairs(record.kernels) do
    for _, field in ipairs(times) do
      local x = type(kernel) == "table" and kernel[field]
      if math.type(x) == nil or x < 0 or x > 1e6 or x ~= x then
        return nil, string.format("%s: kernels.%s.%s: microseconds are expected", name,
          tostring(architecture), field)
      end
    end
    if math.type(kernel.staging) ~= "integer" then
      return nil, string.format("%s: kernels.%s.staging: an integer is expected", name,
        tostring(architecture))
    end
  end
  return record
end

-- How a tiling's sizes scale the record's figures: visits by their work, and by the blocks that
-- share a multiprocessor, starts by their rows, reductions by their bytes.
local function scales(tiling, spec)
  return {
    visit = tiling.blocks_per_sm * work(tiling.tile_q, tiling.tile_kv, spec.head_dim,
      spec.head_dim_v) / work(TILE_Q, TILE_KV, HEAD_DIM, HEAD_DIM),
    start = tiling.tile_kv * (spec.head_dim + spec.head_dim_v) / (TILE_KV * 2 * HEAD_DIM),
    reduce = 4 * tiling.tile_q * spec.head_dim / REDUCE_BYTES,
  }
end

-- request = {spec, tiling = {architecture, algorithm, tile_q, tile_kv, blocks_per_sm}, device =
-- text of a cost file or nil, name = its name}
function costs.of(request)
  local record = costs.h200
  if request.device then
    local problem
    record, problem = read(request.device, request.name)
    if not record then return nil, "FILE", problem end
  end
  local tiling = request.tiling
  local kernel = record.kernels[tiling.architecture]
  if not kernel then
    return nil, "FILE", string.format("costs of device %s: %s", tostring(record.device),
      names.unknown("architecture", tiling.architecture, names.sorted(record.kernels)))
  end
  local scale = scales(tiling, request.spec)
  -- Where nothing is added in turn (two_pass, atomic), nobody waits and nothing is charged.
  local ordered = tiling.algorithm == "ordered"
  return {
    visit = math.max(rounded(kernel.visit * scale.visit), 0.001),
    partial = math.max(rounded(kernel.partial * scale.visit), 0.001),
    start = rounded(kernel.start * scale.start),
    reduce = ordered and rounded(kernel.reduce * scale.reduce) or 0,
    handoff = ordered and kernel.handoff or 0,
    staging = kernel.staging,
    unit = "us",
  }
end

-- The text of a cost file, from costs that were fitted for one tiling. request = {spec, tiling,
-- device, date, costs = {visit, ...}}
function costs.file(request)
  local scale, fitted, lines = scales(request.tiling, request.spec), request.costs, {}
  for _, field in ipairs(times) do
    local by = field == "partial" and scale.visit or scale[field] or 1
    lines[#lines + 1] = string.format("      %s = %.3f,", field, fitted[field] / by)
  end
  lines[#lines + 1] = string.format("      staging = %d,", fitted.staging)
  return { text = string.format([[
-- What the DAG model charges on this device, in microseconds (lua/costs.lua says for which sizes);
-- by `rota calibrate`, for --costs.
return {
  device = %q,
  date = %q,
  kernels = {
    %s = {
%s
    },
  },
}
]], request.device, request.date, request.tiling.architecture, table.concat(lines, "\n")) }
end

return costs
