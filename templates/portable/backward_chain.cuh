// A chain of the backward pass on mma.sync: one kv tile against the query tiles that attend to it,
// for all query heads of its group. K and V stay in shared memory and dK and dV in registers from
// the first visit to the last.
//
// Warp (g, p) of kWarpsKv x kWarpsD owns kv rows g of S^T and its part p of the queries; of dK and
// dV the same rows and part p of the head dim:
//
//   S^T [kv][q] = K Q^T     dP^T = V dO^T           queries split over p
//   P^T = exp(S - LSE)      dS^T = P (dP - delta)   rounded; where kWarpsD > 1 through shared
//                                                   memory, where the warps of g find each other's
//   dV [kv][d] += P^T dO    dK += dS^T Q            head dim split over p
//   dQ [q][d] = dS K                                one visit later, all warps: other rows, columns
//
// Barriers per visit: one of the block and, where kWarpsD > 1, one of the warps of g.
//
//   block barrier i | loads of i + 1 start | S(i), P(i) | dQ(i - 1) | dP(i), dS(i) |
//   group barrier | dV(i), dK(i) | block barrier i + 1 ...
//
// At barrier i the loads of i have landed, dS(i - 1) is complete, and nobody reads Q, dO and dS of
// visit i - 2, whose places are used again, any more.
#ifndef ROTA_PORTABLE_BACKWARD_CHAIN_CUH
#define ROTA_PORTABLE_BACKWARD_CHAIN_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "templates/lib/barrier.cuh"
#include "templates/lib/matrix.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/order.cuh"
#include "templates/lib/tables.cuh"
#include "templates/portable/backward_elements.cuh"

namespace rota {

// Rows padded to a multiple of kPad: 16, or 32 where an odd number of blocks of 16 would not divide
// among warps.
template <int kColumnsUsed> struct ChainLayout : TileLayout<round_up(kColumnsUsed, kPad)> {
  static constexpr int kColumns = kColumnsUsed;
};
using LayoutK = ChainLayout<kHeadDim>;
using LayoutV = ChainLayout<kHeadDimV>;
using LayoutS = TileLayout<kTileQ>; // P^T and dS^T: a row per key
static_assert(kPad % 16 == 0, "whole blocks");

constexpr int kChainWarps = kWarpsKv * kWarpsD;
constexpr int kChainThreads = kChainWarps * kWarp;
constexpr int kKeysPerWarp = kTileKv / kWarpsKv, kQueriesPerWarp = kTileQ / kWarpsD;
constexpr int kM = kKeysPerWarp / 16, kN = kQueriesPerWarp / 8; // fragments of S^T
constexpr int kBlocksK = LayoutK::kPadded / 16, kBlocksV = LayoutV::kPadded / 16;
constexpr int kPartK = kBlocksK / kWarpsD,
              kPartV = kBlocksV / kWarpsD; // blocks of 16 columns of dK, dV
constexpr int kDqWarpsD = kChainWarps / kDqWarpsQ;
constexpr int kDqM = kTileQ / kDqWarpsQ / 16, kDqPart = kBlocksK / kDqWarpsD; // of dQ
constexpr int kRowFloats = (2 * kTileQ + kChainThreads - 1) / kChainThreads;
static_assert(kKeysPerWarp % 16 == 0 && kQueriesPerWarp % 16 == 0, "warps divide S^T into 16 x 16");
static_assert(kBlocksK % kWarpsD == 0 && kBlocksV % kWarpsD == 0, "warps_d divides the head dims");
static_assert(kTileQ % (16 * kDqWarpsQ) == 0 && kBlocksK % kDqWarpsD == 0, "warps divide dQ");

// Dynamic shared memory, byte offsets.
constexpr int kQBytes = kTileQ * LayoutK::kPitch, kDoBytes = kTileQ * LayoutV::kPitch;
constexpr int kDsBytes = kTileKv * LayoutS::kPitch, kRowBytes = 2 * kTileQ * 4;
constexpr int kSharedK = 0;
constexpr int kSharedV = kSharedK + kTileKv * LayoutK::kPitch;
constexpr int kSharedQ = kSharedV + kTileKv * LayoutV::kPitch; // kStages
constexpr int kSharedDo = kSharedQ + kStages * kQBytes;        // kStages
constexpr int kSharedDs = kSharedDo + kStages * kDoBytes;      // two: one is read, one is written
constexpr int kSharedP = kSharedDs + 2 * kDsBytes;             // none if kWarpsD is 1
constexpr int kSharedRows = kSharedP + (kWarpsD > 1 ? kDsBytes : 0); // two of {LSE log2 e, delta}
constexpr int kSharedSequence = kSharedRows + 2 * kRowBytes;         // the chain's RotaSequence
constexpr int kSharedBadKeys = kSharedSequence + 64;                 // a bit per key
constexpr int kSharedWorker = kSharedBadKeys + BadKeys<LayoutK, kChainThreads>::kBytes;
constexpr int kSharedEnd = kSharedWorker + 16;
static_assert(kSharedEnd <= kSharedBytes, "the launch's shared memory holds the tiles");
static_assert(sizeof(RotaSequence) <= 64, "its place");

// How dQ partials are added up.
enum class Reduction { kNone, kOrdered, kAtomic };

// Column blocks [first, first + count) of a tile, seen from a lane. Where they start at a multiple
// of their power-of-two number, they differ from the lane's first address by constants.
template <class Layout, int kCount> struct PartReader {
  static constexpr bool kConstant = (kCount & (kCount - 1)) == 0;
  BlockReader<Layout> reader;
  int first;
  ROTA_DEVICE PartReader(const BlockReader<Layout> &whole, int first_block)
      : reader(whole), first(first_block) {
    if constexpr (kConstant)
      reader.origin = whole.at(0, first_block);
  }
  ROTA_DEVICE void load(unsigned (&b)[2][2], int rows, int block) const {
    load_b_transposed(b, reader, rows, kConstant ? block : first + block);
  }
};

// One visit as its warps need it later.
struct Visit {
  int q_tile, rank, head;
  bool partial, last;
};
ROTA_DEVICE Visit unpack_visit(const RotaVisit &visit, int kv_head) {
  return {(int)(visit.tile & ROTA_VISIT_TILE), (int)(visit.rank & ROTA_VISIT_RANK),
          kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT),
          (visit.tile & ROTA_VISIT_PARTIAL) != 0, (visit.tile & ROTA_VISIT_LAST) != 0};
}

