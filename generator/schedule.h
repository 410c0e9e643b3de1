/* Level 4. Patterns: in which order each chain visits its query tiles, and in which order a query
 * tile's dQ partials are added. A pattern sees the tile maps of one kv head's group in one sequence
 * and nothing else: it decides the bits.
 *
 * The rule-built patterns here only ever wait for chains earlier in `start_order`, so that any
 * worker count finishes. */
#ifndef ROTA_GENERATOR_SCHEDULE_H
#define ROTA_GENERATOR_SCHEDULE_H

#include "generator/tile_map.h"

typedef enum ChainOrder { CHAINS_ASCENDING, CHAINS_DESCENDING } ChainOrder; /* by kv tile */
typedef enum VisitOrder { VISITS_ASCENDING, VISITS_DESCENDING } VisitOrder; /* by query tile */

/* One entry of lua/schedules.lua. */
typedef struct ScheduleRule {
  char name[SYMBOL_NAME_MAX];
  ChainOrder
      chains; /* order in which chains start, and in which a query tile's partials are added */
  VisitOrder visits;
} ScheduleRule;

typedef struct PatternVisit {
  int32_t q_tile;
  int32_t group_head; /* query head within the group */
  int32_t rank; /* how many partials of this (query head, query tile) are added before this one */
  bool partial; /* tile kind: the mask is evaluated per element */
  bool last;    /* the highest rank */
} PatternVisit;

typedef struct Pattern {
  int32_t chains; /* = kv tiles */
  int32_t group, q_tiles;
  int64_t *chain_begin; /* chains + 1 offsets into visits */
  PatternVisit *visits;
  int32_t *start_order; /* chains: kv tiles in the order in which they start */
} Pattern;

/* maps: one per query head of the group (pointers may be equal). */
rota_status pattern_build(const ScheduleRule *rule, const TileMap *const *maps, int group,
                          Pattern **pattern);
void pattern_destroy(Pattern *pattern);

/* Coverage (each non-empty tile once, with its kind), ranks complete and `last` right, and no cycle
 * when chains start in start_order on any number of workers. SCHEDULE with the tiles at fault. */
rota_status pattern_verify(const Pattern *pattern, const TileMap *const *maps);

#endif
