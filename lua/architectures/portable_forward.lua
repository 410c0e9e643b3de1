-- Tilings of the portable forward kernels: templates/portable/forward.cuh and, for fp32,
-- templates/simple/forward.cuh.

-- Rows of shared memory hold a head dim padded to the depth of one mma.
local function padded(head_dim) return (head_dim + 15) // 16 * 16 end

local function simple(request)
  local tile = 32
  local depth = request.spec.head_dim + request.spec.head_dim_v
  return {
    template = "templates/simple/forward.cuh",
    tile_q = tile,
    tile_kv = tile,
    warps = 4,
    stages = 1,
    launches = {
      {
        entry = "rota_forward",
        grid = "row_items",
        threads = 128,
        shared_bytes = 4 * tile * depth,
      },
    },
  }
end

return function(request)
  local spec, target = request.spec, request.target
  if spec.dtype == "fp32" then return simple(request) end
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  local wide = math.max(dim, dim_v) > 128
  local tiling = {
    template = "templates/portable/forward.cuh",
    tile_q = wide and 64 or 128,
    tile_kv = 64,
    warps = 4,
  }
  -- K and V tiles of each stage, and Q; two bytes an element.
  local function bytes(stages)
    return 2 * (tiling.tile_q * dim + stages * tiling.tile_kv * (dim + dim_v))
  end
  tiling.stages = 2
  while bytes(tiling.stages) > target.shared_per_block do
    if tiling.stages > 1 then
      tiling.stages = 1
    elseif tiling.tile_kv > 32 then
      tiling.tile_kv = 32
    else
      break
    end
  end
  local shared = bytes(tiling.stages)
  if shared > target.shared_per_block then
    return nil, string.format("%d bytes of shared memory needed, %d there", shared,
      target.shared_per_block)
  end
  tiling.launches = {
    {
      entry = "rota_forward",
      grid = "row_items",
      threads = 32 * tiling.warps,
      shared_bytes = shared,
    },
  }
  return tiling
end
