/* Level 4. Patterns: what a pattern function answers becomes chains of visits.
 *
 * An answer may come from a user's script. Nothing in it is trusted: runs are cut to the tiles that
 * exist, and a tile visited twice or left out is named. */
#include "generator/schedule.h"

#include <stdlib.h>
#include <string.h>

/* ---- Answers ---- */

rota_status answer_add(PatternAnswer *answer, VisitRun run) {
  if (answer->run_count == answer->run_capacity) {
    int64_t capacity = answer->run_capacity ? 2 * answer->run_capacity : 64;
    VisitRun *runs = memory_resize(answer->runs, (size_t)capacity, sizeof(VisitRun));
    if (!runs)
      return ROTA_OUT_OF_MEMORY;
    answer->runs = runs;
    answer->run_capacity = capacity;
  }
  answer->runs[answer->run_count++] = run;
  return ROTA_OK;
}

void answer_free(PatternAnswer *answer) {
  free(answer->runs);
  free(answer->start);
  free(answer->priority);
  free(answer->lane);
  free(answer->tier);
  *answer = (PatternAnswer){0};
}

/* ---- Runs into visits ---- */

typedef struct Expansion {
  const Schedule *schedule;
  const PatternView *view;
  const PatternAnswer *answer;
  Pattern *pattern;
  int64_t *run_begin; /* chains + 1: where a chain's runs begin in `runs` */
  const VisitRun **runs;
  int32_t *seen;  /* [group][q_tiles]: the last chain that visited it, -1 */
  int64_t *times; /* of the visits; NULL unless they are given */
} Expansion;

/* Runs by chain, in the order in which each chain's were given. */
static rota_status sort_runs(Expansion *expansion) {
  const PatternAnswer *answer = expansion->answer;
  int32_t chains = expansion->view->chains;
  int64_t *begin = expansion->run_begin;
  for (int64_t i = 0; i < answer->run_count; i++) {
    int32_t chain = answer->runs[i].chain;
    if (chain < 0 || chain >= chains)
      return status_fail(ROTA_SCHEDULE, "schedule '%s': visits of chain %d; there are %d chains",
                         expansion->schedule->name, chain, chains);
    begin[chain + 1]++;
  }
  for (int32_t chain = 0; chain < chains; chain++)
    begin[chain + 1] += begin[chain];
  for (int64_t i = answer->run_count; i-- > 0;)
    expansion->runs[--begin[answer->runs[i].chain + 1]] = &answer->runs[i];
  /* Each entry is now its own chain's begin, one place to the right. */
  for (int32_t chain = 0; chain < chains; chain++)
    begin[chain] = begin[chain + 1];
  begin[chains] = answer->run_count;
  return ROTA_OK;
}

/* First place in a column whose tile is not below `tile`. Most columns have no gaps: then it is
 * known at once. */
