/* Schedules that level the workers: tiers and, for grouped heads, halves. Which chains start when,
 * in what order they are dealt and visit, and that workers are level where others' are not. */
#include "generator/figures.h"
#include "tests/support/plan_case.h"
#include "tests/support/scripts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW "k <= q and q - k <= 1024"

/* `visit`: what the model charges for one, and for nothing else; 0: as shipped. */
static Plan *plan_of(PlanCase *at, const char *name, const char *mask, int n, int heads,
                     int kv_heads, int workers, double visit) {
  Target device = {.multiprocessors = workers};
  plan_case_create(at, "ordered", mask, NULL, heads, kv_heads);
  at->tiling.tile_kv = 128;
  at->request.lengths = (rota_lengths){.batch = 1, .n_q = n, .n_k = n};
  snprintf(at->spec.schedule, sizeof at->spec.schedule, "%s", name);
  assert_int_equal(script_schedule(test_script, &at->spec, &at->tiling, &device, &at->schedule),
                   ROTA_OK);
  if (visit > 0)
    at->schedule.costs = costs_paper(visit, 0);
  return plan_case_good(at);
}

/* Chains in the order in which they are ranked; `downwards` from chain `from` of the order on. */
static void check_order(const char *mask, int n, const int *order, int downwards) {
  PlanCase at;
  Plan *plan = plan_of(&at, "tiers", mask, n, 1, 1, 8, 0);
  Pattern *pattern;
  assert_int_equal(plan_pattern(plan, 0, 0, &pattern), ROTA_OK);
  for (int i = 0; i < pattern->chains; i++) {
    int chain = order[i];
    const PatternVisit *first = &pattern->visits[pattern->chain_begin[chain]];
    const PatternVisit *last = &pattern->visits[pattern->chain_begin[chain + 1] - 1];
    assert_int_equal(first->q_tile > last->q_tile, i >= downwards);
    for (int j = 0; j < i; j++) /* who comes earlier adds earlier to all tiles of both */
      for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++)
        for (int64_t w = pattern->chain_begin[order[j]]; w < pattern->chain_begin[order[j] + 1];
             w++)
          if (pattern->visits[v].q_tile == pattern->visits[w].q_tile)
            assert_true(pattern->visits[v].rank > pattern->visits[w].rank);
  }
  pattern_destroy(pattern);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* Of 32, 30 .. 2 tiles; under a window of 18 and less, where short chains are few. */
static void test_who_is_in_which_tier(void **state) {
  (void)state;
  static const int halves[] = {7, 6, 5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 13, 12, 14, 15};
  int tail[32];
  for (int i = 0; i < 32; i++)
    tail[i] = i < 28 ? 27 - i : i;
  check_order("k <= q", 2048, halves, 16);
  check_order(WINDOW, 4096, tail, 28);
}

/* Chains as they are dealt to one worker: head and kv tile. */
static void check_dealt(const char *mask, int n, int heads, int workers, const int (*dealt)[2],
                        int count) {
  PlanCase at;
  Plan *plan = plan_of(&at, "tiers", mask, n, heads, heads, workers, 1);
  const RotaItem *items = plan_section(plan, plan->chain_items);
  const RotaChain *chains = plan_section(plan, plan->chains);
  const int *queue = plan_section(plan, plan->queue);
  for (int i = 0; i < count; i++) {
    /* With a worker for each chain the queues are the order. */
    const RotaItem *item = &items[workers > 1 ? queue[i] : i];
    if (item->head != dealt[i][0] || chains[item->index].kv_tile != dealt[i][1])
      fail_msg("%s, %d workers: place %d is head %d, kv tile %d", mask, workers, i, item->head,
               chains[item->index].kv_tile);
  }
  plan_destroy(plan);
  plan_case_free(&at);
}

/* Four chains of 8, 6, 4 and 2 tiles: tiers of two, one and one. */
static void test_when_tiers_are_dealt(void **state) {
  (void)state;
  /* Few heads for so many workers: tier by tier. */
  static const int at_the_end[][2] = {{0, 1}, {0, 0}, {1, 1}, {1, 0},
                                      {0, 2}, {1, 2}, {0, 3}, {1, 3}};
  /* For one worker the first head's second tier is due when 26 visits have been dealt of first
   * tiers, of 14 a head; the next tier of a head after 5.6 more, or with the last first tier. */
  static const int soon[][2] = {{0, 1}, {0, 0}, {1, 1}, {1, 0}, {0, 2}, {2, 1},
                                {2, 0}, {0, 3}, {1, 2}, {2, 2}, {1, 3}, {2, 3}};
  check_dealt("k <= q", 512, 2, 132, at_the_end, 8);
  check_dealt("k <= q", 512, 3, 1, soon, 12);
}

