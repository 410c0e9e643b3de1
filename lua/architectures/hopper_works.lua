-- What tilings of kernels that take works (templates/hopper/materialised_works.cuh) have in common:
-- two consumer warpgroups and a producer, stages of operands that are 64 deep in a sum.
local THREADS, PREPARE_THREADS = 384, 1024
local BOX_ROWS = 64

local works = {
  PAIR = 256, -- keys of the scores' products
  PART = 8 * 1024, -- bytes of a box: 64 rows of 64 elements
}

-- Bytes: stages, staging of parts for each warpgroup, barriers, words of the stages (and, where P
-- or dS alone goes through memory, of their rows), words of staged parts, two tasks, the loader's
-- unit, sequence and segment.
local function shared_bytes(kernel)
  return kernel.stages * kernel.stage_bytes + 2 * kernel.stagings * works.PART
    + 8 * (2 * kernel.stages + 12) + (kernel.score_planes == 1 and 16 + 512 or 16) * kernel.stages
    + 16 + 4 * 64 + 32
end

-- Columns of a block: as few blocks as hold the head dim, equally wide (column_blocks there).
function works.columns_of(dim)
  local blocks = (dim + 255) // 256
  return ((dim + blocks - 1) // blocks + 15) // 16 * 16
end

function works.refusal(spec)
  if spec.head_dim % 8 ~= 0 or spec.head_dim_v % 8 ~= 0 then
    return "the copy engine needs rows of a multiple of 16 bytes"
  end
end

-- kernel = {template, score_planes, entry, columns = widths of products, tensors = names, registers
-- = {producer's, consumers'}; stages, stage_bytes, stagings: buffers of shared memory}.
function works.tiling(request, kernel)
  local shared = shared_bytes(kernel)
  local used, products, maps = {}, {}, {}
  for _, columns in ipairs(kernel.columns) do used[columns] = true end
  for n in pairs(used) do products[#products + 1] = n end
  table.sort(products)
  for i, name in ipairs(kernel.tensors) do maps[i] = { tensor = name, rows = BOX_ROWS } end
  return {
    template = kernel.template,
    tile_q = 128,
    tile_kv = 128,
    stages = kernel.stages,
    stage_bytes = kernel.stage_bytes,
    stagings = kernel.stagings,
    producer_registers = kernel.registers[1],
    consumer_registers = kernel.registers[2],
    score_planes = kernel.score_planes,
    row_values = kernel.row_values or 1,
    holds = kernel.holds or 0,
    makes_keys = kernel.makes_keys or 0,
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

-- Of kernels whose works are products of 128 rows by up to 256 columns.
function works.products(kernel)
  kernel.stages, kernel.stage_bytes, kernel.stagings = 4, 6 * works.PART, 2
  kernel.registers = kernel.registers or { 56, 224 }
  return kernel
end

return works
