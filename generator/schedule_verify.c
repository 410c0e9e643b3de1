/* Level 4. Verification of a pattern against its tile maps; shares no code with what builds
 * patterns. First coverage, then, by schedule_queues.c, that nobody waits for ever. */
#include "generator/schedule_queues.h"

#include "generator/schedule.h"

#include <stdlib.h>

typedef struct Check {
  const Pattern *pattern;
  const TileMap *const *maps;
  int32_t *seen; /* [group][q_tiles]: the last chain that visited it, -1 */
} Check;

static rota_status check_shape(const Pattern *pattern, const TileMap *const *maps) {
  for (int g = 0; g < pattern->group; g++)
    if (maps[g]->kv_tiles != pattern->chains || maps[g]->q_tiles != pattern->q_tiles)
      return status_fail(ROTA_SCHEDULE, "schedule: %d chains x %d query tiles for a map of %d x %d",
                         pattern->chains, pattern->q_tiles, maps[g]->kv_tiles, maps[g]->q_tiles);
  if (pattern->chain_begin[0] != 0)
    return status_fail(ROTA_SCHEDULE, "schedule: the first chain's visits do not begin at 0");
  for (int32_t chain = 0; chain < pattern->chains; chain++)
    if (pattern->chain_begin[chain] > pattern->chain_begin[chain + 1])
      return status_fail(ROTA_SCHEDULE, "schedule: chain %d has a negative number of visits",
                         chain);
  return ROTA_OK;
}

/* start_order names each chain once. `started` has an entry per chain, all 0. */
static rota_status check_starts(const Pattern *pattern, bool *started) {
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    if (chain < 0 || chain >= pattern->chains)
      return status_fail(ROTA_SCHEDULE, "schedule: chain %d, started as number %d, does not exist",
                         chain, i);
    if (started[chain])
      return status_fail(ROTA_SCHEDULE, "schedule: chain %d starts twice", chain);
    started[chain] = true;
  }
  return ROTA_OK;
}

/* Visit and tile agree: the tile exists, is not empty and has the kind that the visit says. */
static rota_status check_tile(const Check *check, int32_t chain, const PatternVisit *visit) {
  const Pattern *pattern = check->pattern;
  if (visit->group_head < 0 || visit->group_head >= pattern->group || visit->q_tile < 0 ||
      visit->q_tile >= pattern->q_tiles)
    return status_fail(ROTA_SCHEDULE,
                       "schedule: chain %d visits query tile %d of head %d, which does not exist",
                       chain, visit->q_tile, visit->group_head);
  TileKind kind = tile_map_kind(check->maps[visit->group_head], visit->q_tile, chain);
  if (kind == TILE_EMPTY)
    return status_fail(ROTA_SCHEDULE,
                       "schedule: chain %d visits the empty tile (%d, %d) of head %d", chain,
                       visit->q_tile, chain, visit->group_head);
  if (visit->partial != (kind == TILE_PARTIAL))
    return status_fail(ROTA_SCHEDULE, "schedule: tile (%d, %d) of head %d is %s, its visit says %s",
                       visit->q_tile, chain, visit->group_head,
                       kind == TILE_PARTIAL ? "partial" : "full",
                       visit->partial ? "partial" : "full");
  return ROTA_OK;
}

/* Every tile of the chain is visited: as many distinct ones as there are. */
static rota_status check_chain(Check *check, int32_t chain) {
  const Pattern *pattern = check->pattern;
  for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
    const PatternVisit *visit = &pattern->visits[v];
    ROTA_TRY(check_tile(check, chain, visit));
    int32_t *seen = &check->seen[(int64_t)visit->group_head * pattern->q_tiles + visit->q_tile];
    if (*seen == chain)
      return status_fail(ROTA_SCHEDULE, "schedule: chain %d visits query tile %d of head %d twice",
                         chain, visit->q_tile, visit->group_head);
    *seen = chain;
  }
  return ROTA_OK;
}

/* Visits are of distinct tiles by now, so counting tells whether one is missing. Leaves the counts
 * in `seen`. */
static rota_status check_totals(const Check *check) {
  const Pattern *pattern = check->pattern;
  for (int g = 0; g < pattern->group; g++)
    for (int32_t q = 0; q < pattern->q_tiles; q++)
      check->seen[(int64_t)g * pattern->q_tiles + q] = 0;
  for (int64_t v = 0; v < pattern->chain_begin[pattern->chains]; v++)
    check->seen[(int64_t)pattern->visits[v].group_head * pattern->q_tiles +
                pattern->visits[v].q_tile]++;
  for (int g = 0; g < pattern->group; g++)
    for (int32_t q = 0; q < pattern->q_tiles; q++) {
      const TileMap *map = check->maps[g];
      int32_t total = 0, visits = check->seen[(int64_t)g * pattern->q_tiles + q];
      for (int64_t i = map->row_begin[q]; i < map->row_begin[q + 1]; i++)
        total += map->runs[i].end - map->runs[i].begin;
      if (visits != total)
        return status_fail(ROTA_SCHEDULE,
                           "schedule: query tile %d of head %d gets %d of its %d partials", q, g,
                           visits, total);
    }
  return ROTA_OK;
}

