/* Thousands of random masks, shapes, numbers of workers and schedules, hostile ones among them:
 * what verification accepts runs to its end on an independent executor, what it rejects would wait
 * for ever there. */
#include "tests/support/job.h"
#include "tests/support/plan_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 1500 };
#else
enum { ROUNDS = 6000 };
#endif

static const int worker_counts[] = {1, 2, 3, 78, 132};
enum { WORKER_COUNTS = 5, TILES_MAX = 12 };

/* A list of blocks that fit the tiles of plan_case, 64 x 32, more or less filled. */
typedef struct Case {
  PlanCase at;
  int32_t blocks[TILES_MAX * TILES_MAX];
  rota_named_tensor tensor;
} Case;

static void random_case(Case *c, uint64_t *random) {
  static const int heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}};
  const int *h = heads[case_random(random, 4)];
  plan_case_create(&c->at, "ordered", "block[q // 64, k // 32] ~= 0", NULL, h[0], h[1]);
  int shape = case_random(random, 4), filling = 1 + case_random(random, 4);
  for (int i = 0; i < TILES_MAX; i++)
    for (int j = 0; j < TILES_MAX; j++)
      c->blocks[i * TILES_MAX + j] = shape == 0   ? 1
                                     : shape == 1 ? j <= i
                                     : shape == 2 ? j <= i && i - j < 3
                                                  : case_random(random, 4) < filling;
  c->tensor = (rota_named_tensor){"block",        ROTA_INT32, 2, {TILES_MAX, TILES_MAX},
                                  {TILES_MAX, 1}, c->blocks};
  c->at.request.tensors = &c->tensor;
  c->at.request.tensor_count = 1;
  c->at.request.lengths = (rota_lengths){.batch = 1 + case_random(random, 3),
                                         .n_q = case_random(random, 64 * TILES_MAX + 1),
                                         .n_k = case_random(random, 32 * TILES_MAX + 1)};
}

static RandomSchedule random_choice(uint64_t *random, bool hostile) {
  return (RandomSchedule){.random = *random,
                          .portable = case_random(random, 2),
                          .hostile = hostile,
                          .workers = worker_counts[case_random(random, WORKER_COUNTS)]};
}

/* Accepted: with all workers, or, where they need not all be resident, with any number. */
static void check_runs(const Plan *plan, uint64_t *random) {
  if (plan_check(plan) != ROTA_OK)
    fail_msg("%s", status_message());
  Job job = job_of_plan(plan);
  int32_t all = job.queues > 0 ? job.queues : 1;
  assert_true(job_run(&job, all, random, NULL));
  if (!plan->co_resident) {
    assert_true(job_run(&job, 1, random, NULL));
    assert_true(job_run(&job, 1 + case_random(random, all), random, NULL));
  }
  assert_true(!plan->co_resident || plan->workers <= plan->gang);
  job_free(&job);
}

/* Whether the first pattern that the schedule answers would wait for ever. */
static bool pattern_hangs(const Case *c, RandomSchedule choice, uint64_t *random) {
  Schedule schedule = random_schedule(&choice);
  Case copy = *c;
  copy.at.direction = ROTA_FORWARD; /* a forward plan has the maps */
  Plan *forward;
  assert_int_equal(plan_case_build(&copy.at, &forward), ROTA_OK);
  TileMap *map;
  const TileMap *maps[4];
  assert_int_equal(plan_tile_map(forward, 0, 0, &map), ROTA_OK);
  int group = forward->heads / forward->kv_heads;
  for (int g = 0; g < group; g++)
    maps[g] = map;
  Pattern *pattern;
  bool hangs = true;
  if (pattern_build(&schedule, maps, group, NULL, 0, &pattern) == ROTA_OK) {
    Job job = job_of_pattern(pattern, !choice.portable);
    int32_t all = job.queues > 0 ? job.queues : 1;
    hangs = !job_run(&job, choice.portable ? 1 : all, random, NULL);
    rota_status status = pattern_verify(pattern, maps, choice.portable);
    assert_int_equal(status, hangs ? ROTA_SCHEDULE : ROTA_OK);
    job_free(&job);
    pattern_destroy(pattern);
  }
  tile_map_destroy(map);
  plan_destroy(forward);
  return hangs;
}

static void test_random_schedules(void **state) {
  (void)state;
  uint64_t random = 11;
  int accepted = 0, hostile_accepted = 0, patterns = 0, queues = 0;
  for (int round = 0; round < ROUNDS; round++) {
    Case c;
    random_case(&c, &random);
    bool hostile = case_random(&random, 2);
    RandomSchedule choice = random_choice(&random, hostile), first = choice;
    c.at.schedule = random_schedule(&choice);
    Plan *plan;
    rota_status status = plan_case_build(&c.at, &plan);
    if (status == ROTA_OK) {
      accepted++;
      hostile_accepted += hostile;
      check_runs(plan, &random);
      plan_destroy(plan);
    } else {
      if (status != ROTA_SCHEDULE || !hostile)
        fail_msg("round %d: status %d: %s", round, (int)status, status_message());
      /* Either the pattern or the queues; the latter are compared below. */
      bool hangs = pattern_hangs(&c, first, &random);
      patterns += hangs;
      queues += !hangs;
    }
    plan_case_free(&c.at);
  }
  print_message("%d schedules accepted, %d of them hostile; %d patterns and %d queues rejected\n",
                accepted, hostile_accepted, patterns, queues);
  assert_true(hostile_accepted > ROUNDS / 50 && patterns > ROUNDS / 50 && queues > ROUNDS / 50);
}

