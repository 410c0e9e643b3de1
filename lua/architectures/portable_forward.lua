-- Tilings of the portable forward kernels: templates/portable/forward.cuh and, for fp32,
-- templates/simple/forward.cuh. Measured on an H200; what pays there is two blocks per
-- multiprocessor and 32 query rows per warp, so that a fragment of K or V serves two products.

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

-- Accumulators of S and O take tile_q / 128 * (tile_kv + padded head_dim_v) registers of a thread;
-- 192 leave room for operands and addresses. A score function wants some for itself.
-- TFLOP/s, bf16, full / causal, 16,384 tokens at once, hidden 2048 (PyTorch's FA2 in the same run):
--   d 64    128 x 128, two stages 353 / 362 (290 / 288), one stage 341 / 349; 128 x 64: 10 % less
--   d 128   128 x 64, one stage 386 / 388 (340 / 313), two stages 378 / 373; 128 x 32: 13 % less
--   d 256   64 x 64, one stage 325 / 322 (325 / 290, at 4,096); 128 x 64 with 8 warps 316 / 304
local function tiles(spec, dim, dim_v)
  if dim_v > 128 then return { tile_q = 64, tile_kv = 64, stages = 1 } end
  if math.max(dim, dim_v) > 64 then return { tile_q = 128, tile_kv = 64, stages = 1 } end
  return { tile_q = 128, tile_kv = spec.has_score and 64 or 128, stages = 2 }
end

return function(request)
  local spec, target = request.spec, request.target
  -- Beyond 256 O and S of a warp's rows outgrow the registers.
  if spec.dtype == "fp32" or math.max(spec.head_dim, spec.head_dim_v) > 256 then
    return simple(spec, target)
  end
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  local tiling = tiles(spec, dim, dim_v)
  -- Q, whose place O takes later, and K and V of each stage; two bytes an element.
  local function bytes()
    local kv = tiling.stages * tiling.tile_kv * (dim + dim_v)
    return 2 * (tiling.tile_q * math.max(dim, dim_v) + kv)
  end
  -- Smaller until two blocks fit a multiprocessor (1 KB of each is the system's); if they never
  -- do, the largest that fits alone.
  local first = { stages = tiling.stages, tile_kv = tiling.tile_kv }
  local function shrink(fits)
    tiling.stages, tiling.tile_kv = first.stages, first.tile_kv
    while not fits() do
      if tiling.stages > 1 then
        tiling.stages = 1
      elseif tiling.tile_kv > 32 then
        tiling.tile_kv = tiling.tile_kv // 2
      else
        return false
      end
    end
    return true
  end
  local function fits_twice() return 2 * (bytes() + KB) <= target.shared_per_sm end
  local function fits_once() return bytes() <= target.shared_per_block end
  if not shrink(fits_twice) and not shrink(fits_once) then
    return nil, string.format("%d bytes of shared memory needed, %d there", bytes(),
      target.shared_per_block)
  end
  tiling.template = "templates/portable/forward.cuh"
  tiling.warps = WARPS
  tiling.blocks_per_sm = fits_twice() and 2 or 1
  tiling.launches = launches(WARPS, bytes())
  return tiling
end
