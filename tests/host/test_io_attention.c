/* Attention on the two-level memory machine: results against the plain computation and against
 * differences, equal counts in both modes, and counts between the bounds. */
#include "generator/io_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- A mask from text ---- */

static const Bindings no_bindings;

static Expression *mask_of(const char *text) {
  Symbols symbols = {.parameter_count = 0};
  Expression *mask = NULL;
  if (text && expression_parse(text, (SourcePlace){"test", 1}, EXPRESSION_MASK, &symbols, NULL, 0,
                               &mask) != ROTA_OK)
    fail_msg("%s", status_message());
  return mask;
}

static bool allows(const IoProblem *problem, int64_t q, int64_t k) {
  bool allowed = true;
  RowPosition row = {(int32_t)q, 0, 0, (int32_t)problem->n, (int32_t)problem->n};
  if (problem->mask)
    expression_evaluate_mask(problem->mask, problem->bindings, &row, (int32_t)k, 1, &allowed);
  return allowed;
}

/* ---- The plain computation: n x n matrices and textbook formulas ---- */

static double *numbers(int64_t count) {
  return calloc((size_t)count + 1, sizeof(double));
}

/* C (rows x columns) = A B, each operand read with strides. */
static void product(double *c, const double *a, int64_t a_row, int64_t a_inner, const double *b,
                    int64_t b_inner, int64_t b_column, int64_t rows, int64_t inner,
                    int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      double sum = 0;
      for (int64_t k = 0; k < inner; k++)
        sum += a[i * a_row + k * a_inner] * b[k * b_inner + j * b_column];
      c[i * columns + j] = sum;
    }
}

/* Fills P and LSE. */
static void plain_softmax(const IoProblem *problem, const double *q, const double *k, double *p,
                          double *lse) {
  int64_t n = problem->n, d = problem->d;
  product(p, q, d, 1, k, 1, d, n, d, n);
  for (int64_t i = 0; i < n; i++) {
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
      p[i * n + j] = allows(problem, i, j) ? exp(problem->scale * p[i * n + j]) : 0;
      sum += p[i * n + j];
    }
    lse[i] = log(sum);
    for (int64_t j = 0; j < n && sum > 0; j++)
      p[i * n + j] /= sum;
  }
}

/* dS = P (dP - rowsum(P dP)). */
static void plain_gradients(const IoProblem *problem, const double *p, const double *v,
                            const double *d_o, double *d_s) {
  int64_t n = problem->n, d = problem->d;
  product(d_s, d_o, d, 1, v, 1, d, n, d, n);
  for (int64_t i = 0; i < n; i++) {
    double delta = 0;
    for (int64_t j = 0; j < n; j++)
      delta += p[i * n + j] * d_s[i * n + j];
    for (int64_t j = 0; j < n; j++)
      d_s[i * n + j] = p[i * n + j] * (d_s[i * n + j] - delta);
  }
}

static void scale_all(double *values, int64_t count, double factor) {
  for (int64_t i = 0; i < count; i++)
    values[i] *= factor;
}

/* Fills every tensor but the inputs; O and LSE always. */
static void plain_attention(const IoProblem *problem, IoValues *values) {
  int64_t n = problem->n, d = problem->d;
  double **t = values->of;
  double *p = numbers(n * n), *d_s = numbers(n * n);
  bool paper = problem->form == IO_PAPER;
  if (paper) {
    product(t[IO_Q], t[IO_A1], d, 1, t[IO_X], d, 1, n, d, d);
    product(t[IO_V], t[IO_A3], d, 1, t[IO_Y], d, 1, n, d, d);
    memcpy(t[IO_K], t[IO_A2], (size_t)(n * d) * sizeof(double));
  }
  plain_softmax(problem, t[IO_Q], t[IO_K], p, t[IO_LSE]);
  product(t[IO_O], p, n, 1, t[IO_V], d, 1, n, n, d);
  plain_gradients(problem, p, t[IO_V], t[IO_D_O], d_s);
  product(t[IO_D_V], p, 1, n, t[IO_D_O], d, 1, n, n, d);
  product(t[IO_D_Q], d_s, n, 1, t[IO_K], d, 1, n, n, d);
  product(t[IO_D_K], d_s, 1, n, t[IO_Q], d, 1, n, n, d);
  scale_all(t[IO_D_Q], n * d, problem->scale);
  scale_all(t[IO_D_K], n * d, problem->scale);
  if (paper)
    product(t[IO_D_X], t[IO_A1], 1, d, t[IO_D_Q], d, 1, d, n, d);
  free(p);
  free(d_s);
}