// A chain and the calling thread's place in it.
struct Chain {
  const RotaArguments &arguments;
  const RotaSequence &sequence; // in shared memory: registers are short
  int kv_head, first_key;
  unsigned shared;         // address of dynamic shared memory
  int thread, group, part; // warp (group, part)
  bool any_bad_keys;       // of the block: the tile holds keys that are not finite
  unsigned bad_keys;       // bit 2m + i: this lane's key 16m + 8i + g is one of them

  ROTA_DEVICE int keys() const { return group * kKeysPerWarp; }
  ROTA_DEVICE int queries() const { return part * kQueriesPerWarp; }
};

// ---- Loads ----

ROTA_DEVICE void load_keys(const Chain &chain) {
  const int rows = chain.sequence.n_k - chain.first_key;
  load_tile<LayoutK, kTileKv, kChainThreads, kAligned>(
      chain.shared + kSharedK,
      row_k<Element>(chain.arguments.k, chain.sequence, chain.first_key, chain.kv_head),
      chain.arguments.k.stride_row, rows, chain.thread);
  load_tile<LayoutV, kTileKv, kChainThreads, kAligned>(
      chain.shared + kSharedV,
      row_k<Element>(chain.arguments.v, chain.sequence, chain.first_key, chain.kv_head),
      chain.arguments.v.stride_row, rows, chain.thread);
}

