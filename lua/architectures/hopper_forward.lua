-- Tilings of the Hopper forward kernels: templates/hopper/forward.cuh.
--
-- A consumer warpgroup owns 64 query rows; a thread of it holds, in registers,
--   S tile_kv / 2 | P tile_kv / 4 (rounded, two a register) | O head_dim_v / 2
-- and what stands beside them. Shared memory holds K and V for each stage, and Q once or, where
-- there is room for it, twice: then the next item's products begin before this one's have ended.
-- Where there is room besides, O lies there on its way to memory.
local configurations = import "lua/configurations.lua"

-- Registers of a thread: of the consumers and of the loader, whose warpgroup also evaluates masks
-- where V holds a NaN. 65,536 in all, so 504 or 512 for a thread of each warpgroup together.
local SETS = {
  [2] = { consumer = 232, loader = 40 },
  [3] = { consumer = 160, loader = 32 },
}
local SETS_BY_ELEMENT = { [2] = SETS[2], [3] = { consumer = 152, loader = 56 } }
-- What stands beside S, P and O: peaks, sums, addresses, loops; and where elements are looked at
-- one by one, positions, pointers into tensors and what the expressions need; more with heads
-- side by side.
local BESIDE, BESIDE_BY_ELEMENT, BESIDE_PACKED = 32, 48, 8
-- Cycles that neither products nor exponentials hide, of a tile and of a query tile.
-- Fitted: docs/configurations.md.
local TILE, ITEM = 160, 500
-- Cycles for a row of a box whose bytes are no multiple of 32 apart from the next row's: measured.
local LOAD = 4.5
-- Registers of a thread at the launch, which the compiler goes by for a single instruction: one of
-- P V holds O and so many beside it.
local LAUNCHED, INSTRUCTION = { [2] = 168, [3] = 128 }, 30
local STAGES = 2
local BOX = 64 -- columns of the copy engine's boxes
-- Rows that a block of the joining kernel joins, a warp each.
local JOIN_ROWS = 4
-- Pieces of a query tile that few queries fill: generator/plan_pieces.h. Measured: more of them
-- take less time with one sequence and more with 16 (docs/hopper-forward.md).
local PIECE_KEYS, ROW_KEYS, PIECES_MAX = 256, 32, 128
local EXTRA = 512 -- bytes: barriers, and what is announced of items and tiles
-- Up to 128 keys: mask bits of a row and lane fit a word. Fewer than 48 are slow, and some spill.
local AXES = {
  { "consumers", { 3, 2 } },
  { "tile_kv", { 128, 112, 96, 80, 64, 48 } },
}

local function padded(head_dim) return (head_dim + BOX - 1) // BOX * BOX end

