/* Level 7. A plan's works while they are made: see plan_works.h.
 *
 *     sequence -> cut -> units of each kv head -> chunks -> segments -> tickets
 *                          works, shared by the units of equal planes                            */
#ifndef ROTA_GENERATOR_PLAN_MAKER_H
#define ROTA_GENERATOR_PLAN_MAKER_H

#include "generator/plan.h"
#include "generator/plan_cut.h"

enum {
  WORKS_TILE = 128,          /* queries and keys: of the templates */
  WORKS_PLANE_BYTES = 16384, /* a tile's 128 queries x 64 keys in 16 bits */
  WORKS_STAT_BYTES = 1024,   /* of a query tile and a pair of kv tiles */
  /* Of a forward unit's keys in fp16, where the kernel's powers of two are not exact below 2^-14:
   * so rows are cut at the same keys, whatever the batch and the limit. */
  WORKS_PANEL_FP16 = 128,
  WORKS_COLUMNS_MAX = 256, /* of a block of columns */
  WORKS_LANES_MAX = 4,     /* planes that take turns: of chains; else */
  WORKS_LANES_SUMS = 2,
};

typedef struct Array {
  void *data;
  int64_t count, capacity;
} Array;

/* A unit on its way: what its segments need besides. */
typedef struct UnitDraft {
  RotaUnit unit;
  int32_t work_begin, scores, gradients; /* in works */
  int64_t blocks;                        /* of its scores */
  bool alone;                            /* shares sums with other units: a chunk of its own */
} UnitDraft;

typedef struct Maker {
  Plan *plan;
  int64_t limit; /* bytes of scores, stats and sums */
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaChain *chains;
  const RotaVisit *visits;
  bool backward;
  int blocks_k, blocks_v; /* blocks of columns */
  int64_t wide;           /* bytes of a tile of sums */
  double steps;           /* see plan_cut.h */
  int row_heads, chain_heads, group;
  Array drafts, works, offsets, segments, chunks;
  Array chunk_blocks; /* int64_t: of each chunk */
  int64_t sum_rows, sum_kv_tiles, place_limit;
  int64_t score_blocks; /* that the workspace has */
  int lanes;            /* planes that take turns where they are cut */
  int64_t panel;        /* see plan_cut.h */
  int64_t tickets;
} Maker;

/* OUT_OF_MEMORY. */
rota_status array_append(Array *array, const void *entry, size_t size);

static inline int64_t round_to(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

int works_column_blocks(int dim);
int64_t works_columns(int dim);
/* Of a block of scores; with its share of the stats. */
int64_t maker_block_bytes(const Maker *maker);
int64_t maker_block_cost(const Maker *maker);
/* Bytes of the sums of a group row (of dQ, or O with maxima and sums of P), and of a kv tile. */
int64_t maker_row_sums(const Maker *maker);
int64_t maker_key_sums(const Maker *maker);

/* Whether dK and dV are made in a unit's first phase, by chains; its second makes dQ. */
bool maker_chains(const Maker *maker);
/* Drafts and works of all sequences; sum_rows and sum_kv_tiles. */
rota_status maker_add_sequences(Maker *maker);

#endif
