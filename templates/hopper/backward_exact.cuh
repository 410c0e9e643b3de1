// The algorithm `exact`: dQ partials become integers, whose sum no order can change. What it needs
// is a bound of every sum, before the first partial (docs/exact.md has the proof):
//
//   |dQ[i][c]| <= kmax[c] slope (|dO[i]| vmax + |dLSE[i]|)
//
//   vmax      largest norm of a row of V          of the sequence and kv head
//   kmax[c]   largest magnitude in column c of K  likewise
//
// An element is multiplied by its row's factor, 2^30 over the bound with the largest kmax in it,
// and by that of its columns, a power of two for each pair of neighbours, of at most max(kmax) /
// kmax[c]. Workspace, behind delta and LSE of all rows:
//
//   16 bits, factor[row]: a float's upper half    0: the gradient is 0; NaN: it is NaN
//   of each query tile and head: kBoundWords      used at a sequence's first tile, by kv head
//
// Entries: clear_bounds, key_bounds; the rest hooks into the other kernels.
#ifndef ROTA_HOPPER_BACKWARD_EXACT_CUH
#define ROTA_HOPPER_BACKWARD_EXACT_CUH

#include "templates/hopper/backward_shared.cuh"
#include "templates/lib/fixed_point.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

constexpr int kBoundKeys = 0;                        // float bits [kPaddedK]: kmax
constexpr int kBoundColumns = kBoundKeys + kPaddedK; // float [kPaddedK / 2]: of pairs of columns
constexpr int kBoundValues = kBoundColumns + kPaddedK / 2; // float bits: vmax
constexpr int kBoundWords = (kRowValues - 3) * kTileQ;
static_assert(!kExact || kBoundValues < kBoundWords, "row_values leaves room for the bounds");

// Where the factor of columns 2 i and 2 i + 1 lies: a consumer's one after another.
ROTA_DEVICE int pair_place(int i) {
  constexpr int kPairs = kDqColumns / 2;
  return i / kPairs * kPairs + i % 4 * kDqFragments + i % kPairs / 4;
}
ROTA_DEVICE long long all_rows(const RotaArguments &arguments) {
  return (long long)arguments.tiles * arguments.heads * kTileQ;
}
ROTA_DEVICE unsigned short *factors_of(const RotaArguments &arguments, long long tile) {
  return reinterpret_cast<unsigned short *>(arguments.delta + 2 * all_rows(arguments)) +
         tile * kTileQ;
}
ROTA_DEVICE float widen_factor(unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
ROTA_DEVICE float *bounds_of(const RotaArguments &arguments, const RotaSequence &sequence,
                             int kv_head) {
  return arguments.delta + 3 * all_rows(arguments) +
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

constexpr int kBoundThreads = 256;
// Of a kv tile: chunks of K or V rows, a thread's share, in registers at once.
template <int kColumns> struct KeyRows {
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kLanes = power_of_two_from(kChunks);
  static constexpr int kAtOnce = kBoundThreads / kLanes;
  static constexpr int kSteps = (kTileKv + kAtOnce - 1) / kAtOnce;
  Chunk x[kSteps];

  ROTA_DEVICE static int lane() { return (int)threadIdx.x % kLanes; }
  ROTA_DEVICE KeyRows(const RotaTensor &tensor, const RotaSequence &sequence, int first, int head) {
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      const int row = i * kAtOnce + (int)threadIdx.x / kLanes, key = first + row;
      x[i] = Chunk{{0, 0, 0, 0}};
      if (row < kTileKv && key < sequence.n_k && lane() < kChunks)
        x[i] = load_global_chunk(row_k<Element>(tensor, sequence, key, head) + lane() * kChunk);
    }
  }
  // Where a mask may forbid a key, a NaN or infinity in it counts for those queries alone that
  // attend to it; the kernels find them.
  ROTA_DEVICE static bool counts(const Chunk &row) {
    if (!kHasMask)
      return true;
    unsigned bad = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
      bad |= packed_not_finite(row.word[i], Element());
    const unsigned lanes = __ballot_sync(kAllLanes, bad != 0);
    constexpr unsigned kMine = kLanes == 32 ? kAllLanes : (1u << kLanes % 32) - 1;
    return (lanes >> lane_index() / kLanes * kLanes & kMine) == 0;
  }
};

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
  Chunk columns = {{0, 0, 0, 0}};
#pragma unroll
  for (int i = 0; i < Keys::kSteps; i++) {
    const bool counts = Keys::counts(k.x[i]);
#pragma unroll
    for (int j = 0; j < 4; j++)
      columns.word[j] = packed_magnitudes(columns.word[j], counts ? k.x[i].word[j] : 0u);
  }
#pragma unroll
  for (int step = Keys::kLanes; step < kWarp; step *= 2)
#pragma unroll
    for (int j = 0; j < 4; j++)
      columns.word[j] =
          packed_magnitudes(columns.word[j], __shfl_xor_sync(kAllLanes, columns.word[j], step));
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < Values::kSteps; i++) {
    const unsigned norm = row_norm<Values::kLanes>(v.x[i]);
    largest = larger_bits(largest, Values::counts(v.x[i]) ? norm : 0u);
  }
  largest = warp_largest(largest);
  wait_for_predecessor();
  unsigned *bounds = reinterpret_cast<unsigned *>(bounds_of(arguments, sequence, item.head));
  if (lane_index() < Keys::kChunks)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float low, high;
      unpack(columns.word[j], low, high, Element());
      raise_to(bounds + kBoundKeys + Keys::lane() * kChunk + 2 * j, __float_as_uint(low));
      raise_to(bounds + kBoundKeys + Keys::lane() * kChunk + 2 * j + 1, __float_as_uint(high));
    }
  if (lane_index() == 0)
    raise_to(bounds + kBoundValues, largest);
}

