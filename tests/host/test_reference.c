/* The fp64 reference: its forward pass against sums written out anew, its gradients against
 * finite differences, and its treatment of rows and keys that take no part. */
#include "runtime/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, N_Q = 5, N_K = 7, HEADS = 4, KV_HEADS = 2, D = 3, DV = 2 };

/* One small fp32 problem with everything in it: grouped heads, a mask that leaves a row empty, a
 * score, sinks, dLSE. */
typedef struct Small {
  float q[BATCH * N_Q * HEADS * D], k[BATCH * N_K * KV_HEADS * D], v[BATCH * N_K * KV_HEADS * DV];
  float d_o[BATCH * N_Q * HEADS * DV], d_lse[BATCH * N_Q * HEADS], sink[HEADS];
  rota_arguments arguments;
  Lengths *lengths;
  ReferenceProblem problem;
} Small;

static bool allows(int q, int k, int h) {
  return q != 2 && (k <= q + 2 || (h == 1 && k == 6));
}

static void mask(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,
                 bool *out) {
  (void)context;
  for (int i = 0; i < count; i++)
    out[i] = allows(row->q, k_begin + i, row->h);
}

static double capped(double s, int q, int k) {
  return 2.0 * tanh(s / 2.0) + 0.125 * (k - q);
}

static void score(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,
                  double *s, double *slope) {
  (void)context;
  for (int i = 0; i < count; i++) {
    double t = tanh(s[i] / 2.0);
    s[i] = capped(s[i], row->q, k_begin + i);
    if (slope)
      slope[i] = 1.0 - t * t;
  }
}

static void fill(float *values, size_t count, unsigned *state) {
  for (size_t i = 0; i < count;
       i++) { /* multiples of 2^-8: steps of finite differences stay exact */
    *state = *state * 1664525u + 1013904223u;
    values[i] = (float)((int)(*state >> 22) - 512) / 256.0f;
  }
}

static rota_tensor tensor(float *data, int rows, int heads, int dim) {
  return (rota_tensor){data, (int64_t)rows * heads * dim, (int64_t)heads * dim, dim};
}

static void small_create(Small *small) {
  memset(small, 0, sizeof *small);
  unsigned state = 1;
  fill(small->q, sizeof small->q / 4, &state);
  fill(small->k, sizeof small->k / 4, &state);
  fill(small->v, sizeof small->v / 4, &state);
  fill(small->d_o, sizeof small->d_o / 4, &state);
  fill(small->d_lse, sizeof small->d_lse / 4, &state);
  fill(small->sink, HEADS, &state);
  small->arguments = (rota_arguments){.q = tensor(small->q, N_Q, HEADS, D),
                                      .k = tensor(small->k, N_K, KV_HEADS, D),
                                      .v = tensor(small->v, N_K, KV_HEADS, DV),
                                      .d_o = tensor(small->d_o, N_Q, HEADS, DV),
                                      .d_lse = tensor(small->d_lse, N_Q, HEADS, 1),
                                      .sink = small->sink};
  rota_lengths lengths = {.batch = BATCH, .n_q = N_Q, .n_k = N_K};
  assert_int_equal(lengths_create(&lengths, &small->lengths), ROTA_OK);
  small->problem = (ReferenceProblem){.direction = ROTA_BACKWARD,
                                      .dtype = ROTA_FP32,
                                      .head_dim = D,
                                      .head_dim_v = DV,
                                      .heads = HEADS,
                                      .kv_heads = KV_HEADS,
                                      .scale = 0.75,
                                      .lengths = small->lengths,
                                      .arguments = &small->arguments,
                                      .mask = mask,
                                      .score = score};
}

