// Softmax over a row's keys, tile by tile, for the rows of one warp's accumulators.
//
// Probabilities are exp2(factor * s - peak) with factor = softmax scale * log2 e (or log2 e where a
// score function has already scaled): one multiply-add and one exp2 per element. The peak follows
// the row's maximum lazily: only when it is left behind by more than kSlack do O and the sum move,
// since any peak gives the same quotient as long as nothing overflows. So on most tiles no lane
// waits for another's maximum.
#ifndef ROTA_LIB_SOFTMAX_CUH
#define ROTA_LIB_SOFTMAX_CUH

#include "templates/lib/types.cuh"

namespace rota {

// In powers of two: probabilities stay below 2^8, far from fp16's largest number.
inline constexpr float kSlack = 8.0f;

// What is known of a finished row.
struct SoftmaxRow {
  float scale; // of its accumulated P V
  float lse;   // natural logarithm of the sum of exponentials
};

// Rows g and g + 8 of kM blocks of 16 (see matrix.cuh).
template <int kM> struct OnlineSoftmax {
  // At most kSlack below the largest factor * s so far. Not clamped at 0; it starts at a finite
  // number below every score, so that a forbidden element (-inf) gets probability 0 and not NaN
  // while no key is allowed.
  float peak[kM][2];
  float sum[kM][2]; // of the probabilities of this lane's columns, relative to peak

  ROTA_DEVICE OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        peak[m][r] = kLowest;
        sum[m][r] = 0.0f;
      }
  }

  // The largest s of each row among this lane's columns of a tile.
  template <int kN>
  ROTA_DEVICE static void find_top(const float (&s)[kM][kN][4], float (&top)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        top[m][r] = maximum(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < kN; n++)
          top[m][r] = maximum(top[m][r], maximum(s[m][n][2 * r], s[m][n][2 * r + 1]));
      }
  }

  // Before a tile with these tops: raises the peaks that need it, and o and the sums with them. A
  // row's peak depends on that row alone.
  template <int kO>
  ROTA_DEVICE void raise(const float (&top)[kM][2], float (&o)[kM][kO][4], float factor) {
    bool beyond = false;
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        beyond |= __fmaf_rn(top[m][r], factor, -peak[m][r]) > kSlack;
    if (!__any_sync(kAllLanes, beyond))
      return;
#pragma unroll
    for (int m = 0; m < kM; m++) {
      float rescale[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float row_top = quad_maximum(top[m][r]);
        const bool up = __fmaf_rn(row_top, factor, -peak[m][r]) > kSlack;
        const float next = up ? row_top * factor : peak[m][r];
        rescale[r] = exp2_fast(peak[m][r] - next); // exactly 1 where nothing changes
        sum[m][r] *= rescale[r];
        peak[m][r] = next;
      }
#pragma unroll
      for (int n = 0; n < kO; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          o[m][n][i] *= rescale[i / 2];
    }
  }

  // The probabilities of 16 columns, rounded to Element, as the A operand of k block `block` of
  // P V; adds them to the sums.
  template <int kN, class Element>
  ROTA_DEVICE void probabilities(unsigned (&p)[kM][4], const float (&s)[kM][kN][4], int block,
                                 float factor, Element element) {
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float(&from)[4] = s[m][2 * block + i / 2];
        const int r = i % 2;
        const float x = exp2_fast(__fmaf_rn(from[2 * r], factor, -peak[m][r]));
        const float y = exp2_fast(__fmaf_rn(from[2 * r + 1], factor, -peak[m][r]));
        sum[m][r] += x + y;
        p[m][i] = pack(x, y, element);
      }
  }

  // Closes row r of block m; a sink logit (kSink) takes part in maximum and denominator. Without
  // an allowed key: scale 0 and lse -inf or the sink logit.
  template <bool kSink> ROTA_DEVICE SoftmaxRow finish(int m, int r, float sink) {
    const float total = quad_sum(sum[m][r]);
    if (total == 0.0f)
      return {0.0f, kSink ? sink : -kInfinity};
    const float top = peak[m][r];
    if constexpr (kSink) {
      const float sink2 = sink * kLog2E, both = maximum(top, sink2);
      const float keys = exp2_fast(top - both);
      const float all = __fmaf_rn(total, keys, exp2_fast(sink2 - both));
      return {keys * reciprocal_fast(all), (both + log2_fast(all)) * kLn2};
    } else {
      return {reciprocal_fast(total), (top + log2_fast(total)) * kLn2};
    }
  }
};

} // namespace rota

#endif
