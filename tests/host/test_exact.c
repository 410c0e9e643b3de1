/* The order-free reduction of dQ (`exact`): bounds of a score's slope, what is refused, and the
 * bound of dQ's partial sums itself, on inputs that try to exceed it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/plan_case.h"

enum { KEYS = 192, DIM = 16, TILE = 32, TRIALS = 600 };

/* ---- Slopes ---- */

static Symbols symbols = {.parameter_count = 1,
                          .parameters = {{.name = "cap", .type = VALUE_FLOAT}}};
static Bindings bindings = {.parameters = {{.f = 30}}};

static bool slope_of(const char *text, float *bound) {
  Symbols own = symbols;
  Expression *score = NULL, *derivative = NULL;
  if (expression_parse(text, (SourcePlace){"slope", 1}, EXPRESSION_SCORE, &own, NULL, 0, &score) !=
      ROTA_OK)
    fail_msg("%s", status_message());
  assert_int_equal(expression_derivative(score, &derivative), ROTA_OK);
  bool bounded = expression_slope_bound(derivative, &bindings, bound);
  RowPosition row = {.n_q = 1, .n_k = 1};
  for (float s = -100; bounded && s < 100; s += 0.37f) {
    float slope;
    expression_evaluate_score(derivative, &bindings, &row, 0, 1, &s, &slope);
    if (fabsf(slope) > *bound * 1.000001f)
      fail_msg("%s: slope %g at %g, bound %g", text, slope, s, *bound);
  }
  expression_release(derivative);
  expression_release(score);
  return bounded;
}

