// The backward pass on wgmma: sizes, shared memory, barriers, and what its warps tell each other.
//
//   warpgroup 0   warp 0: loads K, V and every visit's Q, dO, LSE, delta
//                 warps 1, 2: add dQ partials in turn, store finished dQ
//                 warp 3: draws chains, stores their dV and dK
//   warpgroup 1   keys 0 .. 63 of the kv tile
//   warpgroup 2   keys 64 .. 127
//   warpgroup 3   keys 128 .. 191, up to head dim 64
//
// A worker's work is a stream of visits, chain after chain, which it draws one by one: a chain that
// somebody has drawn may be waited for, so no earlier than when the last one nears its end. There
// are as many stages of Q and dO as warpgroups of consumers, and a visit's dQ, over the keys of
// all, is made by the one whose number is that of the visit's stage. Barriers, with who waits for
// whom:
//
//   asked                  loader -> warp 3        the chain is nearly loaded: which is the next?
//   described              warp 3 -> loader        it, or the end, is in the chain's slot
//   full_k, full_v         loader -> consumers     once a chain; K by slot; K also at the end
//   empty_k, empty_v       consumers -> loader     once a chain, all warps
//   full_q, full_do        loader -> consumers     once a visit, by stage
//   empty_q, empty_do      consumers -> loader     once a visit, by stage, all warps
//   exchanged              consumers -> consumers  the visit's dS lies in buffer b; all warps
//   used                   consumers -> consumers  its dQ is made; 4 warps
//   staged_v               consumers -> warp 3     in the place of Q and dO lies dV; all warps
//   staged_k               consumers -> warp 3     in the place of dS lies dK; all warps
//   stored_k               warp 3 -> consumers     it has been read
//   recorded, taken        loader <-> writers      what the next turn is, by slot
//   staged                 consumers -> writer     a dQ partial (or dV) lies in staging buffer b
//   unstaged               writer -> consumers     it may be written, or added to what it holds
//
// A visit's dQ partial fills a staging buffer. The two take turns, and each has its own writer, so
// that a writer has the time of two visits. dV lies where Q and dO of the chain's last visit did,
// and warp 3 releases their stage in the consumers' stead. Where that is too small (kDvInStage), dV
// has a turn of the staging buffers.
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
constexpr int kKeys = 64; // of a warpgroup: the rows of its products
constexpr int kConsumerGroups = kTileKv / kKeys, kConsumerWarps = 4 * kConsumerGroups;
constexpr int kConsumerThreads = kConsumerWarps * kWarp;
static_assert(kTileKv % kKeys == 0 && kTileQ == 64, "dQ has 64 rows, too");

constexpr int kDqFragments = kPaddedK / 8; // of 16 bytes a thread
constexpr int kDqFloats = kTileQ * kPaddedK;
constexpr int kDqColumns = kPaddedK, kDqWarps = 4; // that one warpgroup makes
constexpr bool kOrdered = kAtomic == 0;

constexpr int kStagesQ = kConsumerGroups;
constexpr int kSlots = kConsumerGroups == 3 ? 2 : 1; // of K, where there is room
constexpr int kKBytes = kTileKv * kPaddedK * 2, kVBytes = kTileKv * kPaddedV * 2;
constexpr int kQBytes = kTileQ * kPaddedK * 2, kDoBytes = kTileQ * kPaddedV * 2;
constexpr int kDsBytes = kTileQ * kTileKv * 2;
// A warpgroup's part of dV fits the place of a visit's Q, the other's that of dO.
constexpr bool kDvInStage = kConsumerGroups == 2 && kPaddedV <= kPaddedK;
constexpr int kStagingBytes = larger(kDqFloats * 4, kVBytes);
constexpr int kRowBytes = kTileQ * 4;        // LSE or delta of a tile
constexpr int kTermBytes = kTileQ * 16;      // RowTerms of a tile
constexpr int kRowWords = kRowTerms ? 5 : 2; // of a row in memory: delta, RowTerms or LSE
constexpr int kRowsBytes = kRowTerms ? kTermBytes : 2 * kRowBytes; // a stage's
constexpr int kFactorBytes = kExact ? kTileQ * 2 : 0;              // see backward_exact.cuh

// A staged dQ partial lies in the order of its fragments: float [warp][fragment][lane][4]. What one
// warp holds, 16 rows, is a block. In a finished tile each block has become boxes of 16 rows, one
// after another, at the block's place.
constexpr int kBlockBytes = kDqFragments * kWarp * 16, kBoxBytes = 16 * kBoxPitch;
ROTA_DEVICE constexpr int dq_box(int column, int row) {
  return row / 16 * kBlockBytes + column / kBoxColumns * kBoxBytes;
}

static_assert(kKBytes <= 2 * kDsBytes, "room for dK");

