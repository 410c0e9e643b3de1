// What the forward pass computes for `exact` with bound = "spread": sum_j P_j |V_j|^2 of every row,
// or somewhat more (docs/exact.md). One FMA for eight elements of P, since the largest |V_j|^2
// among keys whose P a thread adds up serves all of them: it only raises a bound.
//
//   value_squares   |V_j|^2 of all keys, once, into the workspace
//   loader          brings a kv tile's with its K
//   softmax         adds them up beside the sum of P, in fp32
//
// Of a kv tile, at [g][c]: the largest of columns 8 n + 2 c and the next in blocks
// kSquareBlocks g <= n < kSquareBlocks (g + 1), which lanes c, c + 4 .. of a warp hold.
#ifndef ROTA_HOPPER_FORWARD_SPREAD_CUH
#define ROTA_HOPPER_FORWARD_SPREAD_CUH

#include "templates/hopper/key_rows.cuh"
#include "templates/lib/fixed_point.cuh"
#include "templates/lib/hopper_softmax.cuh"
#include "templates/lib/order.cuh"

namespace rota {

constexpr int kSquareBlocks = 4, kSquareGroups = (kTileKv / 8 + kSquareBlocks - 1) / kSquareBlocks;
constexpr int kSquares = 4 * kSquareGroups; // of a kv tile and head

// Of a kv tile and head; those of the next tile lie kv_heads * kSquares floats further. Sequences
// begin at a tile of their own: generator/plan.c's squares_size counts the same way.
ROTA_DEVICE float *tile_squares(const RotaArguments &arguments, const RotaSequence &sequence,
                                int kv_tile, int kv_head) {
  const long long first = (long long)sequence.slot * sequence.kv_tiles +
                          sequence.begin_k / kTileKv + 2ll * sequence.batch;
  return arguments.delta + ((first + kv_tile) * arguments.kv_heads + kv_head) * kSquares;
}

// |V|^2 of a tile's rows; of a key that is not finite 0: it makes O of those that attend to it so,
// and no other may see it.
ROTA_DEVICE void find_squares(float *squares, const RotaArguments &arguments,
                              const RotaSequence &sequence, int tile, int kv_head) {
  using Values = KeyRows<kHeadDimV>;
  const Values v(arguments.v, sequence, tile * kTileKv, kv_head);
#pragma unroll
  for (int i = 0; i < Values::kSteps; i++) {
    const int key = i * Values::kAtOnce + (int)threadIdx.x / Values::kLanes;
    const float square = row_square<Values::kLanes>(v.x[i]);
    const bool counts = Values::counts(v.x[i]);
    if (Values::lane() == 0 && key < kTileKv)
      squares[key] = counts ? square : 0.0f;
  }
}

// One block per (query tile, heads of a tile): those of a sequence and kv head share its kv tiles.
ROTA_DEVICE void value_squares(const RotaArguments &arguments, const RotaTensorMaps &) {
  constexpr int kItems = kGroup / kPacked; // that share a query tile and a kv head
  __shared__ float squares[kTileKv];
  launch_dependents();
  wait_for_predecessor(); // the last run's kernel may still read what is written here
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int kv_head = item.head / kItems, thread = (int)threadIdx.x;
  for (int tile = row.q_tile * kItems + item.head % kItems; tile * kTileKv < sequence.n_k;
       tile += sequence.q_tiles * kItems) {
    find_squares(squares, arguments, sequence, tile, kv_head);
    __syncthreads();
    if (thread < kSquares) {
      const int begin = thread / 4 * kSquareBlocks * 8,
                end = smaller(begin + 8 * kSquareBlocks, kTileKv);
      float largest = 0.0f;
      for (int key = begin + thread % 4 * 2; key < end; key += 8)
        largest = maximum(largest, maximum(squares[key], squares[key + 1]));
      tile_squares(arguments, sequence, tile, kv_head)[thread] = largest;
    }
    __syncthreads();
  }
}

// A softmax without squares.
template <int kWeighs> struct ForwardSoftmax : WarpgroupSoftmax {
  struct Weights {
    ROTA_DEVICE explicit Weights(unsigned = 0) {}
  };
  template <int kFrom, int kTo, int kCount>
  ROTA_DEVICE void probabilities(float (&s)[kCount], float factor, const Weights &) {
    WarpgroupSoftmax::probabilities<kFrom, kTo>(s, factor);
  }
  ROTA_DEVICE float mean_square(int, float) const { return 0.0f; }
};
template <> struct ForwardSoftmax<1> : WarpgroupSoftmax {
  float square[2] = {0.0f, 0.0f}; // sum of P |V|^2 of this lane's columns, relative to peak

  // This lane's of a tile's squares, which lie in shared memory.
  struct Weights {
    float of[kSquareGroups];
    ROTA_DEVICE Weights() {}
    ROTA_DEVICE explicit Weights(unsigned from) {
#pragma unroll
      for (int g = 0; g < kSquareGroups; g++)
        of[g] = __uint_as_float(load_shared_word(from + (unsigned)(16 * g + lane_index() % 4 * 4)));
    }
  };

  template <bool kLooksFirst, int kCount>
  ROTA_DEVICE bool raise(const float (&s)[kCount], float factor, float (&rescale)[2]) {
    const bool raised = WarpgroupSoftmax::raise<kLooksFirst>(s, factor, rescale);
    if (raised) {
      square[0] *= rescale[0];
      square[1] *= rescale[1];
    }
    return raised;
  }
  template <bool kLooksFirst, int kCount, class Rescale>
  ROTA_DEVICE void raise_and_rescale(const float (&s)[kCount], float factor, Rescale rescale_rows) {
    WarpgroupSoftmax::raise_and_rescale<kLooksFirst>(s, factor, [&](const float(&rescale)[2]) {
      square[0] *= rescale[0];
      square[1] *= rescale[1];
      rescale_rows(rescale);
    });
  }
  template <int kFrom, int kTo, int kCount>
  ROTA_DEVICE void probabilities(float (&s)[kCount], float factor, const Weights &weights) {
    constexpr int kStep = 4 * kSquareBlocks; // accumulators
    static_assert(kFrom % kStep == 0 && (kTo % kStep == 0 || kTo == kCount), "whole groups");
#pragma unroll
    for (int g = kFrom / kStep; g < (kTo + kStep - 1) / kStep; g++) {
      float part[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = kStep * g; i < smaller(kStep * (g + 1), kCount); i += 2) {
        const int r = i / 2 % 2;
        s[i] = exp2_fast(__fmaf_rn(s[i], factor, -peak[r]));
        s[i + 1] = exp2_fast(__fmaf_rn(s[i + 1], factor, -peak[r]));
        part[r] += s[i] + s[i + 1];
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        sum[r] += part[r];
        square[r] = __fmaf_rn(part[r], weights.of[g], square[r]);
      }
    }
  }
  // scale: as finish() gives it.
  ROTA_DEVICE float mean_square(int r, float scale) const {
    const float all = quad_sum(square[r]);
    return scale == 0.0f ? 0.0f : all * scale;
  }
};

} // namespace rota

#endif
