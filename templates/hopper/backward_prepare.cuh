// What the chains need of every query row: delta = rowsum(dO * O) - dLSE, and LSE as the exponent
// of a power of two or a term of S; the reset of what the workers count in, and zeros in dQ for
// rows that attend to nothing. Bound by memory: O and dO are read once, many rows at a time.
//
// Under `ordered` that happens beside the first chains. A few blocks, of as many multiprocessors,
// take query tiles in turn and tell when one is done: its rank counter, negative until then, is 0.
// The workers on the other multiprocessors start at once, those on these when the block there has
// ended. Under `atomic` and `exact`, which clear sums and bounds as well, it is a launch ahead of
// the chains.
#ifndef ROTA_HOPPER_BACKWARD_PREPARE_CUH
#define ROTA_HOPPER_BACKWARD_PREPARE_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_shared.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

// LSE as the products take it: what is added to the row's S; past the end and without a key (-inf)
// so little that P is 0. Or as the exponent of a power of two.
ROTA_DEVICE float lse_word(const RotaArguments &arguments, float lse) {
  if (!kRowTerms)
    return lse == -kInfinity ? kInfinity : lse * kLog2E;
  return lse == -kInfinity ? copysignf(1e38f, -arguments.scale)
                           : -lse * reciprocal_fast(arguments.scale);
}
// Row r of a query tile.
ROTA_DEVICE void store_row_words(const RotaArguments &arguments, long long tile, int r, float delta,
                                 float lse) {
  const long long all = (long long)arguments.tiles * arguments.heads;
  if (kExact || !kRowTerms || arguments.sink) // who else asks for it
    arguments.delta[tile * kTileQ + r] = delta;
  if constexpr (kRowTerms != 0)
    store_global_chunk(arguments.delta + all * kTileQ + (tile * kTileQ + r) * 4,
                       RowTerms(lse_word(arguments, lse), -delta).pieces);
  else
    arguments.delta[(all + tile) * kTileQ + r] = lse_word(arguments, lse);
}

// ---- Ahead of the chains ----

constexpr int kPrepareThreads = 128;
// Threads that share a row, rows at once, and rows of a thread.
constexpr int kRowLanes = power_of_two_from(kHeadDimV / kChunk);
constexpr int kRowsAtOnce = kPrepareThreads / kRowLanes;
constexpr int kRowSteps = (kTileQ + kRowsAtOnce - 1) / kRowsAtOnce;

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
ROTA_DEVICE void prepare_tile(const RotaArguments &arguments) {
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
  if (row.run_begin == row.run_end)
    clear_dq_tile(arguments, sequence, first, head, thread, kPrepareThreads);
  if constexpr (kAtomic != 0) {
    const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 4 * thread; i < kDqFloats; i += 4 * kPrepareThreads)
      store_sum(arguments.dq_accumulator + tile * kDqFloats + i, zero);
  }
  // Whose sum this thread is left with.
  const int r = lane / 2 * kRowsAtOnce + line, q = first + r;
  const bool is_row = q < sequence.n_q;
  const float lse = is_row ? *row_q<float>(arguments.lse, sequence, q, head) : -kInfinity;
  float sums[kRowSteps];
#pragma unroll
  for (int i = 0; i < kRowSteps; i++)
    sums[i] = chunk_product(o[i], d_o[i]);
  add_over_lanes(sums, lane);
  if (lane % 2 == 0 && r < kTileQ) {
    if (arguments.d_lse.data && is_row)
      sums[0] -= *row_q<float>(arguments.d_lse, sequence, q, head);
    store_row_words(arguments, tile, r, sums[0], lse);
  }
  if constexpr (kExact)
    store_factors<kRowLanes>(arguments, sequence, row.q_tile, head, o, d_o);
}

// ---- Beside the first chains ----

constexpr int kPreparerThreads = 512, kTileWarps = kTileQ / 16; // that share a query tile
constexpr int kTilesAtOnce = kPreparerThreads / kWarp / kTileWarps;

// Where a lane finds its share of a warp's 16 rows of a query tile: lane 4 r + t has chunks t,
// t + 4 ... of rows r and r + 8. On the way dQ is cleared where no key contributes to the tile.
struct RowPlace {
  static constexpr int kChunks = (kHeadDimV / kChunk + 3) / 4;
  const Element *o, *d_o;
  const float *lse, *d_lse;
  int left; // rows of the sequence from the lane's first one on; none: 0 or less

  ROTA_DEVICE RowPlace(const RotaArguments &arguments, const RotaItem &item, bool exists)
      : left(0) {
    if (!exists)
      return;
    const RotaRow row = arguments.rows[item.index];
    const RotaSequence &sequence = arguments.sequences[row.sequence];
    const int lane = lane_index(), warp = (int)threadIdx.x / kWarp % kTileWarps;
    const int q = row.q_tile * kTileQ + 16 * warp + lane / 4;
    o = row_q<Element>(arguments.o, sequence, q, item.head) + lane % 4 * kChunk;
    d_o = row_q<Element>(arguments.d_o, sequence, q, item.head) + lane % 4 * kChunk;
    lse = row_q<float>(arguments.lse, sequence, q, item.head);
    if (arguments.d_lse.data)
      d_lse = row_q<float>(arguments.d_lse, sequence, q, item.head);
    left = sequence.n_q - q;
    if (row.run_begin == row.run_end)
      clear_dq_tile(arguments, sequence, row.q_tile * kTileQ, item.head, kWarp * warp + lane,
                    kTileWarps * kWarp);
  }
};