/* ---- Values ---- */

static uint64_t random_state = 1;
static double random_number(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (double)(random_state >> 11) / (double)(1ull << 52) - 1;
}

/* Room for each tensor, all as large as the largest. */
static void values_create(const IoProblem *problem, IoValues *values) {
  int64_t n = problem->n, d = problem->d, most = (n > d ? n : d) * d;
  for (int i = 0; i < IO_TENSORS; i++) {
    values->of[i] = numbers(most);
    for (int64_t j = 0; j < most; j++)
      values->of[i][j] = random_number();
  }
}

static void values_free(IoValues *values) {
  for (int i = 0; i < IO_TENSORS; i++)
    free(values->of[i]);
}

static void run_and_compare(const IoProblem *problem, IoAlgorithm algorithm, IoValues *values,
                            const IoValues *expected) {
  char name[160];
  snprintf(name, sizeof name, "%s form %d direction %d n %d d %d m %d",
           io_algorithm_name(algorithm), problem->form, problem->direction, (int)problem->n,
           (int)problem->d, (int)problem->m);
  IoCount executed, counted;
  rota_status status = io_attention_run(problem, algorithm, values, &executed);
  if (status != ROTA_OK)
    fail_msg("%s: %s", name, status_message());
  assert_int_equal(io_attention_run(problem, algorithm, NULL, &counted), ROTA_OK);
  if (memcmp(&executed, &counted, sizeof counted) != 0)
    fail_msg("%s: %lld transfers executed, %lld counted", name, (long long)io_transfers(&executed),
             (long long)io_transfers(&counted));
  assert_true(executed.peak <= problem->m);
  for (int i = 0; i < IO_TENSORS; i++) {
    int64_t elements = io_tensor_elements(problem, (IoTensor)i, 'o');
    for (int64_t j = 0; j < elements; j++) {
      double a = values->of[i][j], b = expected->of[i][j];
      if (!(fabs(a - b) <= 1e-11 * (1 + fabs(b))) && !(isinf(a) && a == b))
        fail_msg("%s: tensor %d, element %d: %g, not %g", name, i, (int)j, a, b);
    }
  }
}

/* Results and counts of all algorithms for one problem. */
static void check_problem(IoProblem problem) {
  IoValues expected, values;
  values_create(&problem, &expected);
  plain_attention(&problem, &expected);
  for (int algorithm = 0; algorithm < IO_ALGORITHMS; algorithm++) {
    if (problem.m < io_attention_minimum(&problem, (IoAlgorithm)algorithm))
      continue;
    values_create(&problem, &values);
    for (int i = 0; i < IO_TENSORS; i++)
      if (io_tensor_elements(&problem, (IoTensor)i, 'i') > 0)
        memcpy(values.of[i], expected.of[i],
               (size_t)io_tensor_elements(&problem, (IoTensor)i, 'i') * sizeof(double));
    run_and_compare(&problem, (IoAlgorithm)algorithm, &values, &expected);
    values_free(&values);
  }
  values_free(&expected);
}

static void check_shapes(const char *text) {
  static const int64_t shapes[][3] = {{1, 1, 3},    {5, 3, 4},   {7, 2, 31},    {13, 4, 60},
                                      {16, 8, 100}, {19, 5, 70}, {24, 3, 1000}, {17, 16, 180},
                                      {9, 12, 25},  {33, 1, 12}, {12, 7, 5000}};
  Expression *mask = mask_of(text);
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (int form = IO_KERNEL; form <= IO_PAPER; form++)
      for (int direction = ROTA_FORWARD; direction <= ROTA_BACKWARD; direction++)
        check_problem((IoProblem){.n = shapes[i][0],
                                  .d = shapes[i][1],
                                  .m = shapes[i][2],
                                  .form = (IoForm)form,
                                  .direction = (rota_direction)direction,
                                  .mask = mask,
                                  .bindings = &no_bindings,
                                  .scale = 0.7});
  expression_release(mask);
}

static void test_dense(void **state) {
  (void)state;
  check_shapes(NULL);
}

static void test_sparse(void **state) {
  (void)state;
  check_shapes("k <= q");
  check_shapes("k <= q and q - k < 5");
  check_shapes("k // 4 == q // 4");
  check_shapes("(k + 2 * q) % 5 == 1");
  check_shapes("k < q"); /* the first row has no key, the last key no query */
  check_shapes("k < 3 and q > 6 or q == k and q % 2 == 0");
}