static int64_t lower_bound(const uint32_t *tiles, int64_t low, int64_t high, int64_t tile) {
  if (low < high) {
    int64_t guess = low + tile - (int64_t)(tiles[low] & ~COLUMN_PARTIAL);
    if (guess >= low && guess < high && (int64_t)(tiles[guess] & ~COLUMN_PARTIAL) == tile)
      return guess;
  }
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if ((int64_t)(tiles[middle] & ~COLUMN_PARTIAL) < tile)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static rota_status add_visit(Expansion *expansion, const VisitRun *run, int32_t head, uint32_t tile,
                             int64_t *count) {
  Pattern *pattern = expansion->pattern;
  int32_t q_tile = (int32_t)(tile & ~COLUMN_PARTIAL);
  int32_t *seen = &expansion->seen[(int64_t)head * pattern->q_tiles + q_tile];
  if (*seen == run->chain)
    return status_fail(ROTA_SCHEDULE,
                       "schedule '%s': chain %d visits query tile %d of head %d twice",
                       expansion->schedule->name, run->chain, q_tile, head);
  *seen = run->chain;
  if (expansion->times)
    expansion->times[*count] = run->time;
  pattern->visits[(*count)++] =
      (PatternVisit){.q_tile = q_tile, .group_head = head, .partial = (tile & COLUMN_PARTIAL) != 0};
  return ROTA_OK;
}

/* The run's tiles in one head's column. */
static rota_status expand_run(Expansion *expansion, const VisitRun *run, int32_t head,
                              int64_t *count) {
  const Columns *columns = expansion->view->columns;
  int64_t column = (int64_t)head * expansion->view->chains + run->chain;
  int64_t low = columns->begin[column], high = columns->begin[column + 1];
  int64_t from = run->from, to = run->to, step = run->step;
  if (step > 0) {
    for (int64_t i = lower_bound(columns->tiles, low, high, from); i < high; i++) {
      int64_t tile = columns->tiles[i] & ~COLUMN_PARTIAL;
      if (tile > to)
        break;
      if ((tile - from) % step == 0)
        ROTA_TRY(add_visit(expansion, run, head, columns->tiles[i], count));
    }
    return ROTA_OK;
  }
  for (int64_t i = lower_bound(columns->tiles, low, high, from + 1); i-- > low;) {
    int64_t tile = columns->tiles[i] & ~COLUMN_PARTIAL;
    if (tile < to)
      break;
    if ((from - tile) % -step == 0)
      ROTA_TRY(add_visit(expansion, run, head, columns->tiles[i], count));
  }
  return ROTA_OK;
}

/* The run's tiles, each in all its heads' columns. */
static rota_status expand_side_by_side(Expansion *expansion, const VisitRun *run, int64_t *count) {
  int64_t last = expansion->view->q_tiles - 1, from = run->from, step = run->step;
  if (step > 0 && from < 0) /* to the first tile that there is */
    from += (step - 1 - from) / step * step;
  if (step < 0 && from > last)
    from += (from - last - step - 1) / -step * step;
  for (int64_t tile = from; tile >= 0 && tile <= last; tile += step) {
    if (step > 0 ? tile > run->to : tile < run->to)
      break;
    VisitRun one = *run;
    one.from = one.to = (int32_t)tile;
    one.step = 1;
    for (int32_t head = run->head; head <= run->last_head; head++)
      ROTA_TRY(expand_run(expansion, &one, head, count));
  }
  return ROTA_OK;
}

static rota_status check_run(const Expansion *expansion, const VisitRun *run, bool all_heads) {
  const char *name = expansion->schedule->name;
  if (run->step == 0)
    return status_fail(ROTA_SCHEDULE, "schedule '%s': chain %d has a run with step 0", name,
                       run->chain);
  if (run->head < ALL_HEADS || run->last_head >= expansion->view->group)
    return status_fail(ROTA_SCHEDULE, "schedule '%s': chain %d visits head %d; the group has %d",
                       name, run->chain, run->last_head, expansion->view->group);
  if ((run->head == ALL_HEADS) != all_heads)
    return status_fail(ROTA_SCHEDULE,
                       "schedule '%s': chain %d has runs with and without a head; give all of them "
                       "one, or none",
                       name, run->chain);
  return ROTA_OK;
}

/* Which tile of the chain was left out. */
static rota_status name_missing(const Expansion *expansion, int32_t chain) {
  const PatternView *view = expansion->view;
  for (int32_t head = 0; head < view->group; head++) {
    int64_t column = (int64_t)head * view->chains + chain;
    for (int64_t i = view->columns->begin[column]; i < view->columns->begin[column + 1]; i++) {
      int32_t tile = (int32_t)(view->columns->tiles[i] & ~COLUMN_PARTIAL);
      if (expansion->seen[(int64_t)head * view->q_tiles + tile] != chain)
        return status_fail(ROTA_SCHEDULE,
                           "schedule '%s': chain %d never visits query tile %d of head %d",
                           expansion->schedule->name, chain, tile, head);
    }
  }
  return ROTA_OK;
}

static rota_status expand_chain(Expansion *expansion, int32_t chain, int64_t *count) {
  const VisitRun **runs = expansion->runs + expansion->run_begin[chain];
  int64_t run_count = expansion->run_begin[chain + 1] - expansion->run_begin[chain];
  bool all_heads = run_count > 0 && runs[0]->head == ALL_HEADS;
  for (int64_t i = 0; i < run_count; i++)
    ROTA_TRY(check_run(expansion, runs[i], all_heads));
  int32_t rounds = all_heads ? expansion->view->group : 1;
  for (int32_t head = 0; head < rounds; head++)
    for (int64_t i = 0; i < run_count; i++)
      ROTA_TRY(runs[i]->head < runs[i]->last_head
                   ? expand_side_by_side(expansion, runs[i], count)
                   : expand_run(expansion, runs[i], all_heads ? head : runs[i]->head, count));
  return name_missing(expansion, chain);
}

/* A chain's tiles are visited once each, so that `visits` never overflows. */
static rota_status expand(Expansion *expansion) {
  ROTA_TRY(sort_runs(expansion));
  int64_t count = 0;
  for (int32_t chain = 0; chain < expansion->view->chains; chain++) {
    ROTA_TRY(expand_chain(expansion, chain, &count));
    expansion->pattern->chain_begin[chain + 1] = count;
  }
  return ROTA_OK;
}

static rota_status expand_answer(const Schedule *schedule, const PatternView *view,
                                 const PatternAnswer *answer, Pattern *pattern) {
  size_t tiles = (size_t)view->group * (size_t)view->q_tiles;
  size_t visits = (size_t)view->columns->begin[(int64_t)view->group * view->chains];
  Expansion expansion = {schedule, view, answer, pattern, NULL, NULL, NULL, NULL};
  expansion.run_begin = memory_allocate((size_t)view->chains + 1, sizeof(int64_t));
  expansion.runs = memory_allocate((size_t)answer->run_count + 1, sizeof(VisitRun *));
  expansion.seen = memory_allocate(tiles + 1, sizeof(int32_t));
  if (answer->ranks == RANKS_BY_TIME_GIVEN)
    expansion.times = memory_allocate(visits + 1, sizeof(int64_t));
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (expansion.run_begin && expansion.runs && expansion.seen &&
      (expansion.times || answer->ranks != RANKS_BY_TIME_GIVEN)) {
    for (size_t i = 0; i < tiles; i++)
      expansion.seen[i] = -1;
    status = expand(&expansion);
  }
  if (status == ROTA_OK) {
    status = pattern_rank(schedule, answer, expansion.times, pattern);
  }
  free(expansion.run_begin);
  free(expansion.runs);
  free(expansion.seen);
  free(expansion.times);
  return status;
}

/* ---- Start order ---- */

static rota_status take_start_order(const Schedule *schedule, const int32_t *start,
                                    Pattern *pattern) {
  int32_t chains = pattern->chains;
  for (int32_t i = 0; i < chains; i++)
    pattern->lane[i] = -1; /* scratch: when the chain starts */
  for (int32_t i = 0; i < chains; i++) {
    int32_t chain = start ? start[i] : i;
    if (chain < 0 || chain >= chains)
      return status_fail(ROTA_SCHEDULE,
                         "schedule '%s': chain %d starts as number %d; there are %d chains",
                         schedule->name, chain, i, chains);
    if (pattern->lane[chain] >= 0)
      return status_fail(ROTA_SCHEDULE, "schedule '%s': chain %d starts twice, as number %d and %d",
                         schedule->name, chain, pattern->lane[chain], i);
    pattern->lane[chain] = i;
    pattern->start_order[i] = chain;
  }
  return ROTA_OK;
}

/* ---- Building ---- */

/* A portable pattern must not depend on the workers: it is shown one for each chain. */
static int32_t pattern_gang(const Schedule *schedule, int32_t chains) {
  return !schedule->portable ? schedule->workers : chains > 0 ? chains : 1;
}

static rota_status create(const char name[SYMBOL_NAME_MAX], const PatternView *view,
                          Pattern **pattern) {
  Pattern *result = *pattern = memory_allocate(1, sizeof(Pattern));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  memcpy(result->name, name, sizeof result->name);
  result->chains = view->chains;
  result->q_tiles = view->q_tiles;
  result->group = view->group;
  size_t chains = (size_t)view->chains + 1;
  size_t visits = (size_t)view->columns->begin[(int64_t)view->group * view->chains];
  result->chain_begin = memory_allocate(chains, sizeof(int64_t));
  result->start_order = memory_allocate(chains, sizeof(int32_t));
  result->lane = memory_allocate(chains, sizeof(int32_t));
  result->visits = memory_allocate(visits + 1, sizeof(PatternVisit));
  return result->chain_begin && result->start_order && result->lane && result->visits
             ? ROTA_OK
             : ROTA_OUT_OF_MEMORY;
}

static rota_status build(const Schedule *schedule, const PatternView *view,
                         const PatternAnswer *answer, Pattern **pattern) {
  ROTA_TRY(create(schedule->name, view, pattern));
  ROTA_TRY(take_start_order(schedule, answer->start, *pattern));
  if (answer->ranks == RANKS_BY_PRIORITY && !answer->priority)
    return status_fail(ROTA_INTERNAL, "schedule '%s': priorities are missing", schedule->name);
  if (answer->ranks == RANKS_BY_TIME && schedule->portable)
    return status_fail(ROTA_SCHEDULE,
                       "schedule '%s' is portable, ranks by time are not: they depend on the gang",
                       schedule->name);
  return expand_answer(schedule, view, answer, *pattern);
}

rota_status pattern_build(const Schedule *schedule, const TileMap *const *maps, int group,
                          const Lengths *batch, int32_t sequence, Pattern **pattern) {
  *pattern = NULL;
  if (group < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "pattern: group %d is not positive", group);
  for (int g = 1; g < group; g++)
    if (maps[g]->q_tiles != maps[0]->q_tiles || maps[g]->kv_tiles != maps[0]->kv_tiles)
      return status_fail(ROTA_INTERNAL, "pattern: query head %d of the group has another tile grid",
                         g);
  if (schedule->workers < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "schedule '%s': %d workers", schedule->name,
                       schedule->workers);
  Columns columns;
  ROTA_TRY(columns_build(maps, group, &columns));
  PatternView view = {.maps = maps,
                      .columns = &columns,
                      .group = group,
                      .chains = maps[0]->kv_tiles,
                      .q_tiles = maps[0]->q_tiles,
                      .gang = pattern_gang(schedule, maps[0]->kv_tiles),
                      .costs = &schedule->costs,
                      .batch = schedule->batch_variant ? batch : NULL,
                      .sequence = sequence};
  PatternAnswer answer = {0};
  rota_status status = schedule->pattern(schedule, &view, &answer);
  if (status == ROTA_OK)
    status = build(schedule, &view, &answer, pattern);
  answer_free(&answer);
  columns_free(&columns);
  if (status != ROTA_OK) {
    pattern_destroy(*pattern);
    *pattern = NULL;
  }
  return status;
}

void pattern_destroy(Pattern *pattern) {
  if (!pattern)
    return;
  free(pattern->chain_begin);
  free(pattern->visits);
  free(pattern->start_order);
  free(pattern->lane);
  free(pattern->tier);
  free(pattern);
}