// The tiles' numbers, which are those of row items, that a warp's block takes.
struct TileTurns {
  unsigned tile, step, end;
  ROTA_DEVICE TileTurns(const RotaArguments &arguments, unsigned first)
      : tile(blockIdx.x * kTilesAtOnce + first), step(gridDim.x * kTilesAtOnce),
        end((unsigned)arguments.row_item_count) {}
  ROTA_DEVICE bool exists(unsigned turn) const { return tile + turn * step < end; }
  // Of a later turn.
  ROTA_DEVICE RotaItem item(const RotaArguments &arguments, unsigned turn) const {
    return exists(turn) ? arguments.row_items[tile + turn * step] : RotaItem{0, 0};
  }
};

// What workers look at, before any starts: each word is reset by the block that will set it.
// Without wait_for_predecessor they see that by the fence here, and since they read these words
// with acquire or atomically alone.
ROTA_DEVICE void reset_counters(const RotaArguments &arguments) {
  TileTurns turns(arguments, threadIdx.x % kTilesAtOnce);
  for (unsigned turn = threadIdx.x / kTilesAtOnce; turns.exists(turn);
       turn += kPreparerThreads / kTilesAtOnce)
    arguments.counters[turns.tile + turn * turns.step] = -kTileWarps;
  if (threadIdx.x == 0) {
    *prepared_flag(arguments, (int)blockIdx.x) = 0;
    if (blockIdx.x == 0)
      *ticket_counter(arguments) = 0;
  }
  __threadfence();
  __syncthreads();
  launch_dependents();
}

// rowsum(dO * O) of rows r and r + 8, on the diagonals of products of 16 rows of O with 8 of dO; in
// the lanes with t = r / 2.
template <int kChunks>
ROTA_DEVICE void row_products(const Chunk (&o)[2][kChunks], const Chunk (&d_o)[2][kChunks],
                              float (&sums)[2]) {
  float low[4] = {}, high[4] = {};
#pragma unroll
  for (int i = 0; i < kChunks; i++)
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const unsigned a[4] = {o[0][i].word[j], o[1][i].word[j], o[0][i].word[j + 1],
                             o[1][i].word[j + 1]};
      const unsigned b[2] = {d_o[0][i].word[j], d_o[0][i].word[j + 1]};
      const unsigned c[2] = {d_o[1][i].word[j], d_o[1][i].word[j + 1]};
      mma_m16n8k16(low, a, b);
      mma_m16n8k16(high, a, c);
    }
  const bool odd = lane_index() / 4 % 2 != 0;
  sums[0] = odd ? low[1] : low[0];
  sums[1] = odd ? high[3] : high[2];
}

// A block that takes tiles in turn. While O and dO of one come, the tables are asked where the next
// one lies, and for the one after that.
ROTA_DEVICE void prepare_in_turn(const RotaArguments &arguments) {
  reset_counters(arguments);
  constexpr int kChunks = RowPlace::kChunks;
  const int lane = lane_index(), warp = (int)threadIdx.x / kWarp, row = lane / 4;
  TileTurns turns(arguments, (unsigned)(warp / kTileWarps));
  RowPlace next(arguments, turns.item(arguments, 0), turns.exists(0));
  RotaItem item = turns.item(arguments, 1);
#pragma unroll 1
  for (; turns.exists(0); turns.tile += turns.step) {
    const RowPlace at = next;
    Chunk o[2][kChunks], d_o[2][kChunks];
    float lse[2], sums[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const bool exists = at.left > 8 * r;
      lse[r] = exists ? at.lse[8 * r * arguments.lse.stride_row] : -kInfinity;
#pragma unroll
      for (int i = 0; i < kChunks; i++) {
        o[r][i] = d_o[r][i] = Chunk{{0, 0, 0, 0}};
        if (exists && 4 * i + lane % 4 < kHeadDimV / kChunk) {
          const long long columns = 4 * i * kChunk;
          o[r][i] = load_global_chunk_once(at.o + 8 * r * arguments.o.stride_row + columns);
          d_o[r][i] = load_global_chunk_once(at.d_o + 8 * r * arguments.d_o.stride_row + columns);
        }
      }
    }
    const RotaItem after = turns.item(arguments, 2);
    next = RowPlace(arguments, item, turns.exists(1));
    item = after;
    row_products(o, d_o, sums);
    if (lane % 4 == row / 2)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (arguments.d_lse.data && at.left > 8 * r)
          sums[r] -= at.d_lse[8 * r * arguments.d_lse.stride_row];
        store_row_words(arguments, turns.tile, 16 * (warp % kTileWarps) + row + 8 * r, sums[r],
                        lse[r]);
      }
    __syncwarp();
    if (lane == 0) {
      fence_global_for_engines();
      add_release(arguments.counters + turns.tile, 1);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0)
    add_release(prepared_flag(arguments, (int)blockIdx.x), 1);
}

ROTA_DEVICE void prepare(const RotaArguments &arguments, const RotaTensorMaps &) {
  if constexpr (kOrdered)
    prepare_in_turn(arguments);
  else
    prepare_tile(arguments);
}

} // namespace rota

#endif
