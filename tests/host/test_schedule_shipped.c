/* The schedules of lua/schedules.lua on every kind of mask, shape and number of workers: plans are
 * accepted, run to their end on workers that take turns at random, and the portable ones add in the
 * same order everywhere. */
#include "tests/support/job.h"
#include "tests/support/plan_case.h"
#include "tests/support/scripts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Query tiles are 64 rows, kv tiles 32 keys. */
static const struct {
  const char *name, *text;
} masks[] = {
    {"full", NULL},
    {"causal", "k <= q + n_k - n_q"},
    {"window", "k <= q + n_k - n_q and q + n_k - n_q - k < 100"},
    {"two-sided window", "abs(q - k) < 70"},
    {"documents", "k <= q and document[min(q, 1023)] == document[min(k, 1023)]"},
    {"prefix", "k <= q or k < 150"},
    {"sinks", "k <= q and (q - k < 64 or k < 4)"},
    {"blocks", "block[min(q // 64, 15), min(k // 64, 15)] ~= 0"},
    {"dilated", "(q - k) // 32 % 3 == 0"},
    {"by head", "k <= q + 64 * h"},
    {"nothing", "k > q + 100000"},
};

static const struct {
  int batch, n_q, n_k, heads, kv_heads;
} shapes[] = {
    {1, 512, 256, 2, 2}, {1, 511, 511, 2, 1},   {2, 64, 900, 4, 2},
    {3, 1000, 33, 2, 2}, {1, 1024, 1024, 8, 8}, {2, 1, 1, 1, 1},
    {1, 640, 0, 2, 2},   {1, 0, 100, 1, 1},     {1, 320, 352, 6, 2},
};

static const int worker_counts[] = {1, 2, 3, 8, 78, 132};

static int32_t documents[1024], block_list[16 * 16];

static void fill_tensors(void) {
  for (int i = 0; i < 1024; i++)
    documents[i] = (i > 100) + (i > 130) + (i > 500) + (i > 777);
  uint64_t random = 5;
  for (int i = 0; i < 16 * 16; i++)
    block_list[i] = case_random(&random, 3) == 0;
}

static void set_request(PlanCase *at, rota_named_tensor tensors[2]) {
  int count = 0;
  for (int i = 0; i < at->spec.symbols.tensor_count; i++)
    if (strcmp(at->spec.symbols.tensors[i].name, "document") == 0)
      tensors[count++] = (rota_named_tensor){"document", ROTA_INT32, 1, {1024}, {1}, documents};
    else
      tensors[count++] = (rota_named_tensor){"block", ROTA_INT32, 2, {16, 16}, {16, 1}, block_list};
  at->request.tensors = tensors;
  at->request.tensor_count = count;
}

static rota_status choose(PlanCase *at, const char *name, int workers) {
  Target device = {.multiprocessors = workers};
  snprintf(at->spec.schedule, sizeof at->spec.schedule, "%s", name);
  return script_schedule(test_script, &at->spec, &at->tiling, &device, &at->schedule);
}

/* Runs the plan several times, with as many workers as it may count on and, if it may, with fewer.
 * The order in which partials were added; the caller frees. */
static int32_t *run_plan(const Plan *plan, const char *what, uint64_t *random) {
  Job job = job_of_plan(plan);
  size_t count = (size_t)job.begin[job.queues] + 1;
  int32_t *first = calloc(count, sizeof(int32_t)), *again = calloc(count, sizeof(int32_t));
  int32_t all = job.queues > 0 ? job.queues : 1;
  const int32_t workers[] = {all, plan->co_resident ? all : 1,
                             plan->co_resident ? all : 1 + all / 3};
  for (int i = 0; i < 3; i++) {
    if (!job_run(&job, workers[i], random, i ? again : first))
      fail_msg("%s: waits for ever with %d workers", what, workers[i]);
    if (i)
      assert_memory_equal(first, again, (count - 1) * sizeof(int32_t));
  }
  free(again);
  job_free(&job);
  return first;
}

