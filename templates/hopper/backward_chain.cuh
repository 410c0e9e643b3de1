// The consumer warpgroups of the backward pass. Each owns 64 keys of the kv tile, and their dK and
// dV in registers from the chain's first visit to its last:
//
//   S^T [k][q] = K Q^T     dP^T = V dO^T          from shared memory
//   P^T = exp(S - LSE)     dS^T = P (dP - delta)  in registers, rounded: the A operands of
//   dV [k][d] += P^T dO    dK += dS^T Q
//   dQ [q][d] = dS K       dS through shared memory, all warpgroups' keys: one of them makes it,
//                          a visit later, when the others' dS has long been there
#ifndef ROTA_HOPPER_BACKWARD_CHAIN_CUH
#define ROTA_HOPPER_BACKWARD_CHAIN_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_products.cuh"
#include "templates/hopper/backward_shared.cuh"

#include "mask.cuh"
#include "score.cuh"

namespace rota {

// Named barriers: of all consumers; a warpgroup has left the chain's last Q and dO.
constexpr int kBarrierConsumers = 1, kBarrierLeft = 2;

// What a visit needs beside its tiles. Loads from shared memory that are issued behind products
// wait for them, so it is fetched in the shadow of the visit before, if it is there by then.
struct Fetched {
  // VisitRecord's flags: the word, where registers are scarcest; by two warpgroups a bool each,
  // since with the word they spill.
  static constexpr bool kInWord = kConsumerGroups == 3;
  unsigned flags;
  bool is_partial, is_tail, is_bounded;
  bool is_there;
  ROTA_DEVICE bool partial() const {
    return kInWord ? (flags & VisitRecord::kPartial) != 0 : is_partial;
  }
  ROTA_DEVICE bool tail() const { return kInWord ? (flags & VisitRecord::kTail) != 0 : is_tail; }
  ROTA_DEVICE bool bounded() const {
    return kInWord ? (flags & VisitRecord::kBounded) != 0 : is_bounded;
  }
  float lse[kScores / 2];
};

struct Consumer {
  const RotaArguments &arguments;
  unsigned shared;
  Barriers barriers;
  int group, warp;                // warp within the group
  int chain_number, visit_number; // of the worker's
  Ring<kStagesQ> ring;            // the visit's stage
  bool has_bad_keys;              // one of the warp's holds a NaN or infinity
  bool is_beyond;                 // all of the warpgroup's keys are beyond the sequence's end
  Fetched fetched;                // of the stage's visit
  int lane = 0;

  ROTA_DEVICE unsigned tile(int place, int bytes, int number) const {
    return shared + (unsigned)(place + number * bytes);
  }
  // The descriptor of a tile, `more` bytes further. Of addresses in units of 16 bytes, so that it
  // takes an addition or two: products wait for it.
  ROTA_DEVICE Descriptor describe_tile(int place, int bytes, int number, int leading,
                                       int more = 0) const {
    return describe_shifted((shared >> 4) + (unsigned)(place >> 4) +
                                (unsigned)(number * (bytes >> 4) + (more >> 4)),
                            leading);
  }
  ROTA_DEVICE int slot() const { return chain_number % kSlots; }
  ROTA_DEVICE int chain_parity() const { return chain_number / kSlots & 1; }
  ROTA_DEVICE unsigned tile_k() const { return tile(kSharedK, kKBytes, slot()); }
  ROTA_DEVICE void arrive_if(bool arrives, unsigned barrier) const {
    if (arrives & (hidden(lane) == 0)) // a predicate, no branch
      barrier_arrive(barrier);
  }
  ROTA_DEVICE void arrive(unsigned barrier) const { arrive_if(true, barrier); }
  ROTA_DEVICE void sync() const { named_barrier_sync(kBarrierConsumers, kConsumerThreads); }

  // ---- Rows that must not be looked at ----

  // Rows [from, kRows) of a tile become zeros. All consumers.
  template <int kColumns, int kRows> ROTA_DEVICE void clear_rows(unsigned to, int from) const {
    constexpr int kChunks = kColumns / kChunk;
    const int thread = hidden((int)threadIdx.x) - kWarpgroup;
#pragma unroll 1 // rare code in the midst of the loop over visits
    for (int i = from * kChunks + thread; i < kRows * kChunks; i += kConsumerThreads)
      store_shared_chunk(to + (unsigned)box_offset(kRows, i / kChunks, i % kChunks),
                         Chunk{{0, 0, 0, 0}});
  }
  ROTA_DEVICE void clear_keys(int from) const {
    clear_rows<kPaddedK, kTileKv>(tile_k(), from);
    clear_rows<kPaddedV, kTileKv>(shared + kSharedV, from);
    fence_shared_for_engines();
    sync();
  }
  ROTA_DEVICE void clear_queries(int from) const {
    clear_rows<kPaddedK, kTileQ>(tile(kSharedQ, kQBytes, ring.stage), from);
    clear_rows<kPaddedV, kTileQ>(tile(kSharedDo, kDoBytes, ring.stage), from);
    fence_shared_for_engines();
    sync();
  }

