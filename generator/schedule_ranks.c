/* Level 4. Ranks and lanes: from the visits' order to the order of the additions. */
#include "generator/dag.h"
#include "generator/schedule.h"

#include <stdlib.h>
#include <string.h>

static size_t tile_count(const Pattern *pattern) {
  return (size_t)pattern->group * (size_t)pattern->q_tiles;
}

static int32_t tile_of(const Pattern *pattern, const PatternVisit *visit) {
  return visit->group_head * pattern->q_tiles + visit->q_tile;
}

/* ---- Ranks by a total order of the chains ---- */

static rota_status rank_by_chains(const int32_t *order, Pattern *pattern) {
  int32_t *added = memory_allocate(tile_count(pattern) + 1, sizeof(int32_t));
  if (!added)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; i < pattern->chains; i++)
    for (int64_t v = pattern->chain_begin[order[i]]; v < pattern->chain_begin[order[i] + 1]; v++)
      pattern->visits[v].rank = added[tile_of(pattern, &pattern->visits[v])]++;
  free(added);
  return ROTA_OK;
}

/* A chain or a visit by what decides its place; `chain` breaks ties. */
typedef struct Keyed {
  int64_t key, visit;
  int32_t chain;
} Keyed;

static int compare_keyed(const void *a, const void *b) {
  const Keyed *x = a, *y = b;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  return x->chain < y->chain ? -1 : x->chain > y->chain;
}

static rota_status rank_by_priority(const int64_t *priority, Pattern *pattern) {
  size_t chains = (size_t)pattern->chains;
  Keyed *keys = memory_allocate(chains + 1, sizeof(Keyed));
  int32_t *order = memory_allocate(chains + 1, sizeof(int32_t));
  rota_status status = keys && order ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK) {
    for (int32_t chain = 0; chain < pattern->chains; chain++)
      keys[chain] = (Keyed){priority[chain], 0, chain};
    qsort(keys, chains, sizeof(Keyed), compare_keyed);
    for (size_t i = 0; i < chains; i++)
      order[i] = keys[i].chain;
    status = rank_by_chains(order, pattern);
  }
  free(keys);
  free(order);
  return status;
}

/* ---- Ranks by time ---- */

static rota_status rank_by_time(int32_t gang, const Costs *costs, Pattern *pattern) {
  int64_t count = pattern->chain_begin[pattern->chains];
  DagVisit *visits = memory_allocate((size_t)count + 1, sizeof(DagVisit));
  if (!visits)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t v = 0; v < count; v++)
    visits[v] = (DagVisit){.tile = tile_of(pattern, &pattern->visits[v]),
                           .partial = pattern->visits[v].partial};
  DagOrderRequest request = {.chains = pattern->chains,
                             .tiles = (int32_t)tile_count(pattern),
                             .chain_begin = pattern->chain_begin,
                             .start_order = pattern->start_order,
                             .gang = gang};
  rota_status status = dag_order_by_time(&request, costs, visits);
  for (int64_t v = 0; v < count && status == ROTA_OK; v++)
    pattern->visits[v].rank = visits[v].rank;
  free(visits);
  return status;
}

/* Visits by (time, chain) into `order`: small times, such as numbers of steps, are counted. Visits
 * come chain by chain, so equal times keep the order of the chains. */
static rota_status order_by_counting(const int64_t *times, int64_t count, int64_t most,
                                     int64_t *order) {
  int64_t *begin = memory_allocate((size_t)most + 2, sizeof(int64_t));
  if (!begin)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t v = 0; v < count; v++)
    begin[times[v] + 1]++;
  for (int64_t time = 0; time < most; time++)
    begin[time + 1] += begin[time];
  for (int64_t v = 0; v < count; v++)
    order[begin[times[v]]++] = v;
  free(begin);
  return ROTA_OK;
}

/* The same for times of any size. */
static rota_status order_by_comparing(const int64_t *times, const Pattern *pattern,
                                      int64_t *order) {
  int64_t count = pattern->chain_begin[pattern->chains];
  Keyed *keys = memory_allocate((size_t)count + 1, sizeof(Keyed));
  if (!keys)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t chain = 0; chain < pattern->chains; chain++)
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++)
      keys[v] = (Keyed){times[v], v, chain};
  qsort(keys, (size_t)count, sizeof(Keyed), compare_keyed);
  for (int64_t i = 0; i < count; i++)
    order[i] = keys[i].visit;
  free(keys);
  return ROTA_OK;
}

/* By the visits' times, and the chains where these are equal. */
static rota_status rank_by_given_time(const int64_t *times, Pattern *pattern) {
  int64_t count = pattern->chain_begin[pattern->chains], least = 0, most = 0;
  for (int64_t v = 0; v < count; v++) {
    least = times[v] < least ? times[v] : least;
    most = times[v] > most ? times[v] : most;
  }
  int32_t *added = memory_allocate(tile_count(pattern) + 1, sizeof(int32_t));
  int64_t *order = memory_allocate((size_t)count + 1, sizeof(int64_t));
  rota_status status = added && order ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK)
    status = least < 0 || most > 4 * count ? order_by_comparing(times, pattern, order)
                                           : order_by_counting(times, count, most, order);
  for (int64_t i = 0; status == ROTA_OK && i < count; i++) {
    PatternVisit *visit = &pattern->visits[order[i]];
    visit->rank = added[tile_of(pattern, visit)]++;
  }
  free(added);
  free(order);
  return status;
}