local function shared_bytes(spec, consumers, tile_kv, query_stages)
  local dim, dim_v = padded(spec.head_dim), padded(spec.head_dim_v)
  local tiles = query_stages * 64 * consumers * dim + STAGES * tile_kv * (dim + dim_v)
  local squares = spec.bound == "spread" and STAGES * 16 * ((tile_kv + 31) // 32) or 0
  return 2 * tiles + squares + EXTRA
end

-- Whether scores are looked at one by one, in a partial tile at least.
local function by_element(spec)
  return not spec.mask_is_interval or spec.has_score and spec.head_dim_v > 128
end

-- Whether the consumers issue products strictly in turn. Measured: at head dims 64 and 96 7 and
-- 10 % faster, at 192 and 256 up to 3 %; at 128, where a tile's products take twice as long as
-- its softmax, with three consumers 2 to 4 % faster, with two 1 % slower on long sequences; but
-- with a softcap, which makes the softmax longer, 2 to 7 % faster.
local function takes_turns(spec, consumers)
  local dim = math.max(spec.head_dim, spec.head_dim_v)
  return dim <= 96 or dim > 128 or consumers > 2 or spec.score_is_capped
end

-- Query heads of a group that share a tile, whose rows are then (query, head) pairs: K and V come
-- once for all of them, and few queries fill a tile. As many as leave at most one row in 32 unused.
-- They must be allowed the same keys.
local function packed_heads(spec, rows)
  if spec.mask_by_head then return 1 end
  for heads = math.min(spec.group, rows), 2, -1 do
    if spec.group % heads == 0 and rows % heads * 32 <= rows then return heads end
  end
  return 1
end

-- The kernel as lua/configurations.lua takes it.
local function kernel(spec, target)
  local elements = by_element(spec)
  -- One copy of the loop less with one stage of Q: where a score function or a wide V makes it
  -- long, that is half a second less to compile.
  local long = spec.has_score or spec.head_dim_v > 128
  return {
    axes = AXES,
    complete = function(c)
      c.rows = 64 * c.consumers
      c.packed = packed_heads(spec, c.rows)
      c.tile_q = c.rows // c.packed
      c.name = string.format("%dx%d", c.rows, c.tile_kv)
      c.registers = (elements and SETS_BY_ELEMENT or SETS)[c.consumers]
      local beside = elements and BESIDE_BY_ELEMENT or BESIDE
      if elements and c.packed > 1 then beside = beside + BESIDE_PACKED end
      local held = c.tile_kv // 2 + c.tile_kv // 4 + spec.head_dim_v // 2 + beside
      local instruction = spec.head_dim_v // 2 + INSTRUCTION
      if held > c.registers.consumer or instruction > LAUNCHED[c.consumers] then
        return false, "no tile fits the registers"
      end
      if shared_bytes(spec, c.consumers, c.tile_kv, 1) > target.shared_per_block then
        return false, "no tile fits shared memory"
      end
      local twice = shared_bytes(spec, c.consumers, c.tile_kv, 2) <= target.shared_per_block
      -- With three consumers sinks of several heads want more registers than there are beside O.
      local tight = c.consumers == 3 and c.packed > 1 and spec.sink_logit
      c.query_stages = twice and not long and not tight and 2 or 1
      c.shared_bytes = shared_bytes(spec, c.consumers, c.tile_kv, c.query_stages)
      -- O goes to memory by way of shared memory if there is room. Measured: up to 2 % faster, but
      -- with three consumers 1 % slower.
      local staged = c.shared_bytes + 2 * c.rows * padded(spec.head_dim_v)
      c.staged_o = c.consumers == 2 and staged <= target.shared_per_block
      if c.staged_o then c.shared_bytes = staged end
      return true
    end,
    cost = function(c)
      local scores, depth = c.rows * c.tile_kv, (spec.head_dim + 15) // 16
      -- Of each consumer: Q and K for every 16 of the head dim, V for every 16 keys (P comes out
      -- of registers); then K and V as they arrive.
      local read = c.consumers
        * (depth * 32 * (64 + c.tile_kv) + c.tile_kv // 16 * 32 * spec.head_dim_v)
      local columns = padded(spec.head_dim) + padded(spec.head_dim_v)
      local written = 2 * c.tile_kv * columns
      local odd = spec.head_dim % 16 ~= 0 or spec.head_dim_v % 16 ~= 0
      return {
        products = scores * (16 * depth + spec.head_dim_v) / 2048,
        shared = (read + written) / 128,
        loads = odd and LOAD * c.tile_kv * columns / BOX or 0,
        arithmetic = scores / 16, -- exponentials
        groups = c.consumers,
        tile = TILE,
        item = ITEM,
      }
    end,
  }
end

-- Whether query tiles may be cut: sum_j P_j |V_j|^2 of a row is not joined.
local function cuts(spec) return spec.bound ~= "spread" end

local function launches(spec, c)
  local list = {
    {
      entry = "rota_forward",
      grid = "row_workers",
      threads = 128 * (c.consumers + 1),
      overlaps = true,
      shared_bytes = c.shared_bytes,
    },
  }
  if cuts(spec) then
    list[2] = {
      entry = "rota_forward_join",
      grid = "joins",
      threads = 32 * JOIN_ROWS,
      overlaps = true,
      shared_bytes = 0,
    }
  else
    table.insert(list, 1, { entry = "rota_value_squares", grid = "row_items", threads = 256,
      shared_bytes = 0, overlaps = true })
  end
  return list
end

local function tiling(spec, target, c)
  local shapes = { math.min(c.tile_kv, spec.head_dim_v) }
  if c.tile_kv ~= spec.head_dim_v then shapes[2] = math.max(c.tile_kv, spec.head_dim_v) end
  return {
    template = "templates/hopper/forward.cuh",
    name = c.name,
    tile_q = c.tile_q,
    packed = c.packed,
    bounded = 1, -- runs say where bounds of keys suffice
    tile_kv = c.tile_kv,
    consumers = c.consumers,
    stages = STAGES,
    spread = spec.bound == "spread" and 1 or 0, -- sum_j P_j |V_j|^2 of every row is wanted
    staged_o = c.staged_o and 1 or 0,
    query_stages = c.query_stages,
    turns = takes_turns(spec, c.consumers) and 1 or 0,
    consumer_registers = c.registers.consumer,
    loader_registers = c.registers.loader,
    workers = target.multiprocessors,
    piece_keys = PIECE_KEYS,
    piece_row_keys = ROW_KEYS,
    pieces = cuts(spec) and PIECES_MAX or 0,
    join_rows = JOIN_ROWS,
    wgmma = shapes,
    sum_along = (spec.head_dim + 15) // 16,
    sum_across = c.tile_kv // 16,
    tensor_maps = {
      { tensor = "q", rows = c.tile_q, heads = c.packed },
      { tensor = "k", rows = c.tile_kv },
      { tensor = "v", rows = c.tile_kv },
      { tensor = "o", rows = c.tile_q, heads = c.packed },
    },
    launches = launches(spec, c),
  }
end

return function(request)
  local spec, target = request.spec, request.target
  if spec.head_dim > 256 or spec.head_dim_v > 256 then
    return nil, "head dims above 256 need more registers than a warpgroup has"
  end
  if spec.bound == "spread" and math.max(spec.head_dim, spec.head_dim_v) > 128 then
    return nil, "bound = \"spread\" is served for head dims up to 128, as `exact` is"
  end
  if spec.head_dim % 8 ~= 0 or spec.head_dim_v % 8 ~= 0 then
    return nil, "head dims that are no multiples of 8 suit neither copy engine nor wgmma"
  end
  local list, reason = configurations.search(kernel(spec, target), request)
  if not list then return nil, reason end
  for i, c in ipairs(list) do list[i] = tiling(spec, target, c) end
  return list
end