// Places in dynamic shared memory; tiles at multiples of 1024.
constexpr int kSharedK = 0;
constexpr int kSharedV = kSharedK + kSlots * kKBytes;
constexpr int kSharedQ = kSharedV + kVBytes;
constexpr int kSharedDo = kSharedQ + kStagesQ * kQBytes;
constexpr int kSharedDs = kSharedDo + kStagesQ * kDoBytes;      // two
constexpr int kSharedStaging = kSharedDs + 2 * kDsBytes;        // two
constexpr int kSharedRows = kSharedStaging + 2 * kStagingBytes; // LSE and delta, or RowTerms
constexpr int kSharedFactor = kSharedRows + kStagesQ * kRowsBytes;
constexpr int kSharedChain = kSharedFactor + kStagesQ * kFactorBytes; // ChainWords
constexpr int kChainSlots = 4, kChainBytes = 72;
constexpr int kSharedVisit = kSharedChain + kChainSlots * kChainBytes; // VisitRecord by stage
constexpr int kVisitBytes = 16;
constexpr int kSharedTurns = kSharedVisit + kVisitBytes * kStagesQ; // Turn
constexpr int kTurnSlots = kExact && kStagesQ == 2 ? 4 : 8, kTurnBytes = 32;
constexpr int kSharedBadChain = kSharedTurns + kTurnSlots * kTurnBytes; // two words
constexpr int kSharedBadRows = kSharedBadChain + 16; // a word for each warp of consumers
constexpr int kSharedBarriers = kSharedBadRows + 4 * kConsumerWarps;
constexpr int kBarriers = 16 + 2 * kSlots + 4 * kStagesQ + 2 * kTurnSlots;
constexpr int kSharedEnd = kSharedBarriers + 8 * kBarriers;
static_assert(kSharedEnd <= kSharedBytes, "the launch's shared memory holds the tiles");

// What is added in a query row, -LSE / scale to S and -delta to dP, in three pieces of bf16 each,
// which together hold all bits. The products add it: a column of S^T is then
//
//   K q + [1/2 1/2 1/2 0 0 0 0 0 | the same] [terms | terms]      and of dP^T
//   V dO + [0 0 0 1/2 1/2 1/2 0 0 | the same] [terms | terms]
//
// in a k step of 16 whose halves lie at the same place. Loads of 4 bytes for each element would
// take more of the shared memory's time. Where a term is NaN, so are both elements.
struct RowTerms {
  Chunk pieces;

  ROTA_DEVICE static void split(float x, float (&piece)[3]) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
      float high;
      unpack(pack(x, 0.0f, Bf16()), piece[i], high, Bf16());
      x -= piece[i];
    }
  }
  ROTA_DEVICE RowTerms(float lse, float delta) {
    float l[3], d[3];
    split(lse, l);
    split(delta, d);
    pieces =
        Chunk{{pack(l[0], l[1], Bf16()), pack(l[2], d[0], Bf16()), pack(d[1], d[2], Bf16()), 0}};
  }
  // The constants of columns 2 t, 2 t + 1, for LSE or delta, t = lane % 4.
  ROTA_DEVICE static unsigned halves(int t, bool of_delta) {
    constexpr unsigned kHalf = 0x3f00, kBoth = 0x3f003f00;
    if (of_delta)
      return t == 2 ? kBoth : t == 1 ? kHalf << 16 : 0;
    return t == 0 ? kBoth : t == 1 ? kHalf : 0;
  }
  // Of the terms at an address shifted to the right by 4: rows of 16 bytes without swizzling, in
  // groups of 8.
  ROTA_DEVICE static Descriptor describe(unsigned shared) {
    return (Descriptor)(8 * 16 >> 4) << 32 | shared;
  }
};

