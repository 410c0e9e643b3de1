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

template <class A, class B> inline constexpr bool kSameType = false;
template <class A> inline constexpr bool kSameType<A, A> = true;

// P is stored times 2^14: the 11 bits of an fp16 then reach down to 2^-28.
inline constexpr float kProbabilityScale = 16384.0f, kProbabilityShift = 14.0f;
// dS too, where 16 bits hold it: bf16.
inline constexpr bool kGradientsScaled = kSameType<Element, Bf16>;

template <int kI> struct Part { static constexpr int kIndex = kI; };
template <class Do> ROTA_DEVICE void for_parts(Do act) {
  act(Part<0>());
  act(Part<1>());
  act(Part<2>());
  act(Part<3>());
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
        const float lse = *row_q<float>(arguments.lse, sequence, q, head);
        if (lse != -kInfinity)
          bias[r] = kProbabilityShift - lse * kLog2E;
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

// Forward: s of one part becomes an exponent of two, -inf where not allowed; raises the row's top.
template <int kPart>
ROTA_DEVICE void exponents(const RotaArguments &arguments, const Position &first, bool partial,
                           float (&s)[128], float (&top)[2]) {
  const unsigned bits = partial ? allowed_bits(arguments, first, kPart) : ~0u;
  const float factor = kHasScore ? arguments.scale : arguments.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int r = i / 2 % 2;
    float x = s[32 * kPart + i] * factor;
    if constexpr (kHasScore) {
      Position at = first;
      at.q = clamp_index<kScoreUsesTensors>(first.q + 8 * r, first.n_q);
      at.k = clamp_index<kScoreUsesTensors>(first.k + 64 * kPart + i / 4 * 8 + i % 2, first.n_k);
      x = score_value(x, at, arguments) * kLog2E;
    }
    if (!(bits >> i & 1u))
      x = -kInfinity;
    s[32 * kPart + i] = x;
    top[r] = maximum(top[r], x);
  }
}
// Powers relative to `base`, added to this lane's sums and packed.
template <int kPart>
ROTA_DEVICE void powers(const float (&base)[2], const float (&x)[128], float (&sum)[2],
                        unsigned (&words)[16]) {
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float a = exp2_fast(x[32 * kPart + 4 * i + 2 * r] - base[r]);
      const float b = exp2_fast(x[32 * kPart + 4 * i + 2 * r + 1] - base[r]);
      sum[r] += a + b;
      words[2 * i + r] = pack(a, b, Element());
    }
}

// S of one part becomes `words` = P rounded, and `kept` = P (times the score's slope) for dS.
template <int kPart>
ROTA_DEVICE void probabilities(const RotaArguments &arguments, const ScoreRows &rows,
                               const Position &first, bool partial, const float (&s)[128],
                               unsigned (&kept)[64], unsigned (&words)[16]) {
  unsigned bits = ~0u;
  if (partial)
    bits = allowed_bits(arguments, first, kPart);
  const float factor = kHasScore ? arguments.scale : arguments.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float p[2], slope[2] = {1.0f, 1.0f};
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float x = s[32 * kPart + 4 * i + 2 * r + c];
        if constexpr (kHasScore) {
          Position at = first;
          at.q = clamp_index<kScoreUsesTensors>(first.q + 8 * r, first.n_q);
          at.k = clamp_index<kScoreUsesTensors>(first.k + 64 * kPart + 8 * i + c, first.n_k);
          x *= factor;
          slope[c] = score_slope(x, at, arguments);
          x = score_value(x, at, arguments);
          p[c] = exp2_fast(__fmaf_rn(x, kLog2E, rows.bias[r]));
        } else {
          p[c] = exp2_fast(__fmaf_rn(x, factor, rows.bias[r]));
        }
        if (!(bits >> (4 * i + 2 * r + c) & 1u))
          p[c] = 0.0f, slope[c] = 0.0f;
      }
      words[2 * i + r] = pack(p[0], p[1], Element());
      unsigned &keep = kept[16 * kPart + 2 * i + r];
      if constexpr (kHasScore)
        keep = pack(p[0] * slope[0], p[1] * slope[1], Bf16());
      else
        keep = pack(p[0], p[1], Fp16());
    }
}

// dP of one part becomes `words` = dS rounded. Where P is 0 in a partial tile dP may be anything.
template <int kPart>
ROTA_DEVICE void score_gradients(const ScoreRows &rows, bool partial, const float (&dp)[128],
                                 const unsigned (&kept)[64], unsigned (&words)[16]) {
  constexpr float kUnscale = kGradientsScaled ? 1.0f : 1.0f / kProbabilityScale;
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const unsigned keep = kept[16 * kPart + 2 * i + r];
      float p[2];
      if constexpr (kHasScore)
        unpack(keep, p[0], p[1], Bf16());
      else
        unpack(keep, p[0], p[1], Fp16());
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float ds = p[c] * (dp[32 * kPart + 4 * i + 2 * r + c] - rows.delta[r]) * kUnscale;
        p[c] = partial && p[c] == 0.0f ? 0.0f : ds;
      }
      words[2 * i + r] = pack(p[0], p[1], Element());
    }
}

} // namespace rota

#endif
