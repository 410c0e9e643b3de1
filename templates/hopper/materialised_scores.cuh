// What the materialised backward pass does with scores in accumulators: P, and then dS.
//
// A warpgroup's 64 queries x 256 keys in four parts of 64 keys: accumulator 4 i + 2 r + c of a
// thread is of its row r and key 8 i + c (lib/warpgroup.cuh). P is kept as packed pairs 2 i + r.
#ifndef ROTA_HOPPER_MATERIALISED_SCORES_CUH
#define ROTA_HOPPER_MATERIALISED_SCORES_CUH

#include "mask.cuh"
#include "score.cuh"
#include "spec.cuh"
#include "tiling.cuh"

#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "templates/lib/warpgroup.cuh"

namespace rota {

template <bool kFirst, class A, class B> struct Chosen { using Type = A; };
template <class A, class B> struct Chosen<false, A, B> { using Type = B; };
template <bool kFirst, class A, class B> using TypeIf = typename Chosen<kFirst, A, B>::Type;
template <class A, class B> inline constexpr bool kSameType = false;
template <class A> inline constexpr bool kSameType<A, A> = true;

// P is stored times 2^14: the 11 bits of an fp16 then reach down to 2^-28.
inline constexpr float kProbabilityScale = 16384.0f, kProbabilityShift = 14.0f;
// dS too, where 16 bits hold it: bf16.
inline constexpr bool kGradientsScaled = kSameType<Element, Bf16>;

// What waits for dP: P, or P times the score's slope, packed. fp16 has the bits and, scaled down,
// room for slopes up to 1000; dS of an fp16 result would not go beyond either. A bf16 result may.
inline constexpr bool kKeepsFp16 = !kHasScore || !kGradientsScaled;
inline constexpr float kSlopeScale = kHasScore && kKeepsFp16 ? 1.0f / 256.0f : 1.0f;
// Turns what was kept times dP - delta into dS.
inline constexpr float kUnscale =
    kGradientsScaled ? 1.0f : 1.0f / (kProbabilityScale * kSlopeScale);
using Kept = TypeIf<kKeepsFp16, Fp16, Bf16>;

template <int kI> struct Part { static constexpr int kIndex = kI; };
template <class Do> ROTA_DEVICE void for_parts(Do act) {
  act(Part<0>());
  act(Part<1>());
  act(Part<2>());
  act(Part<3>());
}

// What is added to a row's scores as exponents of two.
ROTA_DEVICE float score_bias(float lse) {
  return lse == -kInfinity ? -kInfinity : kProbabilityShift - lse * kLog2E;
}

// LSE (as an exponent of two to be added) and delta of this lane's two rows; `row` is the first.
struct ScoreRows {
  float bias[2], delta[2];
  ROTA_DEVICE ScoreRows(const RotaArguments &arguments, const RotaSequence &sequence, int first_row,
                        int head, int row) {
    const long long tile =
        query_tile_number(arguments, sequence, first_row / kTileQ, head) * kTileQ;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int q = first_row + row + 8 * r;
      bias[r] = -kInfinity;
      delta[r] = 0.0f;
      if (q < sequence.n_q) {
        bias[r] = score_bias(*row_q<float>(arguments.lse, sequence, q, head));
        delta[r] = arguments.delta[tile + row + 8 * r];
      }
    }
  }
};

ROTA_DEVICE bool element_allowed(const RotaArguments &arguments, Position at) {
  const bool exists = at.q < at.n_q && at.k < at.n_k;
  at.q = clamp_index<kMaskUsesTensors>(at.q, at.n_q);
  at.k = clamp_index<kMaskUsesTensors>(at.k, at.n_k);
  return exists && mask_allows(at, arguments);
}

// Bit 4 i + 2 r + c of a part: allowed. `first`: this lane's first query and key.
ROTA_DEVICE unsigned allowed_bits(const RotaArguments &arguments, const Position &first, int part) {
  unsigned bits = 0;
  if constexpr (kMaskIsInterval) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      Position at = first;
      at.q = clamp_index<kMaskUsesTensors>(first.q + 8 * r, first.n_q);
      const int begin = larger(mask_first(at, arguments), 0);
      const int end = first.q + 8 * r < first.n_q ? smaller(mask_end(at, arguments), at.n_k) : 0;
      const int key = first.k + 64 * part;
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const int k = key + i / 2 * 8 + i % 2;
        if (k >= begin && k < end)
          bits |= 1u << (i / 2 * 4 + 2 * r + i % 2);
      }
    }
  } else {
    // In a loop, however long the mask's expression.
#pragma unroll 1
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        Position at = first;
        at.q += 8 * (j / 2);
        at.k += 64 * part + 8 * i + j % 2;
        if (element_allowed(arguments, at))
          bits |= 1u << (4 * i + j);
      }
  }
  return bits;
}

