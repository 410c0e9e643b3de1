// Joins the pieces of rows that were cut, after forward.cuh: a warp for each row of the tile.
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

struct ForwardJoin {
  static constexpr int kAtOnce = 8;         // pieces whose loads are under way together
  static constexpr int kAcross = 4 * kWarp; // columns: four of each lane
  static constexpr int kSteps = round_up(kHeadDimV, kAcross) / kAcross;

  const RotaArguments &arguments;
  const RotaJoin join;
  const int partial; // the row among its piece's partials, of piece 0

  ROTA_DEVICE ForwardJoin(const RotaArguments &arguments, const RotaJoin &join, int row)
      : arguments(arguments), join(join), partial(join.partial + row) {}

  ROTA_DEVICE long long partial_row(int piece) const {
    return partial + (long long)piece * join.rows;
  }
  // The largest LSE of the pieces, but for NaN; -inf where no key is allowed.
  ROTA_DEVICE float find_peak() const {
    float peak = -kInfinity;
    for (int piece = lane_index(); piece < join.pieces; piece += kWarp)
      peak = maximum(peak, arguments.partial_lse[partial_row(piece)]);
    return warp_maximum(peak);
  }
  // Adds pieces [begin, begin + kAtOnce) of those `count` whose weights the lanes hold; beyond
  // them the last one stands in, without weight.
  ROTA_DEVICE void add_pieces(float (&o)[kSteps][4], int first, int begin, int count,
                              float weight) const {
    Chunk x[kAtOnce][kSteps];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++)
#pragma unroll
      for (int step = 0; step < kSteps; step++) {
        const int column = smaller(step * kAcross + 4 * lane_index(), kHeadDimV - 4);
        x[i][step] = load_global_chunk(
            arguments.partials + partial_row(first + smaller(begin + i, count - 1)) * kHeadDimV +
            column);
      }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const float w = __shfl_sync(kAllLanes, weight, smaller(begin + i, kWarp - 1));
      if (begin + i < count)
#pragma unroll
        for (int step = 0; step < kSteps; step++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            o[step][j] = __fmaf_rn(w, __uint_as_float(x[i][step].word[j]), o[step][j]);
    }
  }
  ROTA_DEVICE void store(const float (&o)[kSteps][4], float scale, Element *to) const {
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      const int column = step * kAcross + 4 * lane_index();
      if (column < kHeadDimV)
        store_global_words(to + column, pack(o[step][0] * scale, o[step][1] * scale, Element()),
                           pack(o[step][2] * scale, o[step][3] * scale, Element()));
    }
  }
  ROTA_DEVICE void run(const RotaSequence &sequence, int query, int head) const {
    const float sink = kSinkLogit && query < sequence.n_q ? arguments.sink[head] : -kInfinity;
    const float largest = maximum(find_peak(), sink);
    const float peak = largest == -kInfinity ? 0.0f : largest; // NaN stays NaN, -inf weighs 0
    float o[kSteps][4] = {}, total = 0.0f;
    for (int first = 0; first < join.pieces; first += kWarp) {
      const int count = smaller(join.pieces - first, kWarp);
      float weight = 0.0f;
      if (lane_index() < count)
        weight =
            exp2_fast((arguments.partial_lse[partial_row(first + lane_index())] - peak) * kLog2E);
      total += warp_sum(weight);
      for (int begin = 0; begin < count; begin += kAtOnce)
        add_pieces(o, first, begin, count, weight);
    }
    const float all = total + exp2_fast((sink - peak) * kLog2E);
    const bool empty = total == 0.0f; // as OnlineSoftmax::finish has it
    const long long row = sequence.begin_q + query;
    store(o, empty ? 0.0f : reciprocal_fast(all),
          element_at<Element>(arguments.o, sequence.slot, row, head));
    if (lane_index() == 0)
      *element_at<float>(arguments.lse, sequence.slot, row, head) =
          empty ? sink : peak + log2_fast(all) * kLn2;
  }
};

// A block joins kJoinRows rows.
ROTA_DEVICE void forward_join(const RotaArguments &arguments, const RotaTensorMaps &) {
  launch_dependents(); // they wait for this kernel's end before they read or write
  const RotaJoin join = arguments.joins[blockIdx.x];
  const RotaRow row = arguments.rows[join.row];
  const RotaSequence &sequence = arguments.sequences[row.sequence];
  const int at = join.first + warp_index();
  const int query = row.q_tile * kTileQ + at / kPacked;
  wait_for_predecessor(); // all blocks do: who waits for this kernel waits for that one, too
  if (at < join.rows)
    ForwardJoin(arguments, join, at).run(sequence, query, join.head * kPacked + at % kPacked);
}

} // namespace rota

#endif
