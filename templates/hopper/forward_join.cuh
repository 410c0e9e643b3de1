// Joins the pieces of rows that were cut, after forward.cuh: a warp for each row of the tile, or
// for a few together where there are few pieces, so that enough loads are under way.
//
//   weight_p = exp(LSE_p - peak)    O = sum weight_p O_p / (sum weight_p + sink's)    p ascending
//
// Which kv tiles make a piece follows from the sequence alone, and so do the bits of the result.
#ifndef ROTA_HOPPER_FORWARD_JOIN_CUH
#define ROTA_HOPPER_FORWARD_JOIN_CUH

#include "spec.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "templates/lib/tensor_copy.cuh"
#include "tiling.cuh"

namespace rota {

// What a piece weighs, and the end of a row, of which `total` is the sum of weights: LSE, and the
// factor of weights. The same wherever pieces are joined, and so are the bits.
ROTA_DEVICE float piece_weight(float lse, float peak) {
  return exp2_fast((lse - peak) * kLog2E);
}
// Of the largest of LSE and the sink's: NaN stays NaN, and -inf weighs 0.
ROTA_DEVICE float join_peak(float largest) {
  return largest == -kInfinity ? 0.0f : largest;
}
struct JoinedRow {
  float scale, lse;
  ROTA_DEVICE JoinedRow(float total, float sink, float peak) {
    const float all = total + exp2_fast((sink - peak) * kLog2E);
    const bool empty = total == 0.0f; // as OnlineSoftmax::finish has it
    scale = empty ? 0.0f : reciprocal_fast(all);
    lse = empty ? sink : __fmaf_rn(log2_fast(all), kLn2, peak);
  }
};

struct ForwardJoin {
  static constexpr int kAtOnce = 8;         // pieces whose loads are under way together
  static constexpr int kAcross = 4 * kWarp; // columns: four of each lane
  static constexpr int kSteps = round_up(kHeadDimV, kAcross) / kAcross;

  const float *const lse, *const o; // of piece 0; o: the lane's first column
  const int rows, pieces;           // from a piece's to the next one's; how many

  ROTA_DEVICE ForwardJoin(const RotaArguments &arguments, const RotaJoin &join, int row)
      : lse(arguments.partial_lse + (join.partial + row)),
        o(arguments.partials + (long long)(join.partial + row) * kHeadDimV + 4 * lane_index()),
        rows(join.rows), pieces(join.pieces) {}

  // LSE of the lane's piece among those from `first` on; -inf beyond them.
  ROTA_DEVICE float load_lse(int first) const {
    const int piece = first + lane_index();
    return piece < pieces ? lse[(long long)piece * rows] : -kInfinity;
  }
  ROTA_DEVICE float find_peak(float first_lse) const {
    float peak = first_lse;
#pragma unroll 1
    for (int first = kWarp; first < pieces; first += kWarp)
      peak = maximum(peak, load_lse(first));
    return warp_maximum(peak);
  }
  // The sum of weights, in the order of the pieces.
  ROTA_DEVICE float add_weights(float first_lse, float peak) const {
    float total = 0.0f, weight = piece_weight(first_lse, peak);
#pragma unroll 1
    for (int piece = 0; piece < pieces; piece++) {
      if (piece % kWarp == 0 && piece > 0)
        weight = piece_weight(load_lse(piece), peak);
      total += __shfl_sync(kAllLanes, weight, piece % kWarp);
    }
    return total;
  }
  // O of pieces [first, first + kAtOnce), as far as there are such; from: of the first one.
  using Chunks = Chunk[kAtOnce][kSteps];
  ROTA_DEVICE void load_pieces(Chunks &x, int first, const float *from) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++, from += (long long)rows * kHeadDimV)
      if (first + i < pieces)
#pragma unroll
        for (int step = 0; step < kSteps; step++)
          if (step == 0 || step * kAcross + 4 * lane_index() < kHeadDimV)
            x[i][step] = load_global_chunk(from + step * kAcross);
  }
  // Adds them; the lanes hold the weights of kWarp pieces, the first one's lane `lane`.
  ROTA_DEVICE void add_pieces(float (&sum)[kSteps][4], const Chunks &x, int first, int lane,
                              float weight) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const float w = __shfl_sync(kAllLanes, weight, lane + i);
      if (first + i < pieces)
#pragma unroll
        for (int step = 0; step < kSteps; step++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            sum[step][j] = __fmaf_rn(w, __uint_as_float(x[i][step].word[j]), sum[step][j]);
    }
  }
  ROTA_DEVICE void store(const float (&sum)[kSteps][4], Element *to) const {
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int column = step * kAcross + 4 * lane_index();
      if (column < kHeadDimV)
        store_global_words(to + column, pack(sum[step][0], sum[step][1], Element()),
                           pack(sum[step][2], sum[step][3], Element()));
    }
  }
  // sink: of the row's head, -inf without.
  ROTA_DEVICE void run(float sink, Element *to_o, float *to_lse) const {
    float own = load_lse(0), sum[kSteps][4] = {}, peak = 0.0f, scale = 0.0f;
#pragma unroll 1
    for (int first = 0; first < pieces; first += kAtOnce) {
      Chunks x; // the first ones are waited for together with LSE
      load_pieces(x, first, o + (long long)first * rows * kHeadDimV);
      if (first == 0) {
        peak = join_peak(maximum(find_peak(own), sink));
        const JoinedRow joined(add_weights(own, peak), sink, peak);
        scale = joined.scale;
        if (lane_index() == 0)
          *to_lse = joined.lse;
      } else if (first % kWarp == 0) {
        own = load_lse(first);
      }
      add_pieces(sum, x, first, first % kWarp, piece_weight(own, peak) * scale);
    }
    store(sum, to_o);
  }
};

// A block joins kJoinRows rows.
ROTA_DEVICE void forward_join(const RotaArguments &arguments, const RotaTensorMaps &) {
  launch_dependents(); // they wait for this kernel's end before they read or write
  // All that is no result of a kernel before is found while that one runs.
  const RotaJoin join = arguments.joins[blockIdx.x];
  const RotaRow row = arguments.rows[join.row];
  const RotaSequence &sequence = arguments.sequences[row.sequence];
  const int at = join.first + warp_index();
  const int query = row.q_tile * kTileQ + at / kPacked, head = join.head * kPacked + at % kPacked;
  const int slot = sequence.slot, n_q = sequence.n_q;
  const long long place = sequence.begin_q + query;
  Element *const to_o = element_at<Element>(arguments.o, slot, place, head);
  float *const to_lse = element_at<float>(arguments.lse, slot, place, head);
  const ForwardJoin pieces(arguments, join, at);
  wait_for_predecessor(); // all blocks do: who waits for this kernel waits for that one, too
  if (at >= join.rows)
    return;
  const float sink = kSinkLogit && query < n_q ? arguments.sink[head] : -kInfinity;
  pieces.run(sink, to_o, to_lse);
}

} // namespace rota

#endif