/* As the given lanes would come, if nobody waited; chains of a lane in start order. */
static rota_status rank_by_lanes(const int32_t *lane, int32_t gang, const Costs *costs,
                                 Pattern *pattern) {
  int64_t count = pattern->chain_begin[pattern->chains];
  int64_t *busy = memory_allocate((size_t)gang + 1, sizeof(int64_t)); /* until when */
  int64_t *times = memory_allocate((size_t)count + 1, sizeof(int64_t));
  rota_status status = busy && times ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; status == ROTA_OK && i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    int64_t begin = pattern->chain_begin[chain], end = pattern->chain_begin[chain + 1];
    int64_t now = busy[lane[chain]] + (begin < end ? costs->start : 0);
    for (int64_t v = begin; v < end; v++) {
      now += pattern->visits[v].partial ? costs->partial : costs->visit;
      times[v] = now;
      now += costs->staging ? 0 : costs->reduce;
    }
    busy[lane[chain]] = now;
  }
  if (status == ROTA_OK)
    status = rank_by_given_time(times, pattern);
  free(busy);
  free(times);
  return status;
}

static rota_status mark_last(Pattern *pattern) {
  int64_t count = pattern->chain_begin[pattern->chains];
  int32_t *total = memory_allocate(tile_count(pattern) + 1, sizeof(int32_t));
  if (!total)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t v = 0; v < count; v++)
    total[tile_of(pattern, &pattern->visits[v])]++;
  for (int64_t v = 0; v < count; v++) {
    PatternVisit *visit = &pattern->visits[v];
    visit->last = visit->rank == total[tile_of(pattern, visit)] - 1;
  }
  free(total);
  return ROTA_OK;
}

/* ---- Lanes ---- */

/* When a lane is free; a heap by (time, lane). */
typedef struct Lane {
  int64_t free;
  int32_t lane;
} Lane;

static bool is_sooner(const Lane *a, const Lane *b) {
  return a->free != b->free ? a->free < b->free : a->lane < b->lane;
}

static void sink(Lane *heap, int32_t count) {
  for (int32_t at = 0, least = 0;; at = least) {
    for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
      if (is_sooner(&heap[child], &heap[least]))
        least = child;
    if (least == at)
      return;
    Lane swap = heap[at];
    heap[at] = heap[least];
    heap[least] = swap;
  }
}

/* As in dag_order_by_time, of which only the chains' lengths matter here. */
static rota_status run_lanes(int32_t gang, const Costs *costs, Pattern *pattern) {
  Lane *heap = memory_allocate((size_t)gang + 1, sizeof(Lane));
  if (!heap)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; i < gang; i++)
    heap[i].lane = i;
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    pattern->lane[chain] = heap[0].lane;
    int64_t begin = pattern->chain_begin[chain], end = pattern->chain_begin[chain + 1], partial = 0;
    for (int64_t v = begin; v < end; v++)
      partial += pattern->visits[v].partial;
    if (begin < end)
      heap[0].free += costs->start + partial * costs->partial +
                      (end - begin - partial) * costs->visit +
                      (costs->staging ? 0 : (end - begin) * costs->reduce);
    sink(heap, gang);
  }
  free(heap);
  return ROTA_OK;
}

static rota_status take_lanes(const char *name, const int32_t *lane, int32_t gang,
                              Pattern *pattern) {
  for (int32_t chain = 0; chain < pattern->chains; chain++) {
    if (lane[chain] < 0 || lane[chain] >= gang)
      return status_fail(ROTA_SCHEDULE, "schedule '%s': chain %d is in lane %d; the gang has %d",
                         name, chain, lane[chain], gang);
    pattern->lane[chain] = lane[chain];
  }
  return ROTA_OK;
}

static rota_status take_tiers(const char *name, const int32_t *tier, Pattern *pattern) {
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i], before = pattern->start_order[i > 0 ? i - 1 : 0];
    if (!pattern->in_order || tier[chain] < tier[before] || tier[chain] < 0)
      return status_fail(ROTA_SCHEDULE,
                         "schedule '%s': chain %d is in tier %d: tiers count up along the start "
                         "order, by which partials are ranked",
                         name, chain, tier[chain]);
  }
  pattern->tier = memory_allocate((size_t)pattern->chains + 1, sizeof(int32_t));
  if (!pattern->tier)
    return ROTA_OUT_OF_MEMORY;
  memcpy(pattern->tier, tier, (size_t)pattern->chains * sizeof(int32_t));
  return ROTA_OK;
}

rota_status pattern_rank(const Schedule *schedule, const PatternAnswer *answer,
                         const int64_t *times, Pattern *pattern) {
  const Costs *costs = &schedule->costs;
  int32_t gang = schedule->workers;
  if (answer->gang > 0 && answer->gang < gang)
    gang = answer->gang;
  if (gang > pattern->chains)
    gang = pattern->chains > 0 ? pattern->chains : 1;
  pattern->lanes = gang;
  pattern->in_order = answer->ranks == RANKS_BY_START && !answer->lane;
  pattern->together = answer->together;
  pattern->abreast = answer->abreast;
  if (answer->tier)
    ROTA_TRY(take_tiers(schedule->name, answer->tier, pattern));
  if (answer->lane)
    ROTA_TRY(take_lanes(schedule->name, answer->lane, gang, pattern));
  switch (answer->ranks) {
  case RANKS_BY_TIME:
    ROTA_TRY(answer->lane ? rank_by_lanes(answer->lane, gang, costs, pattern)
                          : rank_by_time(gang, costs, pattern));
    break;
  case RANKS_BY_START:
    ROTA_TRY(rank_by_chains(pattern->start_order, pattern));
    break;
  case RANKS_BY_PRIORITY:
    ROTA_TRY(rank_by_priority(answer->priority, pattern));
    break;
  case RANKS_BY_TIME_GIVEN:
    ROTA_TRY(rank_by_given_time(times, pattern));
    break;
  }
  if (!answer->lane)
    ROTA_TRY(run_lanes(gang, costs, pattern));
  return mark_last(pattern);
}