/* dX against differences of sum(O * dO): independent of all formulas above. */
static void test_gradient_by_differences(void **state) {
  (void)state;
  enum { N = 9, D = 4 };
  Expression *mask = mask_of("k <= q");
  IoProblem problem = {.n = N,
                       .d = D,
                       .m = 40,
                       .form = IO_PAPER,
                       .direction = ROTA_BACKWARD,
                       .mask = mask,
                       .bindings = &no_bindings,
                       .scale = 1};
  IoValues values;
  values_create(&problem, &values);
  IoCount count;
  assert_int_equal(io_attention_run(&problem, IO_SMALL_CACHE, &values, &count), ROTA_OK);
  problem.direction = ROTA_FORWARD;
  for (int i = 0; i < D * D; i++) {
    double loss[2], x = values.of[IO_X][i];
    for (int side = 0; side < 2; side++) {
      values.of[IO_X][i] = x + (side ? 1e-5 : -1e-5);
      assert_int_equal(io_attention_run(&problem, IO_NAIVE, &values, &count), ROTA_OK);
      loss[side] = 0;
      for (int j = 0; j < N * D; j++)
        loss[side] += values.of[IO_O][j] * values.of[IO_D_O][j];
    }
    values.of[IO_X][i] = x;
    double slope = (loss[1] - loss[0]) / 2e-5;
    assert_true(fabs(slope - values.of[IO_D_X][i]) < 1e-7);
  }
  values_free(&values);
  expression_release(mask);
}

/* ---- Counts between bounds ---- */

/* The constants of docs/io.md: transfers <= leading * own bound + pairs * n^2 + 4 * compulsory,
 * for M from 16 d (large cache) and 64 (small cache) on. */
static const struct {
  double large, small, small_pairs, naive;
} constants[2][2] = {{{4, 4, 0, 0}, {16, 10, 0, 0}}, {{4, 4, 0, 0}, {12, 6, 0, 0}}};

static double stated(const IoProblem *problem, IoAlgorithm algorithm, const IoBounds *bounds) {
  int form = problem->form == IO_PAPER, direction = problem->direction == ROTA_BACKWARD;
  double pairs = (double)problem->n * (double)problem->n;
  double products = constants[form][direction].small / 2;
  switch (algorithm) {
  case IO_NAIVE:
    return (2 * products * (double)problem->d + 13) * pairs +
           (problem->form == IO_PAPER
                ? 6.0 * (double)problem->n * (double)problem->d * (double)problem->d
                : 0) +
           4 * (double)bounds->compulsory;
  case IO_LARGE_CACHE:
    return 1.9 * constants[form][direction].large * bounds->large + 4 * (double)bounds->compulsory;
  default:
    return 1.5 * constants[form][direction].small * bounds->small + 13 * pairs +
           4 * (double)bounds->compulsory;
  }
}

static void check_bounds(IoProblem problem) {
  IoBounds bounds;
  assert_int_equal(io_attention_bounds(&problem, &bounds), ROTA_OK);
  for (int i = 0; i < IO_ALGORITHMS; i++) {
    IoAlgorithm algorithm = (IoAlgorithm)i;
    IoCount count;
    rota_status status = io_attention_run(&problem, algorithm, NULL, &count);
    if (problem.m < io_attention_minimum(&problem, algorithm)) {
      assert_int_equal(status, ROTA_INVALID_ARGUMENT);
      assert_non_null(strstr(status_message(), "too small for"));
      continue;
    }
    assert_int_equal(status, ROTA_OK);
    double transfers = (double)io_transfers(&count);
    if (transfers < bounds.lower_bound || transfers < (double)bounds.compulsory)
      fail_msg("%s n %d d %d m %d: %g transfers, bound %g, compulsory %g",
               io_algorithm_name(algorithm), (int)problem.n, (int)problem.d, (int)problem.m,
               transfers, bounds.lower_bound, (double)bounds.compulsory);
    bool in_range = algorithm == IO_LARGE_CACHE ? problem.m >= 16 * problem.d && problem.d >= 16
                                                : problem.m >= 64;
    if (in_range && transfers > stated(&problem, algorithm, &bounds))
      fail_msg("%s form %d direction %d n %d d %d m %d: %g transfers, at most %g stated",
               io_algorithm_name(algorithm), problem.form, problem.direction, (int)problem.n,
               (int)problem.d, (int)problem.m, transfers, stated(&problem, algorithm, &bounds));
  }
}