/* One schedule on one mask and shape, with every number of workers. */
static void check_schedule(PlanCase *at, const char *name, const char *where, uint64_t *random) {
  Digest digest = {""};
  int32_t *order = NULL;
  for (size_t w = 0; w < sizeof worker_counts / sizeof *worker_counts; w++) {
    char what[160];
    snprintf(what, sizeof what, "%s on %s, %d workers", name, where, worker_counts[w]);
    assert_int_equal(choose(at, name, worker_counts[w]), ROTA_OK);
    Plan *plan;
    if (plan_case_build(at, &plan) != ROTA_OK || plan_check(plan) != ROTA_OK)
      fail_msg("%s: %s", what, status_message());
    assert_true(plan->workers <= worker_counts[w] || !plan->co_resident);
    int32_t *added = run_plan(plan, what, random);
    if (at->schedule.portable && order) {
      assert_string_equal(plan->pattern_digest.hex, digest.hex);
      Job job = job_of_plan(plan);
      assert_memory_equal(added, order, (size_t)job.begin[job.queues] * sizeof(int32_t));
      job_free(&job);
    }
    free(order);
    order = added;
    digest = plan->pattern_digest;
    plan_destroy(plan);
  }
  free(order);
}

static void test_every_schedule_on_every_map(void **state) {
  (void)state;
  fill_tensors();
  uint64_t random = 3;
  const char *const *names = script_names(test_script, "schedules");
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      PlanCase at;
      plan_case_create(&at, "ordered", masks[m].text, NULL, shapes[s].heads, shapes[s].kv_heads);
      rota_named_tensor tensors[2];
      set_request(&at, tensors);
      at.request.lengths =
          (rota_lengths){.batch = shapes[s].batch, .n_q = shapes[s].n_q, .n_k = shapes[s].n_k};
      char where[80];
      snprintf(where, sizeof where, "%s, %d x %d, heads %d/%d", masks[m].name, shapes[s].n_q,
               shapes[s].n_k, shapes[s].heads, shapes[s].kv_heads);
      for (int i = 0; names[i]; i++)
        check_schedule(&at, names[i], where, &random);
      check_schedule(&at, "shift:stagger=1", where, &random);
      check_schedule(&at, "rotate:stagger=7", where, &random);
      plan_case_free(&at);
    }
}