// Starts the loads of a visit's Q and dO, and of this thread's share of LSE and delta into
// registers.
ROTA_DEVICE void load_queries(const Chain &chain, const Visit &visit, int stage,
                              float (&row_values)[kRowFloats]) {
  const RotaArguments &arguments = chain.arguments;
  const int first = visit.q_tile * kTileQ, rows = chain.sequence.n_q - first;
  load_tile<LayoutK, kTileQ, kChainThreads, kAligned>(
      chain.shared + kSharedQ + (unsigned)(stage * kQBytes),
      row_q<Element>(arguments.q, chain.sequence, first, visit.head), arguments.q.stride_row, rows,
      chain.thread);
  load_tile<LayoutV, kTileQ, kChainThreads, kAligned>(
      chain.shared + kSharedDo + (unsigned)(stage * kDoBytes),
      row_q<Element>(arguments.d_o, chain.sequence, first, visit.head), arguments.d_o.stride_row,
      rows, chain.thread);
  const float *delta =
      arguments.delta +
      query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head) * kTileQ;
  const float *lse = row_q<float>(arguments.lse, chain.sequence, first, visit.head);
#pragma unroll
  for (int i = 0; i < kRowFloats; i++) {
    const int at = i * kChainThreads + chain.thread, row = at % kTileQ;
    row_values[i] = at < kTileQ ? -kInfinity : 0.0f;
    if (at < 2 * kTileQ && row < rows)
      row_values[i] = at < kTileQ ? lse[row * arguments.lse.stride_row] : delta[row];
  }
}
// LSE becomes a power of two's exponent.
ROTA_DEVICE void store_rows(const Chain &chain, int parity, const float (&row_values)[kRowFloats]) {
#pragma unroll
  for (int i = 0; i < kRowFloats; i++) {
    const int at = i * kChainThreads + chain.thread;
    const float x = at < kTileQ ? exponent_of_lse(row_values[i]) : row_values[i];
    if (at < 2 * kTileQ)
      store_shared_word(chain.shared + (unsigned)(kSharedRows + parity * kRowBytes + 4 * at),
                        __float_as_uint(x));
  }
}

// Called after the arrival of the keys.
ROTA_DEVICE void remove_bad_keys(Chain &chain) {
  const unsigned bits = chain.shared + kSharedBadKeys;
  chain.any_bad_keys =
      BadKeys<LayoutK, kChainThreads>::remove(chain.shared + kSharedK, bits, chain.thread);
  if (!chain.any_bad_keys)
    return;
#pragma unroll
  for (int i = 0; i < 2 * kM; i++)
    if (BadKeys<LayoutK, kChainThreads>::is_bad(bits, chain.keys() + 8 * i + lane_index() / 4))
      chain.bad_keys |= 1u << i;
}

// ---- Elementwise ----

constexpr int kMaskWords = (kM * kN * 4 + 31) / 32;

// S^T becomes P^T (times the score's derivative, for dS); `packed` gets P^T rounded, and `allowed`
// a bit per element, which means something in partial tiles only.
template <bool kPartial>
ROTA_DEVICE void probabilities(const Chain &chain, const Visit &visit, int parity,
                               float (&s)[kM][kN][4], unsigned (&packed)[kM][kN][2],
                               unsigned (&allowed)[kMaskWords]) {
  const RotaArguments &arguments = chain.arguments;
  const int g = lane_index() / 4, t = lane_index() % 4;
  const int first_q = visit.q_tile * kTileQ + chain.queries() + 2 * t;
  const int first_key = chain.first_key + chain.keys() + g;
  const float factor = score_factor(arguments);
  const unsigned rows =
      chain.shared + (unsigned)(kSharedRows + parity * kRowBytes + 4 * (chain.queries() + 2 * t));
  if constexpr (kPartial) {
#pragma unroll
    for (int i = 0; i < kMaskWords; i++)
      allowed[i] = 0;
  }
#pragma unroll
  for (int n = 0; n < kN; n++) {
    float lse[2];
    load_shared_pair(lse, rows + 32u * (unsigned)n);
#pragma unroll
    for (int m = 0; m < kM; m++) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int key = first_key + 16 * m + 8 * (i / 2), bit = (m * kN + n) * 4 + i;
        const Probability result = probability_of<kPartial>(
            arguments,
            {first_q + 8 * n + i % 2, key, visit.head, chain.sequence.batch, chain.sequence.n_q,
             chain.sequence.n_k},
            s[m][n][i] * factor, lse[i % 2], chain.bad_keys >> (2 * m + i / 2) & 1u);
        if constexpr (kPartial)
          allowed[bit / 32] |= result.allowed ? 1u << bit % 32 : 0u;
        p[i] = result.p;
        s[m][n][i] = kHasScore ? result.p * result.slope : result.p;
      }
      packed[m][n][0] = pack(p[0], p[1], Element());
      packed[m][n][1] = pack(p[2], p[3], Element());
    }
  }
}

