// The algorithm `exact`: dQ partials become integers, whose sum no order can change. What it needs
// is a bound of every sum, before the first partial (docs/exact.md has the proof):
//
//   |dQ[i][c]| <= kmax slope (|dO[i]| reach[i] + |dLSE[i]|)
//
//   kmax         largest magnitude in K, of the sequence and kv head
//   reach        how far rows of V lie from O[i]: the largest norm of one, vmax, by bound = "norm";
//                sqrt(sum_j P_ij |V_j|^2 - |O_i|^2) by bound = "spread"
//
// dS is multiplied by its row's factor, a power of two, on its way to the products that make dQ:
// exact, and two elements an instruction. So sums come out scaled, by up to 2^30 over the bound; in
// fp16, whose range is short, by a part of that, and the rest, of the kv head, comes after.
// Workspace, behind delta and LSE of all rows:
//
//   Element factor[row of a tile]              0: the gradient is 0; NaN: it is NaN
//   of each query tile and head: kBoundWords   used at a sequence's first tile, by kv head
//
// Entries: clear_bounds, key_bounds; the rest hooks into the other kernels.
#ifndef ROTA_HOPPER_BACKWARD_EXACT_CUH
#define ROTA_HOPPER_BACKWARD_EXACT_CUH

#include "templates/hopper/backward_shared.cuh"
#include "templates/hopper/key_rows.cuh"
#include "templates/lib/fixed_point.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

constexpr int kBoundKeys = 0, kBoundValues = 1; // float bits: kmax, vmax
constexpr int kBoundWords = (kRowValues - kRowWords - 1) * kTileQ;
static_assert(!kExact || kBoundValues < kBoundWords, "row_values leaves room for the bounds");

// A row may not be finite under a finite bound: where a mask lets a query attend to a key with an
// infinity whose score is -inf, and in fp16, where dS overflows before fp32 does.
ROTA_DEVICE constexpr bool overflows_early(Bf16) {
  return false;
}
ROTA_DEVICE constexpr bool overflows_early(Fp16) {
  return true;
}
ROTA_DEVICE long long all_rows(const RotaArguments &arguments) {
  return (long long)arguments.tiles * arguments.heads * kTileQ;
}
// Where the factor of a row of a tile lies: the pairs that a consumer multiplies by side by side.
ROTA_DEVICE int factor_place(int row) {
  return (row / 2 % 4 * (kTileQ / 8) + row / 8) * 2 + row % 2;
}
ROTA_DEVICE Element *factors_of(const RotaArguments &arguments, long long tile) {
  float *factors = arguments.delta + kRowWords * all_rows(arguments);
  return reinterpret_cast<Element *>(factors) + tile * kTileQ;
}
ROTA_DEVICE float *bounds_of(const RotaArguments &arguments, const RotaSequence &sequence,
                             int kv_head) {
  return arguments.delta + (kRowWords + 1) * all_rows(arguments) +
         query_tile_number(arguments, sequence, 0, kv_head) * kBoundWords;
}

// ---- Before: maxima over keys ----

// One block per (query tile, query head).
ROTA_DEVICE void clear_bounds(const RotaArguments &arguments, const RotaTensorMaps &) {
  launch_dependents();
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  if (row.q_tile != 0 || item.head % kGroup != 0)
    return;
  float *bounds = bounds_of(arguments, arguments.sequences[row.sequence], item.head / kGroup);
  for (int i = (int)threadIdx.x; i <= kBoundValues; i += (int)blockDim.x)
    bounds[i] = 0.0f;
}

// One block per (kv tile, kv head).
ROTA_DEVICE void key_bounds(const RotaArguments &arguments, const RotaTensorMaps &) {
  launch_dependents();
  const RotaItem item = arguments.chain_items[blockIdx.x];
  const RotaChain chain = arguments.chains[item.index];
  const RotaSequence sequence = arguments.sequences[chain.sequence];
  const int first = chain.kv_tile * kTileKv;
  if (chain.visit_begin == chain.visit_end || sequence.q_tiles == 0) { // nobody looks at it
    wait_for_predecessor();
    return;
  }
  using Keys = KeyRows<kHeadDim>;
  using Values = KeyRows<kHeadDimV>;
  const Keys k(arguments.k, sequence, first, item.head);
  const Values v(arguments.v, sequence, first, item.head);
  unsigned largest_key = 0, largest = 0;
#pragma unroll
  for (int i = 0; i < Keys::kSteps; i++)
    largest_key = larger_bits(largest_key, Keys::counts(k.x[i]) ? chunk_magnitude(k.x[i]) : 0u);
#pragma unroll
  for (int i = 0; i < Values::kSteps; i++) {
    const unsigned norm = row_norm<Values::kLanes>(v.x[i]);
    largest = larger_bits(largest, Values::counts(v.x[i]) ? norm : 0u);
  }
  largest = warp_largest(largest);
  largest_key = warp_largest(largest_key);
  wait_for_predecessor();
  unsigned *bounds = reinterpret_cast<unsigned *>(bounds_of(arguments, sequence, item.head));
  if (lane_index() == 0) {
    raise_to(bounds + kBoundKeys, largest_key);
    raise_to(bounds + kBoundValues, largest);
  }
}

