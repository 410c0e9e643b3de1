-- Tilings of the portable forward kernels: templates/portable/forward.cuh and, for fp32,
-- templates/simple/forward.cuh. Measured on an H200; what pays there is two blocks per
-- multiprocessor and 32 query rows per warp, so that a fragment of K or V serves two products.
local configurations = import "lua/configurations.lua"

local WARPS = 4
local KB = 1024

-- Rows of shared memory hold a head dim padded to the depth of one mma.
local function padded(head_dim) return (head_dim + 15) // 16 * 16 end

local function launches(warps, shared_bytes)
  return {
    {
      entry = "rota_forward",
      grid = "row_items",
      threads = 32 * warps,
      shared_bytes = shared_bytes,
    },
  }
end

-- Plain arithmetic: a lane per key; O as floats, Q, and K (in rows of an odd number of words) or
-- V. The most query rows that fit.
local function simple(spec, target)
  local tile_kv, size = 32, spec.dtype == "fp32" and 4 or 2
  local per_word = 4 // size
  local pitch = ((spec.head_dim + per_word - 1) // per_word | 1) * per_word
  local function bytes(tile_q)
    return tile_q * (4 * spec.head_dim_v + size * spec.head_dim) + 4
      + size * tile_kv * math.max(pitch, spec.head_dim_v)
  end
  local tile_q = 16
  while tile_q > WARPS and bytes(tile_q) > target.shared_per_block do
    tile_q = tile_q // 2
  end
  return {
    template = "templates/simple/forward.cuh",
    tile_q = tile_q,
    tile_kv = tile_kv,
    warps = WARPS,
    launches = launches(WARPS, bytes(tile_q)),
  }
end

-- TFLOP/s, bf16, full / causal, 16,384 tokens at once, hidden 2048 (PyTorch's FA2 in the same run):
--   d 64    128 x 128, two stages 353 / 362 (290 / 288), one stage 341 / 349; 128 x 64: 10 % less
--   d 128   128 x 64, one stage 386 / 388 (340 / 313), two stages 378 / 373; 128 x 32: 13 % less
--   d 256   64 x 64, one stage 325 / 322 (325 / 290, at 4,096); 128 x 64 with 8 warps 316 / 304
-- So these come first, smaller until two blocks fit a multiprocessor (else one): fewer stages, then
-- fewer keys.
local function measured(spec, dim, dim_v)
  if dim_v > 128 then return { tile_q = 64, tile_kv = 64, stages = 1 } end
  if math.max(dim, dim_v) > 64 then return { tile_q = 128, tile_kv = 64, stages = 1 } end
  return { tile_q = 128, tile_kv = spec.has_score and 64 or 128, stages = 2 }
end

-- Accumulators of S and O take tile_q / 128 * (tile_kv + padded head_dim_v) registers of a thread;
-- 192 leave room for operands and addresses.
local MOST_ACCUMULATORS = 192
local AXES = {
  { "tile_q", { 128, 64 } },
  { "tile_kv", { 128, 64, 32 } },
  { "stages", { 2, 1 } },
}

-- The kernel as lua/configurations.lua takes it.
local function kernel(spec, target, dim, dim_v)
  -- Q, whose place O takes later, and K and V of each stage; two bytes an element.
  local function bytes(c)
    return 2 * (c.tile_q * math.max(dim, dim_v) + c.stages * c.tile_kv * (dim + dim_v))
  end
  -- 1 KB of each block's shared memory is the system's.
  local function fits(c, blocks)
    if blocks == 1 then return bytes(c) <= target.shared_per_block end
    return blocks * (bytes(c) + KB) <= target.shared_per_sm
  end
  local first = measured(spec, dim, dim_v)
  local function shrunk(blocks)
    local c = { tile_q = first.tile_q, tile_kv = first.tile_kv, stages = first.stages }
    while not fits(c, blocks) do
      if c.stages > 1 then
        c.stages = 1
      elseif c.tile_kv > 32 then
        c.tile_kv = c.tile_kv // 2
      else
        return nil
      end
    end
    return c
  end
  first = shrunk(2) or shrunk(1) or first
  return {
    axes = AXES,
    prefers = function(c)
      return c.tile_q == first.tile_q and c.tile_kv == first.tile_kv and c.stages == first.stages
    end,
    complete = function(c)
      -- A score function wants registers for itself.
      local most = spec.has_score and math.max(first.tile_kv, 64) or 128
      if c.tile_q // 64 * (c.tile_kv + dim_v) > 2 * MOST_ACCUMULATORS or c.tile_kv > most then
        return false, "no tile fits the registers"
      end
      c.shared_bytes = bytes(c)
      if not fits(c, 1) then
        return false, string.format("%d bytes of shared memory needed, %d there", c.shared_bytes,
          target.shared_per_block)
      end
      c.blocks_per_sm = fits(c, 2) and 2 or 1
      return true
    end,
    cost = function(c)
      local scores = c.tile_q * c.tile_kv
      -- Each warp reads its Q and all of K and V; then K and V as they arrive.
      local moved = 2 * (c.tile_q * dim + (WARPS + 1) * c.tile_kv * (dim + dim_v))
      return {
        products = scores * (dim + dim_v) / 1024,
        shared = moved / 128,
        arithmetic = 1.25 * scores / 16,
        groups = c.blocks_per_sm,
        tile = 400 // c.stages, -- barriers; with one stage a load is waited for
        item = 2000,
      }
    end,
  }
end

return function(request)
  local spec, target = request.spec, request.target
  -- Beyond 256 O and S of a warp's rows outgrow the registers.
  if spec.dtype == "fp32" or math.max(spec.head_dim, spec.head_dim_v) > 256 then
    return { simple(spec, target) }
  end
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  local list, reason = configurations.search(kernel(spec, target, dim, dim_v), request)
  if not list then return nil, reason end
  for i, c in ipairs(list) do
    list[i] = {
      template = "templates/portable/forward.cuh",
      tile_q = c.tile_q,
      tile_kv = c.tile_kv,
      stages = c.stages,
      warps = WARPS,
      blocks_per_sm = c.blocks_per_sm,
      launches = launches(WARPS, c.shared_bytes),
    }
  end
  return list
end
