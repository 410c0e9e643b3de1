// What the forward pass computes for `exact` with bound = "spread": sum_j P_j |V_j|^2 of every row
// (docs/exact.md). One FMA for two elements of P, since the larger |V_j|^2 of two keys whose P a
// thread holds side by side serves both: it only raises a bound.
//
//   value_squares   |V_j|^2 of all keys, once, into the workspace
//   loader          brings a kv tile's with its K
//   softmax         adds them up beside the sum of P, in fp32
//
// Of a kv tile, at [c][n]: the larger of columns 8 n + 2 c and the next, which lanes c, c + 4 ..
// of a warp hold of block n.
#ifndef ROTA_HOPPER_FORWARD_SPREAD_CUH
#define ROTA_HOPPER_FORWARD_SPREAD_CUH

#include "templates/hopper/key_rows.cuh"
#include "templates/lib/fixed_point.cuh"
#include "templates/lib/hopper_softmax.cuh"

namespace rota {

constexpr int kSquarePitch = round_up(kTileKv / 8, 4), kSquares = 4 * kSquarePitch;

// Of a kv tile and head; those of the next tile lie kv_heads * kSquares floats further. Sequences
// begin at a tile of their own: generator/plan.c's squares_size counts the same way.
ROTA_DEVICE float *tile_squares(const RotaArguments &arguments, const RotaSequence &sequence,
                                int kv_tile, int kv_head) {
  const long long first = (long long)sequence.slot * sequence.kv_tiles +
                          sequence.begin_k / kTileKv + 2ll * sequence.batch;
  return arguments.delta + ((first + kv_tile) * arguments.kv_heads + kv_head) * kSquares;
}

// One block per (query tile, heads of a tile): those of a sequence and kv head share its kv tiles.
ROTA_DEVICE void value_squares(const RotaArguments &arguments, const RotaTensorMaps &) {
  using Values = KeyRows<kHeadDimV>;
  constexpr int kItems = kGroup / kPacked; // that share a query tile and a kv head
  launch_dependents();
  wait_for_predecessor(); // the last run's kernel may still read what is written here
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int kv_head = item.head / kItems;
  for (int tile = row.q_tile * kItems + item.head % kItems; tile * kTileKv < sequence.n_k;
       tile += sequence.q_tiles * kItems) {
    const Values v(arguments.v, sequence, tile * kTileKv, kv_head);
    float *to = tile_squares(arguments, sequence, tile, kv_head);
#pragma unroll
    for (int i = 0; i < Values::kSteps; i++) {
      const int key = i * Values::kAtOnce + (int)threadIdx.x / Values::kLanes;
      // A key that is not finite makes O of those that attend to it so, and no other may see it.
      const float row = row_square<Values::kLanes>(v.x[i]);
      const float sum = Values::counts(v.x[i]) ? row : 0.0f;
      const float larger = maximum(sum, __shfl_xor_sync(kAllLanes, sum, Values::kLanes));
      if (Values::lane() == 0 && key % 2 == 0 && key < kTileKv)
        to[key / 2 % 4 * kSquarePitch + key / 8] = larger;
    }
  }
}

// Without squares.
template <int kWeighs> struct ForwardSoftmax : WarpgroupSoftmax {
  template <int kCount> ROTA_DEVICE void probabilities(float (&s)[kCount], float factor, unsigned) {
    WarpgroupSoftmax::probabilities(s, factor);
  }
  ROTA_DEVICE float mean_square(int, float) const { return 0.0f; }
};
template <> struct ForwardSoftmax<1> : WarpgroupSoftmax {
  float square[2] = {0.0f, 0.0f}; // sum of P |V|^2 of this lane's columns, relative to peak

  template <int kCount>
  ROTA_DEVICE bool raise(const float (&s)[kCount], float factor, float (&rescale)[2]) {
    const bool raised = WarpgroupSoftmax::raise(s, factor, rescale);
    if (raised) {
      square[0] *= rescale[0];
      square[1] *= rescale[1];
    }
    return raised;
  }
  // `weights`: the tile's squares in shared memory.
  template <int kCount>
  ROTA_DEVICE void probabilities(float (&s)[kCount], float factor, unsigned weights) {
    const unsigned from = weights + (unsigned)(lane_index() % 4 * kSquarePitch * 4);
#pragma unroll
    for (int n = 0; n < kCount / 4; n += 4) {
      const Chunk weight = load_shared_chunk(from + 4u * (unsigned)n);
#pragma unroll
      for (int i = 2 * n; i < smaller(2 * n + 8, kCount / 2); i++) {
        const int r = i % 2;
        float &low = s[2 * i], &high = s[2 * i + 1];
        low = exp2_fast(__fmaf_rn(low, factor, -peak[r]));
        high = exp2_fast(__fmaf_rn(high, factor, -peak[r]));
        const float both = low + high;
        sum[r] += both;
        square[r] = __fmaf_rn(both, __uint_as_float(weight.word[i / 2 % 4]), square[r]);
      }
    }
  }
  // scale: as finish() gives it.
  ROTA_DEVICE float mean_square(int r, float scale) const {
    const float sum = quad_sum(square[r]);
    return scale == 0.0f ? 0.0f : sum * scale;
  }
};

} // namespace rota

#endif
