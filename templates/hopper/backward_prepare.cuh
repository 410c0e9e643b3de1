// What stands before the backward pass proper: delta = rowsum(dO * O) - dLSE and LSE as the
// exponent of a power of two for every query row, the reset of what the workers count in, and zeros
// in dQ for rows that attend to nothing. Bound by memory: O and dO are read once, many rows at a
// time.
#ifndef ROTA_HOPPER_BACKWARD_PREPARE_CUH
#define ROTA_HOPPER_BACKWARD_PREPARE_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_shared.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

constexpr int kPrepareThreads = 128;
// Threads that share a row, rows at once, and rows of a thread.
constexpr int kRowLanes = power_of_two_from(kHeadDimV / kChunk);
constexpr int kRowsAtOnce = kPrepareThreads / kRowLanes;
constexpr int kRowSteps = (kTileQ + kRowsAtOnce - 1) / kRowsAtOnce;

// Past the end: +inf, so that P is 0; so for rows without a key.
ROTA_DEVICE float exponent_of_row(const RotaArguments &arguments, const RotaSequence &sequence,
                                  int q, int head) {
  const float lse = q < sequence.n_q ? *row_q<float>(arguments.lse, sequence, q, head) : -kInfinity;
  return lse == -kInfinity ? kInfinity : lse * kLog2E;
}

// What is added to the row's S; past the end and without a key so little that P is 0.
ROTA_DEVICE float term_of_row(const RotaArguments &arguments, const RotaSequence &sequence, int q,
                              int head) {
  const float lse = q < sequence.n_q ? *row_q<float>(arguments.lse, sequence, q, head) : -kInfinity;
  if (lse == -kInfinity)
    return copysignf(1e38f, -arguments.scale);
  return -lse * reciprocal_fast(arguments.scale);
}

// The sums over the lanes that share a row, of kRowSteps rows; lane l is left with that of row
// l / 2 in sums[0]. With each step lanes have half as many rows to add for.
ROTA_DEVICE void add_over_lanes(float (&sums)[kRowSteps], int lane) {
  static_assert(kRowSteps == larger(kRowLanes / 2, 1), "all rows find a lane");
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
    const int rows = larger(distance / 2, 1);
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < rows; i++) {
      const float low = sums[i], high = sums[distance > 1 ? i + rows : i];
      const float other = __shfl_xor_sync(kAllLanes, upper ? low : high, distance);
      sums[i] = (upper ? high : low) + other;
    }
  }
}

// One block per (query tile, query head).
ROTA_DEVICE void prepare(const RotaArguments &arguments, const RotaTensorMaps &) {
  launch_dependents();
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int first = row.q_tile * kTileQ, head = item.head, thread = (int)threadIdx.x;
  const int lane = thread % kRowLanes;
  const long long tile = query_tile_number(arguments, sequence, row.q_tile, head);
  const long long all = (long long)arguments.tiles * arguments.heads;

  // The tile's rows line, line + kRowsAtOnce ...: addresses by addition, since they would take more
  // time than the loads.
  const int line = thread / kRowLanes, left = sequence.n_q - first - line;
  const bool exists = line < kTileQ && lane < kHeadDimV / kChunk;
  const Element *at_o = row_q<Element>(arguments.o, sequence, first + line, head) + lane * kChunk;
  const Element *at_d_o =
      row_q<Element>(arguments.d_o, sequence, first + line, head) + lane * kChunk;
  Chunk o[kRowSteps], d_o[kRowSteps];
#pragma unroll
  for (int i = 0; i < kRowSteps; i++) {
    o[i] = d_o[i] = Chunk{{0, 0, 0, 0}};
    if (exists && i * kRowsAtOnce < left) {
      o[i] = load_global_chunk(at_o);
      d_o[i] = load_global_chunk(at_d_o);
    }
    at_o += kRowsAtOnce * arguments.o.stride_row;
    at_d_o += kRowsAtOnce * arguments.d_o.stride_row;
  }
  if (thread == 0) {
    arguments.counters[tile] = 0;
    if (blockIdx.x == 0)
      arguments.counters[all] = 0;
  }
  if (kRowTerms == 0 && thread < kTileQ)
    arguments.delta[(all + tile) * kTileQ + thread] =
        exponent_of_row(arguments, sequence, first + thread, head);
  if (row.run_begin == row.run_end)
    clear_dq_tile(arguments, sequence, first, head);
  if constexpr (kAtomic != 0) {
    const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 4 * thread; i < kDqFloats; i += 4 * kPrepareThreads)
      store_sum(arguments.dq_accumulator + tile * kDqFloats + i, zero);
  }
  // Whose sum this thread is left with.
  const int r = lane / 2 * kRowsAtOnce + line, q = first + r;
  const float term = kRowTerms != 0 ? term_of_row(arguments, sequence, q, head) : 0.0f;
  float sums[kRowSteps];
#pragma unroll
  for (int i = 0; i < kRowSteps; i++)
    sums[i] = chunk_product(o[i], d_o[i]);
  add_over_lanes(sums, lane);
  if (lane % 2 == 0 && r < kTileQ) {
    if (arguments.d_lse.data && q < sequence.n_q)
      sums[0] -= *row_q<float>(arguments.d_lse, sequence, q, head);
    if (kExact || !kRowTerms || arguments.sink) // who else asks for it
      arguments.delta[tile * kTileQ + r] = sums[0];
    if constexpr (kRowTerms != 0)
      store_global_chunk(arguments.delta + all * kTileQ + (tile * kTileQ + r) * 4,
                         RowTerms(term, -sums[0]).pieces);
  }
  if constexpr (kExact)
    store_factors<kRowLanes>(arguments, sequence, row.q_tile, head, o, d_o);
}

} // namespace rota

#endif