static void test_slopes(void **state) {
  (void)state;
  float bound;
  assert_true(expression_slope_bound(NULL, &bindings, &bound));
  assert_true(bound == 1);
  static const struct {
    const char *text;
    float bound; /* 0: none */
  } cases[] = {{"s + 3 * (k - q)", 1},
               {"cap * tanh(s / cap)", 1},
               {"2 * s - 5", 2},
               {"-s", 1},
               {"min(s, cap)", 1},
               {"sigmoid(s)", 1}, /* 1/4 in truth: x (1 - x) is bounded factor by factor */
               {"sin(4 * s)", 4},
               {"select(s < 0, 0.1 * s, s)", 1},
               {"abs(s)", 1},
               {"s + slope[h] * k", 1},
               {"s * s", 0},
               {"exp(s)", 0},
               {"s * slope[h]", 0},
               {"s * (k - q)", 0},
               {"s * n_q", 0},
               {"s * n_k", 0},
               {"s * b", 0},
               {"s ^ 3", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bool bounded = slope_of(cases[i].text, &bound);
    if (bounded != (cases[i].bound > 0))
      fail_msg("%s: %s", cases[i].text, bounded ? "a bound, and there is none" : "no bound");
    if (bounded && fabsf(bound - cases[i].bound) > 1e-5f * bound)
      fail_msg("%s: %g, not %g", cases[i].text, bound, cases[i].bound);
  }
}

static void test_refusals(void **state) {
  (void)state;
  static const char *const scores[] = {NULL, "s * f", "f * tanh(s / f)", "s * s", "s * q"};
  for (int i = 0; i < 5; i++) {
    PlanCase at;
    plan_case_create(&at, "exact", "k <= q", scores[i], 2, 1);
    at.request.lengths = (rota_lengths){.batch = 1, .n_q = 200, .n_k = 200};
    if (at.spec.score && !at.spec.score_derivative)
      assert_int_equal(expression_derivative(at.spec.score, &at.spec.score_derivative), ROTA_OK);
    Plan *plan = NULL;
    rota_status status = plan_case_build(&at, &plan);
    assert_int_equal(status, i < 3 ? ROTA_OK : ROTA_UNSUPPORTED);
    if (status != ROTA_OK)
      assert_non_null(strstr(status_message(), "use \"ordered\""));
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* The bound reaches the kernels in the last parameter's place, which must be free. */
static void test_parameters(void **state) {
  (void)state;
  for (int count = PARAMETERS_MAX - 1; count <= PARAMETERS_MAX; count++) {
    PlanCase at;
    plan_case_create(&at, "exact", "k <= q", "s * f", 2, 1);
    at.request.lengths = (rota_lengths){.batch = 1, .n_q = 200, .n_k = 200};
    assert_int_equal(expression_derivative(at.spec.score, &at.spec.score_derivative), ROTA_OK);
    Symbols *all = &at.spec.symbols;
    for (; all->parameter_count < count; all->parameter_count++) {
      Parameter *more = &all->parameters[all->parameter_count];
      *more = (Parameter){.type = VALUE_FLOAT, .value = {.f = 1}};
      snprintf(more->name, sizeof more->name, "more_%d", all->parameter_count);
    }
    Plan *plan = NULL;
    bool fits = count < PARAMETERS_MAX;
    assert_int_equal(plan_case_build(&at, &plan), fits ? ROTA_OK : ROTA_UNSUPPORTED);
    if (!fits)
      assert_non_null(strstr(status_message(), "parameters; use \"ordered\""));
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* ---- The bound of partial sums ---- */

typedef struct Row {
  double d_o[DIM], d_lse, v[KEYS][DIM], k[KEYS][DIM], p[KEYS];
  double peak; /* P is rounded relative to it */
} Row;

static double uniform(uint64_t *state) { /* -1 .. 1 */
  return case_random(state, 2000001) / 1e6 - 1;
}

/* Rounded to the 8 bits of bf16. */
static double rounded(double x) {
  int exponent;
  double fraction = frexp(x, &exponent);
  return ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

static double dot(const double *a, const double *b) {
  double sum = 0;
  for (int i = 0; i < DIM; i++)
    sum += a[i] * b[i];
  return sum;
}

/* V a little to either side of a mean along dO, K with the sign, and P and O rounded upwards as far
 * as bf16 does: |O|^2 eats up half of the spread. */
static void draw_far_mean(Row *row) {
  const double side = 0.1796875; /* its square: about 2^-5 */
  row->d_lse = 0;
  for (int i = 0; i < DIM; i++)
    row->d_o[i] = i == 0;
  for (int j = 0; j < KEYS; j++) {
    int sign = j % 2 ? 1 : -1;
    row->p[j] = 1.0 / KEYS;
    for (int i = 0; i < DIM; i++) {
      row->v[j][i] = i > 0 ? 0 : 1 + sign * side + (j < 2) / 256.0; /* so that O rounds upwards */
      row->k[j][i] = sign;
    }
  }
  row->peak = row->p[0] / (1 + 1.001 / 256);
}

/* Inputs whose sums come near the bound: V along dO, few keys with all the weight, K of one sign.
 */
static void draw(Row *row, uint64_t *state) {
  int kind = case_random(state, 9);
  if (kind == 8) {
    draw_far_mean(row);
    return;
  }
  double total = 0, peak = case_random(state, 3) ? 1 : 12;
  double mean = kind == 6 ? 30 : 0, sink = kind == 7 ? 3 : 1;
  for (int i = 0; i < DIM; i++)
    row->d_o[i] = rounded(uniform(state) * (i == 0 && kind == 1 ? 100 : 1));
  row->d_lse = kind == 5 ? 3 * uniform(state) : 0;
  for (int j = 0; j < KEYS; j++) {
    double along = kind == 2 ? (j % 2 ? 1 : -1) : 0;
    row->p[j] = exp(peak * uniform(state)) * (kind == 3 && j > 1 ? 1e-6 : 1);
    total += row->p[j];
    for (int i = 0; i < DIM; i++) {
      double v = mean + (along != 0 ? along * row->d_o[i] : uniform(state));
      row->v[j][i] = rounded(v * (kind == 4 && j == 7 ? 100 : 1));
      row->k[j][i] = rounded((kind == 2 ? along : uniform(state)) * (i == 3 ? 50 : 1));
    }
  }
  for (int j = 0; j < KEYS; j++)
    row->p[j] /= sink * total;
  row->peak = 1;
}

/* dS, with what the kernels round: O and dS to the dtype. */
static void score_gradient(const Row *row, double *o, double *ds) {
  memset(o, 0, DIM * sizeof *o);
  for (int j = 0; j < KEYS; j++)
    for (int i = 0; i < DIM; i++)
      o[i] += rounded(row->p[j] / row->peak) * row->peak * row->v[j][i];
  for (int i = 0; i < DIM; i++)
    o[i] = rounded(o[i]);
  double delta = dot(row->d_o, o) - row->d_lse;
  for (int j = 0; j < KEYS; j++)
    ds[j] = rounded(row->p[j] * (dot(row->d_o, row->v[j]) - delta));
}

/* The spread as the kernels have it: squares in fp32. (That of a few keys the largest counts makes
 * it larger.) */
static double spread_of(const Row *row, const double *o) {
  float mean = 0;
  for (int j = 0; j < KEYS; j++)
    mean += (float)row->p[j] * (float)dot(row->v[j], row->v[j]);
  double square = dot(o, o), spread = fmax((double)mean - square, ldexp((double)mean, -6));
  return square < 2 * (double)mean ? sqrt(spread) : NAN;
}

/* Of a row: 2^30 over the bound. */
static double scale_of(const Row *row, const double *o, bool spread) {
  double values = 0, keys = 0;
  for (int j = 0; j < KEYS; j++) {
    values = fmax(values, sqrt(dot(row->v[j], row->v[j])));
    for (int c = 0; c < DIM; c++)
      keys = fmax(keys, fabs(row->k[j][c]));
  }
  double reach = spread ? spread_of(row, o) : values;
  double bound = (sqrt(dot(row->d_o, row->d_o)) * reach + fabs(row->d_lse)) * keys;
  assert_true(bound >= 0);
  return bound > 0 ? ldexp(1, 30) / bound : 0;
}

/* Sums of tiles in ascending and in descending order: no overflow on the way, the same in the end,
 * half a unit a tile from the truth. */
static void check_column(const Row *row, double scale, const double *ds, int c, double *largest) {
  double truth = 0;
  int64_t up = 0, down = 0, tiles[KEYS / TILE];
  for (int t = 0; t < KEYS / TILE; t++) {
    double partial = 0;
    for (int j = t * TILE; j < (t + 1) * TILE; j++)
      partial += ds[j] * row->k[j][c];
    tiles[t] = llrint(partial * scale);
    truth += partial;
  }
  for (int t = 0; t < KEYS / TILE; t++) {
    up += tiles[t];
    down += tiles[KEYS / TILE - 1 - t];
    *largest = fmax(*largest, fmax(fabs((double)up), fabs((double)down)));
  }
  assert_true(up == down);
  assert_true(fabs((double)up - truth * scale) <= 0.5 * (KEYS / TILE) + 1e-3);
}

/* The largest over many rows, in units of 2^30. */
static double largest_sum(bool spread) {
  static Row row;
  uint64_t random = 5;
  double largest = 0;
  for (int trial = 0; trial < TRIALS; trial++) {
    double o[DIM], ds[KEYS];
    draw(&row, &random);
    score_gradient(&row, o, ds);
    double scale = scale_of(&row, o, spread);
    for (int c = 0; c < DIM; c++)
      check_column(&row, scale, ds, c, &largest);
  }
  printf("  largest partial sum by the %s bound: %.2f of 2^30\n", spread ? "spread" : "norm",
         ldexp(largest, -30));
  return ldexp(largest, -30);
}

/* Above 0.9 and 1.3: else the inputs are not nasty enough. */
static void test_partial_sums_keep_to_the_bound(void **state) {
  (void)state;
  double norm = largest_sum(false), spread = largest_sum(true);
  assert_true(norm > 0.9 && norm < 1.02);
  assert_true(spread > 1.3 && spread < 1.5); /* the root of 2, in theory, and dS rounded */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_slopes),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_parameters),
      cmocka_unit_test(test_partial_sums_keep_to_the_bound),
  };
  return cmocka_run_group_tests_name("exact", tests, NULL, NULL);
}