/* What the gradients are gradients of: sum dO * O + sum dLSE * LSE, from the definition. */
static double loss(const Small *small) {
  double total = 0.0;
  for (int b = 0; b < BATCH; b++)
    for (int q = 0; q < N_Q; q++)
      for (int h = 0; h < HEADS; h++) {
        double sum = exp((double)small->sink[h]), o[DV] = {0};
        for (int k = 0; k < N_K; k++) {
          if (!allows(q, k, h))
            continue;
          double s = 0.0;
          const float *key = small->k + ((b * N_K + k) * KV_HEADS + h / 2) * D;
          for (int i = 0; i < D; i++)
            s += (double)small->q[((b * N_Q + q) * HEADS + h) * D + i] * (double)key[i];
          double p = exp(capped(0.75 * s, q, k));
          sum += p;
          for (int i = 0; i < DV; i++)
            o[i] += p * (double)small->v[((b * N_K + k) * KV_HEADS + h / 2) * DV + i];
        }
        int row = (b * N_Q + q) * HEADS + h;
        for (int i = 0; i < DV; i++)
          total += (double)small->d_o[row * DV + i] * o[i] / sum;
        total += (double)small->d_lse[row] * log(sum);
      }
  return total;
}

static void test_forward_is_the_definition(void **state) {
  (void)state;
  Small small;
  ReferenceResult result;
  small_create(&small);
  assert_int_equal(reference_run(&small.problem, &result), ROTA_OK);
  double total = 0.0;
  for (int i = 0; i < BATCH * N_Q * HEADS * DV; i++)
    total += (double)small.d_o[i] * result.o[i];
  for (int i = 0; i < BATCH * N_Q * HEADS; i++)
    total += (double)small.d_lse[i] * result.lse[i];
  assert_true(fabs(total - loss(&small)) < 1e-12 * fabs(total));
  for (int h = 0; h < HEADS; h++) { /* row 2 has no key: O = 0, LSE = the sink */
    assert_true(result.o[(2 * HEADS + h) * DV] == 0.0);
    assert_true(fabs(result.lse[2 * HEADS + h] - (double)small.sink[h]) < 1e-15);
  }
  reference_free(&result);
  lengths_destroy(small.lengths);
}

static void check_gradient(Small *small, float *values, const double *gradient, int count) {
  const float step = 0x1p-10f;
  for (int i = 0; i < count; i++) {
    float old = values[i];
    values[i] = old + step;
    double above = loss(small);
    values[i] = old - step;
    double below = loss(small);
    values[i] = old;
    double expected = (above - below) / (2.0 * (double)step);
    if (fabs(gradient[i] - expected) > 2e-5 * (1.0 + fabs(expected)))
      fail_msg("element %d: gradient %.9g, finite difference %.9g", i, gradient[i], expected);
  }
}

static void test_gradients_are_the_slopes(void **state) {
  (void)state;
  Small small;
  ReferenceResult result;
  small_create(&small);
  assert_int_equal(reference_run(&small.problem, &result), ROTA_OK);
  check_gradient(&small, small.q, result.d_q, BATCH * N_Q * HEADS * D);
  check_gradient(&small, small.k, result.d_k, BATCH * N_K * KV_HEADS * D);
  check_gradient(&small, small.v, result.d_v, BATCH * N_K * KV_HEADS * DV);
  check_gradient(&small, small.sink, result.d_sink, HEADS);
  reference_free(&result);
  lengths_destroy(small.lengths);
}

