-- Tilings of the Hopper backward kernels: templates/hopper/backward.cuh (ordered, exact, atomic).
--
-- A block is a producer warpgroup and two consumer warpgroups with 64 keys each, or three up to
-- head dim 64. Their dK and dV stay in registers: (head_dim + head_dim_v) / 2 a thread, in whole
-- boxes of 64 columns. S and dP take 32 each; dQ, when they are done with, head_dim / 2.
local BOX, KEYS = 64, 64
local TILE_Q = 64
-- Registers a thread of producer and consumers, by the number of consumer warpgroups.
local registers = { [2] = { 40, 232 }, [3] = { 32, 160 } }

local function padded(head_dim) return (head_dim + BOX - 1) // BOX * BOX end

-- Bytes of shared memory as templates/hopper/backward_shared.cuh lays it out.
local function shared_bytes(groups, dim, dim_v, row_terms)
  local tile_kv = groups * KEYS
  local slots = groups == 3 and 2 or 1 -- of K
  local tiles = 2 * tile_kv * (slots * dim + dim_v) + 2 * groups * TILE_Q * (dim + dim_v)
  local exchange = 2 * 2 * TILE_Q * tile_kv
  local staging = 2 * math.max(4 * TILE_Q * dim, 2 * tile_kv * dim_v)
  local rows = groups * TILE_Q * (row_terms and 16 or 8)
  return tiles + exchange + staging + rows + (groups == 3 and 1536 or 1024)
end

-- The values of N in use, ascending.
local function products(dim, dim_v)
  local list = {}
  for n = BOX, 128, BOX do
    if n == TILE_Q or n == dim or n == dim_v then list[#list + 1] = n end
  end
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
  local groups = math.max(dim, dim_v) <= 64 and 3 or 2
  local ordered = algorithm == "ordered"
  local row_terms = not spec.has_score
  local shared = shared_bytes(groups, dim, dim_v, row_terms)
  local launches = {}
  local function launch(entry, grid, threads, overlaps, bytes)
    launches[#launches + 1] = { entry = entry, grid = grid, threads = threads,
      shared_bytes = bytes or 0, overlaps = overlaps }
  end
  if exact then
    launch("rota_clear_bounds", "row_items", 64)
    launch("rota_key_bounds", "chain_items", 256, true)
  end
  -- The workers do not wait for the end of rota_prepare, so that must not overlap itself.
  if ordered then launch("rota_prepare", "preparers", 512)
  else launch("rota_prepare", "row_items", 128, exact) end
  launch("rota_backward", "workers", 128 * (1 + groups), true, shared)
  if not ordered then launch("rota_finalise", "row_items", 128) end
  if spec.sink_logit then launch("rota_sink_gradient", "heads", 256, false, 4 * 256) end
  return {
    template = "templates/hopper/backward.cuh",
    tile_q = TILE_Q,
    tile_kv = groups * KEYS,
    atomic = ordered and 0 or 1,
    exact = exact and 1 or 0,
    spread = spec.bound == "spread" and 1 or 0, -- `exact` bounds sums by it
    persistent = 1, -- a worker runs several chains and loads the next K and V early
    pad = BOX,
    row_terms = row_terms and 1 or 0, -- products add LSE and delta: RowTerms
    -- Words of every query row: delta, then LSE or RowTerms; for `exact` its factor, and a share of
    -- the bounds.
    row_values = (row_terms and 5 or 2) + (exact and 2 or 0),
    rows_beside = ordered and 1 or 0, -- rows are prepared beside the first chains
    bounded = 1, -- visits say where bounds of keys or queries suffice
    blocks_per_sm = 1,
    producer_registers = registers[groups][1],
    consumer_registers = registers[groups][2],
    shared_bytes = shared,
    wgmma = products(dim, dim_v),
    tensor_maps = {
      { tensor = "q", rows = TILE_Q },
      { tensor = "k", rows = groups * KEYS },
      { tensor = "v", rows = groups * KEYS },
      { tensor = "d_o", rows = TILE_Q },
      { tensor = "d_q", rows = 16 }, -- as many as a warp of consumers finishes
      { tensor = "d_k", rows = groups * KEYS },
      { tensor = "d_v", rows = KEYS }, -- of a warpgroup
    },
    launches = launches,
  }
end
