-- Tilings of the portable backward kernels: templates/portable/backward.cuh (ordered, atomic) and
-- backward_two_pass.cuh, and for fp32 templates/simple/backward.cuh.

local function padded(head_dim, step) return (head_dim + step - 1) // step * step end

-- The launches of an algorithm, in order. `heavy` = {{entry, grid, threads, shared bytes}, ...}.
local function launches(spec, heavy)
  local list = { { entry = "rota_delta", grid = "row_items", threads = 128, shared_bytes = 0 } }
  for _, launch in ipairs(heavy) do
    list[#list + 1] =
      { entry = launch[1], grid = launch[2], threads = launch[3], shared_bytes = launch[4] }
  end
  if spec.sink_logit then
    list[#list + 1] =
      { entry = "rota_sink_gradient", grid = "heads", threads = 256, shared_bytes = 4 * 256 }
  end
  return list
end

-- Shapes of a chain's tiles, the preferred one first. A tile is divided among warps_kv x warps_d
-- warps, that of dQ among dq_warps_q x the rest (see backward_chain.cuh); blocks_per_sm is what
-- the registers are meant to allow. On an H200 (bf16, 4k and 16k tokens, see bench/results) the
-- first that serves was the fastest of these for head dims 64, 128 and 256.
local function shape(tile_q, tile_kv, warps_kv, warps_d, dq_warps_q, stages, blocks_per_sm)
  return {
    tile_q = tile_q,
    tile_kv = tile_kv,
    warps_kv = warps_kv,
    warps_d = warps_d,
    dq_warps_q = dq_warps_q,
    stages = stages,
    blocks_per_sm = blocks_per_sm,
  }
end
local ordered_shapes = {
  shape(128, 128, 4, 2, 4, 2, 1), -- head dim 64, where 200 KB of shared memory are
  shape(32, 128, 4, 1, 2, 2, 2),
  shape(64, 128, 4, 2, 2, 2, 1), -- head dim 128, 180 KB
  shape(64, 128, 4, 2, 4, 2, 1), -- 96
  shape(64, 128, 8, 1, 2, 2, 1), -- head dim 128, 165 KB
  shape(64, 64, 4, 1, 4, 2, 2), -- an odd number of blocks of 16: 48, 80, 112
  shape(64, 64, 4, 1, 4, 1, 2),
  shape(64, 64, 2, 4, 4, 2, 1), -- head dim 256, 220 KB
  shape(64, 64, 2, 4, 4, 1, 1),
  shape(64, 64, 4, 2, 4, 1, 1),
  shape(32, 32, 2, 2, 2, 1, 1),
  shape(32, 32, 2, 1, 2, 1, 1), -- anything, with spilled registers above head dim 176
}
local two_pass_shapes = {
  shape(64, 64, 4, 1, 4, 2, 2),
  shape(64, 64, 4, 1, 4, 1, 2),
  shape(64, 64, 2, 4, 4, 1, 1),
  shape(64, 64, 4, 2, 4, 1, 1),
  shape(32, 32, 2, 2, 2, 1, 1),
}

-- Bytes of a bit per key, in whole words.
local function bits_of_keys(s) return (s.tile_kv + 31) // 32 * 4 end

-- Sizes of a shape for head dims padded to dim and dim_v.
local function measure(s, dim, dim_v)
  local warps = s.warps_kv * s.warps_d
  local scores = s.tile_q * s.tile_kv
  local rows = s.tile_kv + s.stages * s.tile_q
  return {
    warps = warps,
    -- K and V, stages of Q and dO, two of dS, P where warps exchange it: two bytes an element;
    -- then LSE and delta of two tiles, the sequence, a bit per key, and the worker's number.
    shared = 2 * (rows * (dim + dim_v) + (s.warps_d > 1 and 3 or 2) * scores) + 16 * s.tile_q
      + 64 + bits_of_keys(s) + 16,
    -- Accumulators of a thread: dK and dV from end to end, beside them S and dP, or S, P and dQ.
    kept = s.tile_kv * (dim + dim_v) // (32 * warps),
    scores = scores // (32 * warps),
    dq = s.tile_q * dim // (32 * warps),
  }
end

-- True if the warps divide the tiles into whole blocks of 16 x 16.
local function divides(s, dim, dim_v, reduces)
  local blocks, blocks_v = dim // 16, dim_v // 16
  local dq_warps_d = s.warps_kv * s.warps_d // s.dq_warps_q
  return blocks % s.warps_d == 0 and blocks_v % s.warps_d == 0
    and (not reduces or blocks % dq_warps_d == 0)
end

local MOST_ACCUMULATORS = 208 -- of 255 registers a thread

local function five_products(spec, target, atomic)
  local dim, dim_v = padded(spec.head_dim, 16), padded(spec.head_dim_v, 16)
  local list, shortest = {}, nil
  for i, s in ipairs(ordered_shapes) do
    local size = measure(s, dim, dim_v)
    local accumulators = size.kept + math.max(2 * size.scores, size.scores + size.dq)
    local fits = accumulators <= MOST_ACCUMULATORS or i == #ordered_shapes and #list == 0
    if fits and divides(s, dim, dim_v, true) then
      if size.shared <= target.shared_per_block then
        local threads = 32 * size.warps
        local tiling = {
          template = "templates/portable/backward.cuh",
          atomic = atomic and 1 or 0,
          vector_add = target.sm >= 90 and 1 or 0, -- red.global.add.v4.f32
          pad = 16,
          shared_bytes = size.shared,
        }
        for field, value in pairs(s) do tiling[field] = value end
        local heavy = { { "rota_backward", "workers", threads, size.shared } }
        if atomic then heavy[2] = { "rota_finalise", "row_items", threads, 0 } end
        tiling.launches = launches(spec, heavy)
        list[#list + 1] = tiling
      end
      shortest = math.min(shortest or size.shared, size.shared)
    end
  end
  if #list > 0 then return list end
  return nil, string.format("%d bytes of shared memory needed, %d there", shortest,
    target.shared_per_block)
end

local function two_pass(spec, target)
  local list, shortest = {}, nil
  for _, step in ipairs { 16, 32 } do -- 32: where 16 gives an odd number of blocks
    local dim, dim_v = padded(spec.head_dim, step), padded(spec.head_dim_v, step)
    for _, s in ipairs(two_pass_shapes) do
      local size = measure(s, dim, dim_v)
      local fits = size.kept + 2 * size.scores <= MOST_ACCUMULATORS
      -- Q and dO, stages of K and V, a bit per key.
      local shared_q = 2 * (s.tile_q + s.stages * s.tile_kv) * (dim + dim_v)
        + bits_of_keys(s)
      local shared = math.max(size.shared, shared_q)
      if fits and divides(s, dim, dim_v, false) then
        if shared * s.blocks_per_sm <= target.shared_per_sm - 1024 * s.blocks_per_sm
          and shared <= target.shared_per_block then
          local warps_q = s.tile_q // 16
          local tiling = {
            template = "templates/portable/backward_two_pass.cuh",
            atomic = 0,
            vector_add = 0,
            pad = step,
            warps_q = warps_q,
            stages_q = s.stages,
            shared_bytes = size.shared,
            shared_bytes_q = shared_q,
          }
          for field, value in pairs(s) do tiling[field] = value end
          tiling.launches = launches(spec, {
            { "rota_backward_kv", "chain_items", 32 * size.warps, size.shared },
            { "rota_backward_q", "row_items", 32 * warps_q, shared_q },
          })
          list[#list + 1] = tiling
        end
        shortest = math.min(shortest or shared, shared)
      end
    end
  end
  if #list > 0 then return list end
  return nil, string.format("%d bytes of shared memory needed, %d there", shortest,
    target.shared_per_block)
end

-- Plain arithmetic on CUDA cores; rows of shared memory have an odd number of words. The largest
-- tile that fits.
local function simple(spec, target)
  local largest, threads = math.max(spec.head_dim, spec.head_dim_v), 256
  local tile = largest > 256 and 8 or largest > 128 and 16 or 32
  local per_word = spec.dtype == "fp32" and 1 or 2
  local function words(dim) return (dim + per_word - 1) // per_word | 1 end
  local function bytes()
    return 4 * (2 * tile * (words(spec.head_dim) + words(spec.head_dim_v)) + 2 * tile * (tile | 1))
  end
  while tile > 4 and bytes() > target.shared_per_block do
    tile = tile // 2
  end
  local shared = bytes()
  return {
    template = "templates/simple/backward.cuh",
    tile_q = tile,
    tile_kv = tile,
    threads = threads,
    shared_bytes = shared,
    launches = launches(spec, {
      { "rota_backward_kv", "chain_items", threads, shared },
      { "rota_backward_q", "row_items", threads, shared },
    }),
  }
end

return function(request, algorithm)
  local spec = request.spec
  if spec.dtype == "fp32" then
    if algorithm ~= "two_pass" then
      return nil, string.format("fp32 has no `%s`; use `two_pass`", algorithm)
    end
    return { simple(spec, request.target) }
  end
  if algorithm == "materialised" then return nil, "no `materialised`" end
  if algorithm == "exact" then return nil, "no `exact`; use `ordered`" end
  if math.max(spec.head_dim, spec.head_dim_v) > 256 then
    if algorithm == "two_pass" then return { simple(spec, request.target) } end
    return nil, string.format("no `%s` for head dims beyond 256; use `two_pass`", algorithm)
  end
  if algorithm == "two_pass" then return two_pass(spec, request.target) end
  return five_products(spec, request.target, algorithm == "atomic")
end
