// The backward pass's products on wgmma, and what a consumer takes from shared memory besides: rows
// of LSE and delta, keys that are not finite.
#ifndef ROTA_HOPPER_BACKWARD_PRODUCTS_CUH
#define ROTA_HOPPER_BACKWARD_PRODUCTS_CUH

#include "templates/hopper/backward_shared.cuh"

#include "instructions.cuh"

namespace rota {

constexpr int kScores = kTileQ / 2;   // accumulators of S^T and dP^T a thread
constexpr int kBlocksQ = kTileQ / 16; // k steps of dV and dK
constexpr int kStepsK = kPaddedK / 16, kStepsV = kPaddedV / 16; // of S^T and of dP^T
// How tiles are described: used along rows, or across rows in boxes of so many.
constexpr int kAlong = 16, kAcrossQ = kTileQ * kBoxPitch, kAcrossKv = kTileKv * kBoxPitch;

// P's exponent: of a power of two, or the scaled score.
ROTA_DEVICE float score_factor(const RotaArguments &arguments) {
  return kHasScore ? arguments.scale : arguments.scale * kLog2E;
}

// d = A B, both used along their rows: k steps of 16 columns.
template <int kFrom, int kTo>
ROTA_DEVICE void multiply_along(float (&d)[kScores], Descriptor a, Descriptor b) {
#pragma unroll
  for (int step = kFrom; step < kTo; step++) {
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

// LSE or delta of this lane's columns of S^T: 8 i + 2 t, + 1.
struct RowValues {
  unsigned rows;
  ROTA_DEVICE RowValues(unsigned place, int lane) : rows(place + 8u * ((unsigned)lane % 4)) {}
  ROTA_DEVICE void get(float (&values)[kScores / 2]) const {
#pragma unroll
    for (int i = 0; i < kScores / 4; i++) {
      float pair[2];
      load_shared_pair(pair, rows + 32u * (unsigned)i);
      values[2 * i] = pair[0];
      values[2 * i + 1] = pair[1];
    }
  }
};

constexpr int kPairs = kTileQ / 8; // of rows, a lane

// S^T or dP^T less what RowTerms hold, at an address shifted to the right by 4.
ROTA_DEVICE void add_terms(float (&d)[kScores], unsigned terms, int lane, bool of_delta) {
  if constexpr (kRowTerms != 0) {
    const unsigned halves = RowTerms::halves(lane % 4, of_delta);
    const unsigned a[4] = {halves, halves, halves, halves};
    WgmmaTerms::accumulate<0>(d, a, RowTerms::describe(terms));
  }
}

// ---- Keys that are not finite: 16 rows of K, a warp's ----

// In boxes of 64 columns: a lane has a chunk of every fourth row, from `own` on.
constexpr int kKeyRounds = 16 * kBoxPitch / (kWarp * 16), kKeyBoxes = kPaddedK / kBoxColumns;
ROTA_DEVICE unsigned key_chunk(unsigned own, int round, int box) {
  return own + (unsigned)(round * kWarp * 16 + box * kTileKv * kBoxPitch);
}
ROTA_DEVICE bool is_bad(const unsigned (&words)[4]) {
  unsigned found = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    found |= packed_not_finite(words[i], Element());
  return found != 0;
}
// Whether one of the lane's chunks holds a NaN or infinity.
ROTA_DEVICE bool has_bad_chunk(unsigned own) {
  unsigned sums[4] = {};
#pragma unroll
  for (int i = 0; i < kKeyRounds * kKeyBoxes; i++) {
    const Chunk x = load_shared_chunk(key_chunk(own, i % kKeyRounds, i / kKeyRounds));
#pragma unroll
    for (int word = 0; word < 4; word++)
      packed_add_zero_times(sums[word], x.word[word], Element());
  }
  return is_bad(sums);
}
// Rows that hold one become zeros. Which of the 16, a bit each. The whole warp.
ROTA_DEVICE unsigned clear_bad_rows(unsigned own, int lane) {
  unsigned rows = 0;
#pragma unroll 1
  for (int round = 0; round < kKeyRounds; round++) {
    bool bad = false;
    for (int box = 0; box < kKeyBoxes; box++)
      bad |= is_bad(load_shared_chunk(key_chunk(own, round, box)).word);
    const unsigned lanes = __ballot_sync(kAllLanes, bad); // eight a row
    for (int box = 0; box < kKeyBoxes; box++)
      if (lanes >> lane / 8 * 8 & 0xffu)
        store_shared_chunk(key_chunk(own, round, box), Chunk{{0, 0, 0, 0}});
    for (int row = 0; row < 4; row++)
      rows |= (lanes >> 8 * row & 0xffu ? 1u : 0u) << (4 * round + row);
  }
  return rows;
}

} // namespace rota

#endif
