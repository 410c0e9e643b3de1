/* Level 4. Verification of a pattern, by simulation; shares no code with the rules that build
 * patterns.
 *
 * One worker alone is the hardest case: it runs the chains to their ends one after another, so a
 * visit that had to wait would wait for ever. If no visit waits then, none waits for ever with more
 * workers either: of the chains in progress the one that started first depends on finished chains
 * only, hence it proceeds, and so on by induction. */
#include "generator/schedule.h"

#include <stdlib.h>

typedef struct Simulation {
  const Pattern *pattern;
  const TileMap *const *maps;
  int32_t *added; /* [group][q_tiles]: partials added so far */
  int32_t *total; /* [group][q_tiles]: non-empty tiles of the row */
  int32_t *seen;  /* [group][q_tiles]: the last chain that visited it, -1 */
} Simulation;

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
static rota_status check_tile(const Simulation *simulation, int32_t chain,
                              const PatternVisit *visit) {
  const Pattern *pattern = simulation->pattern;
  if (visit->group_head < 0 || visit->group_head >= pattern->group || visit->q_tile < 0 ||
      visit->q_tile >= pattern->q_tiles)
    return status_fail(ROTA_SCHEDULE,
                       "schedule: chain %d visits query tile %d of head %d, which does not exist",
                       chain, visit->q_tile, visit->group_head);
  TileKind kind = tile_map_kind(simulation->maps[visit->group_head], visit->q_tile, chain);
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

static rota_status simulate_visit(Simulation *simulation, int32_t chain,
                                  const PatternVisit *visit) {
  ROTA_TRY(check_tile(simulation, chain, visit));
  size_t at =
      (size_t)visit->group_head * (size_t)simulation->pattern->q_tiles + (size_t)visit->q_tile;
  if (simulation->seen[at] == chain)
    return status_fail(ROTA_SCHEDULE, "schedule: chain %d visits query tile %d of head %d twice",
                       chain, visit->q_tile, visit->group_head);
  simulation->seen[at] = chain;
  if (visit->rank != simulation->added[at])
    return status_fail(ROTA_SCHEDULE,
                       "schedule: tile (%d, %d) of head %d has rank %d when %d partials have been "
                       "added; it %s",
                       visit->q_tile, chain, visit->group_head, visit->rank, simulation->added[at],
                       visit->rank > simulation->added[at]
                           ? "would wait for a chain that starts later, or for ever"
                           : "takes the turn of another");
  simulation->added[at]++;
  if (visit->last != (simulation->added[at] == simulation->total[at]))
    return status_fail(
        ROTA_SCHEDULE, "schedule: tile (%d, %d) of head %d is %smarked as the last of %d",
        visit->q_tile, chain, visit->group_head, visit->last ? "" : "not ", simulation->total[at]);
  return ROTA_OK;
}

static rota_status simulate(Simulation *simulation) {
  const Pattern *pattern = simulation->pattern;
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++)
      ROTA_TRY(simulate_visit(simulation, chain, &pattern->visits[v]));
  }
  for (int g = 0; g < pattern->group; g++)
    for (int32_t q = 0; q < pattern->q_tiles; q++) {
      size_t at = (size_t)g * (size_t)pattern->q_tiles + (size_t)q;
      if (simulation->added[at] != simulation->total[at])
        return status_fail(ROTA_SCHEDULE,
                           "schedule: query tile %d of head %d gets %d of its %d partials", q, g,
                           simulation->added[at], simulation->total[at]);
    }
  return ROTA_OK;
}

static void prepare(Simulation *simulation) {
  const Pattern *pattern = simulation->pattern;
  for (int g = 0; g < pattern->group; g++)
    for (int32_t q = 0; q < pattern->q_tiles; q++) {
      const TileMap *map = simulation->maps[g];
      size_t at = (size_t)g * (size_t)pattern->q_tiles + (size_t)q;
      simulation->seen[at] = -1;
      for (int64_t i = map->row_begin[q]; i < map->row_begin[q + 1]; i++)
        simulation->total[at] += map->runs[i].end - map->runs[i].begin;
    }
}

rota_status pattern_verify(const Pattern *pattern, const TileMap *const *maps) {
  ROTA_TRY(check_shape(pattern, maps));
  size_t tiles = (size_t)pattern->group * (size_t)pattern->q_tiles + 1;
  Simulation simulation = {.pattern = pattern, .maps = maps};
  simulation.added = memory_allocate(tiles, sizeof(int32_t));
  simulation.total = memory_allocate(tiles, sizeof(int32_t));
  simulation.seen = memory_allocate(tiles, sizeof(int32_t));
  bool *started = memory_allocate((size_t)pattern->chains + 1, sizeof(bool));
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (simulation.added && simulation.total && simulation.seen && started) {
    prepare(&simulation);
    status = check_starts(pattern, started);
    if (status == ROTA_OK)
      status = simulate(&simulation);
  }
  free(simulation.added);
  free(simulation.total);
  free(simulation.seen);
  free(started);
  return status;
}