// ---- In prepare: factors ----

ROTA_DEVICE float power_of_two(int exponent) { // from -126 to 127
  return __uint_as_float((unsigned)(127 + exponent) << 23);
}
ROTA_DEVICE int whole(float x, int low, int high) { // rounded down
  return larger(low, smaller((int)floorf(x), high));
}
// dS becomes at most 2^14 in fp16, and what makes sums at most 2^30 in bf16.
ROTA_DEVICE int score_exponent(float scores, float sums, Bf16) {
  return smaller(whole(kFixedBits - sums, -126, 126),
                 whole(kFixedBits + 90.0f - scores, -126, 126));
}
ROTA_DEVICE int score_exponent(float scores, float, Fp16) {
  return whole(14.0f - scores, -24, 15);
}
ROTA_DEVICE float rest_of_factor(unsigned, Bf16) {
  return 1.0f;
}
ROTA_DEVICE float rest_of_factor(unsigned keys, Fp16) {
  return power_of_two(whole(kFixedBits - 14.0f - log2_wide(__uint_as_float(keys)), -126, 126));
}
// What sums of a kv head are multiplied by after the products.
ROTA_DEVICE float key_factor(const RotaArguments &arguments, const RotaSequence &sequence,
                             int kv_head) {
  const float *bounds = bounds_of(arguments, sequence, kv_head);
  return overflows_early(Element()) ? rest_of_factor(__float_as_uint(bounds[kBoundKeys]), Element())
                                    : 1.0f;
}

// Sums of squares that are as accurate as the proof takes them to be: above what is rounded among
// subnormals (in fp16 P and O, too), and below overflow.
ROTA_DEVICE constexpr float smallest_square(Bf16) {
  return 0x1p-100f;
}
ROTA_DEVICE constexpr float smallest_square(Fp16) {
  return 0x1p-20f;
}
constexpr float kLargestSquare = 0x1p100f;
// For longer sequences roundings are not proven to be small.
ROTA_DEVICE constexpr int most_spread_keys(Bf16) {
  return 1 << 16;
}
ROTA_DEVICE constexpr int most_spread_keys(Fp16) {
  return 1 << 15;
}
// A row's sum_j P_j |V_j|^2 and |O|^2 differ by the spread, but for the rounding of O and P: a 64th
// of the first at most, which is the least that the spread is taken for.
constexpr float kSpreadFloor = 0x1p-6f;

// What a query tile's rows share: log2 of kmax, vmax and the slope; NaN where not finite.
struct SequenceBounds {
  float keys, values, slope;
  bool spread; // may be used

  ROTA_DEVICE SequenceBounds(const RotaArguments &arguments, const RotaSequence &sequence, int head)
      : keys(logarithm(bounds_of(arguments, sequence, head / kGroup) + kBoundKeys)),
        values(logarithm(bounds_of(arguments, sequence, head / kGroup) + kBoundValues)),
        slope(log2_wide(arguments.parameters[ROTA_ABI_PARAMETERS - 1].as_float)),
        spread(kSpread != 0 && sequence.n_k <= most_spread_keys(Element())) {}
  ROTA_DEVICE static float logarithm(const float *of) {
    const float x = load_fresh(of);
    return x < kInfinity ? log2_wide(x) : __uint_as_float(0x7fffffffu);
  }

  // log2 of how far rows of V lie from O, as P weighs them. `mean`: sum_j P_j |V_j|^2; `square`:
  // |O|^2, which cannot be that much larger if both come from the same forward pass: NaN then.
  ROTA_DEVICE float reach(float mean, float square) const {
    if (!spread || !(mean >= smallest_square(Element()) && mean < kLargestSquare))
      return values;
    if (!(square < 2.0f * mean))
      return __uint_as_float(0x7fffffffu);
    return 0.5f * log2_wide(maximum(mean - square, kSpreadFloor * mean));
  }

