// The consumer warpgroups of the backward pass. Each owns 64 keys of the kv tile, and their dK and
// dV in registers from the chain's first visit to its last:
//
//   S^T [k][q] = K Q^T     dP^T = V dO^T          from shared memory
//   P^T = exp(S - LSE)     dS^T = P (dP - delta)  in registers, rounded: the A operands of
//   dV [k][d] += P^T dO    dK += dS^T Q
//   dQ [q][d] = dS K       dS through shared memory, both warpgroups' keys; rows or columns halved
#ifndef ROTA_HOPPER_BACKWARD_CHAIN_CUH
#define ROTA_HOPPER_BACKWARD_CHAIN_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_shared.cuh"

#include "instructions.cuh"
#include "mask.cuh"
#include "score.cuh"

namespace rota {

constexpr int kScores = kTileQ / 2;                    // accumulators of S^T and dP^T a thread
constexpr int kBlocksQ = kTileQ / 16;                  // k steps of dV and dK
constexpr int kBarrierConsumers = 1, kBarrierRows = 2; // named

// LSE as the exponent of a power of two; +inf where a row has no key: P is 0 there.
ROTA_DEVICE float score_factor(const RotaArguments &arguments) {
  return kHasScore ? arguments.scale : arguments.scale * kLog2E;
}

// d = A B, both used along their rows: kColumns / 16 steps.
template <int kColumns>
ROTA_DEVICE void multiply_along(float (&d)[kScores], Descriptor a, Descriptor b) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; step++) {
    const Descriptor at_a = advance(a, step_along(kTileKv, step));
    const Descriptor at_b = advance(b, step_along(kTileQ, step));
    if (step == 0)
      Wgmma<kTileQ>::template multiply<0, 0>(d, at_a, at_b);
    else
      Wgmma<kTileQ>::template accumulate<0, 0>(d, at_a, at_b);
  }
}
// d += A B: A from registers, B [q][column] across.
template <int kColumns>
ROTA_DEVICE void accumulate_gradient(float (&d)[kColumns / 2], const unsigned (&a)[kBlocksQ][4],
                                     Descriptor b) {
#pragma unroll
  for (int step = 0; step < kBlocksQ; step++)
    Wgmma<kColumns>::template accumulate<1>(d, a[step], advance(b, step_across(step)));
}
// Where a group's columns of K begin: in a box of their own, or in the other group's.
ROTA_DEVICE constexpr int dq_columns_at(int group) {
  return group * kDqColumns / kBoxColumns * kTileKv * kBoxPitch +
         group * kDqColumns % kBoxColumns * 2;
}
// d = dS K.
ROTA_DEVICE void multiply_dq(float (&d)[kDqColumns / 2], Descriptor a, Descriptor b) {
#pragma unroll
  for (int step = 0; step < kTileKv / 16; step++) {
    const Descriptor at_a = advance(a, step_along(kTileQ, step));
    const Descriptor at_b = advance(b, step_across(step));
    if (step == 0)
      Wgmma<kDqColumns>::template multiply<0, 1>(d, at_a, at_b);
    else
      Wgmma<kDqColumns>::template accumulate<0, 1>(d, at_a, at_b);
  }
}

// LSE or delta of this lane's columns of S^T: 8 i + 2 t, + 1. In registers early, where there is
// room.
struct RowValues {
  static constexpr bool kEarly = kTileQ == 64;
  float x[kEarly ? kTileQ / 8 : 1][2];
  unsigned rows;
  ROTA_DEVICE explicit RowValues(unsigned place) : rows(place + 8u * (unsigned)(lane_index() % 4)) {
    if constexpr (kEarly) {
#pragma unroll
      for (int i = 0; i < kTileQ / 8; i++)
        load_shared_pair(x[i], rows + 32u * (unsigned)i);
    }
  }
  ROTA_DEVICE void get(float (&pair)[2], int i) const {
    if constexpr (kEarly)
      pair[0] = x[i][0], pair[1] = x[i][1];
    else
      load_shared_pair(pair, rows + 32u * (unsigned)i);
  }
};

struct Consumer {
  const RotaArguments &arguments;
  unsigned shared;
  Barriers barriers;
  int group, warp, lane; // warp within the group
  Ring<kStagesQ> ring;
  Ring<2> staging;
  bool any_bad_keys;
  unsigned bad_keys; // bit r: this lane's key 8 r + g holds a NaN or infinity