// dS^T = P^T (dP^T - delta), rounded; zeros where not allowed, whatever dP is there.
template <bool kPartial>
ROTA_DEVICE void score_gradients(const Chain &chain, int parity, const float (&p)[kM][kN][4],
                                 const float (&dp)[kM][kN][4], unsigned (&packed)[kM][kN][2],
                                 const unsigned (&allowed)[kMaskWords]) {
  const int t = lane_index() % 4;
  const unsigned rows = chain.shared + (unsigned)(kSharedRows + parity * kRowBytes +
                                                  4 * (kTileQ + chain.queries() + 2 * t));
#pragma unroll
  for (int n = 0; n < kN; n++) {
    float delta[2];
    load_shared_pair(delta, rows + 32u * (unsigned)n);
#pragma unroll
    for (int m = 0; m < kM; m++) {
      float ds[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int bit = (m * kN + n) * 4 + i;
        ds[i] = p[m][n][i] * (dp[m][n][i] - delta[i % 2]);
        if constexpr (kPartial)
          ds[i] = allowed[bit / 32] >> bit % 32 & 1u ? ds[i] : 0.0f;
      }
      packed[m][n][0] = pack(ds[0], ds[1], Element());
      packed[m][n][1] = pack(ds[2], ds[3], Element());
    }
  }
}

// P^T or dS^T into its tile.
ROTA_DEVICE void store_packed(const Chain &chain, unsigned tile,
                              const unsigned (&packed)[kM][kN][2]) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int n = 0; n < kN; n++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        store_shared_word(tile + (unsigned)(LayoutS::offset(chain.keys() + 16 * m + 8 * i + g,
                                                            chain.queries() / 8 + n) +
                                            4 * t),
                          packed[m][n][i]);
}

// dV += P^T dO, dK += dS^T Q: the A operand from this warp's registers (kWarpsD 1) or from the tile
// that its group has written.
template <class Layout, int kPart>
ROTA_DEVICE void accumulate(const Chain &chain, float (&d)[kM][2 * kPart][4],
                            const unsigned (&packed)[kM][kN][2], unsigned tile_a, unsigned tile_b) {
  const auto a_reader = BlockReader<LayoutS>::along(tile_a, chain.keys());
  const PartReader<Layout, kPart> b_reader(BlockReader<Layout>::along(tile_b, 0),
                                           chain.part * kPart);
#pragma unroll
  for (int block = 0; block < kTileQ / 16; block++) {
    unsigned a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; m++) {
      if constexpr (kWarpsD == 1) {
        a[m][0] = packed[m][2 * block][0], a[m][1] = packed[m][2 * block][1];
        a[m][2] = packed[m][2 * block + 1][0], a[m][3] = packed[m][2 * block + 1][1];
      } else {
        load_a(a[m], a_reader, 16 * m, block);
      }
    }
#pragma unroll
    for (int n = 0; n < kPart; n++) {
      unsigned b[2][2];
      b_reader.load(b, 16 * block, n);
      multiply_block(d, a, b, n);
    }
  }
}

// ---- dQ ----

