/* The DAG model against the DASH paper (arXiv 2601.21824): every closed form is met exactly, and
 * Lemma 1 holds: order edges leave the makespan as it is exactly when depths are monotone. n
 * workers, n kv tiles and n query tiles a head, m heads, a visit of c and r. */
#include "tests/support/dag_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct Times {
  double c, r;
} Times;
static const Times times[] = {{2, 1}, {1, 1}, {5, 3}, {2.5, 0.125}, {1, 0}};
enum { TIMES = sizeof times / sizeof times[0], N_MAX = 128 };

/* n = 4 .. 128 in steps that keep the test short, both odd and even. */
static int next_size(int n) {
  return n < 20 ? n + 1 : n + 27;
}

static int64_t in_ticks(double units) {
  return (int64_t)(units * COSTS_TICKS);
}

static void expect(const DagFigures *figures, double units, const DagCase *dag_case, Times time) {
  if (figures->makespan != in_ticks(units))
    fail_msg("n %d m %d c %g r %g: makespan %g, the paper says %g", dag_case->kv_tiles,
             dag_case->heads, time.c, time.r, costs_units(figures->makespan), units);
}

/* Calls `body` for all sizes, heads and times. */
typedef void Body(int n, int m, Times time);
static void for_all(Body *body) {
  for (int n = 4; n <= N_MAX; n = next_size(n))
    for (int m = 1; m <= 4; m++)
      for (int t = 0; t < TIMES; t++)
        body(n, m, times[t]);
}

static DagFigures simulate(const DagCase *dag_case, Times time) {
  Costs costs = costs_paper(time.c, time.r);
  return dag_case_run(dag_case, &costs);
}

/* ---- Closed forms ---- */

static void ascending_form(int n, int m, Times time) {
  for (int causal = 0; causal < 2; causal++) {
    DagCase ascending = {.q_tiles = n, .kv_tiles = n, .causal = causal, .heads = m, .workers = n};
    DagFigures figures = simulate(&ascending, time);
    expect(&figures, m * n * (time.c + time.r) + (n - 1) * time.r, &ascending, time);
    assert_false(figures.depth_monotone);
    /* With a worker for each chain heads do not queue behind one another. */
    assert_int_equal(figures.critical_path, in_ticks(n * (time.c + time.r) + (n - 1) * time.r));
    assert_int_equal(figures.chain_path, in_ticks(n * (time.c + time.r)));
  }
}
static void test_ascending(void **state) {
  (void)state;
  for_all(ascending_form);
}

static void descending_form(int n, int m, Times time) {
  if (m % 2 || time.c < time.r)
    return;
  DagCase descending = {.q_tiles = n,
                        .kv_tiles = n,
                        .causal = true,
                        .heads = m,
                        .workers = n,
                        .visits = CASE_DESCENDING,
                        .queues = QUEUE_PAIRS};
  DagFigures figures = simulate(&descending, time);
  expect(&figures, m * (n + 1) * (time.c + time.r) / 2 + (n - 1) * time.r, &descending, time);
  assert_false(figures.depth_monotone);
}
static void test_descending(void **state) {
  (void)state;
  for_all(descending_form);
}

static void reaches_work_bound(const DagFigures *figures) {
  assert_true(figures->depth_monotone);
  assert_int_equal(figures->work, figures->makespan * figures->workers);
  assert_true(dag_work_bound(figures) == (double)figures->makespan);
  assert_true(dag_stall_share(figures) == 0);
  assert_true(dag_bound_ratio(figures) == 1);
}

static void shift_form(int n, int m, Times time) {
  DagCase shift = {.q_tiles = n,
                   .kv_tiles = n,
                   .heads = m,
                   .workers = n,
                   .visits = CASE_SHIFT,
                   .ranks = CASE_BY_TIME};
  DagFigures figures = simulate(&shift, time);
  expect(&figures, m * n * (time.c + time.r), &shift, time);
  reaches_work_bound(&figures);
}
static void test_shift(void **state) {
  (void)state;
  for_all(shift_form);
}

/* On n / 2 workers; on n workers two sets share the heads. */
static void symmetric_form(int n, int m, Times time) {
  if (n % 2)
    return;
  for (int sets = 1; sets <= 2 && m % sets == 0; sets++) {
    DagCase symmetric = {.q_tiles = n,
                         .kv_tiles = n,
                         .causal = true,
                         .heads = m,
                         .workers = sets * n / 2,
                         .visits = CASE_SYMMETRIC,
                         .ranks = CASE_BY_TIME,
                         .queues = QUEUE_HALVES};
    DagFigures figures = simulate(&symmetric, time);
    expect(&figures, m * (n + 1) * (time.c + time.r) / sets, &symmetric, time);
    reaches_work_bound(&figures);
  }
}
static void test_symmetric_shift(void **state) {
  (void)state;
  for_all(symmetric_form);
}

/* ---- Lemma 1 ---- */

/* Isomorphic chains: a full mask, a worker for each chain, one head. */
static void lemma(int n, int m, Times time) {
  static const DagCaseVisits visits[] = {CASE_ASCENDING, CASE_DESCENDING, CASE_SHIFT, CASE_ROTATE};
  if (m > 1 || time.r == 0)
    return; /* reductions that take no time delay nobody, in whatever order */
  for (int v = 0; v < 4; v++)
    for (int ranks = CASE_BY_KV; ranks <= CASE_BY_TIME; ranks++) {
      DagCase full = {.q_tiles = n,
                      .kv_tiles = n,
                      .heads = 1,
                      .workers = n,
                      .visits = visits[v],
                      .ranks = (DagCaseRanks)ranks};
      DagFigures ordered = simulate(&full, time);
      full.unordered = true;
      DagFigures unordered = simulate(&full, time);
      assert_int_equal(unordered.makespan, in_ticks(n * (time.c + time.r)));
      assert_int_equal(ordered.makespan == unordered.makespan, ordered.depth_monotone);
      assert_int_equal(ordered.makespan, ordered.critical_path);
    }
}
static void test_lemma(void **state) {
  (void)state;
  for_all(lemma);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ascending), cmocka_unit_test(test_descending),
      cmocka_unit_test(test_shift),     cmocka_unit_test(test_symmetric_shift),
      cmocka_unit_test(test_lemma),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
