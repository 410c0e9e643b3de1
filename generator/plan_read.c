/* Level 7. Tile maps and patterns read back from a plan's tables: for pictures, figures and tests.
 */
#include "generator/plan.h"

#include <stdlib.h>

static rota_status check_sequence(const Plan *plan, int32_t sequence, int head, int heads) {
  if (sequence >= 0 && sequence < plan->lengths->batch && head >= 0 && head < heads)
    return ROTA_OK;
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "plan: no sequence %d with head %d; it has %d sequences and %d heads",
                     sequence, head, plan->lengths->batch, heads);
}

/* Rows of a sequence's query head. Where rows are per head, head planes follow one another. */
static const RotaRow *rows_of(const Plan *plan, int32_t sequence, int head) {
  const RotaSequence *at = (const RotaSequence *)plan_section(plan, plan->sequences) + sequence;
  const RotaRow *rows = plan_section(plan, plan->rows);
  bool per_head = plan_whole_rows(plan) > plan_q_tiles(plan);
  return rows + at->row_begin + (per_head ? (int64_t)head * at->q_tiles : 0);
}

/* Rows beyond the map's query tiles hold tokens past n_q, which a map does not count. */
static void read_runs(const Plan *plan, const RotaRow *rows, TileMap *map) {
  const RotaRun *runs = plan_section(plan, plan->runs);
  int64_t count = 0;
  for (int32_t q = 0; q < map->q_tiles; q++) {
    map->row_begin[q] = count;
    for (int32_t r = rows[q].run_begin; r < rows[q].run_end; r++) {
      bool partial = (runs[r].end_kind & ROTA_RUN_PARTIAL) != 0;
      bool bounded = (runs[r].end_kind & ROTA_RUN_BOUNDED) != 0;
      int32_t end = (int32_t)(runs[r].end_kind & ROTA_RUN_END);
      TileKind kind = bounded ? TILE_BOUNDED : partial ? TILE_PARTIAL : TILE_FULL;
      map->runs[count++] = (TileRun){runs[r].begin, end, kind};
      int64_t *tiles = partial ? &map->partial_tiles : &map->full_tiles;
      *tiles += end - runs[r].begin;
    }
  }
  map->row_begin[map->q_tiles] = count;
}

/* b and h of the request say where it was read, not which plane it shares. */
rota_status plan_tile_map(const Plan *plan, int32_t sequence, int head, TileMap **map) {
  *map = NULL;
  ROTA_TRY(check_sequence(plan, sequence, head, plan->heads));
  const RotaRow *rows = rows_of(plan, sequence, head);
  const Lengths *lengths = plan->lengths;
  TileMap *result = memory_allocate(1, sizeof(TileMap));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->request = (TileMapRequest){.n_q = lengths->n_q[sequence],
                                     .n_k = lengths->n_k[sequence],
                                     .tile_q = plan->tiling.tile_q,
                                     .tile_kv = plan->tiling.tile_kv,
                                     .b = sequence,
                                     .h = head};
  const TileMapRequest *request = &result->request;
  result->q_tiles = tiles_covering(request->n_q, request->tile_q);
  result->kv_tiles = tiles_covering(request->n_k, request->tile_kv);
  int64_t runs = 0;
  for (int32_t q = 0; q < result->q_tiles; q++)
    runs += rows[q].run_end - rows[q].run_begin;
  result->row_begin = memory_allocate((size_t)result->q_tiles + 1, sizeof(int64_t));
  result->runs = memory_allocate((size_t)runs + 1, sizeof(TileRun));
  if (!result->row_begin || !result->runs) {
    tile_map_destroy(result);
    return ROTA_OUT_OF_MEMORY;
  }
  read_runs(plan, rows, result);
  *map = result;
  return ROTA_OK;
}

/* The chain items of one (sequence, kv head), in their order: chain indices into `found`. */
static void find_chains(const Plan *plan, int32_t sequence, int kv_head, int32_t kv_tiles,
                        int32_t *found) {
  const RotaItem *items = plan_section(plan, plan->chain_items);
  const RotaChain *chains = plan_section(plan, plan->chains);
  int32_t count = 0;
  for (int64_t i = 0; i < plan->chain_items.count && count < kv_tiles; i++)
    if (items[i].head == kv_head && chains[items[i].index].sequence == sequence &&
        chains[items[i].index].kv_tile < kv_tiles)
      found[count++] = items[i].index;
}

/* `found` in start order, one entry per chain. */
static rota_status read_visits(const Plan *plan, const int32_t *found, Pattern *pattern) {
  const RotaChain *chains = plan_section(plan, plan->chains);
  const RotaVisit *visits = plan_section(plan, plan->visits);
  for (int32_t i = 0; i < pattern->chains; i++) {
    const RotaChain *chain = &chains[found[i]];
    pattern->start_order[i] = chain->kv_tile;
    pattern->chain_begin[chain->kv_tile + 1] = chain->visit_end - chain->visit_begin;
  }
  for (int32_t kv = 0; kv < pattern->chains; kv++) /* counts become offsets */
    pattern->chain_begin[kv + 1] += pattern->chain_begin[kv];
  size_t count = (size_t)pattern->chain_begin[pattern->chains];
  pattern->visits = memory_allocate(count + 1, sizeof(PatternVisit));
  if (!pattern->visits)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; i < pattern->chains; i++) {
    const RotaChain *chain = &chains[found[i]];
    PatternVisit *to = pattern->visits + pattern->chain_begin[chain->kv_tile];
    for (int32_t v = chain->visit_begin; v < chain->visit_end; v++)
      *to++ = (PatternVisit){.q_tile = (int32_t)(visits[v].tile & ROTA_VISIT_TILE),
                             .group_head = (int32_t)(visits[v].rank >> ROTA_VISIT_HEAD_SHIFT),
                             .rank = (int32_t)(visits[v].rank & ROTA_VISIT_RANK),
                             .partial = visit_evaluates(visits[v]),
                             .last = (visits[v].tile & ROTA_VISIT_LAST) != 0};
  }
  return ROTA_OK;
}

rota_status plan_pattern(const Plan *plan, int32_t sequence, int kv_head, Pattern **pattern) {
  *pattern = NULL;
  ROTA_TRY(check_sequence(plan, sequence, kv_head, plan->kv_heads));
  if (plan->direction != ROTA_BACKWARD)
    return status_fail(ROTA_INVALID_ARGUMENT, "plan: a forward plan has no schedule");
  Pattern *result = memory_allocate(1, sizeof(Pattern));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->group = plan->heads / plan->kv_heads;
  result->q_tiles = tiles_covering(plan->lengths->n_q[sequence], plan->tiling.tile_q);
  result->chains = tiles_covering(plan->lengths->n_k[sequence], plan->tiling.tile_kv);
  size_t chains = (size_t)result->chains + 1;
  result->chain_begin = memory_allocate(chains, sizeof(int64_t));
  result->start_order = memory_allocate(chains, sizeof(int32_t));
  int32_t *found = memory_allocate(chains, sizeof(int32_t));
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (result->chain_begin && result->start_order && found) {
    find_chains(plan, sequence, kv_head, result->chains, found);
    status = read_visits(plan, found, result);
  }
  free(found);
  if (status == ROTA_OK)
    *pattern = result;
  else
    pattern_destroy(result);
  return status;
}