static void test_counts_lie_between_bounds(void **state) {
  (void)state;
  static const int64_t lengths[] = {1, 7, 100, 1000, 9001};
  static const int64_t dims[] = {1, 3, 16, 128, 512};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
    for (size_t j = 0; j < sizeof dims / sizeof dims[0]; j++)
      for (int64_t m = 3; m < 40000000; m = m * 7 / 2)
        for (int variant = 0; variant < 4; variant++)
          check_bounds((IoProblem){.n = lengths[i],
                                   .d = dims[j],
                                   .m = m,
                                   .form = (IoForm)(variant % 2),
                                   .direction = variant < 2 ? ROTA_FORWARD : ROTA_BACKWARD,
                                   .bindings = &no_bindings,
                                   .scale = 1});
}

static int64_t transfers_of(IoProblem problem, IoAlgorithm algorithm) {
  IoCount count;
  assert_int_equal(io_attention_run(&problem, algorithm, NULL, &count), ROTA_OK);
  return io_transfers(&count);
}

/* Slope on the log plot from `m` to `factor` times that. */
static double slope(IoProblem problem, IoAlgorithm algorithm, int64_t m, int64_t factor) {
  problem.m = m;
  double first = (double)transfers_of(problem, algorithm);
  problem.m = m * factor;
  return log((double)transfers_of(problem, algorithm) / first) / log((double)factor);
}

/* The theorem: -1 above the crossing, -1/2 below, and each algorithm is the better one there. */
static void test_slopes(void **state) {
  (void)state;
  for (int form = IO_KERNEL; form <= IO_PAPER; form++) {
    IoProblem problem = {.n = 131072,
                         .d = 256,
                         .form = (IoForm)form,
                         .direction = ROTA_BACKWARD,
                         .bindings = &no_bindings,
                         .scale = 1};
    int64_t crossing = problem.d * problem.d;
    assert_true(fabs(slope(problem, IO_LARGE_CACHE, 4 * crossing, 4) + 1) < 0.04);
    problem.m = crossing / 16;
    assert_true(transfers_of(problem, IO_SMALL_CACHE) < transfers_of(problem, IO_LARGE_CACHE));
    problem.m = crossing * 16;
    assert_true(transfers_of(problem, IO_SMALL_CACHE) > transfers_of(problem, IO_LARGE_CACHE));
    problem.d = 2048; /* far from the crossing, where the n^2 terms are small */
    assert_true(fabs(slope(problem, IO_SMALL_CACHE, 1024, 16) + 0.5) < 0.02);
  }
}

static void test_bounds_are_the_theorems(void **state) {
  (void)state;
  IoProblem problem = {.n = 1000,
                       .d = 100,
                       .m = 2500,
                       .bindings = &no_bindings,
                       .scale = 1,
                       .direction = ROTA_BACKWARD};
  IoBounds bounds;
  assert_int_equal(io_attention_bounds(&problem, &bounds), ROTA_OK);
  assert_true(fabs(bounds.large - 1e10 / 2500) < 1);
  assert_true(fabs(bounds.small - 1e8 / 50) < 1);
  assert_true(bounds.lower_bound == bounds.small);
  assert_true(fabs(bounds.crossing_m - 1e4) < 1e-6);
  assert_int_equal(bounds.compulsory, 8 * 100000 + 1000);
  problem.form = IO_PAPER;
  assert_int_equal(io_attention_bounds(&problem, &bounds), ROTA_OK);
  assert_true(fabs(bounds.large - 1.1e10 / 2500) < 1);
  assert_true(fabs(bounds.small - 1.1e8 / 50) < 1);
  assert_true(fabs(bounds.crossing_m - 1e4) < 1e-6);
  assert_int_equal(bounds.compulsory, 4 * 100000 + 3 * 10000);
  problem.form = IO_KERNEL;
  Expression *mask = mask_of("k <= q and q - k < 10");
  problem.mask = mask;
  assert_int_equal(io_attention_bounds(&problem, &bounds), ROTA_OK);
  assert_int_equal(bounds.pairs, 10 * 1000 - 45);
  assert_true(fabs(bounds.crossing_m - 1e10 / (double)bounds.pairs) < 1e-3);
  expression_release(mask);
}

