/* The DAG model against a measured table: what ordering costs a synthetic kernel on one H200, 132
 * workers that spin for 2.3 us a visit while a writer warp adds a 32 KB tile in order (1.1 us, a
 * hand-off about 0.7 us). Time ordered / unordered; tiles of 64 x 128. */
#include "tests/support/dag_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct Shape {
  int32_t length, heads;
} Shape;
static const Shape shapes[] = {{16384, 16}, {4096, 64}, {1024, 256}};
enum { SHAPES = 3, TILE_Q = 64, TILE_KV = 128, SMS = 132 };

typedef struct Row {
  const char *name;
  bool causal, start_down, batch_time;
  DagCaseVisits visits;
  DagCaseRanks ranks;
  DagCaseQueues queues;
  double measured[SHAPES];
} Row;

static const Row rows[] = {
    {"full ascending",
     false,
     false,
     false,
     CASE_ASCENDING,
     CASE_BY_KV,
     QUEUE_LIST,
     {1.04, 1.14, 1.20}},
    {"full descending",
     false,
     false,
     false,
     CASE_DESCENDING,
     CASE_BY_KV,
     QUEUE_LIST,
     {1.04, 1.14, 1.21}},
    {"full shift", false, false, false, CASE_SHIFT, CASE_BY_TIME, QUEUE_LIST, {1.03, 1.03, 1.03}},
    {"causal ascending",
     true,
     false,
     false,
     CASE_ASCENDING,
     CASE_BY_KV,
     QUEUE_LIST,
     {2.78, 6.75, 3.48}},
    {"causal descending",
     true,
     false,
     false,
     CASE_DESCENDING,
     CASE_BY_KV,
     QUEUE_LIST,
     {1.08, 2.03, 1.54}},
    {"shortest first",
     true,
     true,
     false,
     CASE_ASCENDING,
     CASE_BY_KV_DOWN,
     QUEUE_LIST,
     {1.03, 1.02, 1.02}},
    {"symmetric shift",
     true,
     false,
     false,
     CASE_SYMMETRIC,
     CASE_BY_TIME,
     QUEUE_HALVES,
     {1.03, 1.03, 1.03}},
    {"longest first",
     true,
     false,
     true,
     CASE_DESCENDING,
     CASE_BY_TIME,
     QUEUE_LONGEST,
     {1.03, 1.07, 1.13}},
    {"rotate", true, false, true, CASE_ROTATE, CASE_BY_TIME, QUEUE_LIST, {1.10, 1.10, 1.05}},
};
enum { ROWS = sizeof rows / sizeof rows[0], CELLS = ROWS * SHAPES };

typedef enum RowIndex {
  FULL_ASCENDING,
  FULL_DESCENDING,
  FULL_SHIFT,
  CAUSAL_ASCENDING,
  CAUSAL_DESCENDING,
  SHORTEST_FIRST,
  SYMMETRIC,
  LONGEST_FIRST,
  ROTATE
} RowIndex;

/* [row][shape]; makespans in ticks. */
static double modelled[ROWS][SHAPES];
static int64_t ordered[ROWS][SHAPES], unordered[ROWS][SHAPES];

static int setup(void **state) {
  (void)state;
  Costs costs;
  assert_int_equal(costs_parse("visit=2.3,reduce=1.1,handoff=0.7,staging=1", &costs), ROTA_OK);
  for (int r = 0; r < ROWS; r++)
    for (int s = 0; s < SHAPES; s++) {
      int32_t chains = shapes[s].length / TILE_KV;
      DagCase c = {.q_tiles = shapes[s].length / TILE_Q,
                   .kv_tiles = chains,
                   .causal = rows[r].causal,
                   .heads = shapes[s].heads,
                   .workers = SMS,
                   .visits = rows[r].visits,
                   .ranks = rows[r].ranks,
                   .queues = rows[r].queues,
                   .start_down = rows[r].start_down,
                   .batch_time = rows[r].batch_time};
      if (c.queues == QUEUE_HALVES)
        c.workers = SMS / (chains / 2) * (chains / 2);
      ordered[r][s] = dag_case_run(&c, &costs).makespan;
      c.unordered = true;
      unordered[r][s] = dag_case_run(&c, &costs).makespan;
      modelled[r][s] = (double)ordered[r][s] / (double)unordered[r][s];
    }
  return 0;
}

/* ---- Spearman's rank correlation, ties sharing their mean rank ---- */

static void rank_values(const double *values, double *ranks) {
  for (int i = 0; i < CELLS; i++) {
    int below = 0, equal = 0;
    for (int j = 0; j < CELLS; j++) {
      below += values[j] < values[i];
      equal += values[j] == values[i];
    }
    ranks[i] = below + (equal + 1) / 2.0;
  }
}

