/* Schedules for tests, made without Lua. */
#include "tests/support/schedule_case.h"

#include <stdlib.h>
#include <string.h>

Costs case_costs(void) {
  Costs costs = costs_paper(3, 2);
  costs.partial = 4 * COSTS_TICKS;
  return costs;
}

/* ---- By rule ---- */

/* The directions are the name's two letters. */
static rota_status rule_pattern(const Schedule *schedule, const PatternView *view,
                                PatternAnswer *answer) {
  bool chains_down = schedule->name[0] == 'd', visits_down = schedule->name[1] == 'd';
  answer->ranks = RANKS_BY_START;
  answer->start = calloc((size_t)view->chains + 1, sizeof(int32_t));
  if (!answer->start)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = ROTA_OK;
  int32_t last = view->q_tiles - 1;
  for (int32_t i = 0; i < view->chains && status == ROTA_OK; i++) {
    answer->start[i] = chains_down ? view->chains - 1 - i : i;
    VisitRun run = {.chain = i,
                    .head = ALL_HEADS,
                    .last_head = ALL_HEADS,
                    .from = visits_down ? last : 0,
                    .to = visits_down ? 0 : last,
                    .step = visits_down ? -1 : 1};
    status = answer_add(answer, run);
  }
  return status;
}

Schedule rule_schedule(Direction chains, Direction visits) {
  Schedule schedule = {.portable = true,
                       .assignment = ASSIGN_TICKETS,
                       .workers = 132,
                       .costs = case_costs(),
                       .pattern = rule_pattern};
  schedule.name[0] = chains == DOWNWARDS ? 'd' : 'a';
  schedule.name[1] = visits == DOWNWARDS ? 'd' : 'a';
  return schedule;
}

/* ---- At random ---- */

static int32_t pick(RandomSchedule *random, int32_t count) {
  random->random = random->random * 6364136223846793005u + 1442695040888963407u;
  return count > 0 ? (int32_t)((random->random >> 33) % (uint64_t)count) : 0;
}

static int32_t *permutation(RandomSchedule *random, int32_t count) {
  int32_t *list = calloc((size_t)count + 1, sizeof(int32_t));
  for (int32_t i = 0; i < count; i++) {
    int32_t at = pick(random, i + 1);
    list[i] = list[at];
    list[at] = i;
  }
  return list;
}

/* One chain's visits: a turned range, tiles one by one in any order, or every other tile. */
static rota_status random_visits(RandomSchedule *random, const PatternView *view, int32_t chain,
                                 PatternAnswer *answer) {
  int32_t last = view->q_tiles - 1, from = pick(random, view->q_tiles);
  bool timed = answer->ranks == RANKS_BY_TIME_GIVEN;
  rota_status status = ROTA_OK;
  if (timed || pick(random, 3) == 0) {
    int32_t *tiles = permutation(random, view->q_tiles * view->group);
    for (int32_t i = 0; i < view->q_tiles * view->group && status == ROTA_OK; i++) {
      int32_t head = tiles[i] / view->q_tiles, tile = tiles[i] % view->q_tiles;
      VisitRun run = {chain, head, head, tile, tile, 1, pick(random, 100)};
      status = answer_add(answer, run);
    }
    free(tiles);
    return status;
  }
  VisitRun turned[] = {{chain, ALL_HEADS, ALL_HEADS, from, last, 1, 0},
                       {chain, ALL_HEADS, ALL_HEADS, 0, from - 1, 1, 0}};
  VisitRun striped[] = {{chain, ALL_HEADS, ALL_HEADS, last, 0, -2, 0},
                        {chain, ALL_HEADS, ALL_HEADS, last - 1, 0, -2, 0}};
  const VisitRun *runs = pick(random, 2) ? turned : striped;
  for (int i = 0; i < 2 && status == ROTA_OK; i++)
    status = answer_add(answer, runs[i]);
  return status;
}

static rota_status random_pattern(const Schedule *schedule, const PatternView *view,
                                  PatternAnswer *answer) {
  RandomSchedule *random = schedule->owner;
  if (pick(random, 2))
    answer->start = permutation(random, view->chains);
  answer->ranks = random->portable ? RANKS_BY_START : RANKS_BY_TIME;
  if (random->hostile)
    answer->ranks =
        (Ranks)(random->portable ? (int)RANKS_BY_START + pick(random, 3) : pick(random, 4));
  if (answer->ranks == RANKS_BY_PRIORITY) {
    answer->priority = calloc((size_t)view->chains + 1, sizeof(int64_t));
    for (int32_t chain = 0; chain < view->chains; chain++)
      answer->priority[chain] = pick(random, 5);
  }
  if (pick(random, 3) == 0)
    answer->gang = 1 + pick(random, 8);
  if (random->hostile && pick(random, 3) == 0) {
    int32_t gang = schedule->workers < view->chains ? schedule->workers : view->chains;
    if (answer->gang > 0 && answer->gang < gang)
      gang = answer->gang;
    answer->lane = calloc((size_t)view->chains + 1, sizeof(int32_t));
    for (int32_t chain = 0; chain < view->chains; chain++)
      answer->lane[chain] = pick(random, gang);
  }
  rota_status status = ROTA_OK;
  for (int32_t chain = 0; chain < view->chains && status == ROTA_OK; chain++)
    status = random_visits(random, view, chain, answer);
  return status;
}

/* Any items to any queues, in any order; sometimes one queue per item. */
static rota_status random_assign(const Schedule *schedule, const BatchView *view,
                                 BatchAnswer *answer) {
  RandomSchedule *random = schedule->owner;
  int32_t count = (int32_t)view->item_count;
  int32_t *items = permutation(random, count);
  bool tickets = pick(random, 3) == 0;
  int32_t most = view->workers < answer->queue_capacity ? view->workers : answer->queue_capacity;
  for (int32_t i = 0; i < count; i++)
    answer->items[i] = items[i];
  for (int32_t i = 0; tickets && i < count; i++)
    answer->queue_end[answer->queues++] = i + 1;
  for (int32_t at = 0; !tickets && answer->queues < most;) {
    at += answer->queues + 1 == most ? count - at : pick(random, count - at + 1);
    answer->queue_end[answer->queues++] = at;
  }
  answer->count = count;
  free(items);
  return ROTA_OK;
}

Schedule random_schedule(RandomSchedule *random) {
  Schedule schedule = {.name = "random",
                       .portable = random->portable,
                       .workers = random->workers,
                       .costs = case_costs(),
                       .owner = random,
                       .pattern = random_pattern,
                       .assign = random_assign};
  schedule.assignment = random->portable ? ASSIGN_TICKETS : ASSIGN_LANES;
  if (pick(random, 2))
    schedule.assignment = random->portable ? ASSIGN_CYCLIC : ASSIGN_LANES;
  if (random->hostile)
    schedule.assignment = (Assignment)pick(random, ASSIGN_CALL + 1);
  return schedule;
}