// ---- In prepare: factors ----

// The largest power of two not above max / x; both are bits of floats that are not negative. At
// most 2^40: what that wants of accuracy is below rounding.
ROTA_DEVICE float column_factor(unsigned largest, unsigned x) {
  const int field = x >> 23 == 0 ? 1 : (int)(x >> 23);
  const bool smaller_fraction = (largest & 0x7fffffu) < (x & 0x7fffffu) || x >> 23 == 0;
  const int exponent = (int)(largest >> 23) - field - (smaller_fraction ? 1 : 0);
  return __uint_as_float((unsigned)(127 + larger(0, smaller(exponent, 40))) << 23);
}
ROTA_DEVICE float inverse_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}

// What a query tile's rows share.
struct SequenceBounds {
  float keys, values; // log2 of max(kmax) slope and of vmax; NaN where not finite

  // The block of prepare, after the kernel before it. The first tile of a kv head's first query
  // head writes the columns' factors.
  ROTA_DEVICE SequenceBounds(const RotaArguments &arguments, const RotaSequence &sequence,
                             int q_tile, int head) {
    __shared__ unsigned shared_largest[32];
    float *bounds = bounds_of(arguments, sequence, head / kGroup);
    const int thread = (int)threadIdx.x;
    unsigned own = 0;
    for (int i = thread; i < kPaddedK; i += (int)blockDim.x)
      own = larger_bits(own, __float_as_uint(load_fresh(bounds + kBoundKeys + i)));
    const unsigned of_warp = warp_largest(own);
    if (lane_index() == 0)
      shared_largest[warp_index()] = of_warp;
    __syncthreads();
    unsigned largest = 0;
    for (int i = 0; i < (int)blockDim.x / kWarp; i++)
      largest = larger_bits(largest, shared_largest[i]);
    const unsigned value = __float_as_uint(load_fresh(bounds + kBoundValues));
    const float slope = arguments.parameters[ROTA_ABI_PARAMETERS - 1].as_float;
    const float nan = __uint_as_float(0x7fffffffu);
    keys = bits_are_finite(largest) ? log2_wide(__uint_as_float(largest)) + log2_wide(slope) : nan;
    values = bits_are_finite(value) ? log2_wide(__uint_as_float(value)) : nan;
    if (q_tile == 0 && head % kGroup == 0)
      for (int i = thread; i < kPaddedK / 2; i += (int)blockDim.x) {
        const float *key = bounds + kBoundKeys + 2 * i;
        const unsigned of_pair =
            larger_bits(__float_as_uint(load_fresh(key)), __float_as_uint(load_fresh(key + 1)));
        bounds[kBoundColumns + pair_place(i)] = column_factor(largest, of_pair);
      }
  }

  // `norm`: of the row of dO, bits. NaN, too, where dP or a partial could leave fp32's range.
  ROTA_DEVICE float row_factor(unsigned norm, float d_lse, float lse, float delta) const {
    constexpr float kLargest = 126.0f;
    const float nan = __uint_as_float(0x7fffffffu);
    const float product = log2_wide(__uint_as_float(norm)) + values;
    const float bound = keys + log2_sum(product, log2_wide(fabsf(d_lse)));
    const bool finite = product < kLargest && bound < kLargest && fabsf(delta) < kInfinity &&
                        lse < kInfinity && bits_are_finite(norm);
    if (!finite)
      return nan;
    return bound == -kInfinity ? 0.0f : exp2_fast(minimum(kFixedBits - bound, kLargest));
  }
  ROTA_DEVICE static float minimum(float a, float b) { return a < b ? a : b; }
};

