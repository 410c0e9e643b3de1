-- What tilings of kernels that take works (templates/hopper/materialised_works.cuh) have in common:
-- two consumer warpgroups and a producer, stages of A 128 x 64 and B up to 256 x 64.
local STAGES = 4
local THREADS, PREPARE_THREADS = 384, 1024
local PAIR = 256 -- keys of the scores' products
local BOX_ROWS = 64

-- Bytes: stages, staging of 64 x 64 for each warpgroup twice, barriers, words of the stages (in the
-- forward pass their maxima), two tasks, the loader's unit and sequence.
local function shared_bytes(forward)
  return STAGES * 48 * 1024 + 4 * 8 * 1024 + 8 * (2 * STAGES + 12)
    + (forward and 16 + 512 or 16) * STAGES + 4 * 64
end

local works = {}

-- Columns of a block: as few blocks as hold the head dim, equally wide (column_blocks there).
local function columns_of(dim)
  local blocks = (dim + 255) // 256
  return ((dim + blocks - 1) // blocks + 15) // 16 * 16
end

function works.refusal(spec)
  if spec.head_dim % 8 ~= 0 or spec.head_dim_v % 8 ~= 0 then
    return "the copy engine needs rows of a multiple of 16 bytes"
  end
end

-- kernel = {template, score_planes, entry, columns = head dims of outputs, tensors = names}.
function works.tiling(request, kernel)
  local shared = shared_bytes(kernel.score_planes == 1)
  local used, products, maps = { [PAIR] = true }, {}, {}
  for _, dim in ipairs(kernel.columns) do used[columns_of(dim)] = true end
  for n in pairs(used) do products[#products + 1] = n end
  table.sort(products)
  for i, name in ipairs(kernel.tensors) do maps[i] = { tensor = name, rows = BOX_ROWS } end
  return {
    template = kernel.template,
    tile_q = 128,
    tile_kv = 128,
    stages = STAGES,
    score_planes = kernel.score_planes,
    processors = request.target.multiprocessors,
    shared_bytes = shared,
    wgmma = products,
    tensor_maps = maps,
    launches = {
      { entry = "rota_prepare", grid = "works", threads = PREPARE_THREADS, shared_bytes = 0 },
      { entry = kernel.entry, grid = "works", threads = THREADS, shared_bytes = shared,
        overlaps = true },
    },
  }
end

return works
