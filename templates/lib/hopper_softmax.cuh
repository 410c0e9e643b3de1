// Softmax over a row's keys, tile by tile, for the two rows of a thread in a warpgroup's 64 x n
// accumulators (warpgroup.cuh). The same method as softmax.cuh: lazy peaks, exp2 with the scale
// folded in. What differs: O may still be growing when a tile's peak rises, so that its factors
// are handed out and applied later.
#ifndef ROTA_LIB_HOPPER_SOFTMAX_CUH
#define ROTA_LIB_HOPPER_SOFTMAX_CUH

#include "templates/lib/softmax.cuh"

namespace rota {

struct WarpgroupSoftmax {
  float peak[2]; // at most kSlack below the largest factor * s so far; finite
  float sum[2];  // of the probabilities of this lane's columns, relative to peak

  ROTA_DEVICE WarpgroupSoftmax() : peak{kLowest, kLowest}, sum{0.0f, 0.0f} {}

  // The largest s of row r among this lane's columns of a tile. Two chains, as the latency of one
  // would show.
  template <int kCount> ROTA_DEVICE static float find_top(const float (&s)[kCount], int r) {
    float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      even = maximum(even, s[i + 2 * r]);
      odd = maximum(odd, s[i + 2 * r + 1]);
    }
    return maximum(even, odd);
  }

  // Raises the peaks that a tile leaves behind and the sums with them. Returns whether any row of
  // the warp did; then O must be multiplied by rescale before the tile's P V.
  template <int kCount>
  ROTA_DEVICE bool raise(const float (&s)[kCount], float factor, float (&rescale)[2]) {
    const float top[2] = {find_top(s, 0), find_top(s, 1)};
    const bool beyond = __fmaf_rn(top[0], factor, -peak[0]) > kSlack ||
                        __fmaf_rn(top[1], factor, -peak[1]) > kSlack;
    if (!__any_sync(kAllLanes, beyond))
      return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float row_top = quad_maximum(top[r]);
      const bool up = __fmaf_rn(row_top, factor, -peak[r]) > kSlack;
      const float next = up ? row_top * factor : peak[r];
      rescale[r] = exp2_fast(peak[r] - next); // exactly 1 where nothing changes
      sum[r] *= rescale[r];
      peak[r] = next;
    }
    return true;
  }
  template <int kCount>
  ROTA_DEVICE static void multiply_rows(float (&o)[kCount], const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      o[i] *= rescale[i / 2 % 2];
  }

  // s becomes its probabilities, which are added to the sums.
  template <int kCount> ROTA_DEVICE void probabilities(float (&s)[kCount], float factor) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int r = i / 2 % 2;
      s[i] = exp2_fast(__fmaf_rn(s[i], factor, -peak[r]));
      s[i + 1] = exp2_fast(__fmaf_rn(s[i + 1], factor, -peak[r]));
      sum[r] += s[i] + s[i + 1];
    }
  }

  // Closes row r, as OnlineSoftmax does.
  template <bool kSink> ROTA_DEVICE SoftmaxRow finish(int r, float sink) const {
    OnlineSoftmax<1> row;
    row.peak[0][0] = peak[r];
    row.sum[0][0] = sum[r];
    return row.template finish<kSink>(0, 0, sink);
  }
};

// The probabilities of a tile as A operands, one for each 16 columns.
template <int kCount, class Element>
ROTA_DEVICE void pack_probabilities(unsigned (&p)[kCount / 8][4], const float (&s)[kCount],
                                    Element element) {
#pragma unroll
  for (int i = 0; i < kCount / 2; i++)
    p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1], element);
}

} // namespace rota

#endif