  // Keys with a NaN or infinity are zeroed, since dQ = dS K would carry 0 * NaN to queries that may
  // not attend to them; their scores become NaN where they count. A warp looks at the 16 keys whose
  // scores it has, so nobody waits: dQ, which reads all keys, is not made before all have published
  // dS.
  ROTA_DEVICE void remove_bad_keys() {
    const int lane = hidden(this->lane);
    const unsigned own = tile_k() + (unsigned)(own_keys() + 16 * (warp * kBoxPitch + lane));
    has_bad_keys = __any_sync(kAllLanes, has_bad_chunk(own));
    if (__builtin_expect(!has_bad_keys, true))
      return;
    store_shared_word(bad_rows(), clear_bad_rows(own, lane));
    store_shared_word(bad_chain(), (unsigned)chain_number);
  }
  // Which of the warp's they are: not in a register, since there is none to spare.
  ROTA_DEVICE unsigned bad_rows() const {
    return shared + (unsigned)(kSharedBadRows + 4 * (4 * group + warp));
  }
  // Of the lane's elements, as `allowed`.
  ROTA_DEVICE unsigned bad_elements() const {
    const unsigned rows = load_shared_word(bad_rows()) >> hidden(lane) / 4;
    return (rows & 1u ? 0xffffu : 0u) | (rows & 0x100u ? 0xffff0000u : 0u);
  }
  // The number of the last of every second chain whose tile has such a key, for all warps.
  ROTA_DEVICE unsigned bad_chain() const {
    return shared + (unsigned)(kSharedBadChain + 4 * (chain_number & 1));
  }

  // ---- Elementwise ----

  ROTA_DEVICE Position position(const RotaSequence &sequence, int kv_tile, const VisitRecord &visit,
                                int bit) const {
    const int lane = hidden(this->lane);
    const int q = visit.q_tile * kTileQ + 2 * (lane % 4) + bit / 4 * 8 + bit % 2;
    const int key = kv_tile * kTileKv + kKeys * group + 16 * warp + lane / 4 + bit % 4 / 2 * 8;
    return {q, key, visit.head, sequence.batch, sequence.n_q, sequence.n_k};
  }
  // One version for tiles of every kind, and corrections in place afterwards: with a version for
  // masks and another without, the accumulators of both are live.
  //
  // s becomes P; with a score P times the score's derivative, for dS, and p is P rounded.
  template <int kFrom, int kTo>
  ROTA_DEVICE void probabilities(const ChainWords &chain, const VisitRecord &visit,
                                 float (&s)[kScores], unsigned (&p)[kBlocksQ][4]) const {
    const float factor = score_factor(arguments);
#pragma unroll
    for (int i = kFrom; i < kTo; i++) {
      float x[4];
      float lse[2] = {0.0f, 0.0f};
      if constexpr (!kRowTerms) {
        lse[0] = fetched.lse[2 * i];
        lse[1] = fetched.lse[2 * i + 1];
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int bit = 4 * i + j;
        x[j] = s[bit] * factor;
        if constexpr (kHasScore) {
          Position at = position(chain.sequence, chain.kv_tile, visit, bit);
          at.q = clamp_index<kScoreUsesTensors>(at.q, at.n_q);
          at.k = clamp_index<kScoreUsesTensors>(at.k, at.n_k);
          const float slope = score_slope(x[j], at, arguments);
          x[j] = exp2_fast(kLog2E * score_value(x[j], at, arguments) - lse[j % 2]);
          s[bit] = x[j] * slope;
        } else {
          s[bit] = exp2_fast(x[j] - lse[j % 2]);
        }
      }
      if constexpr (kHasScore) {
        p[i / 2][i % 2 * 2] = pack(x[0], x[1], Element());
        p[i / 2][i % 2 * 2 + 1] = pack(x[2], x[3], Element());
      }
    }
  }

  // ---- What may be seen ----
  //
  // A bit for each of the lane's elements, by key, then by query: element i of S^T is bit
  // element(i). All are set where nothing is masked.