// Barriers' addresses.
struct Barriers {
  unsigned first;
  ROTA_DEVICE unsigned at(int i) const { return first + 8u * (unsigned)i; }
  // One thread arrives,
  ROTA_DEVICE unsigned unstaged(int buffer) const { return at(buffer); }
  ROTA_DEVICE unsigned recorded(int slot) const { return at(2 + slot); }
  ROTA_DEVICE unsigned taken(int slot) const { return at(2 + kTurnSlots + slot); }
  ROTA_DEVICE unsigned full_q(int stage) const { return at(kOfStages + stage); }
  ROTA_DEVICE unsigned full_do(int stage) const { return at(kOfStages + kStagesQ + stage); }
  ROTA_DEVICE unsigned full_k(int slot) const { return at(kOfSlots + slot); }
  ROTA_DEVICE unsigned full_v() const { return at(kOfSlots + kSlots); }
  ROTA_DEVICE unsigned stored_k() const { return at(kOfSlots + kSlots + 1); }
  ROTA_DEVICE unsigned described(int parity) const { return at(kOfSlots + kSlots + 2 + parity); }
  ROTA_DEVICE unsigned asked() const { return at(kOfSlots + kSlots + 4); }
  // the warps that make a dQ,
  ROTA_DEVICE unsigned used(int buffer) const { return at(kOfDq + buffer); }
  // all consumers' warps, or those with as much weight.
  ROTA_DEVICE unsigned staged(int buffer) const { return at(kOfAll + buffer); }
  ROTA_DEVICE unsigned exchanged(int buffer) const { return at(kOfAll + 2 + buffer); }
  ROTA_DEVICE unsigned empty_q(int stage) const { return at(kOfAll + 4 + stage); }
  ROTA_DEVICE unsigned empty_do(int stage) const { return at(kOfAll + 4 + kStagesQ + stage); }
  ROTA_DEVICE unsigned empty_k(int slot) const { return at(kOfChain + slot); }
  ROTA_DEVICE unsigned empty_v() const { return at(kOfChain + kSlots); }
  ROTA_DEVICE unsigned staged_k() const { return at(kOfChain + kSlots + 1); }
  ROTA_DEVICE unsigned staged_v() const { return at(kOfChain + kSlots + 2); }

  static constexpr int kOfStages = 2 + 2 * kTurnSlots, kOfSlots = kOfStages + 2 * kStagesQ;
  static constexpr int kOfDq = kOfSlots + kSlots + 5, kOfAll = kOfDq + 2;
  static constexpr int kOfChain = kOfAll + 4 + 2 * kStagesQ;
  static_assert(kOfChain + kSlots + 3 == kBarriers, "all have a place");
  ROTA_DEVICE void init() const {
    for (int i = 0; i < kBarriers; i++)
      barrier_init(at(i), i < kOfDq ? 1 : i < kOfAll ? kDqWarps : kConsumerWarps);
  }
};

// A chain, as warp 3 writes it to shared memory, word by word.
struct ChainWords {
  RotaSequence sequence; // 14 words
  int kv_tile, kv_head, visit_begin, visit_end;
  ROTA_DEVICE bool is_end() const { return visit_end < 0; } // there are no more
};
static_assert(sizeof(ChainWords) <= kChainBytes && sizeof(ChainWords) <= 4 * kWarp,
              "a lane a word");
constexpr int kSequenceWords = (int)sizeof(RotaSequence) / 4;

ROTA_DEVICE const ChainWords &chain_words(int chain) {
  return *reinterpret_cast<const ChainWords *>(dynamic_shared() + kSharedChain +
                                               chain % kChainSlots * kChainBytes);
}

// Behind the ranks of all query tiles: the ticket, and a flag of each block that prepares rows.
ROTA_DEVICE int *ticket_counter(const RotaArguments &arguments) {
  return arguments.counters + (long long)arguments.tiles * arguments.heads;
}
ROTA_DEVICE int *prepared_flag(const RotaArguments &arguments, int block) {
  return ticket_counter(arguments) + 1 + block;
}

// What a staging buffer holds at one turn, and where it goes.
struct Turn {
  enum Kind { kPartial, kFinished, kGradientV, kEnd };
  int kind;
  int rank, tile; // of the partial, and number of the query tile and head
  int row, rows;  // in the slot: the first row, and how many there are from it on
  int head, slot; // of the tensor

  // Its buffer gets the sum of all partials but its own first.
  ROTA_DEVICE bool fetches() const { return kind == kFinished && rank > 0; }
};
static_assert(sizeof(Turn) <= kTurnBytes, "a slot");

ROTA_DEVICE const Turn &turn_of(int visit) {
  return *reinterpret_cast<const Turn *>(dynamic_shared() + kSharedTurns +
                                         visit % kTurnSlots * kTurnBytes);
}

struct Visit {
  int q_tile, rank, head;
  bool partial, bounded, last;
};
ROTA_DEVICE Visit unpack_visit(const RotaVisit &visit, int kv_head) {
  return {(int)(visit.tile & ROTA_VISIT_TILE),
          (int)(visit.rank & ROTA_VISIT_RANK),
          kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT),
          (visit.tile & ROTA_VISIT_PARTIAL) != 0,
          (visit.tile & ROTA_VISIT_BOUNDED) != 0,
          (visit.tile & ROTA_VISIT_LAST) != 0};
}

// A visit, as the loader announces it with Q.
struct VisitRecord {
  enum Flags {
    kPartial = 1, // some elements are not to be seen: of the mask, or past the queries' end
    kTail = 2,    // rows are missing
    kBounded = 4  // within bounds nothing is forbidden, see kMaskIsBounded
  };
  unsigned flags;
  int q_tile, head;
  int rows; // of the query tile, that exist; more than kTileQ count as kTileQ
};
static_assert(sizeof(VisitRecord) == kVisitBytes, "by stage");

} // namespace rota

#endif