static void test_packed_batches(void **state) {
  (void)state;
  const int32_t cu[] = {0, 300, 300, 777, 900, 1501, 1600};
  uint64_t random = 9;
  const char *const *names = script_names(test_script, "schedules");
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q", NULL, 4, 2);
  at.request.lengths = (rota_lengths){.batch = 6, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
  for (int i = 0; names[i]; i++)
    check_schedule(&at, names[i], "a packed batch", &random);
  plan_case_free(&at);
}

/* A batch of which some sequences go in tiers, others in start order or in lanes. */
static void test_long_among_short(void **state) {
  (void)state;
  const int32_t cu[] = {0, 300, 9000, 12072, 20900, 22000};
  uint64_t random = 3;
  for (int full = 0; full < 2; full++) {
    PlanCase at;
    plan_case_create(&at, "ordered", full ? NULL : "k <= q", NULL, 2, 2);
    at.tiling.tile_kv = 192;
    at.request.lengths = (rota_lengths){.batch = 5, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
    assert_int_equal(choose(&at, "by_length", 8), ROTA_OK);
    assert_int_equal(at.schedule.assignment, ASSIGN_MIXED);
    check_schedule(&at, "by_length", "a packed batch", &random);
    plan_case_free(&at);
  }
}

/* by_length: by the number of chains, of heads in a group, and of chains that have all tiles. */
static void test_length_of_by_length(void **state) {
  (void)state;
  static const struct {
    const char *mask, *expected, *other;
    int tile_kv, chains, heads, workers; /* heads: a kv head's */
  } cases[] = {
      {"k <= q", "shortest_first", "tiers", 128, 5, 1, 8},
      {"k <= q", "tiers", "shortest_first", 128, 6, 1, 8},
      {"k <= q", "tiers", "symmetric_shift", 128, 16, 1, 132},
      {"k <= q", "tiers", "longest_first", 192, 129, 1, 8},
      {"k <= q or k < 512", "tiers", "shortest_first", 128, 16, 1, 8},
      {"k <= q or k < 640", "shortest_first", "tiers", 128, 16, 1, 8},
      {"k <= q", "halves", "shortest_first", 128, 8, 2, 8},
      {"k <= q", "halves", "shortest_first", 128, 5, 2, 132},
      {"k <= q", "longest_first", "shortest_first", 128, 4, 2, 132},
      {"k <= q", "halves", "longest_first", 192, 3, 2, 132},
      {"k <= q", "longest_first", "halves", 192, 2, 2, 132},
      {"k <= q", "longest_first", "halves", 128, 8, 17, 132},
      {"k <= q or k < 512", "shortest_first", "longest_first", 128, 8, 2, 8},
      {"k <= q or k < 1408", "longest_first", "shortest_first", 128, 16, 2, 8},
      {"k <= q or k < 1536", "shortest_first", "longest_first", 128, 16, 2, 8},
      {"k <= q", "halves", "longest_first", 128, 16, 2, 8},
      {"k <= q", "halves", "longest_first", 128, 16, 8, 132},
      {"k <= q", "longest_first", "halves", 128, 16, 17, 132},
      {"k <= q", "longest_first", "halves", 128, 20, 8, 132}, /* 13 heads' halves, no power of 2 */
      {"k <= q", "longest_first", "halves", 128, 29, 8, 132}, /* 8 heads', of 120 chains */
      {"k <= q", "halves", "longest_first", 128, 32, 8, 132},
      {"k <= q or k < 640", "longest_first", "halves", 128, 16, 2, 8},
      {NULL, "shift:stagger=3", "longest_first", 128, 9, 2, 8},
      {NULL, "shortest_first", "shift:stagger=3", 128, 8, 1, 8},
      {NULL, "shift:stagger=3", "shortest_first", 128, 9, 1, 8},
      {NULL, "shift:stagger=3", "longest_first", 192, 129, 1, 8},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *names[] = {"by_length", cases[i].expected, cases[i].other};
    int n = cases[i].tile_kv * cases[i].chains;
    PlanCase at;
    plan_case_create(&at, "ordered", cases[i].mask, NULL, cases[i].heads, 1);
    at.tiling.tile_kv = cases[i].tile_kv;
    at.request.lengths = (rota_lengths){.batch = 1, .n_q = n, .n_k = n};
    Plan *plans[3];
    for (int name = 0; name < 3; name++) {
      assert_int_equal(choose(&at, names[name], cases[i].workers), ROTA_OK);
      plans[name] = plan_case_good(&at);
    }
    const char *found = plans[0]->pattern_digest.hex;
    assert_string_equal(found, plans[1]->pattern_digest.hex);
    assert_string_not_equal(found, plans[2]->pattern_digest.hex);
    for (int name = 0; name < 3; name++)
      plan_destroy(plans[name]);
    plan_case_free(&at);
  }
}

/* Under `mixed`, where no chain waits for one that starts later and none is shorter, pairs take
 * turns: the same queues as with tickets. */
static void test_short_sequences_take_turns(void **state) {
  (void)state;
  static const char *const names[] = {"by_length", "shortest_first"};
  PlanCase at;
  plan_case_create(&at, "ordered", NULL, NULL, 8, 8);
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 256, .n_k = 256};
  Plan *plans[2];
  for (int i = 0; i < 2; i++) {
    assert_int_equal(choose(&at, names[i], 8), ROTA_OK);
    at.schedule.persistent = true;
    plans[i] = plan_case_good(&at);
  }
  assert_int_equal(plans[0]->chain_items.count, plans[1]->chain_items.count);
  assert_memory_equal(plan_section(plans[0], plans[0]->chain_items),
                      plan_section(plans[1], plans[1]->chain_items),
                      (size_t)plans[0]->chain_items.count * sizeof(RotaItem));
  for (int i = 0; i < 2; i++)
    plan_destroy(plans[i]);
  plan_case_free(&at);
}

/* by_tiles: lanes of their own for grouped heads and documents of one length and whole tiles, else
 * another's pattern. */
static void test_tiles_of_by_tiles(void **state) {
  (void)state;
  static const struct {
    const char *mask, *as;
    int heads; /* of a kv head */
  } cases[] = {
      {"k <= q and q // 512 == k // 512", NULL, 2},
      {"k <= q and q // 512 == k // 512", "tiers", 1},
      {"k <= q and q // 256 == k // 256", "tiers", 2}, /* of 8 chains */
      {"k <= q and q // 250 == k // 250", "tiers", 2},
      {"k <= q and q // 128 == k // 128", "shortest_first", 1}, /* of few chains */
      {"k <= q and q - k < 256", "shortest_first", 1},
      {"k <= q and (q - k < 64 or k < 4)", "longest_first", 1},
      {"k <= q", "tiers", 1}, /* one document */
      {"k <= q", "symmetric_shift", 2},
  };
  uint64_t random = 4;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    PlanCase at;
    plan_case_create(&at, "ordered", cases[i].mask, NULL, cases[i].heads, 1);
    at.request.lengths = (rota_lengths){.batch = 2, .n_q = 1536, .n_k = 1536};
    assert_int_equal(choose(&at, "by_tiles", 40), ROTA_OK);
    Plan *plan = plan_case_good(&at);
    for (const char *const *name = script_names(test_script, "schedules"); *name; name++) {
      assert_int_equal(choose(&at, *name, 40), ROTA_OK);
      Plan *other = plan_case_good(&at);
      bool same = strcmp(plan->pattern_digest.hex, other->pattern_digest.hex) == 0;
      if (cases[i].as && strcmp(cases[i].as, *name) == 0 && !same)
        fail_msg("%s: not as %s", cases[i].mask, *name);
      if (!cases[i].as && same && strcmp(*name, "by_tiles") != 0)
        fail_msg("%s: as %s", cases[i].mask, *name);
      plan_destroy(other);
    }
    plan_destroy(plan);
    check_schedule(&at, "by_tiles", cases[i].mask, &random);
    plan_case_free(&at);
  }
}

