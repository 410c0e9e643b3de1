// What stands before kernels that take works: tickets and signals set to zero and, for the backward
// pass, delta = rowsum(dO * O) - dLSE of every query row; with kRowValues == 2 what is added to a
// score as an exponent of two (score_bias), too. Bound by memory: O and dO are read once, 16 bytes
// a thread, a warp to a row.
#ifndef ROTA_HOPPER_MATERIALISED_PREPARE_CUH
#define ROTA_HOPPER_MATERIALISED_PREPARE_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "templates/hopper/materialised_scores.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"

namespace rota {

ROTA_DEVICE void reset_works(const RotaMaterialised &plan) {
  if (blockIdx.x == 0)
    for (int i = (int)threadIdx.x; i < 1 + 2 * plan.chunk_count; i += (int)blockDim.x)
      plan.counters[i] = 0;
}

// Lanes that share a row, rows of a warp side by side, and how many of those are under way at once.
constexpr int kRowChunks = kHeadDimV / kChunk;
constexpr int kRowLanes = kRowChunks > 16 ? 32 : kRowChunks > 8 ? 16 : 8;
constexpr int kWarpRows = kWarp / kRowLanes, kRowBatch = 2;

// rowsum(dO * O), this lane's share.
ROTA_DEVICE float row_product(const Element *o, const Element *d_o, int lane) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < (kRowChunks + kRowLanes - 1) / kRowLanes; i++) {
    const int chunk = i * kRowLanes + lane;
    if (chunk >= kRowChunks)
      break;
    const Chunk x = load_global_chunk(o + chunk * kChunk);
    const Chunk y = load_global_chunk(d_o + chunk * kChunk);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float a0, a1, b0, b1;
      unpack(x.word[j], a0, a1, Element());
      unpack(y.word[j], b0, b1, Element());
      sum += a0 * b0 + a1 * b1;
    }
  }
  return sum;
}

// LSE and P's scale; for rows beyond the end, and rows without a key, what makes P zero.
ROTA_DEVICE void prepare_bias(const RotaArguments &arguments, const RotaSequence &sequence,
                              int q_tile, int head) {
  const long long all = (long long)arguments.tiles * arguments.heads;
  float *bias =
      arguments.delta + (all + query_tile_number(arguments, sequence, q_tile, head)) * kTileQ;
  for (int r = (int)threadIdx.x; r < kTileQ; r += (int)blockDim.x) {
    const int q = q_tile * kTileQ + r;
    bias[r] =
        score_bias(q < sequence.n_q ? *row_q<float>(arguments.lse, sequence, q, head) : -kInfinity);
  }
}

// Blocks share the row items.
ROTA_DEVICE void prepare_rows(const RotaArguments &arguments) {
  const int warps = (int)blockDim.x / kWarp, lane = lane_index() % kRowLanes;
  for (int i = (int)blockIdx.x; i < arguments.row_item_count; i += (int)gridDim.x) {
    const RotaItem item = arguments.row_items[i];
    const RotaRow row = arguments.rows[item.index];
    const RotaSequence &sequence = arguments.sequences[row.sequence];
    if (row.q_tile * kTileQ >= sequence.n_q) // a slot may have more rows than are used
      continue;
    if constexpr (kRowValues == 2)
      prepare_bias(arguments, sequence, row.q_tile, item.head);
    float *delta =
        arguments.delta + query_tile_number(arguments, sequence, row.q_tile, item.head) * kTileQ;
    for (int first = warp_index() * kRowBatch * kWarpRows; first < kTileQ;
         first += warps * kRowBatch * kWarpRows) {
      float sum[kRowBatch];
#pragma unroll
      for (int j = 0; j < kRowBatch; j++) {
        const int r = first + j * kWarpRows + lane_index() / kRowLanes;
        const int q = smaller(row.q_tile * kTileQ + r, sequence.n_q - 1);
        sum[j] = row_product(row_q<Element>(arguments.o, sequence, q, item.head),
                             row_q<Element>(arguments.d_o, sequence, q, item.head), lane);
      }
#pragma unroll
      for (int j = 0; j < kRowBatch; j++) {
        const int r = first + j * kWarpRows + lane_index() / kRowLanes;
        const int q = row.q_tile * kTileQ + r;
#pragma unroll
        for (int step = kRowLanes / 2; step > 0; step /= 2)
          sum[j] += __shfl_xor_sync(kAllLanes, sum[j], step);
        if (lane != 0 || q >= sequence.n_q)
          continue;
        if (arguments.d_lse.data)
          sum[j] -= *row_q<float>(arguments.d_lse, sequence, q, item.head);
        delta[r] = sum[j];
      }
    }
  }
}

} // namespace rota

#endif
