// What every portable backward pass does with a single (query, key): its probability, whether it is
// allowed, and keys that must not be looked at.
#ifndef ROTA_PORTABLE_BACKWARD_ELEMENTS_CUH
#define ROTA_PORTABLE_BACKWARD_ELEMENTS_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "mask.cuh"
#include "score.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/order.cuh"
#include "templates/lib/tables.cuh"

namespace rota {

// LSE as the exponent of a power of two, to be subtracted; +inf where a row has no key (or does not
// exist): P is 0 there.
ROTA_DEVICE float exponent_of_lse(float lse) {
  return lse == -kInfinity ? kInfinity : lse * kLog2E;
}
// What s = q . k is multiplied by: without a score function the factor log2 e is already in it.
ROTA_DEVICE float score_factor(const RotaArguments &arguments) {
  return kHasScore ? arguments.scale : arguments.scale * kLog2E;
}

struct Probability {
  float p, slope; // P and d score / d s
  bool allowed;
};

// x: s times score_factor; lse: see exponent_of_lse; bad: this key is not finite, see BadKeys. A
// full tile (not kPartial) has no forbidden element.
template <bool kPartial>
ROTA_DEVICE Probability probability_of(const RotaArguments &arguments, Position at, float x,
                                       float lse, bool bad) {
  Probability result = {0.0f, 1.0f, true};
  if constexpr (kPartial || kHasScore) {
    constexpr bool kClamp = kMaskUsesTensors || kScoreUsesTensors;
    const bool exists = at.q < at.n_q && at.k < at.n_k;
    at.q = clamp_index<kClamp>(at.q, at.n_q);
    at.k = clamp_index<kClamp>(at.k, at.n_k);
    if constexpr (kPartial)
      result.allowed = exists && mask_allows(at, arguments);
    if constexpr (kHasScore) {
      result.slope = score_slope(x, at, arguments);
      x = kLog2E * score_value(x, at, arguments);
    }
    if (kPartial && kHasMask && bad)
      x = __uint_as_float(0x7fffffffu);
  }
  const float p = exp2_fast(x - lse);
  result.p = result.allowed ? p : 0.0f;
  return result;
}

// Keys of a tile that hold a NaN or an infinity. They are zeroed in shared memory, since dQ += dS K
// would carry 0 * NaN to queries that may not attend to them, and their scores are set to NaN where
// they do count. Without a mask every key counts.
template <class Layout, int kThreads> struct BadKeys {
  static constexpr int kBytes = (kTileKv + 31) / 32 * 4; // a bit per key

  // Every thread first looks at the chunks that it has loaded itself: called after copy_wait,
  // before the tile is used. True, in all threads, if there are any; then `bits` (shared) tells
  // which. Holds one barrier, or three.
  ROTA_DEVICE static bool remove(unsigned tile, unsigned bits, int thread) {
    if (!__syncthreads_or(own_chunks_not_finite<Layout, kTileKv, kThreads, Element>(tile, thread)))
      return false;
    if (thread < kBytes / 4)
      store_shared_word(bits + 4u * (unsigned)thread, 0u);
    __syncthreads();
    for (int key = thread; key < kTileKv; key += kThreads) {
      unsigned found = 0;
      for (int chunk = 0; chunk < Layout::kChunks; chunk++) {
        const Chunk x = load_shared_chunk(tile + (unsigned)Layout::offset(key, chunk));
        for (int i = 0; i < 4; i++)
          found |= packed_not_finite(x.word[i], Element());
      }
      if (found) {
        zero_row<Layout>(tile, key);
        or_shared_word(bits + 4u * (unsigned)(key / 32), 1u << key % 32);
      }
    }
    __syncthreads();
    return true;
  }
  ROTA_DEVICE static bool is_bad(unsigned bits, int key) {
    return load_shared_word(bits + 4u * (unsigned)(key / 32)) >> key % 32 & 1u;
  }
};

// Two neighbouring elements of a row of dQ; `column` is even.
ROTA_DEVICE void store_row_pair(Element *row, int column, unsigned packed) {
  if (kAligned && column + 1 < kHeadDim) {
    store_global_word(row + column, packed);
  } else {
    if (column < kHeadDim)
      row[column].bits = (unsigned short)packed;
    if (column + 1 < kHeadDim)
      row[column + 1].bits = (unsigned short)(packed >> 16);
  }
}

} // namespace rota

#endif
