// Tables of a plan whose kernels pass matrices through memory (templates/hopper/materialised.cuh
// and forward_wide.cuh), beside those of abi.h: what host and kernels agree on. Plain C11 and CUDA.
//
// The plane of a (sequence, kv head) is group rows x kv tiles; group row g * q_tiles + t is query
// tile t of the group's head g. It is cut into units, each with a place for its P and dS in the
// workspace; units are bundled into chunks, and a chunk goes through two phases:
//
//   scores       P and dS of one query tile and a pair of kv tiles, from Q, K, V and dO
//   gradients    one block of columns of dV, dK (of a kv tile) or dQ (of a group row); in the
//                forward pass, where scores are P alone, of O
//
// Of materialised_chains.cuh: dV, dK and dS of a kv tile; then dQ (and dK, where it is not made
// with dV).
//
// clang-format off
//   tickets      scores 0 | scores 1 | gradients 0 | scores 2 | gradients 1 | ... | gradients n - 1
//   workspace    place 0    place 1                  place 2                     chunk c: c % 3
// clang-format on
//
// Three places, so that scores 2 need not wait for the last of gradients 0: with two, each chunk
// cost its longest work once more (d 256, 16k tokens: 125 us of 350). Where dK and dV are made with
// the scores, chunks lie one after another around the workspace, as many as it holds.
//
// segments[s] = a phase of a unit: tickets from first_ticket on, entries of `works` from work_begin
// on, which units of the same mask share. What a ticket needs belongs to lower tickets.
#ifndef ROTA_LIB_MATERIALISED_H
#define ROTA_LIB_MATERIALISED_H

typedef struct RotaUnit {
  int sequence, kv_head;
  int row_begin, rows;     // group rows
  int kv_begin, kv_tiles;  // even numbers
  int row_table, row_step; // rows[row_table + g * row_step + t] of abi.h
  int chain_table;         // chains[chain_table + kv tile]
  int flags;               // ROTA_UNIT_*
  int sum_q, sum_k;        // its first tile of sums of dQ; of dK and dV
  int after;               // chunk that must be done before its gradients: its sums' last user; -1
  int offsets;             // where dK and dV are made with the scores: its rows' in `offsets`
  long long scores;        // its first block of P and dS
} RotaUnit;
// The first or last of the units that add to its dQ (which differ in kv tiles), to its dK and dV.
#define ROTA_UNIT_FIRST_Q 1
#define ROTA_UNIT_LAST_Q  2
#define ROTA_UNIT_FIRST_K 4
#define ROTA_UNIT_LAST_K  8
#define ROTA_PLACES       3

typedef struct RotaSegment {
  int first_ticket, work_begin;
  int unit, chunk;
} RotaSegment;

typedef struct RotaChunk {
  int scores, gradients;      // works of each phase
  int free_first, free_count; // chunks whose gradients must be done before its scores: their place
  int after; // chunk whose scores must be done before its own, which make sums, too; -1
} RotaChunk;

// tile: group row, or kv tile of dV and dK. what: kind (2 bits); then for gradients the block of
// columns, for scores a pair of kv tiles << 2, two bits: partial.
typedef struct RotaWork {
  int tile;
  unsigned what;
} RotaWork;
#define ROTA_WORK_SCORES 0u
#define ROTA_WORK_DV     1u
#define ROTA_WORK_DK     2u
#define ROTA_WORK_DQ     3u // in the forward pass: O

typedef struct RotaMaterialised {
  const RotaUnit *units;
  const RotaSegment *segments;
  const RotaChunk *chunks;
  const RotaWork *works;
  const int *offsets; // of a unit's rows: block of keys 64 i is unit.scores + offset + i
  int segment_count, chunk_count, ticket_count;
  unsigned char *scores; // blocks: P, then dS of 128 queries x 64 keys, 16 KB each
  float *sum_q, *sum_k;  // tiles of 128 rows, in an order the kernel chooses
  float *stats;          // forward: for each 4 blocks, 128 maxima and 128 sums
  int *counters;         // the ticket; then for each chunk warpgroups that have finished a work
} RotaMaterialised;

#endif
