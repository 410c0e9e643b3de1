// Rows of K or V of a kv tile, by a whole block: for what stands before the kernels proper and
// looks at every key once.
#ifndef ROTA_HOPPER_KEY_ROWS_CUH
#define ROTA_HOPPER_KEY_ROWS_CUH

#include "spec.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "tiling.cuh"

namespace rota {

constexpr int kKeyThreads = 256;
// Of a kv tile: chunks of K or V rows, a thread's share, in registers at once.
template <int kColumns> struct KeyRows {
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kLanes = power_of_two_from(kChunks);
  static constexpr int kAtOnce = kKeyThreads / kLanes;
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

} // namespace rota

#endif
