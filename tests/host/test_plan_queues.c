/* Row items of a forward plan dealt to persistent workers: nothing lost, nobody idle for long.
 * Chains of a backward plan drawn by them: the same bits, however many. */
#include "tests/support/plan_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "generator/plan_items.h"

static void with_workers(PlanCase *at, int workers) {
  plan_case_create(at, "forward", "k <= q", NULL, 4, 2);
  at->tiling.fields[at->tiling.field_count++] = (TilingField){.name = "workers", .value = workers};
  at->request.lengths = (rota_lengths){.batch = 2, .n_q = 4096, .n_k = 4096};
}

/* In half tiles, as items are dealt. */
static int64_t cost(const Plan *plan, RotaItem item) {
  const RotaRow *row = (const RotaRow *)plan_section(plan, plan->rows) + item.index;
  const RotaRun *runs = plan_section(plan, plan->runs);
  int64_t tiles = 0;
  for (int32_t r = row->run_begin; r < row->run_end; r++)
    tiles += (int32_t)(runs[r].end_kind & ROTA_RUN_END) - runs[r].begin;
  return 2 * tiles + 1;
}

static int compare_items(const void *a, const void *b) {
  const RotaItem *x = a, *y = b;
  if (x->index != y->index)
    return x->index < y->index ? -1 : 1;
  return x->head < y->head ? -1 : x->head > y->head;
}

static void test_queues_cover_the_items_and_balance(void **state) {
  (void)state;
  PlanCase at, plain;
  with_workers(&at, 13);
  plan_case_create(&plain, "forward", "k <= q", NULL, 4, 2);
  plain.request.lengths = at.request.lengths;
  Plan *plan = plan_case_good(&at), *without = plan_case_good(&plain);
  int64_t count = plan->row_items.count;
  assert_int_equal(plan->workers, 13);
  assert_int_equal(plan->queue.count, 14);
  assert_int_equal(without->queue.count, 0);
  const RotaItem *items = plan_section(plan, plan->row_items);
  const int *queue = plan_section(plan, plan->queue);
  assert_int_equal(queue[0], 0);
  assert_int_equal(queue[13], count);
  int64_t most = 0, all = 0;
  for (int w = 0; w < 13; w++) {
    int64_t load = 0;
    for (int i = queue[w]; i < queue[w + 1]; i++)
      load += cost(plan, items[i]);
    most = load > most ? load : most;
    all += load;
  }
  assert_true(most * 13 <= all + all / 20);
  /* The same items as a plan without workers has. */
  RotaItem *dealt = calloc((size_t)count, sizeof *dealt),
           *each = calloc((size_t)count, sizeof *each);
  for (int64_t i = 0; i < count; i++) {
    dealt[i] = items[i];
    each[i] = ((const RotaItem *)plan_section(without, without->row_items))[i];
  }
  qsort(dealt, (size_t)count, sizeof *dealt, compare_items);
  qsort(each, (size_t)count, sizeof *each, compare_items);
  assert_memory_equal(dealt, each, (size_t)count * sizeof *dealt);
  free(dealt);
  free(each);
  plan_destroy(plan);
  plan_destroy(without);
  plan_case_free(&at);
  plan_case_free(&plain);
}

/* Windows of 8 tiles: waves of 192 items of 19 half tiles and 8 each of 17, 15 .. 3. By turns alone
 * the last worker would have 5 half tiles more than the mean one. */
static void test_trades_level_the_loads(void **state) {
  (void)state;
  enum { WAVES = 8, WAVE = 256, WORKERS = 132 };
  int64_t time[WAVES * WAVE], load[WORKERS] = {0}, most = 0, all = 0;
  int32_t worker[WAVES * WAVE];
  for (int i = 0; i < WAVES * WAVE; i++)
    time[i] = i % WAVE < 192 ? 19 : 17 - 2 * ((i % WAVE - 192) / 8);
  assert_int_equal(items_deal(time, WAVES * WAVE, WORKERS, worker), ROTA_OK);
  for (int i = 0; i < WAVES * WAVE; i++) {
    assert_in_range(worker[i], 0, WORKERS - 1);
    load[worker[i]] += time[i];
    all += time[i];
  }
  for (int w = 0; w < WORKERS; w++)
    most = load[w] > most ? load[w] : most;
  assert_true(most <= all / WORKERS + 2);
  /* Nothing to level: as dealt, and nobody is left without. */
  for (int i = 0; i < WORKERS; i++)
    time[i] = 1 + i % 2;
  assert_int_equal(items_deal(time, WORKERS, WORKERS, worker), ROTA_OK);
  for (int i = 0; i < WORKERS; i++)
    assert_int_equal(worker[i], i);
}