/* ---- Tables changed behind the planner's back ---- */

static uint32_t visit_slot(const RotaVisit *visit) {
  return (visit->tile & ROTA_VISIT_TILE) | (visit->rank >> ROTA_VISIT_HEAD_SHIFT) << 20;
}

/* Exchanges the ranks of two visits of one query tile, if there are such. */
static void swap_ranks(const Plan *plan, uint64_t *random) {
  RotaVisit *visits = (RotaVisit *)(void *)(plan->image + plan->visits.offset);
  int count = (int)plan->visits.count;
  for (int attempt = 0; count > 1 && attempt < 20; attempt++) {
    RotaVisit *a = &visits[case_random(random, count)], *b = &visits[case_random(random, count)];
    if (a == b || visit_slot(a) != visit_slot(b))
      continue;
    unsigned rank = (a->rank ^ b->rank) & ROTA_VISIT_RANK;
    unsigned last = (a->tile ^ b->tile) & ROTA_VISIT_LAST;
    a->rank ^= rank;
    b->rank ^= rank;
    a->tile ^= last;
    b->tile ^= last;
    return;
  }
}

static void swap_items(const Plan *plan, uint64_t *random) {
  RotaItem *items = (RotaItem *)(void *)(plan->image + plan->chain_items.offset);
  int count = (int)plan->chain_items.count;
  if (count == 0)
    return;
  RotaItem *a = &items[case_random(random, count)], *b = &items[case_random(random, count)];
  RotaItem item = *a;
  *a = *b;
  *b = item;
}

static void move_boundary(const Plan *plan, uint64_t *random) {
  int *queue = (int *)(void *)(plan->image + plan->queue.offset);
  if (plan->workers < 2)
    return;
  int w = 1 + case_random(random, plan->workers - 1);
  queue[w] = queue[w - 1] + case_random(random, queue[w + 1] - queue[w - 1] + 1);
}

static void test_changed_tables(void **state) {
  (void)state;
  uint64_t random = 23;
  int accepted = 0, rejected = 0;
  for (int round = 0; round < ROUNDS; round++) {
    Case c;
    random_case(&c, &random);
    c.at.request.lengths.batch = 1; /* sequences share visits: a swap must stay within a tile */
    RandomSchedule choice = random_choice(&random, false);
    c.at.schedule = random_schedule(&choice);
    Plan *plan = plan_case_good(&c.at);
    for (int edits = case_random(&random, 4); edits >= 0; edits--)
      switch (case_random(&random, 3)) {
      case 0:
        swap_ranks(plan, &random);
        break;
      case 1:
        swap_items(plan, &random);
        break;
      default:
        move_boundary(plan, &random);
        break;
      }
    plan->co_resident = case_random(&random, 2);
    Job job = job_of_plan(plan);
    int32_t all = job.queues > 0 ? job.queues : 1;
    bool together = plan->co_resident && plan->workers <= plan->gang;
    bool ends = job_run(&job, together ? all : 1, &random, NULL);
    rota_status status = plan_check(plan);
    if (status != (ends ? ROTA_OK : ROTA_FILE))
      fail_msg("round %d: it %s, status %d: %s", round, ends ? "ends" : "hangs", (int)status,
               status_message());
    accepted += ends;
    rejected += !ends;
    job_free(&job);
    plan_destroy(plan);
    plan_case_free(&c.at);
  }
  print_message("%d changed plans accepted, %d rejected\n", accepted, rejected);
  assert_true(accepted > ROUNDS / 10 && rejected > ROUNDS / 10);
}

/* ---- The message ---- */

/* Chain 0 visits tiles 0, 1 and chain 1 tiles 1, 0, each tile first by the one that comes there
 * last. */
static rota_status crossed(const Schedule *schedule, const PatternView *view,
                           PatternAnswer *answer) {
  (void)schedule;
  answer->ranks = RANKS_BY_TIME_GIVEN;
  for (int32_t chain = 0; chain < view->chains; chain++)
    for (int32_t i = 0; i < view->q_tiles; i++) {
      int32_t tile = (chain + i) % view->q_tiles;
      if (answer_add(answer, (VisitRun){chain, 0, 0, tile, tile, 1, -i}) != ROTA_OK)
        return ROTA_OUT_OF_MEMORY;
    }
  return ROTA_OK;
}

static void test_a_cycle_is_named(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", NULL, NULL, 1, 1);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 128, .n_k = 64};
  at.schedule = (Schedule){.name = "crossed",
                           .assignment = ASSIGN_LANES,
                           .workers = 132,
                           .costs = case_costs(),
                           .pattern = crossed};
  Plan *plan;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_SCHEDULE);
  assert_string_equal(
      status_message(),
      "schedule 'crossed' would wait for ever: tile (0, 0) of head 0 waits for tile "
      "(0, 1) of head 0, whose worker is held up: tile (1, 1) of head 0 waits for "
      "tile (1, 0) of head 0, whose worker is held up at the first");
  plan_case_free(&at);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_schedules),
      cmocka_unit_test(test_changed_tables),
      cmocka_unit_test(test_a_cycle_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
