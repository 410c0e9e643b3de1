// What stands before kernels that take works: tickets and signals set to zero and, for the backward
// pass, delta = rowsum(dO * O) - dLSE of every query row. Bound by memory: O and dO are read once,
// 16 bytes a thread, a warp to a row.
#ifndef ROTA_HOPPER_MATERIALISED_PREPARE_CUH
#define ROTA_HOPPER_MATERIALISED_PREPARE_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"

namespace rota {

ROTA_DEVICE void reset_works(const RotaMaterialised &plan) {
  if (blockIdx.x == 0)
    for (int i = (int)threadIdx.x; i < 1 + 2 * plan.chunk_count; i += (int)blockDim.x)
      plan.counters[i] = 0;
}

// rowsum(dO * O) of a row, in every lane.
ROTA_DEVICE float row_product(const Element *o, const Element *d_o) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < (kHeadDimV / kChunk + kWarp - 1) / kWarp; i++) {
    const int chunk = i * kWarp + lane_index();
    if (chunk >= kHeadDimV / kChunk)
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
  return warp_sum(sum);
}

// Blocks share the row items.
ROTA_DEVICE void prepare_rows(const RotaArguments &arguments) {
  const int warps = (int)blockDim.x / kWarp;
  for (int i = (int)blockIdx.x; i < arguments.row_item_count; i += (int)gridDim.x) {
    const RotaItem item = arguments.row_items[i];
    const RotaRow row = arguments.rows[item.index];
    const RotaSequence &sequence = arguments.sequences[row.sequence];
    float *delta =
        arguments.delta + query_tile_number(arguments, sequence, row.q_tile, item.head) * kTileQ;
    for (int r = warp_index(); r < kTileQ; r += warps) {
      const int q = row.q_tile * kTileQ + r;
      if (q >= sequence.n_q)
        break;
      float sum = row_product(row_q<Element>(arguments.o, sequence, q, item.head),
                              row_q<Element>(arguments.d_o, sequence, q, item.head));
      if (arguments.d_lse.data)
        sum -= *row_q<float>(arguments.d_lse, sequence, q, item.head);
      if (lane_index() == 0)
        delta[r] = sum;
    }
  }
}

} // namespace rota

#endif
