/* Level 4. Patterns by rule. Chains start by kv tile, ascending or descending, and a query tile's
 * partials are added in that same order; so a chain only ever waits for chains that started before
 * it. Within a chain the query heads of the group come one after another, each through its query
 * tiles in the rule's direction.
 *
 * Causal, descending chains, ascending visits: chain j starts on its diagonal tile, which no one
 * adds to before it, and its next tile was the first of chain j + 1: the chains run in step, like a
 * canon.
 */
#include "generator/schedule.h"

#include <stdlib.h>

static int64_t row_tiles(const TileMap *map, int32_t row) {
  int64_t tiles = 0;
  for (int64_t i = map->row_begin[row]; i < map->row_begin[row + 1]; i++)
    tiles += map->runs[i].end - map->runs[i].begin;
  return tiles;
}

/* chain_begin from the number of visits of each chain. */
static void count_visits(const TileMap *const *maps, Pattern *pattern) {
  int64_t *count = pattern->chain_begin; /* first as differences of counts, then summed twice */
  for (int g = 0; g < pattern->group; g++) {
    int64_t runs = maps[g]->row_begin[pattern->q_tiles];
    for (int64_t i = 0; i < runs; i++) {
      count[maps[g]->runs[i].begin]++;
      count[maps[g]->runs[i].end]--;
    }
  }
  int64_t visits = 0, total = 0;
  for (int32_t chain = 0; chain <= pattern->chains; chain++) {
    visits += count[chain];
    count[chain] = total;
    total += visits;
  }
}

/* Appends the visits of one row of tiles to their chains; `next` is where each chain continues. */
static void visit_row(const ScheduleRule *rule, const TileMap *map, int head, int32_t row,
                      int64_t *next, PatternVisit *visits) {
  int64_t tiles = row_tiles(map, row), before = 0;
  for (int64_t i = map->row_begin[row]; i < map->row_begin[row + 1]; i++) {
    const TileRun *run = &map->runs[i];
    for (int32_t chain = run->begin; chain < run->end; chain++, before++) {
      int64_t rank = rule->chains == CHAINS_ASCENDING ? before : tiles - 1 - before;
      visits[next[chain]++] = (PatternVisit){.q_tile = row,
                                             .group_head = head,
                                             .rank = (int32_t)rank,
                                             .partial = run->kind == TILE_PARTIAL,
                                             .last = rank == tiles - 1};
    }
  }
}

/* Arrays of a pattern whose sizes are set; visits are counted on the way. */
static rota_status allocate(const TileMap *const *maps, Pattern *pattern) {
  size_t chains = (size_t)pattern->chains;
  pattern->chain_begin = memory_allocate(chains + 2, sizeof(int64_t));
  pattern->start_order = memory_allocate(chains + 1, sizeof(int32_t));
  if (!pattern->chain_begin || !pattern->start_order)
    return ROTA_OUT_OF_MEMORY;
  count_visits(maps, pattern);
  size_t visits = (size_t)pattern->chain_begin[pattern->chains];
  pattern->visits = memory_allocate(visits + 1, sizeof(PatternVisit));
  return pattern->visits ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* Rows in visiting order, so that each chain's visits are appended in theirs. */
static rota_status fill(const ScheduleRule *rule, const TileMap *const *maps, Pattern *pattern) {
  ROTA_TRY(allocate(maps, pattern));
  int64_t *next = memory_allocate((size_t)pattern->chains + 1, sizeof(int64_t));
  if (!next)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t chain = 0; chain < pattern->chains; chain++) {
    bool ascending = rule->chains == CHAINS_ASCENDING;
    pattern->start_order[chain] = ascending ? chain : pattern->chains - 1 - chain;
    next[chain] = pattern->chain_begin[chain];
  }
  for (int head = 0; head < pattern->group; head++)
    for (int32_t i = 0; i < pattern->q_tiles; i++) {
      int32_t row = rule->visits == VISITS_ASCENDING ? i : pattern->q_tiles - 1 - i;
      visit_row(rule, maps[head], head, row, next, pattern->visits);
    }
  free(next);
  return ROTA_OK;
}

rota_status pattern_build(const ScheduleRule *rule, const TileMap *const *maps, int group,
                          Pattern **pattern) {
  *pattern = NULL;
  if (group < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "pattern: group %d is not positive", group);
  for (int g = 1; g < group; g++)
    if (maps[g]->q_tiles != maps[0]->q_tiles || maps[g]->kv_tiles != maps[0]->kv_tiles)
      return status_fail(ROTA_INTERNAL, "pattern: query head %d of the group has another tile grid",
                         g);
  Pattern *result = memory_allocate(1, sizeof(Pattern));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->chains = maps[0]->kv_tiles;
  result->q_tiles = maps[0]->q_tiles;
  result->group = group;
  rota_status status = fill(rule, maps, result);
  if (status == ROTA_OK)
    *pattern = result;
  else
    pattern_destroy(result);
  return status;
}

void pattern_destroy(Pattern *pattern) {
  if (!pattern)
    return;
  free(pattern->chain_begin);
  free(pattern->visits);
  free(pattern->start_order);
  free(pattern);
}
