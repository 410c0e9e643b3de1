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

  // The same where it is not negative; else some negative number. In half the instructions: as
  // integers, numbers that are not negative have the order of their values and come after all
  // others, and of three integers one instruction finds the largest.
  template <int kCount> ROTA_DEVICE static float find_top_above(const float (&s)[kCount], int r) {
    static_assert(kCount % 8 == 0, "whole steps");
    const auto at = [&](int i) { return __float_as_int(s[i + 2 * r]); };
    int even = larger(at(0), at(1)), odd = larger(at(4), at(5));
#pragma unroll
    for (int i = 8; i < kCount; i += 8) {
      even = larger(larger(even, at(i)), at(i + 1));
      odd = larger(larger(odd, at(i + 4)), at(i + 5));
    }
    return __int_as_float(larger(even, odd));
  }
  // Whether a row whose find_top_above is `top` may have gone beyond its peak.
  ROTA_DEVICE static bool may_rise(float top, float factor, float peak) {
    return __float_as_int(top) >= 0 ? __fmaf_rn(top, factor, -peak) > kSlack : peak < -kSlack;
  }

  // To the tops of a tile, where these are higher; what O must be multiplied by.
  ROTA_DEVICE void move_peaks(const float (&top)[2], float factor, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float row_top = quad_maximum(top[r]);
      const bool up = __fmaf_rn(row_top, factor, -peak[r]) > kSlack;
      const float next = up ? row_top * factor : peak[r];
      rescale[r] = exp2_fast(peak[r] - next); // exactly 1 where nothing changes
      sum[r] *= rescale[r];
      peak[r] = next;
    }
  }
  // Raises the peaks that a tile leaves behind and the sums with them. Returns whether any row of
  // the warp did; then O must be multiplied by rescale before the tile's P V. kLooksFirst: most
  // tiles' peaks do not rise, which find_top_above tells sooner.
  template <bool kLooksFirst, int kCount>
  ROTA_DEVICE bool raise(const float (&s)[kCount], float factor, float (&rescale)[2]) {
    if constexpr (kLooksFirst) {
      const float above[2] = {find_top_above(s, 0), find_top_above(s, 1)};
      if (!__any_sync(kAllLanes,
                      may_rise(above[0], factor, peak[0]) || may_rise(above[1], factor, peak[1])))
        return false;
    }
    const float top[2] = {find_top(s, 0), find_top(s, 1)};
    const bool beyond = __fmaf_rn(top[0], factor, -peak[0]) > kSlack ||
                        __fmaf_rn(top[1], factor, -peak[1]) > kSlack;
    if (!__any_sync(kAllLanes, beyond))
      return false;
    move_peaks(top, factor, rescale);
    return true;
  }
  // The peaks of a row's first tile.
  template <int kCount> ROTA_DEVICE void start(const float (&s)[kCount], float factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float top = quad_maximum(find_top(s, r));
      peak[r] = __fmaf_rn(top, factor, -kLowest) > kSlack ? top * factor : kLowest;
    }
  }
  // may_rise without its branch.
  ROTA_DEVICE static bool may_rise_at_once(float top, float factor, float peak) {
    const bool known = __float_as_int(top) >= 0; // no branch: lanes would part
    return (known & (__fmaf_rn(top, factor, -peak) > kSlack)) | (!known & (peak < -kSlack));
  }
  // The same as raise, where O is rescaled at once: rescale_rows(rescale).
  template <bool kLooksFirst, int kCount, class Rescale>
  ROTA_DEVICE void raise_and_rescale(const float (&s)[kCount], float factor, Rescale rescale_rows) {
    if constexpr (kLooksFirst) {
      const float above[2] = {find_top_above(s, 0), find_top_above(s, 1)};
      if (!__any_sync(kAllLanes, may_rise_at_once(above[0], factor, peak[0]) |
                                     may_rise_at_once(above[1], factor, peak[1])))
        return;
    }
    const float top[2] = {find_top(s, 0), find_top(s, 1)};
    const bool beyond = __fmaf_rn(top[0], factor, -peak[0]) > kSlack ||
                        __fmaf_rn(top[1], factor, -peak[1]) > kSlack;
    if (!__any_sync(kAllLanes, beyond))
      return;
    float rescale[2];
    move_peaks(top, factor, rescale);
    rescale_rows(rescale);
  }
  template <int kCount>
  ROTA_DEVICE static void multiply_rows(float (&o)[kCount], const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; i++)
      o[i] *= rescale[i / 2 % 2];
  }

  // s becomes its probabilities, which are added to the sums: of accumulators kFrom .. kTo - 1.
  template <int kFrom, int kTo, int kCount>
  ROTA_DEVICE void probabilities(float (&s)[kCount], float factor) {
#pragma unroll
    for (int i = kFrom; i < kTo; i += 2) {
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