static void test_no_more_queues_than_items(void **state) {
  (void)state;
  PlanCase at;
  with_workers(&at, 132);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 1, .n_k = 100};
  Plan *plan = plan_case_good(&at);
  assert_int_equal(plan->workers, plan->row_items.count);
  assert_int_equal(plan_grid(plan, GRID_ROW_WORKERS), plan->row_items.count);
  plan_destroy(plan);
  at.request.lengths = (rota_lengths){.batch = 0, .n_q = 1, .n_k = 1};
  if (plan_case_build(&at, &plan) == ROTA_OK) { /* nothing to do: no queue */
    assert_int_equal(plan->queue.count, 0);
    assert_int_equal(plan_grid(plan, GRID_ROW_WORKERS), 0);
    plan_destroy(plan);
  }
  plan_case_free(&at);
}

/* Heads of a group that share query tiles: an item for so many, never for heads of two groups, and
 * never where the mask tells heads apart. */
static void test_heads_that_share_a_tile(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    int packed; /* of 4 query heads a kv head */
    bool served;
  } cases[] = {{"k <= q", 1, true},
               {"k <= q", 2, true},
               {"k <= q", 4, true},
               {"k <= q", 3, false},
               {"k <= q", 8, false},
               {"k <= q", 0, false},
               {"k <= q and k > h", 2, false},
               {"k <= q + h", 1, true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    PlanCase at;
    Plan *plan = NULL;
    plan_case_create(&at, "forward", cases[i].mask, NULL, 8, 2);
    at.tiling.fields[at.tiling.field_count++] =
        (TilingField){.name = "packed", .value = cases[i].packed};
    at.request.lengths = (rota_lengths){.batch = 3, .n_q = 300, .n_k = 400};
    if (cases[i].served) {
      plan = plan_case_good(&at);
      assert_int_equal(plan->row_items.count, 3 * 5 * 8 / cases[i].packed);
      assert_int_equal(plan_q_tiles(plan), 3 * 5);
    } else {
      assert_int_equal(plan_case_build(&at, &plan), ROTA_INTERNAL);
      assert_non_null(strstr(status_message(), "of 4 heads"));
    }
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* A file whose queues do not fit its items is refused. */
static void test_damaged_queues_are_found(void **state) {
  (void)state;
  PlanCase at;
  with_workers(&at, 5);
  Plan *plan = plan_case_good(&at);
  int *queue = (int *)(plan->image + plan->queue.offset);
  int saved = queue[5];
  queue[5]--;
  assert_int_equal(plan_check(plan), ROTA_FILE);
  queue[5] = saved;
  queue[2] = queue[3] + 1;
  assert_int_equal(plan_check(plan), ROTA_FILE);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* ---- Chains ---- */

static Plan *chains_plan(Assignment assignment, bool persistent, int together) {
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q", NULL, 6, 3);
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 2048, .n_k = 2048};
  at.schedule = rule_schedule(UPWARDS, DOWNWARDS); /* the longest chain starts first */
  at.schedule.assignment = assignment;
  at.schedule.persistent = persistent;
  if (persistent)
    at.tiling.fields[at.tiling.field_count++] = (TilingField){.name = "persistent", .value = 1};
  at.schedule.together = together;
  at.schedule.workers = 7;
  Plan *plan = plan_case_good(&at);
  plan_case_free(&at);
  return plan;
}

static int64_t chain_visits(const Plan *plan, RotaItem item) {
  const RotaChain *chain = (const RotaChain *)plan_section(plan, plan->chains) + item.index;
  return chain->visit_end - chain->visit_begin;
}

/* Chains that wait for earlier ones only are drawn one by one, by as many workers as there may be.
 */
static void test_chains_in_order_are_drawn(void **state) {
  (void)state;
  static const Assignment assignments[] = {ASSIGN_TICKETS, ASSIGN_LONGEST, ASSIGN_MIXED,
                                           ASSIGN_STRETCHES};
  Plan *tickets = chains_plan(ASSIGN_TICKETS, false, 0);
  for (int a = 0; a < 4; a++)
    for (int persistent = 0; persistent < 2; persistent++)
      for (int together = 0; together < 3; together++) {
        Plan *plan = chains_plan(assignments[a], persistent, together);
        const int *queue = plan_section(plan, plan->queue);
        assert_int_equal(plan->workers, plan->chain_items.count);
        for (int w = 0; w <= plan->workers; w++)
          assert_int_equal(queue[w], w);
        assert_false(plan->co_resident);
        assert_int_equal(plan->gang, 7);
        assert_int_equal(plan_grid(plan, GRID_WORKERS), persistent ? 7 : plan->workers);
        /* Who runs a chain decides no bits. */
        assert_string_equal(plan->pattern_digest.hex, tickets->pattern_digest.hex);
        plan_destroy(plan);
      }
  plan_destroy(tickets);
}

/* Where a kernel goes by query tile numbers, a row item's place is its tile's number. */
static void test_row_items_in_order(void **state) {
  (void)state;
  for (int by_head = 0; by_head < 2; by_head++) {
    PlanCase at;
    plan_case_create(&at, "ordered", by_head ? "k <= q + h" : "k <= q", NULL, 4, 2);
    at.tiling.fields[at.tiling.field_count++] = (TilingField){.name = "rows_beside", .value = 1};
    static const int32_t cu[] = {0, 130, 130, 517};
    at.request.lengths = (rota_lengths){.batch = 3, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
    at.schedule = rule_schedule(UPWARDS, DOWNWARDS);
    at.schedule.workers = 7;
    Plan *plan = plan_case_good(&at);
    plan_case_free(&at);
    const RotaSequence *sequences = plan_section(plan, plan->sequences);
    const RotaRow *rows = plan_section(plan, plan->rows);
    RotaItem *items = (RotaItem *)(void *)(plan->image + plan->row_items.offset);
    for (int64_t i = 0; i < plan->row_items.count; i++) {
      const RotaRow *row = &rows[items[i].index];
      int64_t tile = sequences[row->sequence].tile_begin + row->q_tile;
      assert_int_equal(i, tile * 4 + items[i].head);
    }
    assert_int_equal(plan_grid(plan, GRID_PREPARERS), 3);
    assert_int_equal(plan_check(plan), ROTA_OK);
    RotaItem swapped = items[1];
    items[1] = items[2];
    items[2] = swapped;
    assert_int_equal(plan_check(plan), ROTA_FILE);
    assert_non_null(strstr(status_message(), "not the query tile of that number"));
    plan_destroy(plan);
  }
}

/* `longest` with one pair at a time: its chains come longest first, then those of the next pair. */
static void test_longest_of_so_many_pairs(void **state) {
  (void)state;
  Plan *all = chains_plan(ASSIGN_LONGEST, false, 0), *one = chains_plan(ASSIGN_LONGEST, false, 1);
  const RotaItem *items = plan_section(all, all->chain_items);
  for (int64_t i = 1; i < all->chain_items.count; i++)
    assert_true(chain_visits(all, items[i - 1]) >= chain_visits(all, items[i]));
  items = plan_section(one, one->chain_items);
  const RotaChain *chains = plan_section(one, one->chains);
  int64_t pairs = 1;
  for (int64_t i = 1; i < one->chain_items.count; i++) {
    bool same = items[i].head == items[i - 1].head &&
                chains[items[i].index].sequence == chains[items[i - 1].index].sequence;
    pairs += !same;
    if (same)
      assert_true(chain_visits(one, items[i - 1]) >= chain_visits(one, items[i]));
  }
  assert_int_equal(pairs, 6);
  plan_destroy(all);
  plan_destroy(one);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_queues_cover_the_items_and_balance),
      cmocka_unit_test(test_trades_level_the_loads),
      cmocka_unit_test(test_no_more_queues_than_items),
      cmocka_unit_test(test_heads_that_share_a_tile),
      cmocka_unit_test(test_damaged_queues_are_found),
      cmocka_unit_test(test_chains_in_order_are_drawn),
      cmocka_unit_test(test_row_items_in_order),
      cmocka_unit_test(test_longest_of_so_many_pairs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
