// Scores that a softcap ends, cap tanh(x / cap), for the exponents of probabilities.
//
// Up to |a| = 0.6 tanh a is an odd polynomial, beyond 1 - 2 / (e^2a + 1), which takes two special
// functions. An element's own a decides which; but where none of a warp's is beyond, which one
// vote tells, the code runs that has no other form than the polynomial.
#ifndef ROTA_HOPPER_CAPPED_CUH
#define ROTA_HOPPER_CAPPED_CUH

#include "score.cuh"
#include "templates/lib/fixed_point.cuh"
#include "templates/lib/hopper_softmax.cuh"

namespace rota {

// ---- Arguments of tanh ----

ROTA_DEVICE float own_value(ScaledScore x) {
  return x.s;
}
ROTA_DEVICE float own_value(float x) {
  return x;
}
ROTA_DEVICE float own_scale(ScaledScore x) {
  return x.scale;
}
ROTA_DEVICE float own_scale(float) {
  return 1.0f;
}
// Of s alone one multiplication.
ROTA_DEVICE float tanh_argument(float s, const Position &at, const RotaArguments &arguments) {
  const auto x = score_inner(ScaledScore{s, arguments.scale}, at, arguments);
  return own_value(x) * (own_scale(x) * reciprocal_or_zero(score_cap(arguments)));
}

// ---- Exponents size tanh(a) - peak, size = cap log2 e ----

struct ScoreCap {
  float size;
  float coefficient[5]; // of the polynomial in a^2, times size

  ROTA_DEVICE explicit ScoreCap(const RotaArguments &arguments)
      : size(score_cap(arguments) * kLog2E),
        coefficient{size, size * -0.33332598f, size * 0.13313116f, size * -0.052211796f,
                    // Not 0: what a mask forbids, a = -inf, has the exponent -inf.
                    maximum(size * 0.015612614f, kSmallest)} {}

  // Whether it is beyond, or a NaN, by its bits: of a top (find_top_above), of a bottom.
  ROTA_DEVICE static bool top_is_beyond(float a) {
    return __float_as_int(a) >= __float_as_int(kBound);
  }
  ROTA_DEVICE static bool bottom_is_beyond(float a) {
    return __float_as_uint(a) >= __float_as_uint(-kBound);
  }

  // The polynomial.
  ROTA_DEVICE float near(float a, float peak) const {
    const float square = __fmul_rn(a, a);
    float h = coefficient[4];
#pragma unroll
    for (int i = 3; i >= 0; i--)
      h = __fmaf_rn(h, square, coefficient[i]);
    return __fmaf_rn(h, a, -peak);
  }
  // Either form. What is not above `least` is not beyond.
  ROTA_DEVICE float either(float a, float peak, float least) const {
    return tanh_exponent(near(a, peak), a, kBound, least, 2.0f * kLog2E, -2.0f * size, size - peak);
  }

private:
  static constexpr float kBound = 0.6f, kSmallest = 1.17549435e-38f;
};

// A softmax of a in place of scores.
struct CappedSoftmax {
  // The negative a of largest magnitude, or one that is not negative.
  template <int kCount> ROTA_DEVICE static float find_bottom(const float (&a)[kCount]) {
    static_assert(kCount % 8 == 0, "whole steps");
    const auto at = [&](int i) { return __float_as_uint(a[i]); };
    unsigned even = larger_bits(at(0), at(1)), odd = larger_bits(at(2), at(3));
#pragma unroll
    for (int i = 4; i < kCount; i += 4) {
      even = larger_bits(larger_bits(even, at(i)), at(i + 1));
      odd = larger_bits(larger_bits(odd, at(i + 2)), at(i + 3));
    }
    return __uint_as_float(larger_bits(even, odd));
  }

  // The largest a of row r, by what find_top_above says.
  template <int kCount>
  ROTA_DEVICE static void find_tops(const WarpgroupSoftmax &softmax, const float (&a)[kCount],
                                    const float (&above)[2], float (&top)[2]) {
    top[0] = above[0];
    top[1] = above[1];
    if (__any_sync(kAllLanes, (__float_as_int(above[0]) | __float_as_int(above[1])) < 0)) {
      top[0] = softmax.find_top(a, 0);
      top[1] = softmax.find_top(a, 1);
    }
  }
  // Moves the peaks to a tile's tops where they are left behind, as WarpgroupSoftmax::raise, since
  // tanh rises; tells whether any a of the warp is beyond. kFirst: of an item's first tile.
  template <bool kFirst, int kCount>
  ROTA_DEVICE static bool raise(WarpgroupSoftmax &softmax, const float (&a)[kCount], float bottom,
                                float least, const ScoreCap &cap, float (&rescale)[2],
                                bool &beyond) {
    const float(&peak)[2] = softmax.peak;
    const float above[2] = {softmax.find_top_above(a, 0), softmax.find_top_above(a, 1)};
    const bool far = ScoreCap::bottom_is_beyond(bottom) | ScoreCap::top_is_beyond(above[0]) |
                     ScoreCap::top_is_beyond(above[1]);
    beyond = false;
    // |tanh a| is at most |a|; a little more, so that rounding leaves no row to others' votes.
    const float rise = cap.coefficient[0] * 1.000001f;
    if (!kFirst && !__any_sync(kAllLanes, far | softmax.may_rise_at_once(above[0], rise, peak[0]) |
                                              softmax.may_rise_at_once(above[1], rise, peak[1])))
      return false;
    beyond = __any_sync(kAllLanes, far);
    float top[2];
    find_tops(softmax, a, above, top);
    top[0] = cap.either(top[0], 0.0f, least);
    top[1] = cap.either(top[1], 0.0f, least);
    const bool up = top[0] - peak[0] > kSlack || top[1] - peak[1] > kSlack;
    if (!__any_sync(kAllLanes, up))
      return false;
    softmax.move_peaks(top, 1.0f, rescale);
    return true;
  }

  template <bool kBeyond, int kFrom, int kTo, int kCount>
  ROTA_DEVICE static void probabilities(WarpgroupSoftmax &softmax, float (&a)[kCount], float least,
                                        const ScoreCap &cap) {
#pragma unroll
    for (int i = kFrom; i < kTo; i += 2) {
      const int r = i / 2 % 2;
#pragma unroll
      for (int j = i; j < i + 2; j++)
        a[j] = exp2_fast(kBeyond ? cap.either(a[j], softmax.peak[r], least)
                                 : cap.near(a[j], softmax.peak[r]));
      softmax.sum[r] += a[i] + a[i + 1];
    }
  }
};

} // namespace rota

#endif
