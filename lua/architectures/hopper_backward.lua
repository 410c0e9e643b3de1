-- Tilings of the Hopper backward kernels: templates/hopper/backward.cuh (ordered, exact, atomic).
--
-- A block is a producer warpgroup and two consumer warpgroups with 64 keys each, whose dK and dV
-- stay in registers: (head_dim + head_dim_v) / 2 a thread, in whole boxes of 64 columns. S and dP
-- take tile_q / 2 each, and dQ no more than they leave.
local BOX = 64
local TILE_KV = 128
local THREADS = 384
-- Registers a thread of producer and consumers: producer + 2 * consumer = 504.
local registers = { [64] = { 40, 232 }, [128] = { 24, 240 } } -- by tile_q

local function padded(head_dim) return (head_dim + BOX - 1) // BOX * BOX end

-- Bytes of shared memory as templates/hopper/backward_shared.cuh lays it out.
local function shared_bytes(tile_q, dim, dim_v)
  local tiles = 2 * (TILE_KV + 2 * tile_q) * (dim + dim_v) + 2 * 2 * tile_q * TILE_KV
  local staging = math.max(4 * tile_q * dim, 2 * TILE_KV * dim, 2 * TILE_KV * dim_v)
  return tiles + 2 * staging + 4 * 4 * tile_q + 1024
end

-- The values of N in use, ascending.
local function products(tile_q, dim, dim_v)
  local dq = tile_q == 128 and dim or dim // 2
  local used = { [tile_q] = true, [dim] = true, [dim_v] = true, [dq] = true }
  local list = {}
  for n in pairs(used) do list[#list + 1] = n end
  table.sort(list)
  return list
end

return function(request, algorithm)
  local spec = request.spec
  local exact = algorithm == "exact"
  if algorithm ~= "ordered" and algorithm ~= "atomic" and not exact then
    return nil, string.format("no `%s`", algorithm)
  end
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  if math.max(dim, dim_v) > 128 then return nil, "head dims up to 128" end
  if spec.head_dim % 8 ~= 0 or spec.head_dim_v % 8 ~= 0 then
    return nil, "the copy engine needs rows of a multiple of 16 bytes"
  end
  local tile_q = math.max(dim, dim_v) <= 64 and 128 or 64
  local ordered = algorithm == "ordered"
  local shared = shared_bytes(tile_q, dim, dim_v)
  local launches = {}
  local function launch(entry, grid, threads, overlaps)
    launches[#launches + 1] = { entry = entry, grid = grid, threads = threads,
      shared_bytes = entry == "rota_backward" and shared or 0, overlaps = overlaps }
  end
  if exact then
    launch("rota_clear_bounds", "row_items", 64)
    launch("rota_key_bounds", "chain_items", 256, true)
  end
  launch("rota_prepare", "row_items", 128, exact)
  launch("rota_backward", "workers", THREADS, true)
  if not ordered then launch("rota_finalise", "row_items", 128) end
  if spec.sink_logit then launch("rota_sink_gradient", "heads", 256) end
  return {
    template = "templates/hopper/backward.cuh",
    tile_q = tile_q,
    tile_kv = TILE_KV,
    atomic = ordered and 0 or 1,
    exact = exact and 1 or 0,
    persistent = 1, -- a worker runs several chains and loads the next K and V early
    pad = BOX,
    -- Words of every query row: delta, LSE; for `exact` its factor, and a share of the bounds.
    row_values = exact and 4 or 2,
    blocks_per_sm = 1,
    producer_registers = registers[tile_q][1],
    consumer_registers = registers[tile_q][2],
    shared_bytes = shared,
    wgmma = products(tile_q, dim, dim_v),
    tensor_maps = {
      { tensor = "q", rows = tile_q },
      { tensor = "k", rows = TILE_KV },
      { tensor = "v", rows = TILE_KV },
      { tensor = "d_o", rows = tile_q },
      { tensor = "d_q", rows = 16 }, -- as many as a warp of consumers finishes
      { tensor = "d_k", rows = TILE_KV },
      { tensor = "d_v", rows = TILE_KV },
    },
    launches = launches,
  }
end
