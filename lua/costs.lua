-- Costs: what the DAG model (generator/dag.h) charges, in microseconds, for a tiling on a device.
--
-- A device's record, of which `rota calibrate` writes one:
--   device, date            where and when it was measured
--   kernels                 architecture (a tiling's) -> how its kernels behave:
--     visit, partial        a tile of 64 x 128 at head dim 128, full or with a mask of which each
--                           query allows an interval of keys
--     element               the share of `visit` that goes by the tile's elements, not by its
--                           products: 0 .. 1
--     masked                what a mask that is evaluated for every element adds to a partial tile
--     start                 a chain's K and V in, dK and dV out
--     staging               finished dQ partials that may wait while the worker computes on
--     reduce                adding 16 KB of dQ
--     handoff               from one worker's addition to the start of another's, who is busy
--                           with visits: it grows as they do
--     l2                    megabytes of query tiles (Q, dO, the sum of dQ) that stay in the L2
--     miss                  bringing 64 rows at head dim 128 (64 KB) back, which the memory does
--                           for one worker after another
local names = import "lua/names.lua"

local costs = {}

-- One H200. `hopper`: fitted to the times of eight schedules under four masks at lengths of 512 and
-- 4k and head dims 128 and 64 (docs/schedules.md), but `reduce`, which a kernel by itself shows,
-- and `masked`, from documents of uneven lengths since masks are bits (docs/hopper-backward.md).
-- `portable`: mma.sync, warps add by themselves; by `rota calibrate`, whose fit misses the times it
-- was made from by 2.4 %.
costs.h200 = {
  device = "NVIDIA H200",
  date = "2026-11-29",
  kernels = {
    hopper = {
      visit = 2.3, partial = 2.4, element = 0.33, masked = 2.0, start = 4.5, staging = 1,
      reduce = 0.55, handoff = 1.6, l2 = 29.5, miss = 0.026,
    },
    portable = {
      visit = 4.038, partial = 4.37, element = 0, masked = 0, start = 2.375, staging = 0,
      reduce = 0.55, handoff = 2.457, l2 = 0, miss = 0,
    },
  },
}

-- Figures of a record with the most that each may be; and those that older records do not have.
local fields = {
  { "visit", 1e6 }, { "partial", 1e6 }, { "element", 1 }, { "masked", 1e6 }, { "start", 1e6 },
  { "reduce", 1e6 }, { "handoff", 1e6 }, { "l2", 1e6 }, { "miss", 1e6 },
}
local later = { element = 0, masked = 0, l2 = 0, miss = 0 }

-- Sizes to which the record's figures belong.
local TILE_Q, TILE_KV, HEAD_DIM, REDUCE_BYTES, MISS_BYTES = 64, 128, 128, 16384, 65536

-- Of a query tile: Q and dO, and the sum in fp32.
local function tile_bytes(tiling, spec)
  local element = spec.dtype == "fp32" and 4 or 2
  return tiling.tile_q * (element * (spec.head_dim + spec.head_dim_v) + 4 * spec.head_dim)
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
    local where = string.format("%s: kernels.%s", name, tostring(architecture))
    if type(kernel) ~= "table" then return nil, where .. ": a table is expected" end
    for _, entry in ipairs(fields) do
      local field, most = entry[1], entry[2]
      local x = kernel[field] == nil and later[field] or kernel[field]
      if math.type(x) == nil or x < 0 or x > most or x ~= x then
        return nil, string.format("%s.%s: a number of 0 .. %g is expected", where, field, most)
      end
      kernel[field] = x
    end
    if math.type(kernel.staging) ~= "integer" then
      return nil, where .. ".staging: an integer is expected"
    end
  end
  return record
end

-- How a tiling's sizes scale the record's figures: visits by their products and elements, and by
-- the blocks that share a multiprocessor, starts by their rows, reductions by their bytes.
local function scales(kernel, tiling, spec)
  local elements = tiling.tile_q * tiling.tile_kv / (TILE_Q * TILE_KV)
  local products = elements * (3 * spec.head_dim + 2 * spec.head_dim_v) / (5 * HEAD_DIM)
  local visit = tiling.blocks_per_sm
    * (kernel.element * elements + (1 - kernel.element) * products)
  return {
    visit = visit,
    handoff = visit,
    masked = tiling.blocks_per_sm * elements,
    start = tiling.tile_kv * (spec.head_dim + spec.head_dim_v) / (TILE_KV * 2 * HEAD_DIM),
    reduce = 4 * tiling.tile_q * spec.head_dim / REDUCE_BYTES,
    miss = tile_bytes(tiling, spec) / MISS_BYTES,
  }
end

-- request = {spec, tiling = {architecture, algorithm, tile_q, tile_kv, blocks_per_sm}, mask =
-- generator/records.h's mask_shape, device = text of a cost file or nil, name = its name}
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
  local scale = scales(kernel, tiling, request.spec)
  local masked = request.mask == "other" and kernel.masked * scale.masked or 0
  -- Where nothing is added in turn (two_pass, atomic), nobody waits and nothing is charged.
  local ordered = tiling.algorithm == "ordered"
  return {
    visit = math.max(rounded(kernel.visit * scale.visit), 0.001),
    partial = math.max(rounded(kernel.partial * scale.visit + masked), 0.001),
    start = rounded(kernel.start * scale.start),
    reduce = ordered and rounded(kernel.reduce * scale.reduce) or 0,
    handoff = ordered and rounded(kernel.handoff * scale.handoff) or 0,
    miss = rounded(kernel.miss * scale.miss),
    l2 = math.floor(kernel.l2 * 1e6 / tile_bytes(tiling, request.spec)),
    staging = kernel.staging,
    unit = "us",
  }
end

-- The text of a cost file, from costs that were fitted for one tiling; what is not fitted is as
-- shipped. request = {spec, tiling, device, date, costs = {visit, ...}}
function costs.file(request)
  local kernel, fitted, lines = {}, request.costs, {}
  local shipped = costs.h200.kernels[request.tiling.architecture] or {}
  for _, entry in ipairs(fields) do kernel[entry[1]] = shipped[entry[1]] or 0 end
  local scale = scales(kernel, request.tiling, request.spec)
  for _, field in ipairs { "visit", "partial", "start", "reduce", "handoff", "miss" } do
    local by = field == "partial" and scale.visit or scale[field] or 1
    kernel[field] = fitted[field] / by
  end
  for _, entry in ipairs(fields) do
    lines[#lines + 1] = string.format("      %s = %.4f,", entry[1], kernel[entry[1]])
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