/* A sequence's pattern does not depend on the batch around it. */
static void test_patterns_do_not_depend_on_the_batch(void **state) {
  (void)state;
  const int32_t cu[] = {0, 300, 1200, 1777};
  const char *const *names = script_names(test_script, "schedules");
  for (int i = 0; names[i]; i++) {
    PlanCase at;
    plan_case_create(&at, "ordered", "k <= q", NULL, 4, 2);
    assert_int_equal(choose(&at, names[i], 8), ROTA_OK);
    at.request.lengths = (rota_lengths){.batch = 3, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
    Plan *together = plan_case_good(&at);
    at.request.lengths = (rota_lengths){.batch = 5, .n_q = 900, .n_k = 900};
    Plan *five = plan_case_good(&at);
    at.request.lengths.batch = 1;
    Plan *alone = plan_case_good(&at);
    assert_string_equal(five->pattern_digest.hex, alone->pattern_digest.hex);
    Pattern *a, *b;
    assert_int_equal(plan_pattern(together, 1, 0, &a), ROTA_OK);
    assert_int_equal(plan_pattern(alone, 0, 0, &b), ROTA_OK);
    assert_int_equal(a->chain_begin[a->chains], b->chain_begin[b->chains]);
    for (int64_t v = 0; v < a->chain_begin[a->chains]; v++) {
      assert_int_equal(a->visits[v].q_tile, b->visits[v].q_tile);
      assert_int_equal(a->visits[v].rank, b->visits[v].rank);
    }
    pattern_destroy(a);
    pattern_destroy(b);
    plan_destroy(together);
    plan_destroy(five);
    plan_destroy(alone);
    plan_case_free(&at);
  }
}

static double milliseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

/* 16k causal with 16 heads below 10 ms, 128k with one head below 300 ms; twice that on a machine
 * that is busy or slow. Sanitizers take their time. */
static void test_planning_time(void **state) {
  (void)state;
  static const struct {
    int n, heads;
    double most;
  } cases[] = {{16384, 16, 10}, {131072, 1, 300}};
  const char *const *names = script_names(test_script, "schedules");
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (int i = 0; names[i]; i++) {
      PlanCase at;
      plan_case_create(&at, "ordered", "k <= q + n_k - n_q", NULL, cases[c].heads, cases[c].heads);
      at.tiling.tile_kv = 128;
      at.request.lengths = (rota_lengths){.batch = 1, .n_q = cases[c].n, .n_k = cases[c].n};
      double best = 1e9;
      for (int round = 0; round < 3; round++) {
        double begin = milliseconds();
        assert_int_equal(choose(&at, names[i], 132), ROTA_OK);
        Plan *plan;
        assert_int_equal(plan_case_build(&at, &plan), ROTA_OK);
        plan_destroy(plan);
        double took = milliseconds() - begin;
        best = took < best ? took : best;
      }
      print_message("%6d, %2d heads, %-16s %7.2f ms\n", cases[c].n, cases[c].heads, names[i], best);
#if !defined(__SANITIZE_ADDRESS__)
      assert_true(best < 2 * cases[c].most);
#endif
      plan_case_free(&at);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_schedule_on_every_map),
      cmocka_unit_test(test_packed_batches),
      cmocka_unit_test(test_long_among_short),
      cmocka_unit_test(test_length_of_by_length),
      cmocka_unit_test(test_short_sequences_take_turns),
      cmocka_unit_test(test_tiles_of_by_tiles),
      cmocka_unit_test(test_patterns_do_not_depend_on_the_batch),
      cmocka_unit_test(test_planning_time),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