// The dQ tile in the order of its fragments: float [fragment][thread][4], 16 bytes a thread side by
// side.
ROTA_DEVICE float *dq_sums(const Chain &chain, const Visit &visit) {
  const long long tile =
      query_tile_number(chain.arguments, chain.sequence, visit.q_tile, visit.head);
  return chain.arguments.dq_accumulator + tile * (kTileQ * LayoutK::kPadded) + 4 * chain.thread;
}
ROTA_DEVICE int *dq_counter(const Chain &chain, const Visit &visit) {
  return chain.arguments.counters +
         query_tile_number(chain.arguments, chain.sequence, visit.q_tile, visit.head);
}
template <class Apply>
ROTA_DEVICE void for_dq_fragments(float (&dq)[kDqM][2 * kDqPart][4], float *sums, Apply apply) {
#pragma unroll
  for (int m = 0; m < kDqM; m++)
#pragma unroll
    for (int n = 0; n < 2 * kDqPart; n++)
      apply(dq[m][n], sums + (m * 2 * kDqPart + n) * 4 * kChainThreads);
}

// dq += dS K.
ROTA_DEVICE void multiply_dq(const Chain &chain, float (&dq)[kDqM][2 * kDqPart][4], int parity) {
  const int warp = chain.thread / kWarp, warp_q = warp % kDqWarpsQ, warp_d = warp / kDqWarpsQ;
  auto a_reader =
      BlockReader<LayoutS>::across(chain.shared + kSharedDs + (unsigned)(parity * kDsBytes), 0);
  const PartReader<LayoutK, kDqPart> b_reader(
      BlockReader<LayoutK>::along(chain.shared + kSharedK, 0), warp_d * kDqPart);
#pragma unroll
  for (int block = 0; block < kTileKv / 16; block++) {
    unsigned a[kDqM][4];
#pragma unroll
    for (int m = 0; m < kDqM; m++)
      load_a_transposed(a[m], a_reader, 16 * block, warp_q * kDqM + m);
#pragma unroll
    for (int n = 0; n < kDqPart; n++) {
      unsigned b[2][2];
      b_reader.load(b, 16 * block, n);
      multiply_block(dq, a, b, n);
    }
  }
}

// Scaled and rounded rows of dQ; zeros in the slot's rows beyond n_q.
ROTA_DEVICE void store_dq(const RotaArguments &arguments, const RotaSequence &sequence, int q_tile,
                          int head, int thread, const float (&dq)[kDqM][2 * kDqPart][4]) {
  const int warp = thread / kWarp, warp_q = warp % kDqWarpsQ, warp_d = warp / kDqWarpsQ;
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < kDqM; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int q = q_tile * kTileQ + (warp_q * kDqM + m) * 16 + 8 * i + g;
      if (q >= sequence.rows_q)
        continue;
      const bool used = q < sequence.n_q;
      Element *row = row_q<Element>(arguments.d_q, sequence, q, head);
#pragma unroll
      for (int n = 0; n < 2 * kDqPart; n++) {
        const int column = warp_d * kDqPart * 16 + 8 * n + 2 * t;
        const float left = arguments.scale * dq[m][n][2 * i];
        const float right = arguments.scale * dq[m][n][2 * i + 1];
        store_row_pair(row, column, used ? pack(left, right, Element()) : 0u);
      }
    }
}

// ---- The chain ----

// dV or dK: through the place of V or K in shared memory, so that rows are stored 16 bytes at a
// time.
template <class Layout, int kPart>
ROTA_DEVICE void stage_gradient(const Chain &chain, unsigned tile, float scale,
                                const float (&d)[kM][2 * kPart][4]) {
  const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int key = chain.keys() + 16 * m + 8 * i + g;
      const bool used = chain.first_key + key < chain.sequence.n_k;
#pragma unroll
      for (int n = 0; n < 2 * kPart; n++)
        store_shared_word(
            tile + (unsigned)(Layout::offset(key, chain.part * kPart * 2 + n) + 4 * t),
            used ? pack(scale * d[m][n][2 * i], scale * d[m][n][2 * i + 1], Element()) : 0u);
    }
}