  // `norm`: of the row of dO, bits. NaN, too, where dP or a partial could leave fp32's range.
  ROTA_DEVICE Element row_factor(unsigned norm, float reach, float d_lse, float lse,
                                 float delta) const {
    constexpr float kLargest = 126.0f;
    const float row = log2_wide(__uint_as_float(norm)), product = row + values;
    const float scores = slope + log2_sum(row + reach, log2_wide(fabsf(d_lse)));
    const float sums = keys + scores;
    const bool finite = product < kLargest && reach < kLargest && scores < kLargest &&
                        sums < kLargest && fabsf(delta) < kInfinity && lse < kInfinity &&
                        bits_are_finite(norm);
    if (!finite)
      return Element{0x7fff};
    return sums == -kInfinity
               ? Element{0}
               : from_float(power_of_two(score_exponent(scores, sums, Element())), Element());
  }
};

// Factors of a tile's rows, from the O and dO that prepare's block holds: kSteps rows a thread,
// kLanes lanes a row, delta being written already.
template <int kLanes, int kSteps>
ROTA_DEVICE void store_factors(const RotaArguments &arguments, const RotaSequence &sequence,
                               int q_tile, int head, const Chunk (&o)[kSteps],
                               const Chunk (&d_o)[kSteps]) {
  wait_for_predecessor();
  const SequenceBounds bounds(arguments, sequence, head);
  const long long tile = query_tile_number(arguments, sequence, q_tile, head);
#pragma unroll
  for (int i = 0; i < kSteps; i++) {
    const int r = ((int)blockDim.x * i + (int)threadIdx.x) / kLanes, q = q_tile * kTileQ + r;
    const unsigned norm = row_norm<kLanes>(d_o[i]);
    const float square = kSpread != 0 ? row_square<kLanes>(o[i]) : 0.0f;
    if (lane_index() % kLanes != 0 || r >= kTileQ)
      continue;
    Element factor = {0};
    if (q < sequence.n_q) {
      const float d_lse =
          arguments.d_lse.data ? *row_q<float>(arguments.d_lse, sequence, q, head) : 0.0f;
      const float mean =
          kSpread != 0 ? *row_q<float>(arguments.mean_square, sequence, q, head) : 0.0f;
      factor = bounds.row_factor(norm, bounds.reach(mean, square), d_lse,
                                 *row_q<float>(arguments.lse, sequence, q, head),
                                 arguments.delta[tile * kTileQ + r]);
    }
    factors_of(arguments, tile)[factor_place(r)] = factor;
  }
}

// ---- In the loader ----

ROTA_DEVICE void copy_factors(unsigned shared, const RotaArguments &arguments,
                              const ChainWords &chain, const Visit &visit, int stage,
                              unsigned barrier) {
  const long long tile = query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head);
  copy_bytes(shared + (unsigned)(kSharedFactor + stage * kFactorBytes), factors_of(arguments, tile),
             kFactorBytes, barrier);
}

// ---- In the consumers: partials become integers ----

// dS^T in fragments, as the products take it; `factors`: those of the tile's rows, in shared
// memory.
template <int kBlocks>
ROTA_DEVICE void scale_scores(unsigned (&scaled)[kBlocks][4], const unsigned (&ds)[kBlocks][4],
                              unsigned factors) {
  const unsigned at = factors + (unsigned)(hidden(lane_index()) % 4 * kTileQ / 2);
#pragma unroll
  for (int i = 0; i < kTileQ / 8; i += 4) {
    const Chunk factor = load_shared_chunk(at + 4u * (unsigned)i);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int block = (i + j / 2) / 2, word = (i + j / 2) % 2 * 2 + j % 2;
      scaled[block][word] = multiply_packed(ds[block][word], factor.word[j / 2], Element());
    }
  }
}
template <int kCount> ROTA_DEVICE void round_sums(float (&dq)[kCount], float factor) {
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    dq[i] = to_fixed(overflows_early(Element()) ? dq[i] * factor : dq[i]);
  }
}
// Rows `row` + g and + 8 of a tile: the factor of one that is not finite becomes a NaN, for
// finalise to see.
template <int kCount>
ROTA_DEVICE void spoil_rows(const float (&dq)[kCount], Element *factors, int row) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float bad = 0.0f; // or NaN
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4)
      bad = __fmaf_rn(dq[i], 0.0f, __fmaf_rn(dq[i + 1], 0.0f, bad));
    if (!(bad == 0.0f))
      factors[factor_place(row + hidden(lane_index()) / 4 + 8 * r)] = Element{0x7fff};
  }
}

// ---- In finalise ----

// By which the partials of a row were multiplied, beside key_factor; 0: there are none.
ROTA_DEVICE float query_factor(const RotaArguments &arguments, const RotaSequence &sequence, int q,
                               int head) {
  const long long tile = query_tile_number(arguments, sequence, q / kTileQ, head);
  return to_float(factors_of(arguments, tile)[factor_place(q % kTileQ)]);
}
ROTA_DEVICE float sum_value(float sum) {
  return kExact ? from_fixed(sum) : sum;
}

} // namespace rota

#endif