// Factors of a tile's rows, from the dO that prepare's block holds: kSteps rows a thread, kLanes
// lanes a row, delta being written already.
template <int kLanes, int kSteps>
ROTA_DEVICE void store_factors(const RotaArguments &arguments, const RotaSequence &sequence,
                               int q_tile, int head, const Chunk (&d_o)[kSteps]) {
  wait_for_predecessor();
  const SequenceBounds bounds(arguments, sequence, q_tile, head);
  const long long tile = query_tile_number(arguments, sequence, q_tile, head);
#pragma unroll
  for (int i = 0; i < kSteps; i++) {
    const int r = ((int)blockDim.x * i + (int)threadIdx.x) / kLanes, q = q_tile * kTileQ + r;
    const unsigned norm = row_norm<kLanes>(d_o[i]);
    if (lane_index() % kLanes != 0 || r >= kTileQ)
      continue;
    float factor = 0.0f;
    if (q < sequence.n_q) {
      const float d_lse =
          arguments.d_lse.data ? *row_q<float>(arguments.d_lse, sequence, q, head) : 0.0f;
      factor = bounds.row_factor(norm, d_lse, *row_q<float>(arguments.lse, sequence, q, head),
                                 arguments.delta[tile * kTileQ + r]);
    }
    factors_of(arguments, tile)[r] = (unsigned short)(__float_as_uint(factor) >> 16);
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

// A row may not be finite under a finite bound: where a mask lets a query attend to a key with an
// infinity whose score is -inf, and in fp16, where dS overflows before fp32 does.
ROTA_DEVICE constexpr bool overflows_early(Bf16) {
  return false;
}
ROTA_DEVICE constexpr bool overflows_early(Fp16) {
  return true;
}
// Of the four elements of a fragment, those that the conversion unit rounds, which the
// exponentials need too; the others take more, but quicker instructions.
constexpr int kConverted = 2;

// What a consumer's dQ partial is multiplied by: rows g and g + 8 of its warp, and pairs of
// columns.
template <bool kUsed> struct FixedFactors {
  float rows[2], columns[kDqFragments];
  int row, part; // first row of the warp in the tile, part of the columns

  ROTA_DEVICE FixedFactors(const RotaArguments &arguments, const ChainWords &chain, unsigned shared,
                           int stage, int group, int warp)
      : row((kDqByRows ? 64 * group : 0) + 16 * warp), part(kDqByRows ? 0 : group) {
    const int lane = hidden(lane_index());
    const unsigned at =
        shared + (unsigned)(kSharedFactor + stage * kFactorBytes + 2 * (row + lane / 4));
    rows[0] = widen_factor(load_shared_half(at));
    rows[1] = widen_factor(load_shared_half(at + 16));
    const float *from = bounds_of(arguments, chain.sequence, chain.kv_head) + kBoundColumns +
                        (part * 4 + lane % 4) * kDqFragments;
#pragma unroll
    for (int i = 0; i < kDqFragments; i += 4)
      load_global_floats(columns, i, from + i);
  }
  // `check`: keys that are not finite are among those that a mask hides from others.
  ROTA_DEVICE void apply(float (&dq)[kDqColumns / 2], const RotaArguments &arguments,
                         const ChainWords &chain, const Visit &visit, bool check) const {
    if (overflows_early(Element()) || (kHasMask && check))
      spoil_rows(dq, arguments, chain, visit);
#pragma unroll
    for (int i = 0; i < kDqFragments; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float factor = rows[r] * columns[i];
#pragma unroll
        for (int j = 2 * r; j < 2 * r + 2; j++) {
          const float x = dq[4 * i + j] * factor;
          dq[4 * i + j] = j % 2 < kConverted / 2 ? to_fixed(x) : to_fixed_by_sums(x);
        }
      }
  }
  // The factor of a row that is not finite becomes a NaN, for finalise to see.
  ROTA_DEVICE void spoil_rows(const float (&dq)[kDqColumns / 2], const RotaArguments &arguments,
                              const ChainWords &chain, const Visit &visit) const {
    const long long tile = query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float bad = 0.0f; // or NaN
#pragma unroll
      for (int i = 0; i < kDqFragments; i++)
        bad = __fmaf_rn(dq[4 * i + 2 * r], 0.0f, __fmaf_rn(dq[4 * i + 2 * r + 1], 0.0f, bad));
      if (!(bad == 0.0f))
        factors_of(arguments, tile)[row + lane_index() / 4 + 8 * r] = 0x7fffu;
    }
  }
};
template <> struct FixedFactors<false> {
  ROTA_DEVICE FixedFactors(const RotaArguments &, const ChainWords &, unsigned, int, int, int) {}
  ROTA_DEVICE void apply(float (&)[kDqColumns / 2], const RotaArguments &, const ChainWords &,
                         const Visit &, bool) const {}
};

// ---- In finalise ----

// Integer sums of columns c, c + 1 of a row, scaled back and rounded.
ROTA_DEVICE unsigned pack_fixed(const RotaArguments &arguments, const RotaSequence &sequence, int q,
                                int head, int column, float low, float high) {
  const long long tile = query_tile_number(arguments, sequence, q / kTileQ, head);
  const float factor = widen_factor(factors_of(arguments, tile)[q % kTileQ]);
  if (factor == 0.0f)
    return 0u;
  const float *columns = bounds_of(arguments, sequence, head / kGroup) + kBoundColumns;
  const float unit = arguments.scale / factor * inverse_power(columns[pair_place(column / 2)]);
  return pack(from_fixed(low) * unit, from_fixed(high) * unit, Element());
}

} // namespace rota

#endif
