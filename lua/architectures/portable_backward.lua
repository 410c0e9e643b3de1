-- Tilings of the portable backward kernels: templates/portable/backward.cuh and, for fp32,
-- templates/simple/backward.cuh.

local function padded(head_dim) return (head_dim + 15) // 16 * 16 end

-- The launches of an algorithm, in order; `shared` bytes for the heavy ones.
local function launches(spec, algorithm, threads, shared)
  local list = {}
  local function launch(entry, grid, bytes)
    list[#list + 1] = { entry = entry, grid = grid, threads = threads, shared_bytes = bytes }
  end
  launch("rota_delta", "row_items", 0)
  if algorithm == "two_pass" then
    launch("rota_backward_kv", "chain_items", shared)
    launch("rota_backward_q", "row_items", shared)
  else
    launch("rota_backward", "workers", shared)
  end
  if algorithm == "atomic" then launch("rota_finalise", "row_items", 0) end
  if spec.sink_logit then launch("rota_sink_gradient", "heads", 0) end
  return list
end

local function simple(spec, algorithm)
  local tile = 16
  local shared = 4 * (2 * tile * (spec.head_dim + spec.head_dim_v) + 2 * tile * tile)
  return {
    template = "templates/simple/backward.cuh",
    tile_q = tile,
    tile_kv = tile,
    warps = 4,
    stages = 1,
    launches = launches(spec, algorithm, 128, shared),
  }
end

return function(request, algorithm)
  local spec, target = request.spec, request.target
  if spec.dtype == "fp32" then return simple(spec, algorithm) end
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  local wide = math.max(dim, dim_v) > 64
  local tiling = {
    template = "templates/portable/backward.cuh",
    tile_q = 64,
    tile_kv = wide and 64 or 128,
    warps = wide and 4 or 8,
  }
  -- K and V stay; Q and dO of each stage; P and dS; two bytes an element.
  local function bytes(stages)
    local elements = (tiling.tile_kv + stages * tiling.tile_q) * (dim + dim_v)
    return 2 * (elements + 2 * tiling.tile_q * tiling.tile_kv)
  end
  -- Where shared memory is short: first one stage, then smaller tiles.
  tiling.stages = 2
  while bytes(tiling.stages) > target.shared_per_block do
    if tiling.stages > 1 then
      tiling.stages = 1
    elseif tiling.tile_q > 32 then
      tiling.tile_q = 32
    elseif tiling.tile_kv > 32 then
      tiling.tile_kv, tiling.warps = 32, 2
    else
      break
    end
  end
  local shared = bytes(tiling.stages)
  if shared > target.shared_per_block then
    return nil, string.format("%d bytes of shared memory needed, %d there", shared,
      target.shared_per_block)
  end
  tiling.launches = launches(spec, algorithm, 32 * tiling.warps, shared)
  return tiling
end