  ROTA_DEVICE unsigned tile(int place, int bytes, int number) const {
    return shared + (unsigned)(place + number * bytes);
  }
  ROTA_DEVICE void arrive(unsigned barrier) const {
    if (lane == 0)
      barrier_arrive(barrier);
  }
  ROTA_DEVICE void sync() const { named_barrier_sync(kBarrierConsumers, kConsumerThreads); }

  // ---- Rows that must not be looked at ----

  // Rows [from, kRows) of a tile become zeros. All consumers.
  template <int kColumns, int kRows> ROTA_DEVICE void clear_rows(unsigned to, int from) const {
    constexpr int kChunks = kColumns / kChunk;
    const int thread = hidden((int)threadIdx.x) - kWarpgroup;
    for (int i = from * kChunks + thread; i < kRows * kChunks; i += kConsumerThreads)
      store_shared_chunk(to + (unsigned)box_offset(kRows, i / kChunks, i % kChunks),
                         Chunk{{0, 0, 0, 0}});
  }
  ROTA_DEVICE void clear_keys(int from) const {
    clear_rows<kPaddedK, kTileKv>(shared + kSharedK, from);
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
  // not attend to them; their scores become NaN where they count.
  ROTA_DEVICE void remove_bad_keys() {
    const int thread = hidden((int)threadIdx.x) - kWarpgroup;
    const unsigned bits = shared + kSharedBadKeys;
    unsigned found = 0;
    for (int i = thread; i < kTileKv * kPaddedK / 64; i += kConsumerThreads)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const Chunk x =
            load_shared_chunk(shared + (unsigned)(kSharedK + i * kBoxPitch + (j ^ i % 8) * 16));
#pragma unroll
        for (int word = 0; word < 4; word++)
          found |= packed_not_finite(x.word[word], Element());
      }
    if (thread < kTileKv / 32)
      store_shared_word(bits + 4u * (unsigned)thread, 0u);
    sync();
    if (found)
      or_shared_word(bits + 4u * (unsigned)(thread % kTileKv / 32), 1u << thread % 32);
    sync();
    unsigned any = 0;
#pragma unroll
    for (int i = 0; i < kTileKv / 32; i++)
      any |= load_shared_word(bits + 4u * (unsigned)i);
    any_bad_keys = any != 0;
    bad_keys = 0;
    if (!any_bad_keys)
      return;
    const int key = kKeys * group + 16 * warp + hidden(lane_index()) / 4;
    const unsigned word = load_shared_word(bits + 4u * (unsigned)(key / 32));
    bad_keys = (word >> key % 32 & 1u) | (word >> (key % 32 + 8) & 1u) << 1;
    for (int i = thread; i < kTileKv * kPaddedK / 64; i += kConsumerThreads) {
      const int row = i % kTileKv;
      if (load_shared_word(bits + 4u * (unsigned)(row / 32)) >> row % 32 & 1u)
#pragma unroll
        for (int j = 0; j < 8; j++)
          store_shared_chunk(shared + (unsigned)(kSharedK + i * kBoxPitch + 16 * j),
                             Chunk{{0, 0, 0, 0}});
    }
    fence_shared_for_engines();
    sync();
  }

  // ---- Elementwise ----