// What s is multiplied by where no score function comes between: an exponent of two.
ROTA_DEVICE float exponent_factor(const RotaArguments &arguments) {
  return arguments.scale * kLog2E;
}
// Sets what is not allowed of one part to `value`.
template <int kPart> ROTA_DEVICE void mask_part(float (&s)[128], unsigned bits, float value) {
#pragma unroll
  for (int i = 0; i < 32; i++)
    s[32 * kPart + i] = bits >> i & 1u ? s[32 * kPart + i] : value;
}
// Where element i of a part is.
ROTA_DEVICE Position score_position(const Position &first, int part, int i) {
  Position at = first;
  at.q = clamp_index<kScoreUsesTensors>(first.q + i / 2 % 2 * 8, first.n_q);
  at.k = clamp_index<kScoreUsesTensors>(first.k + 64 * part + i / 4 * 8 + i % 2, first.n_k);
  return at;
}

// ---- Forward ----

// s of one part: after the score function, if there is one, as an exponent of two; -inf where not
// allowed. Raises the rows' peaks.
template <int kPart>
ROTA_DEVICE void raise_peaks(const RotaArguments &arguments, const Position &first, bool partial,
                             float (&s)[128], float (&peak)[2]) {
  if constexpr (kHasScore) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
      float &x = s[32 * kPart + i];
      x = kLog2E * score_value(x * arguments.scale, score_position(first, kPart, i), arguments);
    }
  }
  if (partial)
    mask_part<kPart>(s, allowed_bits(arguments, first, kPart), -kInfinity);
#pragma unroll
  for (int i = 0; i < 32; i++)
    peak[i / 2 % 2] = maximum(peak[i / 2 % 2], s[32 * kPart + i]);
}
// Powers 2^(factor s - base), added to this lane's sums and, times `share` of their row, packed.
template <int kPart>
ROTA_DEVICE void powers(float factor, const float (&base)[2], const float (&share)[2],
                        const float (&s)[128], float (&sum)[2], unsigned (&words)[16]) {
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = 32 * kPart + 4 * i + 2 * r;
      const float a = exp2_fast(__fmaf_rn(s[at], factor, -base[r]));
      const float b = exp2_fast(__fmaf_rn(s[at + 1], factor, -base[r]));
      sum[r] += a + b;
      words[2 * i + r] = pack(a * share[r], b * share[r], Element());
    }
}

// ---- Backward ----

// A score's P, times its scale, and P times the score's slope. s: a product of Q and K.
ROTA_DEVICE void score_exponential(const RotaArguments &arguments, float s, float bias,
                                   const Position &at, float &p, float &kept) {
  const float x = s * arguments.scale, slope = score_slope(x, at, arguments);
  p = exp2_fast(__fmaf_rn(score_value(x, at, arguments), kLog2E, bias));
  kept = p * (slope * kSlopeScale);
}

// Of packed pairs, which bits 2 i and 2 i + 1 say are allowed, the others become 0, even a NaN.
ROTA_DEVICE void mask_pairs(unsigned bits, unsigned *pairs) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    if (!(bits >> 2 * i & 1u))
      pairs[i] &= 0xffff0000u;
    if (!(bits >> (2 * i + 1) & 1u))
      pairs[i] &= 0xffffu;
  }
}

// S of one part becomes `words` = P rounded, and `kept` = P (times the score's slope) for dS.
template <int kPart>
ROTA_DEVICE void probabilities(const RotaArguments &arguments, const ScoreRows &rows,
                               const Position &first, bool partial, float (&s)[128],
                               unsigned (&kept)[64], unsigned (&words)[16]) {
  const float factor = exponent_factor(arguments);
  unsigned bits = ~0u;
  if (partial)
    bits = allowed_bits(arguments, first, kPart);
  if (!kHasScore && partial) // what makes P zero
    mask_part<kPart>(s, bits, factor < 0.0f ? kInfinity : -kInfinity);
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int r = i / 2 % 2, at = 32 * kPart + i;
    float p[2], kept_p[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      if constexpr (kHasScore) {
        score_exponential(arguments, s[at + c], rows.bias[r], score_position(first, kPart, i + c),
                          p[c], kept_p[c]);
      } else {
        p[c] = exp2_fast(__fmaf_rn(s[at + c], factor, rows.bias[r]));
        kept_p[c] = p[c];
      }
    }
    words[i / 2] = pack(p[0], p[1], Element());
    kept[16 * kPart + i / 2] = pack(kept_p[0], kept_p[1], Kept());
  }
  if (kHasScore && partial) {
    mask_pairs(bits, words);
    mask_pairs(bits, kept + 16 * kPart);
  }
}

// dP of one part becomes `words` = dS rounded. Where P is 0 in a partial tile dP may be anything.
template <int kPart, bool kPartial>
ROTA_DEVICE void score_gradients(const ScoreRows &rows, const float (&dp)[128],
                                 const unsigned (&kept)[64], unsigned (&words)[16]) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const unsigned keep = kept[16 * kPart + i / 2];
    float p[2];
    unpack(keep, p[0], p[1], Kept());
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float ds = p[c] * (dp[32 * kPart + i + c] - rows.delta[i / 2 % 2]) * kUnscale;
      p[c] = kPartial && p[c] == 0.0f ? 0.0f : ds;
    }
    words[i / 2] = pack(p[0], p[1], Element());
  }
}

} // namespace rota

#endif
