// What stands before the backward pass proper: delta = rowsum(dO * O) - dLSE, the reset of what the
// other kernels count in, and zeros in dQ for rows that attend to nothing. Bound by memory: O and
// dO are read once, 16 bytes a thread.
#ifndef ROTA_PORTABLE_BACKWARD_DELTA_CUH
#define ROTA_PORTABLE_BACKWARD_DELTA_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "templates/lib/memory.cuh"
#include "templates/lib/order.cuh"
#include "templates/lib/tables.cuh"
#include "templates/simple/backward_sink.cuh"

namespace rota {

// 16 bytes of a row; element by element where addresses are unaligned or the row ends within them.
template <int kColumns> ROTA_DEVICE Chunk load_row_chunk(const Element *row, int chunk) {
  if (kAligned && (kColumns % kChunk == 0 || (chunk + 1) * kChunk <= kColumns)) {
    if (chunk * kChunk < kColumns)
      return load_global_chunk(row + chunk * kChunk);
    return Chunk{{0, 0, 0, 0}};
  }
  return load_elements<kColumns>(row, chunk);
}

ROTA_DEVICE float chunk_product(const Chunk &a, const Chunk &b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float a0, a1, b0, b1;
    unpack(a.word[i], a0, a1, Element());
    unpack(b.word[i], b0, b1, Element());
    sum += a0 * b0 + a1 * b1;
  }
  return sum;
}

// Zeros for the rows of a query tile that no key contributes to: nobody else writes them.
ROTA_DEVICE void clear_dq_tile(const RotaArguments &arguments, const RotaSequence &sequence,
                               int first_row, int head, int thread, int threads) {
  constexpr int kChunks = (kHeadDim + kChunk - 1) / kChunk;
  const int left = sequence.rows_q - first_row, rows = left < kTileQ ? left : kTileQ;
  for (int i = thread; i < rows * kChunks; i += threads) {
    Element *row = row_q<Element>(arguments.d_q, sequence, first_row + i / kChunks, head);
    store_row_chunk<kHeadDim, kAligned>(row, i % kChunks, Chunk{{0, 0, 0, 0}});
  }
}

// One block per (query tile, query head).
ROTA_DEVICE void delta(const RotaArguments &arguments) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int first_row = row.q_tile * kTileQ, head = item.head;
  const long long tile = query_tile_number(arguments, sequence, row.q_tile, head);

  if (threadIdx.x == 0) {
    arguments.counters[tile] = 0;
    if (blockIdx.x == 0)
      arguments.counters[(long long)arguments.tiles * arguments.heads] = 0;
  }
  if (row.run_begin == row.run_end)
    clear_dq_tile(arguments, sequence, first_row, head, (int)threadIdx.x, (int)blockDim.x);
  if constexpr (kAtomic != 0) {
    constexpr int kFloats = kTileQ * round_up(kHeadDim, kPad);
    const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 4 * (int)threadIdx.x; i < kFloats; i += 4 * (int)blockDim.x)
      store_sum(arguments.dq_accumulator + tile * kFloats + i, zero);
  }

  // kLanes neighbouring threads share a row; the sum over them is a butterfly: the same bits
  // whatever the block's size.
  constexpr int kChunks = (kHeadDimV + kChunk - 1) / kChunk;
  constexpr int kLanes = power_of_two_from(kChunks);
  const int lane = (int)threadIdx.x % kLanes;
#pragma unroll 4
  for (int r = (int)threadIdx.x / kLanes; r < kTileQ; r += (int)blockDim.x / kLanes) {
    const int q = first_row + r;
    float sum = 0.0f;
    if (q < sequence.n_q && lane < kChunks) {
      const Element *o = row_q<Element>(arguments.o, sequence, q, head);
      const Element *d_o = row_q<Element>(arguments.d_o, sequence, q, head);
      sum = chunk_product(load_row_chunk<kHeadDimV>(o, lane), load_row_chunk<kHeadDimV>(d_o, lane));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) {
      if (arguments.d_lse.data && q < sequence.n_q)
        sum -= *row_q<float>(arguments.d_lse, sequence, q, head);
      arguments.delta[tile * kTileQ + r] = sum;
    }
  }
}

} // namespace rota

#endif