static double correlate(const double *x, const double *y) {
  double sums[3] = {0}, mean = (CELLS + 1) / 2.0;
  for (int i = 0; i < CELLS; i++) {
    sums[0] += (x[i] - mean) * (y[i] - mean);
    sums[1] += (x[i] - mean) * (x[i] - mean);
    sums[2] += (y[i] - mean) * (y[i] - mean);
  }
  /* sums[1] and [2] differ by their ties: a geometric mean by two steps of Heron's rule. */
  double root = (sums[1] + sums[2]) / 2;
  for (int step = 0; step < 8; step++)
    root = (root + sums[1] * sums[2] / root) / 2;
  return sums[0] / root;
}

/* The model knows nothing of polling and noise: what costs less than `noise` counts as equal. */
static double blurred(double ratio, double noise) {
  return ratio < noise ? 1 : ratio;
}

static void test_correlation(void **state) {
  (void)state;
  double model[CELLS], chip[CELLS], ranks[2][CELLS];
  print_message("ordered / unordered: modelled (measured)\n");
  for (int r = 0; r < ROWS; r++) {
    print_message("%-18s", rows[r].name);
    for (int s = 0; s < SHAPES; s++) {
      print_message("  %.2f (%.2f)", modelled[r][s], rows[r].measured[s]);
      model[r * SHAPES + s] = modelled[r][s];
      chip[r * SHAPES + s] = rows[r].measured[s];
    }
    print_message("\n");
  }
  rank_values(model, ranks[0]);
  rank_values(chip, ranks[1]);
  double plain = correlate(ranks[0], ranks[1]);
  for (int i = 0; i < CELLS; i++) {
    model[i] = blurred(model[i], 1.03);
    chip[i] = blurred(chip[i], 1.035);
  }
  rank_values(model, ranks[0]);
  rank_values(chip, ranks[1]);
  double blurry = correlate(ranks[0], ranks[1]);
  print_message("rank correlation %.2f; %.2f with costs up to 3 %% taken as equal\n", plain,
                blurry);
  assert_true(plain >= 0.8);
  assert_true(blurry >= 0.85);
}

/* ---- The gross facts ---- */

static void test_causal(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    assert_true(ordered[CAUSAL_ASCENDING][s] > 2 * ordered[SHORTEST_FIRST][s]);
    assert_true(ordered[CAUSAL_ASCENDING][s] > 2 * ordered[SYMMETRIC][s]);
    assert_true(modelled[CAUSAL_ASCENDING][s] > modelled[CAUSAL_DESCENDING][s]);
    assert_true(modelled[ROTATE][s] < modelled[CAUSAL_DESCENDING][s]);
    assert_true(modelled[SHORTEST_FIRST][s] < 1.03);
    assert_true(modelled[SYMMETRIC][s] < 1.03);
  }
  /* The worst of all is 4k causal, both ways up; 16k descending is nearly free. */
  assert_true(modelled[CAUSAL_ASCENDING][1] > modelled[CAUSAL_ASCENDING][2]);
  assert_true(modelled[CAUSAL_ASCENDING][2] > modelled[CAUSAL_ASCENDING][0]);
  assert_true(modelled[CAUSAL_DESCENDING][1] > modelled[CAUSAL_DESCENDING][2]);
  assert_true(modelled[CAUSAL_DESCENDING][0] < 1.1);
}

static void test_full(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    assert_true(ordered[FULL_SHIFT][s] < ordered[FULL_ASCENDING][s]);
    assert_true(ordered[FULL_SHIFT][s] < ordered[FULL_DESCENDING][s]);
    assert_true(modelled[FULL_SHIFT][s] < 1.03);
    assert_true(modelled[FULL_ASCENDING][s] < 1.25); /* full is mild where causal is not */
  }
  /* The shorter the sequences, the more an ascending order costs. */
  assert_true(modelled[FULL_ASCENDING][0] < modelled[FULL_ASCENDING][1]);
  assert_true(modelled[FULL_ASCENDING][1] < modelled[FULL_ASCENDING][2]);
}

/* Without any waiting, short chains first leave a tail: 6 % at 16k on the chip, and longest first
 * over all heads is the fastest of all. */
static void test_tail(void **state) {
  (void)state;
  double tail = (double)unordered[SHORTEST_FIRST][0] / (double)unordered[CAUSAL_DESCENDING][0];
  assert_true(tail > 1.04 && tail < 1.09);
  assert_true(ordered[LONGEST_FIRST][0] < ordered[SYMMETRIC][0]);
  assert_true(ordered[LONGEST_FIRST][0] < ordered[SHORTEST_FIRST][0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_correlation),
      cmocka_unit_test(test_causal),
      cmocka_unit_test(test_full),
      cmocka_unit_test(test_tail),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