static void test_empty_rows_and_unseen_keys(void **state) {
  (void)state;
  Small small;
  ReferenceResult clean, dirty;
  small_create(&small);
  small.arguments.sink = NULL;
  assert_int_equal(reference_run(&small.problem, &clean), ROTA_OK);
  for (int h = 0; h < HEADS; h++) {
    assert_true(clean.lse[2 * HEADS + h] == -INFINITY);
    assert_true(clean.o[(2 * HEADS + h) * DV] == 0.0);
    for (int i = 0; i < D; i++)
      assert_true(clean.d_q[(2 * HEADS + h) * D + i] == 0.0);
  }
  reference_free(&clean);
  int32_t used_q[BATCH] = {3, 5}, used_k[BATCH] = {5, 7};
  rota_lengths lengths = {
      .batch = BATCH, .n_q = N_Q, .n_k = N_K, .seqused_q = used_q, .seqused_k = used_k};
  lengths_destroy(small.lengths);
  assert_int_equal(lengths_create(&lengths, &small.lengths), ROTA_OK);
  small.problem.lengths = small.lengths;
  assert_int_equal(reference_run(&small.problem, &clean), ROTA_OK);
  for (int k = 5; k < N_K; k++) /* past the used length of sequence 0 */
    for (int i = 0; i < KV_HEADS * D; i++)
      small.k[k * KV_HEADS * D + i] = NAN;
  for (int q = 3; q < N_Q; q++)
    for (int i = 0; i < HEADS * D; i++)
      small.q[q * HEADS * D + i] = NAN;
  assert_int_equal(reference_run(&small.problem, &dirty), ROTA_OK);
  for (int i = 0; i < BATCH * N_Q * HEADS * DV; i++)
    assert_true(clean.o[i] == dirty.o[i]);
  for (int i = 0; i < BATCH * N_K * KV_HEADS * D; i++)
    assert_true(clean.d_k[i] == dirty.d_k[i]);
  for (int i = 0; i < KV_HEADS * D; i++)
    assert_true(clean.d_k[5 * KV_HEADS * D + i] == 0.0);
  assert_true(clean.lse[3 * HEADS] == -INFINITY);
  reference_free(&clean);
  reference_free(&dirty);
  lengths_destroy(small.lengths);
}

static void test_rounding_costs_what_the_format_costs(void **state) {
  (void)state;
  Small small;
  ReferenceResult exact, rounded;
  small_create(&small);
  assert_int_equal(reference_run(&small.problem, &exact), ROTA_OK);
  small.problem.rounded = true;
  ReferenceError error = {0};
  assert_int_equal(reference_run(&small.problem, &rounded), ROTA_OK);
  for (int i = 0; i < BATCH * N_Q * HEADS * D; i++)
    reference_error_add(&error, rounded.d_q[i], exact.d_q[i]);
  assert_true(reference_error(&error) > 0.0 && reference_error(&error) < 1e-6); /* fp32 */
  reference_free(&exact);
  reference_free(&rounded);
  lengths_destroy(small.lengths);
}

static void test_errors_see_what_is_not_a_number(void **state) {
  (void)state;
  ReferenceError error = {0};
  reference_error_add(&error, -INFINITY, -INFINITY);
  reference_error_add(&error, 3.0, 3.0);
  assert_true(reference_error(&error) == 0.0);
  reference_error_add(&error, 4.0, 5.0);
  assert_true(fabs(reference_error(&error) - 1.0 / sqrt(34.0)) < 1e-15);
  reference_error_add(&error, NAN, 1.0);
  assert_true(reference_error(&error) == INFINITY);
  error = (ReferenceError){0};
  reference_error_add(&error, 0.0, -INFINITY);
  assert_true(reference_error(&error) == INFINITY);
  error = (ReferenceError){0};
  reference_error_add(&error, 1e-30, 0.0); /* zero was promised */
  assert_true(reference_error(&error) == INFINITY);
}

static void test_memory_may_run_out(void **state) {
  (void)state;
  Small small;
  ReferenceResult result;
  small_create(&small);
  for (long n = 1; n < 12; n++) {
    memory_fail_at(n);
    rota_status status = reference_run(&small.problem, &result);
    memory_fail_at(0);
    if (status == ROTA_OK)
      reference_free(&result);
    if (n < 8)
      assert_int_equal(status, ROTA_OUT_OF_MEMORY);
  }
  lengths_destroy(small.lengths);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_forward_is_the_definition),
      cmocka_unit_test(test_gradients_are_the_slopes),
      cmocka_unit_test(test_empty_rows_and_unseen_keys),
      cmocka_unit_test(test_rounding_costs_what_the_format_costs),
      cmocka_unit_test(test_errors_see_what_is_not_a_number),
      cmocka_unit_test(test_memory_may_run_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
