-- Tilings of the Hopper forward kernels: templates/hopper/forward.cuh.
--
-- A consumer warpgroup owns 64 query rows; a thread of it holds, in registers,
--   S tile_kv / 2 | P tile_kv / 4 (rounded, two a register) | O head_dim_v / 2
-- and what stands beside them. Shared memory holds K and V for each stage, and Q once or, where
-- there is room for it, twice: then the next item's products begin before this one's have ended.

-- Registers of a thread: of the consumers and of the loader, whose warpgroup also evaluates masks
-- where V holds a NaN. 65,536 in all, so 504 or 512 for a thread of each warpgroup together.
local SETS = {
  [2] = { consumer = 232, loader = 40 },
  [3] = { consumer = 160, loader = 32 },
}
local SETS_BY_ELEMENT = { [2] = SETS[2], [3] = { consumer = 152, loader = 56 } }
-- What stands beside S, P and O: peaks, sums, addresses, loops; and where elements are looked at
-- one by one, positions, pointers into tensors and what the expressions need.
local BESIDE, BESIDE_BY_ELEMENT = 32, 48
local STAGES = 2
local BOX = 64 -- columns of the copy engine's boxes
local EXTRA = 512 -- bytes: barriers, and what is announced of items and tiles

local function padded(head_dim) return (head_dim + BOX - 1) // BOX * BOX end

local function shared_bytes(spec, consumers, tile_kv, query_stages)
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  return 2 * (query_stages * 64 * consumers * dim + STAGES * tile_kv * (dim + dim_v)) + EXTRA
end

-- The largest tile_kv, a multiple of 16 up to 128, that registers and shared memory hold.
local function largest_tile(spec, target, consumers, registers, beside)
  for tile_kv = 128, 16, -16 do
    local held = tile_kv // 2 + tile_kv // 4 + spec.head_dim_v // 2 + beside
    local bytes = shared_bytes(spec, consumers, tile_kv, 1)
    if held <= registers and bytes <= target.shared_per_block then return tile_kv end
  end
end

-- Whether the consumers issue products strictly in turn. Measured: at head dims 64 and 96 7 and
-- 10 % faster, at 192 and 256 up to 3 %; at 128, where a tile's products take twice as long as
-- its softmax, 1 % slower on long sequences.
local function takes_turns(spec)
  local dim = math.max(spec.head_dim, spec.head_dim_v)
  return dim <= 96 or dim > 128
end

return function(request)
  local spec, target = request.spec, request.target
  if spec.head_dim > 256 or spec.head_dim_v > 256 then
    return nil, "head dims above 256 need more registers than a warpgroup has"
  end
  if spec.head_dim % 8 ~= 0 or spec.head_dim_v % 8 ~= 0 then
    return nil, "head dims that are no multiples of 8 suit neither copy engine nor wgmma"
  end
  local consumers = math.max(spec.head_dim, spec.head_dim_v) <= 64 and 3 or 2
  local by_element = not spec.mask_is_interval or spec.has_score and spec.head_dim_v > 128
  local registers = (by_element and SETS_BY_ELEMENT or SETS)[consumers]
  local beside = by_element and BESIDE_BY_ELEMENT or BESIDE
  local tile_kv = largest_tile(spec, target, consumers, registers.consumer, beside)
  if not tile_kv then return nil, "no tile fits shared memory" end
  local tile_q = 64 * consumers
  -- One copy of the loop less with one stage of Q: where a score function or a wide V makes it
  -- long, that is half a second less to compile.
  local long = spec.has_score or spec.head_dim_v > 128
  local fits = shared_bytes(spec, consumers, tile_kv, 2) <= target.shared_per_block
  local query_stages = fits and not long and 2 or 1
  local shapes = { math.min(tile_kv, spec.head_dim_v) }
  if tile_kv ~= spec.head_dim_v then shapes[2] = math.max(tile_kv, spec.head_dim_v) end
  return {
    template = "templates/hopper/forward.cuh",
    tile_q = tile_q,
    tile_kv = tile_kv,
    consumers = consumers,
    stages = STAGES,
    query_stages = query_stages,
    turns = takes_turns(spec) and 1 or 0,
    consumer_registers = registers.consumer,
    loader_registers = registers.loader,
    workers = target.multiprocessors,
    wgmma = shapes,
    tensor_maps = {
      { tensor = "q", rows = tile_q },
      { tensor = "k", rows = tile_kv },
      { tensor = "v", rows = tile_kv },
    },
    launches = {
      {
        entry = "rota_forward",
        grid = "row_workers",
        threads = 128 * (consumers + 1),
        overlaps = true,
        shared_bytes = shared_bytes(spec, consumers, tile_kv, query_stages),
      },
    },
  }
end