/* Under a window two heads take turns; then the longest short chain of all. */
static void test_heads_take_turns_under_a_window(void **state) {
  (void)state;
  enum { FIRST = 28, HEADS = 3, COUNT = 32 * HEADS };
  int dealt[COUNT][2], at = 0;
  for (int i = 0; i < 2 * FIRST; i++, at++)
    dealt[at][0] = i % 2, dealt[at][1] = FIRST - 1 - i / 2;
  for (int i = 0; i < FIRST; i++, at++)
    dealt[at][0] = 2, dealt[at][1] = FIRST - 1 - i;
  for (int chain = FIRST; chain < 32; chain++)
    for (int head = 0; head < HEADS; head++, at++)
      dealt[at][0] = head, dealt[at][1] = chain;
  check_dealt(WINDOW, 4096, HEADS, 132, (const int(*)[2])dealt, COUNT);
}

static double bound_ratio(const char *name, const char *mask, int n, int heads, int kv_heads) {
  PlanCase at;
  Plan *plan = plan_of(&at, name, mask, n, heads, kv_heads, 132, 0);
  Costs costs = at.schedule.costs;
  costs.l2 = 0;
  PlanFigures figures;
  assert_int_equal(figures_of_plan(plan, &costs, false, &figures), ROTA_OK);
  double ratio = dag_bound_ratio(&figures.figures);
  figures_free(&figures);
  plan_destroy(plan);
  plan_case_free(&at);
  return ratio;
}

static void test_workers_are_level(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    int n, heads;
  } cases[] = {{"k <= q", 1024, 256},
               {"k <= q", 2048, 128},
               {"k <= q", 6144, 48},
               {"k <= q and q // 2048 == k // 2048", 4096, 64},
               {WINDOW, 4096, 64}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int heads = cases[i].heads;
    double tiers = bound_ratio("tiers", cases[i].mask, cases[i].n, heads, heads);
    double before = bound_ratio("shortest_first", cases[i].mask, cases[i].n, heads, heads);
    print_message("%s, %d: %.4f of the bound, shortest_first %.4f\n", cases[i].mask, cases[i].n,
                  tiers, before);
    assert_true(tiers < 1.02 && before > 1.03);
  }
}

/* ---- Halves ---- */

/* Heads side by side, from the chain's diagonal on or back to it. */
typedef struct Way {
  int first, last;
  bool back;
} Way;

/* A chain under a causal mask, whose query tiles are half as high as its kv tile. */
static void check_ways(const Pattern *pattern, int chain, const Way *ways, int count) {
  const PatternVisit *visit = &pattern->visits[pattern->chain_begin[chain]];
  int tiles = pattern->q_tiles - 2 * chain;
  for (const Way *way = ways; way < ways + count; way++)
    for (int i = 0; i < tiles; i++)
      for (int head = way->first; head <= way->last; head++, visit++) {
        assert_int_equal(visit->group_head, head);
        assert_int_equal(visit->q_tile, 2 * chain + (way->back ? tiles - 1 - i : i));
      }
  assert_ptr_equal(visit, &pattern->visits[pattern->chain_begin[chain + 1]]);
}

/* Of 5 chains 0 to 2 are long. */
static void test_halves_of_a_group(void **state) {
  (void)state;
  static const int starts[] = {2, 1, 0, 3, 4};
  for (int group = 1; group <= 6; group++) {
    const Way same[] = {{0, 0, false}, {1, group - 1, true}};
    const Way closer[] = {{0, 0, false}, {1, group - 3, false}, {group - 2, group - 1, true}};
    PlanCase at;
    Plan *plan = plan_of(&at, "halves", "k <= q", 640, 2 * group, 2, 8, 0);
    Pattern *pattern;
    assert_int_equal(plan_pattern(plan, 0, 0, &pattern), ROTA_OK);
    assert_int_equal(pattern->chains, 5);
    for (int i = 0; i < 5; i++) {
      assert_int_equal(pattern->start_order[i], starts[i]);
      check_ways(pattern, i, i < 3 || group <= 4 ? same : closer, i < 3 || group <= 4 ? 2 : 3);
    }
    pattern_destroy(pattern);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* One, two and a half, and four rounds of the longer halves, and a group of 8. Of few rounds those
 * of tiers are not level. */
static void test_halves_are_level(void **state) {
  (void)state;
  static const struct {
    int n, heads, kv_heads;
    double halves, tiers;
  } cases[] = {{4096, 32, 8, 1.04, 1.2},
               {4096, 80, 20, 1.1, 1.0},
               {4096, 128, 32, 1.015, 1.015},
               {4096, 64, 8, 1.035, 1.2},
               {1024, 512, 128, 1.005, 1.005}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double halves = bound_ratio("halves", "k <= q", cases[i].n, cases[i].heads, cases[i].kv_heads);
    double tiers = bound_ratio("tiers", "k <= q", cases[i].n, cases[i].heads, cases[i].kv_heads);
    print_message("%d, %d heads on %d: %.4f of the bound, tiers %.4f\n", cases[i].n, cases[i].heads,
                  cases[i].kv_heads, halves, tiers);
    assert_true(halves < cases[i].halves && tiers > cases[i].tiers);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_who_is_in_which_tier),
      cmocka_unit_test(test_when_tiers_are_dealt),
      cmocka_unit_test(test_heads_take_turns_under_a_window),
      cmocka_unit_test(test_workers_are_level),
      cmocka_unit_test(test_halves_of_a_group),
      cmocka_unit_test(test_halves_are_level),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