/* The visit with the highest rank, and no other, is marked. */
static rota_status check_last(const Check *check) {
  const Pattern *pattern = check->pattern;
  for (int32_t chain = 0; chain < pattern->chains; chain++)
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
      const PatternVisit *visit = &pattern->visits[v];
      int32_t total = check->seen[(int64_t)visit->group_head * pattern->q_tiles + visit->q_tile];
      if (visit->last != (visit->rank == total - 1))
        return status_fail(
            ROTA_SCHEDULE, "schedule: tile (%d, %d) of head %d is %smarked as the last of %d",
            visit->q_tile, chain, visit->group_head, visit->last ? "" : "not ", total);
    }
  return ROTA_OK;
}

/* ---- Waiting ---- */

/* Queues of the chains: one for each in start order, or one for each lane. */
static rota_status fill_queues(const Pattern *pattern, bool by_lane, int64_t *begin,
                               DagItem *items) {
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t lane = by_lane ? pattern->lane[pattern->start_order[i]] : i;
    if (by_lane && (lane < 0 || lane >= pattern->lanes))
      return status_fail(ROTA_SCHEDULE, "schedule: chain %d is in lane %d of %d",
                         pattern->start_order[i], lane, pattern->lanes);
    begin[lane + 1]++;
  }
  int32_t queues = by_lane ? pattern->lanes : pattern->chains;
  for (int32_t lane = 0; lane < queues; lane++)
    begin[lane + 1] += begin[lane];
  for (int32_t i = pattern->chains; i-- > 0;) {
    int32_t chain = pattern->start_order[i], lane = by_lane ? pattern->lane[chain] : i;
    items[--begin[lane + 1]] = (DagItem){0, chain};
  }
  for (int32_t lane = 0; lane < queues; lane++) /* each is its own begin, one to the right */
    begin[lane] = begin[lane + 1];
  begin[queues] = pattern->chains;
  return ROTA_OK;
}

static rota_status check_waits(const Pattern *pattern, bool portable) {
  bool by_lane = !portable && pattern->lane;
  int32_t queues = by_lane ? pattern->lanes : pattern->chains, plane_of = 0;
  int64_t visits = pattern->chain_begin[pattern->chains];
  DagVisit *dag = memory_allocate((size_t)visits + 1, sizeof(DagVisit));
  int64_t *begin = memory_allocate((size_t)queues + 2, sizeof(int64_t));
  DagItem *items = memory_allocate((size_t)pattern->chains + 1, sizeof(DagItem));
  rota_status status = dag && begin && items ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK)
    status = fill_queues(pattern, by_lane, begin, items);
  if (status == ROTA_OK) {
    for (int64_t v = 0; v < visits; v++) {
      const PatternVisit *visit = &pattern->visits[v];
      dag[v] = (DagVisit){visit->group_head * pattern->q_tiles + visit->q_tile, visit->rank,
                          visit->partial};
    }
    DagPlane plane = {pattern->chains, pattern->group * pattern->q_tiles, pattern->chain_begin,
                      dag};
    DagProblem problem = {.planes = &plane,
                          .plane_count = 1,
                          .plane_of = &plane_of,
                          .instances = 1,
                          .workers = queues,
                          .queues = queues,
                          .queue_begin = begin,
                          .items = items};
    QueueNames names = {.schedule = pattern->name, .q_tiles = &pattern->q_tiles};
    status = queues_verify(&problem, portable ? QUEUES_IN_SEQUENCE : QUEUES_TOGETHER, &names);
  }
  free(dag);
  free(begin);
  free(items);
  return status;
}

static rota_status check_all(Check *check, bool *started, bool portable) {
  const Pattern *pattern = check->pattern;
  ROTA_TRY(check_starts(pattern, started));
  for (int32_t chain = 0; chain < pattern->chains; chain++)
    ROTA_TRY(check_chain(check, chain));
  ROTA_TRY(check_totals(check));
  ROTA_TRY(check_waits(pattern, portable));
  return check_last(check);
}

rota_status pattern_verify(const Pattern *pattern, const TileMap *const *maps, bool portable) {
  ROTA_TRY(check_shape(pattern, maps));
  size_t tiles = (size_t)pattern->group * (size_t)pattern->q_tiles;
  Check check = {pattern, maps, memory_allocate(tiles + 1, sizeof(int32_t))};
  bool *started = memory_allocate((size_t)pattern->chains + 1, sizeof(bool));
  rota_status status = check.seen && started ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < tiles && status == ROTA_OK; i++)
    check.seen[i] = -1;
  if (status == ROTA_OK)
    status = check_all(&check, started, portable);
  free(check.seen);
  free(started);
  return status;
}