// The dQ of a visit. In order, partials are added by vector additions in the L2 cache, which nobody
// waits for (kVectorAdd), or else by fetching the sum, which becomes the product's first addend.
// The last rank fetches it in any case, and writes dQ.
template <Reduction kReduction>
ROTA_DEVICE void add_dq(const Chain &chain, const Visit &visit, int parity) {
  constexpr bool kOrdered = kReduction == Reduction::kOrdered;
  float dq[kDqM][2 * kDqPart][4];
  clear(dq);
  if (kOrdered && visit.rank > 0 && (!kVectorAdd || visit.last))
    for_dq_fragments(dq, dq_sums(chain, visit), [](float(&x)[4], float *at) { load_sum(x, at); });
  multiply_dq(chain, dq, parity);
  if (kOrdered && visit.last)
    store_dq(chain.arguments, chain.sequence, visit.q_tile, visit.head, chain.thread, dq);
  else if (!kOrdered || (kVectorAdd && visit.rank > 0))
    for_dq_fragments(dq, dq_sums(chain, visit), [](float(&x)[4], float *at) { add_sum(at, x); });
  else
    for_dq_fragments(dq, dq_sums(chain, visit), [](float(&x)[4], float *at) { store_sum(at, x); });
}

// The warp's part of one tile of the plane, from S^T to dS^T.
struct TilePart {
  float s[kM][kN][4]; // S^T, then P^T times the score's derivative
  unsigned p[kM][kN][2], ds[kM][kN][2];
  unsigned allowed[kMaskWords];

  ROTA_DEVICE void multiply_scores(const Chain &chain, unsigned tile_q) {
    clear(s);
    multiply_transposed<kBlocksK>(
        s, BlockReader<LayoutK>::along(chain.shared + kSharedK, chain.keys()),
        BlockReader<LayoutK>::across(tile_q, chain.queries()));
  }
  ROTA_DEVICE void make_probabilities(const Chain &chain, const Visit &visit, int parity) {
    if (visit.partial || chain.any_bad_keys)
      probabilities<true>(chain, visit, parity, s, p, allowed);
    else
      probabilities<false>(chain, visit, parity, s, p, allowed);
    if constexpr (kWarpsD > 1)
      store_packed(chain, chain.shared + kSharedP, p);
  }
  ROTA_DEVICE void multiply_gradients(const Chain &chain, unsigned tile_do,
                                      float (&dp)[kM][kN][4]) {
    clear(dp);
    multiply_transposed<kBlocksV>(
        dp, BlockReader<LayoutV>::along(chain.shared + kSharedV, chain.keys()),
        BlockReader<LayoutV>::across(tile_do, chain.queries()));
  }
  template <bool kStore>
  ROTA_DEVICE void make_score_gradients(const Chain &chain, const Visit &visit, int parity,
                                        const float (&dp)[kM][kN][4], unsigned tile_ds) {
    if (visit.partial || chain.any_bad_keys)
      score_gradients<true>(chain, parity, s, dp, ds, allowed);
    else
      score_gradients<false>(chain, parity, s, dp, ds, allowed);
    if constexpr (kStore || kWarpsD > 1)
      store_packed(chain, tile_ds, ds);
    if constexpr (kWarpsD > 1)
      named_barrier_sync(1 + chain.group, kWarpsD * kWarp);
  }
};

