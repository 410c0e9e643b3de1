-- Tilings of the Hopper kernels that pass matrices through memory: the backward pass of
-- templates/hopper/materialised.cuh, and of materialised_chains.cuh where dK and dV of a kv tile
-- fit the registers. Tiles are the templates' own; the widths of products follow the head dims.
local works = import "lua/architectures/hopper_works.lua"

local TENSORS = { "q", "k", "v", "d_o", "d_q", "d_k", "d_v" }
-- Accumulators of dK and dV that a thread of the consumers has room for.
local GRADIENTS_MAX, GRADIENTS_MAX_SCORE = 160, 128
local QUERIES = 64 -- of a visit
local STAGES_MAX, STAGES_LEAST = 5, 4 -- two of them hold K and V of a chain
local ROOM = 208 * 1024 -- bytes of stages

local function boxes(columns) return (columns + 63) // 64 end

-- Of producer and consumers, for a score's kernel; nil: as without. As NVRTC 13.0 compiled them
-- when divisions branched, softcap's spilled up to 208 bytes with 224 registers (bf16) and 332
-- (fp16), none with 232; but fp16 where all sums have 256 columns with 232, not with 224.
local function score_registers(spec, columns, columns_v)
  local wide = math.min(columns, columns_v) == 256
  if not spec.has_score or spec.dtype == "fp16" and wide then return end
  return { 40, 232 }
end

-- P and dS go through memory.
local function products(spec)
  local columns, columns_v = works.columns_of(spec.head_dim), works.columns_of(spec.head_dim_v)
  return works.products {
    template = "templates/hopper/materialised.cuh",
    score_planes = 2, -- P and dS
    entry = "rota_backward",
    columns = { works.PAIR, columns, columns_v },
    tensors = TENSORS,
    registers = score_registers(spec, columns, columns_v),
  }
end

-- dS alone does.
local function chains(spec)
  local columns, columns_v = works.columns_of(spec.head_dim), works.columns_of(spec.head_dim_v)
  -- A visit's Q and dO, or 64 of a sum of dQ: dS of 128 queries, and K.
  local stage = works.PART * (boxes(columns) + math.max(boxes(columns_v), 2))
  local stages = math.min(ROOM // stage, STAGES_MAX)
  local gradients = spec.has_score and GRADIENTS_MAX_SCORE or GRADIENTS_MAX
  local wide = math.max(spec.head_dim, spec.head_dim_v) > 256
  if wide or stages < STAGES_LEAST then return end
  return {
    template = "templates/hopper/materialised_chains.cuh",
    score_planes = 1, -- dS
    row_values = 2, -- delta, LSE
    entry = "rota_backward",
    columns = { QUERIES, columns, columns_v },
    tensors = TENSORS,
    stages = stages,
    stage_bytes = stage,
    holds = 1,
    makes_keys = (columns + columns_v) // 2 <= gradients and 1 or 0, -- else dV alone
    stagings = 1,
    registers = { 40, 232 },
  }
end

return function(request, algorithm)
  local spec = request.spec
  local reason = works.refusal(spec)
  if reason then return nil, reason end
  local tiling = works.tiling(request, chains(spec) or products(spec))
  if spec.sink_logit then
    tiling.launches[3] =
      { entry = "rota_sink_gradient", grid = "heads", threads = 256, shared_bytes = 4 * 256 }
  end
  return tiling
end