  static constexpr int kLaneQueries = kTileQ / 4; // of a lane
  ROTA_DEVICE static constexpr unsigned element(int i) {
    return 1u << (i % 4 / 2 * kLaneQueries + i / 4 * 2 + i % 2);
  }
  ROTA_DEVICE bool is_masked() const {
    return fetched.partial() || (kHasMask && has_bad_keys);
  }
  // Bounds of keys or queries tell what the mask allows in the visit's tile.
  ROTA_DEVICE bool is_bounded() const {
    return kMaskIsInterval || (kMaskIsBounded && fetched.bounded());
  }
  ROTA_DEVICE bool is_bounded_by_query() const {
    return kMaskIsByQuery && is_bounded();
  }
  // With two warpgroups that load LSE no register is left for the bits between their uses.
  ROTA_DEVICE bool finds_again() const {
    return kConsumerGroups == 2 && !kRowTerms && is_bounded_by_query();
  }
  // Of queries 8 i + c (c 0 or 1) those below x, as bits 2 i + c.
  ROTA_DEVICE static unsigned queries_below(int x) {
    const int count = x <= 0 ? 0 : x / 8 * 2 + smaller(x % 8, 2);
    return (1u << smaller(count, kLaneQueries)) - 1;
  }
  ROTA_DEVICE unsigned find_bounded(const ChainWords &chain, const VisitRecord &visit) const {
    unsigned allowed = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      Position at = position(chain.sequence, chain.kv_tile, visit, 2 * r);
      const bool exists = at.k < at.n_k;
      at.k = clamp_index<kMaskUsesTensors>(at.k, at.n_k);
      const int end = smaller(mask_query_end(at, arguments), at.n_q);
      const unsigned bits =
          queries_below(end - at.q) & ~queries_below(mask_query_first(at, arguments) - at.q);
      allowed |= exists ? bits << (r * kLaneQueries) : 0u;
    }
    return allowed;
  }
  // In a loop, however long the expression; both keys in it, since what depends on the query alone
  // is then computed once.
  ROTA_DEVICE unsigned evaluate_mask(const ChainWords &chain, const VisitRecord &visit) const {
    const Position first = position(chain.sequence, chain.kv_tile, visit, 0);
    unsigned allowed = 0;
#pragma unroll 2
    for (int i = 0; i < kTileQ / 8; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        Position at = first;
        at.q += 8 * i + j % 2;
        at.k += 8 * (j / 2);
        const bool exists = (at.q < at.n_q) & (at.k < at.n_k);
        at.q = clamp_index<kMaskUsesTensors>(at.q, at.n_q);
        at.k = clamp_index<kMaskUsesTensors>(at.k, at.n_k);
        const unsigned bit = exists & mask_allows(at, arguments);
        allowed |= bit << (j / 2 * kLaneQueries + 2 * i + j % 2);
      }
    return allowed;
  }
  // Where the rest of the mask compares a number of the query's with one of the key's: each lane
  // finds those of two queries and two keys.
  ROTA_DEVICE unsigned match_numbers(const ChainWords &chain, const VisitRecord &visit) const {
    const int lane = hidden(this->lane);
    int of_key[2], of_query[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      Position at = position(chain.sequence, chain.kv_tile, visit, 2 * i);
      at.k = clamp_index<true>(at.k, at.n_k);
      at.q = clamp_index<true>(visit.q_tile * kTileQ + 2 * lane + i, at.n_q);
      of_key[i] = mask_of_key(at, arguments);
      of_query[i] = mask_of_query(at, arguments);
    }
    unsigned same = 0;
#pragma unroll
    for (int i = 0; i < kScores; i += 4)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int x = __shfl_sync(kAllLanes, of_query[j], i + lane % 4);
        same |= (x == of_key[0] ? element(i + j) : 0u) | (x == of_key[1] ? element(i + j + 2) : 0u);
      }
    return same & find_bounded(chain, visit);
  }
  // P is 0 where nothing may be seen, and NaN for keys that are not finite.
  ROTA_DEVICE void mask_probabilities(unsigned allowed, float (&s)[kScores],
                                      unsigned (&p)[kBlocksQ][4]) const {
#pragma unroll
    for (int i = 0; i < kScores; i++)
      if (!(allowed & element(i)))
        s[i] = 0.0f;
    if constexpr (kHasScore)
      mask_pairs(allowed, p);
    if (kHasMask && has_bad_keys) {
      const unsigned bad = allowed & bad_elements();
#pragma unroll
      for (int i = 0; i < kScores; i++)
        if (bad & element(i)) {
          s[i] = __uint_as_float(0x7fffffffu);
          if constexpr (kHasScore)
            p[i / 8][i % 8 / 2] |= i % 2 ? 0xffff0000u : 0xffffu;
        }
    }
  }
  // Rounded pairs become 0 where nothing may be seen, whatever dP and delta are there.
  ROTA_DEVICE static void mask_pairs(unsigned allowed, unsigned (&pairs)[kBlocksQ][4]) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      unsigned &pair = pairs[i / 8][i % 8 / 2];
      if (!(allowed & element(i)))
        pair &= 0xffff0000u;
      if (!(allowed & element(i + 1)))
        pair &= 0xffffu;
    }
  }

  // dS = P (dP - delta), rounded; P too, without a score.
  ROTA_DEVICE void score_gradients(const float (&delta)[kScores / 2], const float (&s)[kScores],
                                   const float (&dp)[kScores], unsigned (&p)[kBlocksQ][4],
                                   unsigned (&ds)[kBlocksQ][4]) const {
#pragma unroll
    for (int i = 0; i < kTileQ / 8; i++) {
      float x[4];
      if constexpr (!kHasScore) {
        p[i / 2][i % 2 * 2] = pack(s[4 * i], s[4 * i + 1], Element());
        p[i / 2][i % 2 * 2 + 1] = pack(s[4 * i + 2], s[4 * i + 3], Element());
      }
#pragma unroll
      for (int j = 0; j < 4; j++)
        x[j] = s[4 * i + j] * (dp[4 * i + j] - delta[2 * i + j % 2]);
      ds[i / 2][i % 2 * 2] = pack(x[0], x[1], Element());
      ds[i / 2][i % 2 * 2 + 1] = pack(x[2], x[3], Element());
    }
  }

  // Without bits: dS is 0 where P is, whatever dP and delta are there.
  ROTA_DEVICE void clear_missing(const ChainWords &chain, const VisitRecord &visit,
                                 float (&s)[kScores], unsigned (&p)[kBlocksQ][4]) const {
#pragma unroll
    for (int bit = 0; bit < kScores; bit++) {
      const Position at = position(chain.sequence, chain.kv_tile, visit, bit);
      const bool exists = at.q < at.n_q && at.k < at.n_k;
      s[bit] = !exists ? 0.0f : s[bit];
      if constexpr (kHasScore) {
        unsigned &word = p[bit / 8][bit % 8 / 2];
        word = !exists ? word & ~(bit % 2 ? 0xffff0000u : 0xffffu) : word;
      }
    }
  }
  ROTA_DEVICE static void clear_like(const unsigned (&p)[kBlocksQ][4],
                                     unsigned (&ds)[kBlocksQ][4]) {
#pragma unroll
    for (int i = 0; i < kBlocksQ; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
        ds[i][j] &= (p[i][j] & 0xffffu ? 0xffffu : 0u) | (p[i][j] >> 16 ? 0xffff0000u : 0u);
  }

  // dS [q][k] from the fragments of dS^T: box `group`, 16 keys of the warp.
  ROTA_DEVICE void store_ds(unsigned to, const unsigned (&ds)[kBlocksQ][4]) const {
    const unsigned lane = (unsigned)hidden(this->lane);
    const unsigned row = lane / 16 * 8 + lane % 8, chunk = 2u * (unsigned)warp + lane / 8 % 2;
    const unsigned at =
        to + (unsigned)(group * kTileQ * kBoxPitch) + row * kBoxPitch + (chunk ^ lane % 8) * 16;
#pragma unroll
    for (int block = 0; block < kBlocksQ; block++)
      store_matrices_transposed(at + (unsigned)(block * 16 * kBoxPitch), ds[block]);
  }

  // ---- Staging ----

  // A dQ partial in the order of its fragments, for the writer to add; or, by the last to
  // contribute, added to the sum that lies there, scaled and rounded, as boxes.
  ROTA_DEVICE void stage_dq(float (&dq)[kDqColumns / 2], bool is_finished, const Turn &turn,
                            const ChainWords &chain, unsigned buffer) const {
    const unsigned block = buffer + (unsigned)(warp * kBlockBytes + 16 * hidden(lane));
    if (is_finished) {
      if (turn.rank > 0)
        add_sum(dq, block);
      const RotaSequence &sequence = chain.sequence;
      round_dq(dq, buffer, sequence.n_q + (int)sequence.begin_q - turn.row);
      return;
    }
#pragma unroll
    for (int i = 0; i < kDqFragments; i++)
      store_shared_floats(block + 16u * kWarp * i, dq, 4 * i);
  }
  // For `exact`: to integers. Rows that are not finite are looked for where there may be some.
  ROTA_DEVICE void make_fixed(float (&dq)[kDqColumns / 2], const Turn &turn,
                              const ChainWords &chain) const {
    if (overflows_early(Element()) ||
        (kHasMask && load_shared_word(bad_chain()) == (unsigned)chain_number))
      spoil_rows(dq, factors_of(arguments, turn.tile), 16 * warp);
    round_sums(dq, key_factor(arguments, chain.sequence, chain.kv_head));
  }
  ROTA_DEVICE void add_sum(float (&dq)[kDqColumns / 2], unsigned block) const {
#pragma unroll
    for (int i = 0; i < kDqFragments; i++) {
      float x[4];
      load_shared_floats(x, block + 16u * kWarp * i);
#pragma unroll
      for (int j = 0; j < 4; j++)
        dq[4 * i + j] += x[j];
    }
    __syncwarp(); // all have read what boxes overwrite
  }
  ROTA_DEVICE void round_dq(const float (&dq)[kDqColumns / 2], unsigned buffer, int left) const {
    const int lane = hidden(this->lane), row = 16 * warp + lane / 4;
    const unsigned to = buffer + (unsigned)(warp * kBlockBytes + lane % 16 * kBoxPitch);
#pragma unroll
    for (int i = 0; i < kDqFragments; i += 2) {
      unsigned x[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = 4 * (i + j / 2) + 2 * (j % 2);
        x[j] = row + 8 * (j % 2) < left
                   ? pack(arguments.scale * dq[at], arguments.scale * dq[at + 1], Element())
                   : 0u;
      }
      store_matrices(to + (unsigned)(i / 8 * kBoxBytes + ((i % 8 + lane / 16) ^ lane % 8) * 16), x);
    }
  }
  // This warp's rows of dK or dV as rounded elements, in boxes of so many rows; zeros for keys
  // beyond n_k. `tile`: where the warpgroup's rows begin.
  template <int kColumns, int kBoxRows>
  ROTA_DEVICE void stage_gradient(float (&d)[kColumns / 2], float scale, const ChainWords &chain,
                                  unsigned tile) const {
    const int lane = hidden(this->lane), chunk = lane / 16 ^ lane % 8;
    const int left = chain.sequence.n_k - chain.kv_tile * kTileKv - kKeys * group - 16 * warp;
    if (__builtin_expect(left < 16, false)) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++)
        d[i] = lane / 4 + i % 4 / 2 * 8 < left ? d[i] : 0.0f;
    }
    const unsigned to = tile + (unsigned)((16 * warp + lane % 16) * kBoxPitch + 16 * chunk);
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) {
      unsigned x[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = 4 * (i + j / 2) + 2 * (j % 2);
        x[j] = pack(scale * d[at], scale * d[at + 1], Element());
      }
      store_matrices((to ^ i % 8 * 16u) + (unsigned)(i / 8 * kBoxRows * kBoxPitch), x);
    }
    fence_shared_for_engines();
    __syncwarp();
  }
  // dV where Q and dO of the last visit were, when the other warpgroup has left them, too.
  ROTA_DEVICE void stage_dv_in_stage(float (&dv)[kPaddedV / 2], const ChainWords &chain) const {
    const int stage = kStagesQ - 1 - ring.stage;
    named_barrier_sync(kBarrierLeft + 1 - group, kConsumerThreads);
    stage_gradient<kPaddedV, kKeys>(dv, 1.0f, chain,
                                    group == 0 ? tile(kSharedQ, kQBytes, stage)
                                               : tile(kSharedDo, kDoBytes, stage));
    arrive(barriers.staged_v());
  }
  // dV in its turn. Who comes early must not take the buffer's last turn for its own: it waits for
  // what was staged then.
  ROTA_DEVICE void stage_dv(float (&dv)[kPaddedV / 2], const ChainWords &chain) const {
    const int turn = turn_number(visit_number), buffer = turn % 2;
    barrier_wait_phase(barriers.staged(buffer), (turn - 2) >> 1 & 1);
    barrier_wait_phase(barriers.unstaged(buffer), turn >> 1 & 1);
    stage_gradient<kPaddedV, kTileKv>(
        dv, 1.0f, chain, tile(kSharedStaging, kStagingBytes, buffer) + (unsigned)own_keys());
    arrive(barriers.staged(buffer));
  }
  // Of the staging buffers.
  ROTA_DEVICE int turn_number(int visit) const {
    return kDvInStage ? visit : visit + chain_number;
  }

  // ---- A visit ----

  // Whether the next Q is there is asked before dS is published, where that was measured to be
  // faster.
  static constexpr bool kPublishesLate = kConsumerGroups == 3;

  // Of the stage's visit, whose Q has come.
  ROTA_DEVICE void fetch() {
    const unsigned flags = load_shared_word(record_of(ring.stage));
    if constexpr (Fetched::kInWord) {
      fetched.flags = (unsigned)uniform((int)flags);
    } else {
      fetched.is_partial = __any_sync(kAllLanes, (flags & VisitRecord::kPartial) != 0);
      fetched.is_tail = __any_sync(kAllLanes, (flags & VisitRecord::kTail) != 0);
      if constexpr (kMaskIsBounded && !kMaskIsInterval)
        fetched.is_bounded = __any_sync(kAllLanes, (flags & VisitRecord::kBounded) != 0);
    }
  }
  ROTA_DEVICE unsigned rows_of() const {
    return tile(kSharedRows, kRowsBytes, ring.stage);
  }
  ROTA_DEVICE unsigned terms_of() const { // shifted to the right by 4
    return (shared >> 4) + (unsigned)(kSharedRows >> 4) +
           (unsigned)(ring.stage * (kRowsBytes >> 4));
  }
  ROTA_DEVICE unsigned record_of(int stage) const {
    return shared + (unsigned)(kSharedVisit + kVisitBytes * stage);
  }
  ROTA_DEVICE const VisitRecord &visit() const {
    return *reinterpret_cast<const VisitRecord *>(dynamic_shared() + kSharedVisit +
                                                  kVisitBytes * ring.stage);
  }
  // Products wait to be issued until those before them run: all of dP^T behind S^T would hold up
  // the exponentials. With two warpgroups its first half follows S^T, the other comes when half of
  // the exponentials are under way; with three, where others multiply meanwhile, all of it does.
  static constexpr int kStepsAtOnce = kConsumerGroups == 3 ? 0 : kStepsV / 2;

  // S^T and kStepsAtOnce steps of dP^T, under way; S^T is the older.
  ROTA_DEVICE void begin_products(bool first, bool do_is_there, float (&s)[kScores],
                                  float (&dp)[kScores]) const {
    const int stage = ring.stage;
    wgmma_fence();
    multiply_along<0, kStepsK>(s, describe_tile(kSharedK, kKBytes, slot(), kAlong, own_keys()),
                               describe_tile(kSharedQ, kQBytes, stage, kAlong));
    add_terms(s, terms_of(), lane, false);
    wgmma_commit();
    if (first)
      barrier_wait_phase(barriers.full_v(), chain_number & 1);
    if (!do_is_there)
      barrier_wait_phase(barriers.full_do(stage), ring.parity);
    if constexpr (kStepsAtOnce > 0)
      multiply_dp<0, kStepsAtOnce>(dp);
  }
  template <int kFrom, int kTo> ROTA_DEVICE void multiply_dp(float (&dp)[kScores]) const {
    wgmma_fence();
    multiply_along<kFrom, kTo>(dp, describe_tile(kSharedV, 0, 0, kAlong, own_keys()),
                               describe_tile(kSharedDo, kDoBytes, ring.stage, kAlong));
    if constexpr (kTo == kStepsV)
      add_terms(dp, terms_of(), lane, true);
    wgmma_commit();
  }
  ROTA_DEVICE int own_keys() const {
    return group * kKeys * kBoxPitch;
  }
  // Whether no query of a partial visit may attend to one of the warpgroup's keys, found where the
  // mask allows a range of keys.
  ROTA_DEVICE bool is_idle(const ChainWords &chain, const VisitRecord &visit) const {
    const RotaSequence &sequence = chain.sequence;
    const int first = chain.kv_tile * kTileKv + kKeys * group;
    const int end = smaller(first + kKeys, sequence.n_k);
    bool any = false;
#pragma unroll
    for (int i = 0; i < kTileQ / kWarp; i++) {
      Position at = {visit.q_tile * kTileQ + kWarp * i + hidden(lane),
                     first,
                     visit.head,
                     sequence.batch,
                     sequence.n_q,
                     sequence.n_k};
      const bool exists = at.q < at.n_q;
      at.q = clamp_index<kMaskUsesTensors>(at.q, at.n_q);
      any |= exists &&
             larger(mask_first(at, arguments), first) < smaller(mask_end(at, arguments), end);
    }
    return !__any_sync(kAllLanes, any);
  }
  // From S^T and dP^T to P^T and dS^T, as operands. `allowed`: unless bounds tell.
  ROTA_DEVICE void make_operands(const ChainWords &chain, bool last, unsigned allowed,
                                 float (&s)[kScores], float (&dp)[kScores],
                                 unsigned (&p)[kBlocksQ][4], unsigned (&ds)[kBlocksQ][4]) const {
    // Rows past the end may be a neighbour's, with a NaN in S^T and dP^T already; P becomes 0.
    const bool masked = is_masked();
    if (kHasMask && masked && is_bounded_by_query() && !finds_again())
      allowed = find_bounded(chain, visit());
    if (__builtin_expect(fetched.tail(), false)) {
      wgmma_wait<0>();
      clear_queries(visit().rows);
    }
    wgmma_wait<kStepsAtOnce == 0 ? 0 : 1>();
    wgmma_touch(s);
    probabilities<0, kPairs / 2>(chain, visit(), s, p);
    wgmma_touch(s);
    multiply_dp<kStepsAtOnce, kStepsV>(dp);
    probabilities<kPairs / 2, kPairs>(chain, visit(), s, p);
    if (!kHasMask && __builtin_expect(masked, false))
      clear_missing(chain, visit(), s, p);
    if (kHasMask && __builtin_expect(masked, false))
      mask_probabilities(finds_again() ? find_bounded(chain, visit()) : allowed, s, p);
    float delta[kScores / 2] = {};
    if constexpr (!kRowTerms)
      RowValues(rows_of() + kRowBytes, lane).get(delta);
    wgmma_wait<0>();
    wgmma_touch(dp);
    if (last)
      arrive(barriers.empty_v());
    score_gradients(delta, s, dp, p, ds);
    if (!kHasMask && __builtin_expect(masked, false))
      clear_like(p, ds);
    if (kHasMask && __builtin_expect(masked, false))
      mask_pairs(finds_again() ? find_bounded(chain, visit()) : allowed, ds);
  }

  // All but its dQ, which is made a visit later.
  ROTA_DEVICE void run_visit(const ChainWords &chain, bool first, bool last,
                             float (&dk)[kPaddedK / 2], float (&dv)[kPaddedV / 2]) {
    const int stage = ring.stage;
    unsigned p[kBlocksQ][4] = {}, ds[kBlocksQ][4] = {};
    const bool do_is_there = barrier_is_over(barriers.full_do(stage), ring.parity);
    if (!fetched.is_there) {
      barrier_wait_phase(barriers.full_q(stage), ring.parity);
      fetch();
    }
    const bool idle =
        is_beyond || (fetched.partial() && is_bounded() && uniform(is_idle(chain, visit())));
    if (!idle) {
      float s[kScores], dp[kScores];
      unsigned allowed = ~0u; // in a loop, so before products are under way
      if (kHasMask && is_masked() && !is_bounded_by_query())
        allowed = kMaskIsMatch ? match_numbers(chain, visit()) : evaluate_mask(chain, visit());
      if constexpr (!kRowTerms)
        RowValues(rows_of(), lane).get(fetched.lse);
      begin_products(first, do_is_there, s, dp);
      make_operands(chain, last, allowed, s, dp, p, ds);
    } else {
      wait_visit(last);
    }
    wait_used(visit_number - 2);
    if (first)
      wait_stored_k();
    if constexpr (kExact) {
      unsigned scaled[kBlocksQ][4];
      scale_scores(scaled, ds, tile(kSharedFactor, kFactorBytes, stage));
      store_ds(tile(kSharedDs, kDsBytes, visit_number & 1), scaled);
    } else {
      store_ds(tile(kSharedDs, kDsBytes, visit_number & 1), ds);
    }
    if (!idle) {
      wgmma_fence();
      accumulate_gradient<kPaddedV>(dv, p, describe_tile(kSharedDo, kDoBytes, stage, kAcrossQ));
      accumulate_gradient<kPaddedK>(dk, ds, describe_tile(kSharedQ, kQBytes, stage, kAcrossQ));
      wgmma_commit();
    }
    if constexpr (!kPublishesLate)
      publish_ds();
    ring.advance();
    const bool is_there = barrier_is_over(barriers.full_q(ring.stage), ring.parity);
    fetched.is_there = Fetched::kInWord ? uniform(is_there) != 0 : __any_sync(kAllLanes, is_there);
    if (fetched.is_there)
      fetch();
    if constexpr (kPublishesLate)
      publish_ds();
    wgmma_wait<0>();
    wgmma_touch(dv);
    wgmma_touch(dk);
    const bool keeps = kDvInStage && last; // the stage: finish_chain
    arrive_if(!keeps, barriers.empty_do(stage));
    arrive_if(!keeps, barriers.empty_q(stage));
    if (!first && !keeps && makes_dq(stage))
      run_dq(chain, visit_number - 1);
    visit_number++;
  }
  // Others may multiply the visit's dS.
  ROTA_DEVICE void publish_ds() const {
    fence_shared_for_engines();
    __syncwarp();
    arrive(barriers.exchanged(visit_number & 1));
  }
  // An idle warpgroup's part.
  ROTA_DEVICE void wait_visit(bool last) const {
    barrier_wait_phase(barriers.full_v(), chain_number & 1);
    barrier_wait_phase(barriers.full_do(ring.stage), ring.parity);
    if (last)
      arrive(barriers.empty_v());
    if (fetched.tail())
      clear_queries(visit().rows);
  }
  // Until that visit's dQ has been made; also where there is no such visit.
  ROTA_DEVICE void wait_used(int visit) const {
    barrier_wait_phase(barriers.used(visit & 1), visit >> 1 & 1);
  }
  // Until the last chain's dK has left the place of dS.
  ROTA_DEVICE void wait_stored_k() const {
    barrier_wait_phase(barriers.stored_k(), (chain_number & 1) ^ 1);
  }
  // Whether it is this warpgroup's turn to make dQ of a visit: that of the visit's stage, `next`
  // being the one after it.
  ROTA_DEVICE bool makes_dq(int next) const {
    return group == (next == 0 ? kStagesQ : next) - 1;
  }
  ROTA_DEVICE void issue_dq(float (&dq)[kDqColumns / 2], int visit) const {
    const int exchange = visit & 1;
    barrier_wait_phase(barriers.exchanged(exchange), visit >> 1 & 1);
    wgmma_fence();
    multiply_dq(dq, describe_tile(kSharedDs, kDsBytes, exchange, kAlong),
                describe_tile(kSharedK, kKBytes, slot(), kAcrossKv));
    wgmma_commit();
  }
  ROTA_DEVICE const Turn &wait_turn(int number) const {
    static_assert((kTurnSlots & (kTurnSlots - 1)) == 0, "a power of two");
    const int turn_slot = number & (kTurnSlots - 1);
    barrier_wait_phase(barriers.recorded(turn_slot), (int)((unsigned)number / kTurnSlots & 1));
    return turn_of(turn_slot);
  }
  ROTA_DEVICE void finish_dq(float (&dq)[kDqColumns / 2], int visit, const Turn &turn,
                             const ChainWords &chain) const {
    wgmma_wait<0>();
    wgmma_touch(dq);
    arrive(barriers.used(visit & 1));
    if constexpr (kExact)
      make_fixed(dq, turn, chain);
  }
  // To a staging buffer that is free.
  ROTA_DEVICE void put_dq(float (&dq)[kDqColumns / 2], int buffer, bool is_finished,
                          const Turn &turn, const ChainWords &chain) const {
    stage_dq(dq, is_finished, turn, chain, tile(kSharedStaging, kStagingBytes, buffer));
    fence_shared_for_engines();
    __syncwarp();
    if (hidden(lane) == 0)
      barrier_arrive_times(barriers.staged(buffer), kConsumerGroups);
  }
  // All of it. Whether a staging buffer is free is asked before dQ is waited for.
  ROTA_DEVICE void run_dq(const ChainWords &chain, int visit) const {
    float dq[kDqColumns / 2];
    issue_dq(dq, visit);
    const int number = turn_number(visit), buffer = number & 1;
    const Turn &turn = wait_turn(number);
    const bool is_finished = turn.kind == Turn::kFinished;
    bool is_free = barrier_is_over(barriers.unstaged(buffer), number >> 1 & 1);
    finish_dq(dq, visit, turn, chain);
    while (!is_free)
      is_free = barrier_test(barriers.unstaged(buffer), number >> 1 & 1);
    put_dq(dq, buffer, is_finished, turn, chain);
  }

  // ---- A chain ----

  // Keys past the end and keys that are not finite, gone from the tiles.
  ROTA_DEVICE void clean_keys(const ChainWords &chain) {
    const int left = uniform(chain.sequence.n_k - chain.kv_tile * kTileKv);
    is_beyond = left <= kKeys * group;
    if (left < kTileKv) {
      barrier_wait_phase(barriers.full_v(), chain_number & 1);
      clear_keys(left);
    }
    if (kHasMask)
      remove_bad_keys();
  }
  // dK where dS was, when dQ of all visits have been made.
  ROTA_DEVICE void stage_dk(float (&dk)[kPaddedK / 2], const ChainWords &chain) const {
    wait_used(visit_number - 2);
    wait_used(visit_number - 1);
    stage_gradient<kPaddedK, kTileKv>(dk, arguments.scale, chain,
                                      shared + (unsigned)(kSharedDs + own_keys()));
  }
  ROTA_DEVICE void stage_gradients(const ChainWords &chain, int visits, float (&dk)[kPaddedK / 2],
                                   float (&dv)[kPaddedV / 2]) const {
    arrive(barriers.empty_k(slot()));
    if (visits > 0)
      stage_dv_in_stage(dv, chain);
    stage_dk(dk, chain);
    if (visits == 0) // dV is what dK is: 0
      arrive(barriers.staged_v());
    arrive(barriers.staged_k());
  }
  // What is left after the last visit with two warpgroups: each makes dQ of one of the last two
  // visits. The next K comes when they are made, so that is first; a staging buffer for dQ is what
  // may not be free yet, so it is last.
  ROTA_DEVICE void finish_chain(const ChainWords &chain, int visits, float (&dk)[kPaddedK / 2],
                                float (&dv)[kPaddedV / 2]) const {
    const bool is_last = makes_dq(ring.stage);
    if (visits > (is_last ? 0 : 1)) {
      const int visit = visit_number - (is_last ? 1 : 2), number = turn_number(visit);
      float dq[kDqColumns / 2];
      issue_dq(dq, visit);
      const Turn &turn = wait_turn(number);
      finish_dq(dq, visit, turn, chain);
      stage_gradients(chain, visits, dk, dv);
      barrier_wait_phase(barriers.unstaged(number & 1), number >> 1 & 1);
      put_dq(dq, number & 1, turn.kind == Turn::kFinished, turn, chain);
    } else {
      stage_gradients(chain, visits, dk, dv);
    }
  }
  // False where there is none.
  ROTA_DEVICE bool run_chain(int number) {
    chain_number = number;
    lane = lane_index();
    float dk[kPaddedK / 2], dv[kPaddedV / 2];
#pragma unroll
    for (int i = 0; i < kPaddedK / 2; i++)
      dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kPaddedV / 2; i++)
      dv[i] = 0.0f;
    barrier_wait_phase(barriers.full_k(slot()), chain_parity());
    const ChainWords &chain = chain_words(number);
    const int visits = uniform(chain.visit_end - chain.visit_begin);
    if (visits < 0)
      return false;
    clean_keys(chain);
#pragma unroll 1
    for (int left = visits; left > 0; left--)
      run_visit(chain, left == visits, left == 1, dk, dv);
    if (visits == 0) { // the copies of this phase must be over before the next is announced
      barrier_wait_phase(barriers.full_v(), chain_number & 1);
      arrive(barriers.empty_v());
      wait_stored_k();
    } else if (kDvInStage) {
      named_barrier_arrive(kBarrierLeft + group, kConsumerThreads);
    }
    if constexpr (kDvInStage) {
      finish_chain(chain, visits, dk, dv);
    } else {
      if (visits > 0 && makes_dq(ring.stage))
        run_dq(chain, visit_number - 1);
      arrive(barriers.empty_k(slot()));
      stage_dk(dk, chain);
      arrive(barriers.staged_k());
      stage_dv(dv, chain);
    }
    return true;
  }
};

} // namespace rota

#endif