// All visits of a chain.
//
// Two warps share a scheduler: w and w + 4. Waiting for a turn and the fence of a signal take the
// time of a trip to the L2 cache each, so the two do it at different points, one computing
// meanwhile.
template <Reduction kReduction>
ROTA_DEVICE void run_visits(Chain &chain, const RotaChain &entry, float (&dk)[kM][2 * kPartK][4],
                            float (&dv)[kM][2 * kPartV][4]) {
  constexpr bool kOrdered = kReduction == Reduction::kOrdered;
  const int visits = entry.visit_end - entry.visit_begin;
  const bool early = chain.thread / kWarp % 8 < 4;
  float row_values[kRowFloats];
  Visit visit = {}, previous = {};
  Visit next = unpack_visit(chain.arguments.visits[entry.visit_begin], chain.kv_head);
  load_keys(chain);
  load_queries(chain, next, 0, row_values);

  // Turn i does visit i and the dQ of visit i - 1; there is one turn more than visits.
  for (int i = 0; i <= visits; i++) {
    const int stage = kStages == 2 ? i & 1 : 0, parity = i & 1;
    const unsigned tile_q = chain.shared + kSharedQ + (unsigned)(stage * kQBytes);
    const unsigned tile_do = chain.shared + kSharedDo + (unsigned)(stage * kDoBytes);
    const unsigned tile_ds = chain.shared + kSharedDs + (unsigned)(parity * kDsBytes);
    const bool more = i < visits, reduce = kReduction != Reduction::kNone && i > 0;
    TilePart part;

    previous = visit;
    visit = next;
    const bool waits = kOrdered && reduce && previous.rank > 0;
    const bool signals = kOrdered && reduce && !previous.last;
    if (more)
      store_rows(chain, parity, row_values);
    copy_commit();
    copy_wait<0>();
    if (kHasMask && i == 0)
      remove_bad_keys(chain);
    __syncthreads();
    if (i + 1 < visits) {
      next = unpack_visit(chain.arguments.visits[entry.visit_begin + i + 1], chain.kv_head);
      if constexpr (kStages == 2)
        load_queries(chain, next, 1 - stage, row_values);
    }
    if (waits && early)
      wait_for_signals(dq_counter(chain, previous), previous.rank * kChainWarps);
    if (more)
      part.multiply_scores(chain, tile_q);
    if (waits && !early)
      wait_for_signals(dq_counter(chain, previous), previous.rank * kChainWarps);
    if (more)
      part.make_probabilities(chain, visit, parity);
    if (reduce)
      add_dq<kReduction>(chain, previous, 1 - parity);
    if (!more) {
      if (signals)
        signal(dq_counter(chain, previous));
      break;
    }

    float dp[kM][kN][4];
    part.multiply_gradients(chain, tile_do, dp);
    // By now what was stored is nearly there: the fence of the signal costs less.
    if (signals && early)
      signal(dq_counter(chain, previous));
    part.make_score_gradients<kReduction != Reduction::kNone>(chain, visit, parity, dp, tile_ds);
    accumulate<LayoutV, kPartV>(chain, dv, part.p, chain.shared + kSharedP, tile_do);
    if (signals && !early)
      signal(dq_counter(chain, previous));
    accumulate<LayoutK, kPartK>(chain, dk, part.ds, tile_ds, tile_q);
    if constexpr (kStages == 1) {
      __syncthreads();
      if (i + 1 < visits)
        load_queries(chain, next, 0, row_values);
    }
  }
}

template <Reduction kReduction>
ROTA_DEVICE void run_chain(const RotaArguments &arguments, const RotaItem &item, unsigned shared) {
  const RotaChain entry = arguments.chains[item.index];
  const int thread = (int)threadIdx.x, warp = thread / kWarp;
  RotaSequence &sequence = *reinterpret_cast<RotaSequence *>(dynamic_shared() + kSharedSequence);
  if (thread == 0)
    sequence = arguments.sequences[entry.sequence];
  __syncthreads();
  Chain chain = {arguments, sequence, item.head,      entry.kv_tile * kTileKv,
                 shared,    thread,   warp / kWarpsD, warp % kWarpsD,
                 false,     0u};
  float dk[kM][2 * kPartK][4], dv[kM][2 * kPartV][4];
  clear(dk);
  clear(dv);
  if (entry.visit_begin < entry.visit_end)
    run_visits<kReduction>(chain, entry, dk, dv);
  __syncthreads();
  stage_gradient<LayoutK, kPartK>(chain, shared + kSharedK, arguments.scale, dk);
  stage_gradient<LayoutV, kPartV>(chain, shared + kSharedV, 1.0f, dv);
  __syncthreads();
  const int rows = chain.sequence.rows_k - chain.first_key;
  store_tile<LayoutK, kTileKv, kChainThreads, kAligned>(
      shared + kSharedK, row_k<Element>(arguments.d_k, chain.sequence, chain.first_key, item.head),
      arguments.d_k.stride_row, rows, thread);
  store_tile<LayoutV, kTileKv, kChainThreads, kAligned>(
      shared + kSharedV, row_k<Element>(arguments.d_v, chain.sequence, chain.first_key, item.head),
      arguments.d_v.stride_row, rows, thread);
  __syncthreads();
}

} // namespace rota

#endif