/* A narrower mask never costs more; causal costs about half of full. */
static void test_sparse_costs_less(void **state) {
  (void)state;
  const char *masks[] = {"q - k == 0", "k <= q and q - k < 100", "k <= q and q - k < 1000",
                         "k <= q", NULL};
  for (int algorithm = IO_LARGE_CACHE; algorithm <= IO_SMALL_CACHE; algorithm++)
    for (int64_t m = 1000; m < 200000; m *= 5) {
      double before = 0;
      for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        Expression *mask = mask_of(masks[i]);
        IoProblem problem = {.n = 4096,
                             .d = 64,
                             .m = m,
                             .direction = ROTA_BACKWARD,
                             .mask = mask,
                             .bindings = &no_bindings,
                             .scale = 1};
        double now = (double)transfers_of(problem, (IoAlgorithm)algorithm);
        assert_true(now > before);
        if (!mask)
          assert_true(before < 0.62 * now);
        before = now;
        expression_release(mask);
      }
    }
}

/* Tiles that outgrow a window are not taken: more memory costs hardly more. */
static void test_memory_never_harms(void **state) {
  (void)state;
  Expression *mask = mask_of("k <= q and q - k < 64");
  for (int algorithm = IO_LARGE_CACHE; algorithm <= IO_SMALL_CACHE; algorithm++) {
    int64_t least = INT64_MAX;
    for (int64_t m = 1000; m < 4000000; m *= 2) {
      IoProblem problem = {.n = 4096,
                           .d = 64,
                           .m = m,
                           .direction = ROTA_BACKWARD,
                           .mask = mask,
                           .bindings = &no_bindings,
                           .scale = 1};
      int64_t now = transfers_of(problem, (IoAlgorithm)algorithm);
      assert_true((double)now < 1.3 * (double)least);
      least = now < least ? now : least;
    }
  }
  expression_release(mask);
}

static void test_minimum_and_refusals(void **state) {
  (void)state;
  IoProblem problem = {.n = 10, .d = 6, .bindings = &no_bindings, .scale = 1};
  IoCount count;
  for (int variant = 0; variant < 4; variant++)
    for (int i = 0; i < IO_ALGORITHMS; i++) {
      problem.form = (IoForm)(variant % 2);
      problem.direction = variant < 2 ? ROTA_FORWARD : ROTA_BACKWARD;
      problem.m = io_attention_minimum(&problem, (IoAlgorithm)i);
      assert_int_equal(io_attention_run(&problem, (IoAlgorithm)i, NULL, &count), ROTA_OK);
      problem.m--;
      assert_int_equal(io_attention_run(&problem, (IoAlgorithm)i, NULL, &count),
                       ROTA_INVALID_ARGUMENT);
    }
  problem = (IoProblem){.n = 0, .d = 6, .m = 100};
  assert_int_equal(io_attention_run(&problem, IO_NAIVE, NULL, &count), ROTA_INVALID_ARGUMENT);
  problem = (IoProblem){.n = 6, .d = IO_HEAD_DIM_MAX + 1, .m = 100};
  assert_int_equal(io_attention_run(&problem, IO_NAIVE, NULL, &count), ROTA_INVALID_ARGUMENT);
}

static void test_memory_failures(void **state) {
  (void)state;
  IoProblem problem = {.n = 6,
                       .d = 2,
                       .m = 40,
                       .form = IO_PAPER,
                       .direction = ROTA_BACKWARD,
                       .bindings = &no_bindings,
                       .scale = 1};
  IoValues values;
  values_create(&problem, &values);
  for (int algorithm = 0; algorithm < IO_ALGORITHMS; algorithm++) {
    rota_status status = ROTA_OUT_OF_MEMORY;
    for (long n = 1; status != ROTA_OK; n++) {
      IoCount count;
      memory_fail_at(n);
      status = io_attention_run(&problem, (IoAlgorithm)algorithm, &values, &count);
      memory_fail_at(0);
      assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    }
  }
  values_free(&values);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dense),
      cmocka_unit_test(test_sparse),
      cmocka_unit_test(test_gradient_by_differences),
      cmocka_unit_test(test_counts_lie_between_bounds),
      cmocka_unit_test(test_slopes),
      cmocka_unit_test(test_bounds_are_the_theorems),
      cmocka_unit_test(test_sparse_costs_less),
      cmocka_unit_test(test_memory_never_harms),
      cmocka_unit_test(test_minimum_and_refusals),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