  // s becomes P (times the score's derivative, for dS), p is P rounded. What is not allowed becomes
  // 0.
  template <bool kPartial>
  ROTA_DEVICE void probabilities(const RotaSequence &sequence, int first_key, const Visit &visit,
                                 const RowValues &lse_of, float (&s)[kScores],
                                 unsigned (&p)[kBlocksQ][4]) const {
    const int lane = hidden(lane_index());
    const int first_q = visit.q_tile * kTileQ + 2 * (lane % 4);
    const int key = first_key + kKeys * group + 16 * warp + lane / 4;
    const float nan = __uint_as_float(0x7fffffffu), factor = score_factor(arguments);
    const bool bad[2] = {kPartial && kHasMask && (bad_keys & 1u),
                         kPartial && kHasMask && (bad_keys & 2u)};
    const float key_factor[2] = {!kHasScore && bad[0] ? nan : factor,
                                 !kHasScore && bad[1] ? nan : factor};
#pragma unroll
    for (int i = 0; i < kTileQ / 8; i++) {
      float lse[2], x[4];
      lse_of.get(lse, i);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const Position at = {first_q + 8 * i + j % 2, key + 8 * (j / 2), visit.head,
                             sequence.batch,          sequence.n_q,      sequence.n_k};
        const int bit = 4 * i + j;
        float slope = 1.0f;
        x[j] = probability<kPartial>(at, s[bit] * key_factor[j / 2], lse[j % 2], bad[j / 2], slope);
        s[bit] = kHasScore ? x[j] * slope : x[j];
      }
      p[i / 2][i % 2 * 2] = pack(x[0], x[1], Element());
      p[i / 2][i % 2 * 2 + 1] = pack(x[2], x[3], Element());
    }
  }
  template <bool kPartial>
  ROTA_DEVICE float probability(Position at, float x, float lse, bool bad, float &slope) const {
    bool is_allowed = true;
    if constexpr (kPartial || kHasScore) {
      constexpr bool kClamp = kMaskUsesTensors || kScoreUsesTensors;
      const bool exists = at.q < at.n_q && at.k < at.n_k;
      at.q = clamp_index<kClamp>(at.q, at.n_q);
      at.k = clamp_index<kClamp>(at.k, at.n_k);
      if constexpr (kPartial)
        is_allowed = exists && mask_allows(at, arguments);
      if constexpr (kHasScore) {
        slope = score_slope(x, at, arguments);
        x = bad ? __uint_as_float(0x7fffffffu) : kLog2E * score_value(x, at, arguments);
      }
    }
    const float p = exp2_fast(x - lse);
    return is_allowed ? p : 0.0f;
  }

  // dS = P (dP - delta), rounded; zeros where P is 0, whatever dP is there.
  template <bool kPartial>
  ROTA_DEVICE void score_gradients(const RowValues &delta_of, const float (&p)[kScores],
                                   const float (&dp)[kScores], unsigned (&ds)[kBlocksQ][4]) const {
#pragma unroll
    for (int i = 0; i < kTileQ / 8; i++) {
      float delta[2], x[4];
      delta_of.get(delta, i);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int bit = 4 * i + j;
        x[j] = p[bit] * (dp[bit] - delta[j % 2]);
        if constexpr (kPartial)
          x[j] = p[bit] == 0.0f ? 0.0f : x[j];
      }
      ds[i / 2][i % 2 * 2] = pack(x[0], x[1], Element());
      ds[i / 2][i % 2 * 2 + 1] = pack(x[2], x[3], Element());
    }
  }

  // dS [q][k] from the fragments of dS^T: box `group`, 16 keys of the warp.
  ROTA_DEVICE void store_ds(unsigned to, const unsigned (&ds)[kBlocksQ][4]) const {
    const int row = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
    const unsigned at =
        to + (unsigned)(group * kTileQ * kBoxPitch + row * kBoxPitch + (chunk ^ lane % 8) * 16);
#pragma unroll
    for (int block = 0; block < kBlocksQ; block++)
      store_matrices_transposed(at + (unsigned)(block * 16 * kBoxPitch), ds[block]);
  }

  // ---- Staging ----

  ROTA_DEVICE unsigned wait_staging() {
    barrier_wait_phase(barriers.unstaged(staging.stage), staging.parity);
    return tile(kSharedStaging, kStagingBytes, staging.stage);
  }
  ROTA_DEVICE void finish_staging() {
    fence_shared_for_engines();
    __syncwarp();
    arrive(barriers.staged(staging.stage));
    staging.advance();
  }
  // A dQ partial in the order of its fragments, for the writer to add; or, by the last to
  // contribute, added to the sum that lies there, scaled and rounded, as boxes.
  ROTA_DEVICE void stage_dq(float (&dq)[kDqColumns / 2], const Visit &visit,
                            const ChainWords &chain) {
    const unsigned buffer = wait_staging();
    const unsigned block =
        buffer + (unsigned)((4 * group + warp) * kBlockBytes + 16 * hidden(lane_index()));
    if (kOrdered && visit.last) {
      if (visit.rank > 0)
        add_sum(dq, block);
      round_dq(dq, buffer, rows_left(chain, visit));
      return;
    }
#pragma unroll
    for (int i = 0; i < kDqFragments; i++)
      store_shared_floats(block + 16u * kWarp * i, dq, 4 * i);
  }
  // For `exact`: to integers. Rows that are not finite are looked for where there may be some.
  ROTA_DEVICE void make_fixed(float (&dq)[kDqColumns / 2], const Visit &visit,
                              const ChainWords &chain) const {
    const int row = (kDqByRows ? 64 * group : 0) + 16 * warp;
    if (overflows_early(Element()) || (kHasMask && uniform(any_bad_keys)))
      spoil_rows(dq,
                 factors_of(arguments,
                            query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head)),
                 row);
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
    constexpr bool kShared = kDqColumns % kBoxColumns != 0; // boxes, with the other group
    const int lane = hidden(lane_index());
    const int block_row = (kDqByRows ? 64 * group : 0) + 16 * warp;
    const int row = block_row + lane / 4, first_chunk = kShared ? group * kDqFragments : 0;
    const unsigned to = buffer + (unsigned)(dq_box(kDqByRows ? 0 : group * kDqColumns, block_row) +
                                            lane % 16 * kBoxPitch);
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
      store_matrices(to + (unsigned)(((first_chunk + i + lane / 16) ^ lane % 8) * 16), x);
    }
  }
  // dK or dV as boxes of rounded elements; zeros for keys beyond n_k.
  template <int kColumns>
  ROTA_DEVICE void stage_gradient(const float (&d)[kColumns / 2], float scale,
                                  const ChainWords &chain) {
    const int left = chain.sequence.n_k - chain.kv_tile * kTileKv, lane = hidden(lane_index());
    const int first = kKeys * group + 16 * warp, row = first + lane % 16, chunk = lane / 16;
    const bool first_used = first + lane / 4 < left, second_used = first + lane / 4 + 8 < left;
    const unsigned to = wait_staging() + (unsigned)(row * kBoxPitch);
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) {
      unsigned x[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = 4 * (i + j / 2) + 2 * (j % 2);
        x[j] = (j % 2 ? second_used : first_used)
                   ? pack(scale * d[at], scale * d[at + 1], Element())
                   : 0u;
      }
      store_matrices(
          to + (unsigned)(i / 8 * kTileKv * kBoxPitch + ((i % 8 + chunk) ^ lane % 8) * 16), x);
    }
    finish_staging();
  }

  // ---- A visit ----

  // Its first two products, under way; S^T is the older.
  ROTA_DEVICE void begin_products(float (&s)[kScores], float (&dp)[kScores],
                                  int chain_parity) const {
    const int stage = ring.stage, parity = ring.parity;
    const unsigned keys = (unsigned)(group * kKeys * kBoxPitch);
    barrier_wait_phase(barriers.full_q(stage), parity);
    wgmma_fence();
    multiply_along<kPaddedK>(s, describe_along(shared + kSharedK + keys),
                             describe_along(tile(kSharedQ, kQBytes, stage)));
    wgmma_commit();
    barrier_wait_phase(barriers.full_v(), chain_parity);
    barrier_wait_phase(barriers.full_do(stage), parity);
    wgmma_fence();
    multiply_along<kPaddedV>(dp, describe_along(shared + kSharedV + keys),
                             describe_along(tile(kSharedDo, kDoBytes, stage)));
    wgmma_commit();
  }
  ROTA_DEVICE Visit read_visit(int kv_head) const {
    const unsigned at = shared + (unsigned)(kSharedVisit + 8 * ring.stage);
    return unpack_visit({load_shared_word(at), load_shared_word(at + 4)}, kv_head);
  }
  // Rows of the visit's query tile that exist.
  ROTA_DEVICE int rows_left(const ChainWords &chain, const Visit &visit) const {
    return uniform(chain.sequence.n_q - visit.q_tile * kTileQ);
  }
  // From S^T and dP^T to P^T and dS^T, as operands.
  ROTA_DEVICE void make_operands(const ChainWords &chain, bool last, float (&s)[kScores],
                                 float (&dp)[kScores], unsigned (&p)[kBlocksQ][4],
                                 unsigned (&ds)[kBlocksQ][4]) const {
    const Visit visit = read_visit(chain.kv_head);
    const int first_key = chain.kv_tile * kTileKv, left = rows_left(chain, visit);
    // Rows past the end may be a neighbour's, with a NaN in S^T and dP^T already; P becomes 0.
    const bool partial = uniform(visit.partial || any_bad_keys || left < kTileQ);
    if (left < kTileQ) {
      wgmma_wait<0>();
      clear_queries(left);
    }
    const RowValues lse(tile(kSharedLse, kRowBytes, ring.stage));
    wgmma_wait<1>();
    wgmma_touch(s);
    if (partial)
      probabilities<true>(chain.sequence, first_key, visit, lse, s, p);
    else
      probabilities<false>(chain.sequence, first_key, visit, lse, s, p);
    const RowValues delta(tile(kSharedDelta, kRowBytes, ring.stage));
    wgmma_wait<0>();
    wgmma_touch(dp);
    if (last)
      arrive(barriers.empty_v());
    if (partial)
      score_gradients<true>(delta, s, dp, ds);
    else
      score_gradients<false>(delta, s, dp, ds);
  }

  // The order of products is the fastest of those measured: dV runs while the warpgroups exchange
  // dS, dK while dQ is staged.
  ROTA_DEVICE void run_visit(const ChainWords &chain, int chain_parity, bool last,
                             float (&dk)[kPaddedK / 2], float (&dv)[kPaddedV / 2]) {
    const int stage = ring.stage;
    const unsigned tile_ds = tile(kSharedDs, kDsBytes, stage);
    float s[kScores], dp[kScores], dq[kDqColumns / 2];
    unsigned p[kBlocksQ][4], ds[kBlocksQ][4];
    begin_products(s, dp, chain_parity);
    make_operands(chain, last, s, dp, p, ds);
    if constexpr (kExact) {
      unsigned scaled[kBlocksQ][4];
      scale_scores(scaled, ds, tile(kSharedFactor, kFactorBytes, stage));
      store_ds(tile_ds, scaled);
    } else {
      store_ds(tile_ds, ds);
    }
    wgmma_fence();
    accumulate_gradient<kPaddedV>(dv, p, describe_across(tile(kSharedDo, kDoBytes, stage), kTileQ));
    wgmma_commit();
    fence_shared_for_engines();
    sync();
    wgmma_fence();
    multiply_dq(dq, describe_along(tile_ds + (unsigned)(kDqByRows ? group * 64 * kBoxPitch : 0)),
                describe_across(
                    shared + (unsigned)(kSharedK + dq_columns_at(kDqByRows ? 0 : group)), kTileKv));
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_touch(dv);
    arrive(barriers.empty_do(stage));
    wgmma_fence();
    accumulate_gradient<kPaddedK>(dk, ds, describe_across(tile(kSharedQ, kQBytes, stage), kTileQ));
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_touch(dq);
    if (last)
      arrive(barriers.empty_k());
    const Visit visit = read_visit(chain.kv_head); // again: registers are short
    if constexpr (kExact)
      make_fixed(dq, visit, chain);
    stage_dq(dq, visit, chain);
    finish_staging();
    wgmma_wait<0>();
    wgmma_touch(dk);
    arrive(barriers.empty_q(stage));
    ring.advance();
  }

  // ---- A chain ----

  // Keys past the end and keys that are not finite, gone from the tiles.
  ROTA_DEVICE void clean_keys(const ChainWords &chain, int parity) {
    const int left = uniform(chain.sequence.n_k - chain.kv_tile * kTileKv);
    any_bad_keys = false;
    if (left < kTileKv) {
      barrier_wait_phase(barriers.full_v(), parity);
      clear_keys(left);
    }
    if (kHasMask)
      remove_bad_keys();
  }
  ROTA_DEVICE void run_chain(int number) {
    const int parity = number & 1;
    float dk[kPaddedK / 2], dv[kPaddedV / 2];
#pragma unroll
    for (int i = 0; i < kPaddedK / 2; i++)
      dk[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kPaddedV / 2; i++)
      dv[i] = 0.0f;
    barrier_wait_phase(barriers.full_k(), parity);
    const ChainWords &chain = chain_words(number);
    const int visits = uniform(chain.visit_end - chain.visit_begin);
    clean_keys(chain, parity);
#pragma unroll 1
    for (int i = 0; i < visits; i++)
      run_visit(chain, parity, i + 1 == visits, dk, dv);
    if (visits == 0) { // the copies of this phase must be over before the next is announced
      barrier_wait_phase(barriers.full_v(), parity);
      arrive(barriers.empty_v());
      arrive(barriers.empty_k());
    }
    stage_gradient<kPaddedV>(dv, 1.0f, chain);
    stage_gradient<kPaddedK>(dk, arguments.scale, chain);
  }
};

} // namespace rota

#endif
