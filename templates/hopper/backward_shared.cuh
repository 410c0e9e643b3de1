// The backward pass on wgmma: sizes, shared memory, barriers, and what its warps tell each other.
//
//   warpgroup 0   warp 0: loads K, V and every visit's Q, dO, LSE, delta
//                 warps 1, 2: add dQ partials in turn, store what is finished
//   warpgroup 1   keys 0 .. 63 of the kv tile
//   warpgroup 2   keys 64 .. 127
//
// A worker's work is a stream of visits, chain after chain. Barriers, with who waits for whom:
//
//   full_k, full_v         loader -> consumers     once a chain
//   empty_k, empty_v       consumers -> loader     once a chain, 8 warps
//   full_q, full_do        loader -> consumers     once a visit, by stage
//   empty_q, empty_do      consumers -> loader     once a visit, by stage, 8 warps
//   staged                 consumers -> writer     a dQ partial lies in staging buffer b; 8 warps
//   unstaged               writer -> consumers     it may be written, or added to what it holds
//
// A chain of n visits fills n + 2 staging buffers: its dQ partials, then dV, then dK. The two take
// turns, and each has its own writer, so that a writer has the time of two visits.
#ifndef ROTA_HOPPER_BACKWARD_SHARED_CUH
#define ROTA_HOPPER_BACKWARD_SHARED_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "templates/lib/barrier.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/order.cuh"
#include "templates/lib/tables.cuh"
#include "templates/lib/warpgroup.cuh"

namespace rota {

// Head dims padded to whole boxes, with zeros that the copy engine brings.
constexpr int kPaddedK = round_up(kHeadDim, kBoxColumns);
constexpr int kPaddedV = round_up(kHeadDimV, kBoxColumns);
constexpr int kConsumerGroups = 2, kConsumerWarps = 4 * kConsumerGroups;
constexpr int kConsumerThreads = kConsumerWarps * kWarp;
constexpr int kKeys = kTileKv / kConsumerGroups; // of a warpgroup
static_assert(kKeys == 64, "a warpgroup's products have 64 rows");
static_assert(kTileQ == 64 || kTileQ == 128, "see dQ");

// dQ [q][d] = dS K: with 128 queries each warpgroup has 64 of them, with 64 half the columns.
constexpr bool kDqByRows = kTileQ == 128;
constexpr int kDqColumns = kDqByRows ? kPaddedK : kPaddedK / kConsumerGroups;
constexpr int kDqFragments = kDqColumns / 8; // of 16 bytes a thread
constexpr int kDqFloats = kTileQ * kPaddedK;
constexpr bool kOrdered = kAtomic == 0;

constexpr int kStagesQ = 2;
constexpr int kKBytes = kTileKv * kPaddedK * 2, kVBytes = kTileKv * kPaddedV * 2;
constexpr int kQBytes = kTileQ * kPaddedK * 2, kDoBytes = kTileQ * kPaddedV * 2;
constexpr int kDsBytes = kTileQ * kTileKv * 2;
constexpr int kStagingBytes = larger(kDqFloats * 4, larger(kKBytes, kVBytes));
constexpr int kRowBytes = kTileQ * 4;                 // LSE or delta of a tile
constexpr int kFactorBytes = kExact ? kTileQ * 2 : 0; // see backward_exact.cuh

// A staged dQ partial lies in the order of its fragments: float [group][warp][fragment][lane][4],
// group and warp those of the consumers. What one warp holds, 16 rows, is a block. In a finished
// tile each block has become a box of 16 rows at the block's place, or, where two groups share the
// 64 columns of a box, behind the blocks.
constexpr int kBlockBytes = kDqFragments * kWarp * 16;
ROTA_DEVICE constexpr int dq_box(int column, int row) {
  if (kDqColumns % kBoxColumns == 0)
    return ((kDqByRows ? 0 : column / kBoxColumns * 4) + row / 16) * kBlockBytes;
  return kDqFloats * 4 + row / 16 * 16 * kBoxPitch;
}
static_assert(!kDqByRows || kPaddedK == kBoxColumns, "a box of columns");
static_assert(kDqColumns % kBoxColumns == 0 || kStagingBytes >= kDqFloats * 6, "place for boxes");

// Places in dynamic shared memory; tiles at multiples of 1024.
constexpr int kSharedK = 0;
constexpr int kSharedV = kSharedK + kKBytes;
constexpr int kSharedQ = kSharedV + kVBytes;
constexpr int kSharedDo = kSharedQ + kStagesQ * kQBytes;
constexpr int kSharedDs = kSharedDo + kStagesQ * kDoBytes; // two
constexpr int kSharedStaging = kSharedDs + 2 * kDsBytes;   // two
constexpr int kSharedLse = kSharedStaging + 2 * kStagingBytes;
constexpr int kSharedDelta = kSharedLse + kStagesQ * kRowBytes;
constexpr int kSharedFactor = kSharedDelta + kStagesQ * kRowBytes;
constexpr int kSharedChain = kSharedFactor + kStagesQ * kFactorBytes; // ChainWords
constexpr int kChainSlots = 4, kChainBytes = 80;
constexpr int kSharedVisit = kSharedChain + kChainSlots * kChainBytes; // RotaVisit by stage
constexpr int kSharedBadKeys = kSharedVisit + 8 * kStagesQ;            // a bit per key
constexpr int kSharedWorker = kSharedBadKeys + kTileKv / 8;
constexpr int kSharedBarriers = kSharedWorker + 16;
constexpr int kBarriers = 16;
constexpr int kSharedEnd = kSharedBarriers + 8 * kBarriers;
static_assert(kSharedEnd <= kSharedBytes, "the launch's shared memory holds the tiles");

// Barriers' addresses.
struct Barriers {
  unsigned first;
  ROTA_DEVICE unsigned at(int i) const { return first + 8u * (unsigned)i; }
  ROTA_DEVICE unsigned full_k() const { return at(0); }
  ROTA_DEVICE unsigned full_v() const { return at(1); }
  ROTA_DEVICE unsigned empty_k() const { return at(2); }
  ROTA_DEVICE unsigned empty_v() const { return at(15); }
  ROTA_DEVICE unsigned full_q(int stage) const { return at(3 + stage); }
  ROTA_DEVICE unsigned full_do(int stage) const { return at(5 + stage); }
  ROTA_DEVICE unsigned empty_q(int stage) const { return at(7 + stage); }
  ROTA_DEVICE unsigned empty_do(int stage) const { return at(9 + stage); }
  ROTA_DEVICE unsigned staged(int buffer) const { return at(11 + buffer); }
  ROTA_DEVICE unsigned unstaged(int buffer) const { return at(13 + buffer); }

  ROTA_DEVICE void init() const {
    for (int i = 0; i < kBarriers; i++) {
      const bool by_consumers = i == 2 || (i >= 7 && i < 13) || i == 15;
      barrier_init(at(i), by_consumers ? kConsumerWarps : 1);
    }
  }
};

// A chain, as the loader writes it to shared memory, word by word.
struct ChainWords {
  RotaSequence sequence; // 14 words
  int kv_tile, kv_head, visit_begin, visit_end;
};
static_assert(sizeof(ChainWords) <= kChainBytes && sizeof(ChainWords) <= 4 * kWarp,
              "a lane a word");
constexpr int kSequenceWords = (int)sizeof(RotaSequence) / 4;

ROTA_DEVICE const ChainWords &chain_words(int chain) {
  return *reinterpret_cast<const ChainWords *>(dynamic_shared() + kSharedChain +
                                               chain % kChainSlots * kChainBytes);
}

struct Visit {
  int q_tile, rank, head;
  bool partial, last;
};
ROTA_DEVICE Visit unpack_visit(const RotaVisit &visit, int kv_head) {
  return {(int)(visit.tile & ROTA_VISIT_TILE), (int)(visit.rank & ROTA_VISIT_RANK),
          kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT),
          (visit.tile & ROTA_VISIT_PARTIAL) != 0, (visit.tile & ROTA_VISIT_LAST) != 0};
}

} // namespace rota

#endif
