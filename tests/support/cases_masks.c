/* Cases B: masks and scores, against predicates written in C. */
#include "tests/support/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A ReferenceMask from an expression of q, k and the row's other fields. */
#define PREDICATE(name, expression)                                                                \
  static void name(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,    \
                   bool *out) {                                                                    \
    (void)context;                                                                                 \
    for (int32_t i = 0; i < count; i++) {                                                          \
      const int32_t q = row->q, k = k_begin + i;                                                   \
      (void)q;                                                                                     \
      out[i] = (expression);                                                                       \
    }                                                                                              \
  }

/* ---- B1: rows and batch entries without a key ---- */

PREDICATE(behind, k <= q - 15 && k > q - 15 - 128)

static const int32_t valid[3] = {70, 0, 25};
PREDICATE(padding, k < valid[row->b])

static void test_b1_window_leaves_rows_empty(void **state) {
  (void)state;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = case_size(64, 16),
                      .heads = 2,
                      .batch = 1,
                      .n_q = 1280,
                      .n_k = 1072,
                      .mask = "where \"k <= q - 15 and k > q - 15 - 128\"",
                      .reference_mask = behind,
                      .backward = "ordered"};
  Trial *trial = case_prepare(&shape);
  for (int q = 0; q < 15; q++) /* what leaks will show */
    for (int i = 0; i < shape.head_dim; i++)
      trial_set(trial, TRIAL_D_O, 0, q, 0, i, 3e4);
  case_run(trial);
  TrialReport report = trial_check(trial);
  assert_true(report.good);
  for (int q = 0; q < 15; q++) {
    assert_true(trial_get(trial, TRIAL_LSE, 0, q, 1, 0) == -INFINITY);
    for (int i = 0; i < shape.head_dim; i++) {
      assert_true(trial_get(trial, TRIAL_O, 0, q, 0, i) == 0.0);
      assert_true(trial_get(trial, TRIAL_D_Q, 0, q, 0, i) == 0.0);
    }
  }
  trial_destroy(trial);
  shape.backward = NULL;
  case_check("B1 window", &shape);
}

/* Keys that nobody attends hold `value`. */
static Digest padded_bits(const TrialShape *shape, double value) {
  Trial *trial = case_prepare(shape);
  for (int b = 0; b < 3; b++)
    for (int k = valid[b]; k < shape->n_k; k++)
      for (int h = 0; h < 2; h++)
        for (int i = 0; i < shape->head_dim; i++) {
          trial_set(trial, TRIAL_K, b, k, h, i, value);
          trial_set(trial, TRIAL_V, b, k, h, i, value);
        }
  Digest bits = case_bits(trial);
  TrialReport report = trial_check(trial);
  assert_true(report.good);
  for (int i = 0; i < shape->head_dim; i++) {
    assert_true(trial_get(trial, TRIAL_O, 1, 5, 0, i) == 0.0);
    assert_true(trial_get(trial, TRIAL_D_K, 1, 5, 0, i) == 0.0);
  }
  assert_true(trial_get(trial, TRIAL_LSE, 1, 5, 0, 0) == -INFINITY);
  trial_destroy(trial);
  return bits;
}

static void test_b1_padding_hides_anything(void **state) {
  (void)state;
  static const char *const algorithms[] = {"ordered", "two_pass", "exact", "materialised"};
  rota_named_tensor tensor = {"valid", ROTA_INT32, 1, {3}, {1}, valid};
  for (int i = 0; i < case_size(4, 2); i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = i < 3 ? 64 : 512,
                        .heads = 2,
                        .batch = 3,
                        .n_q = 90,
                        .n_k = 150,
                        .mask = "where \"k < valid[b]\"",
                        .reference_mask = padding,
                        .tensors = &tensor,
                        .tensor_count = 1,
                        .backward = algorithms[i]};
    Digest zero = padded_bits(&shape, 0.0);
    assert_string_equal(padded_bits(&shape, NAN).hex, zero.hex);
    assert_string_equal(padded_bits(&shape, INFINITY).hex, zero.hex);
  }
}

/* ---- B2: very low scores ---- */

static void test_b2_scores_near_minus_200(void **state) {
  (void)state;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 14,
                      .kv_heads = 2,
                      .batch = 1,
                      .n_q = 88,
                      .n_k = 448,
                      .mask = "causal",
                      .backward = "ordered"};
  Trial *trial = case_prepare(&shape);
  for (int h = 0; h < 14; h++) /* 40 * -40 / 8 = -200 */
    for (int q = 0; q < 88; q++)
      trial_set(trial, TRIAL_Q, 0, q, h, 0, 40.0);
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 448; k++)
      trial_set(trial, TRIAL_K, 0, k, h, 0, -40.0);
  case_run(trial);
  TrialReport report = trial_check(trial);
  printf("  B2");
  trial_print_report(&report);
  assert_true(report.good);
  double lse = trial_get(trial, TRIAL_LSE, 0, 0, 0, 0);
  assert_true(lse < -150.0 && lse > -250.0);
  trial_destroy(trial);
}

/* ---- B4: a free predicate at several lengths ---- */

PREDICATE(free_form, (q >= k && q - k <= 256) || (q >= 4 && k <= 4))

static void test_b4_any_length(void **state) {
  (void)state;
  const int lengths[] = {case_size(8192, 1500), 1024, 257};
  for (int i = 0; i < 3; i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = case_size(64, 16),
                        .heads = 1,
                        .batch = 1,
                        .n_q = lengths[i],
                        .n_k = lengths[i],
                        .mask = "where \"(q >= k and q - k <= 256) or (q >= 4 and k <= 4)\"",
                        .reference_mask = free_form,
                        .backward = "ordered"};
    char name[32];
    snprintf(name, sizeof name, "B4 %d", lengths[i]);
    case_check(name, &shape);
    if (i == 0 || !case_device.gpu)
      continue;
    Trial *trial = case_prepare(&shape); /* one kernel for all lengths */
    rota_kernel_info info;
    rota_kernel_get_info(trial->kernels[ROTA_BACKWARD], &info);
    assert_true(info.cache_hit);
    trial_destroy(trial);
  }
}

/* ---- B5: a bias that grows towards the past ---- */

static void distance(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,
                     double *s, double *slope) {
  (void)context;
  (void)slope; /* stays 1 */
  for (int32_t i = 0; i < count; i++)
    s[i] += row->q - (k_begin + i);
}

static void test_b5_growing_bias(void **state) {
  (void)state;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 1,
                      .batch = 1,
                      .n_q = 1025,
                      .n_k = 1025,
                      .mask = "causal",
                      .score = "score(\"s + (q - k)\")",
                      .reference_score = distance};
  case_check("B5", &shape);
}

/* ---- B9: text with images ---- */

static const int32_t image[64] = {[10] = 1, 1, 1, 1, 1, [40] = 2, 2, 2, 2, 2};
PREDICATE(with_images, (k <= q && q - k <= 16) || (image[q] > 0 && image[q] == image[k]))

static void test_b9_images(void **state) {
  (void)state;
  rota_named_tensor tensor = {"image", ROTA_INT32, 1, {64}, {1}, image};
  TrialShape shape = {
      .dtype = ROTA_BF16,
      .head_dim = 32,
      .heads = 2,
      .batch = 2,
      .n_q = 64,
      .n_k = 64,
      .mask = "causal & window(16, 0) | where \"image[q] > 0 and image[q] == image[k]\"",
      .reference_mask = with_images,
      .tensors = &tensor,
      .tensor_count = 1};
  case_check("B9", &shape);
}

/* ---- B12: sink logits ---- */

PREDICATE(late_start, k <= q - 9)

static void test_b12_sink_logit(void **state) {
  (void)state;
  const rota_dtype dtypes[] = {ROTA_FP32, ROTA_BF16};
  for (int i = 0; i < 2; i++) {
    TrialShape shape = {.dtype = dtypes[i],
                        .head_dim = 32,
                        .heads = 4,
                        .kv_heads = 2,
                        .batch = 2,
                        .n_q = 140,
                        .n_k = 140,
                        .mask = "where \"k <= q - 9\"",
                        .reference_mask = late_start,
                        .sink = true,
                        .d_lse = i == 0};
    case_check(i ? "B12 bf16" : "B12 fp32", &shape);
    shape.backward = "two_pass";
    Trial *trial = case_prepare(&shape);
    case_run(trial);
    for (int h = 0; h < 4; h++) { /* rows without a key: the sink is all there is */
      double sink = trial_get(trial, TRIAL_SINK, 0, 0, h, 0);
      assert_true(fabs(trial_get(trial, TRIAL_LSE, 1, 3, h, 0) - sink) <= 1e-6 * fabs(sink));
      assert_true(trial_get(trial, TRIAL_O, 1, 3, h, 7) == 0.0);
      assert_true(trial_get(trial, TRIAL_D_Q, 1, 3, h, 7) == 0.0);
    }
    trial_destroy(trial);
  }
}

/* ---- B13: soft cap ---- */

static double cap;

static void capped(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,
                   double *s, double *slope) {
  (void)context;
  (void)row;
  (void)k_begin;
  for (int32_t i = 0; i < count; i++) {
    double t = tanh(s[i] / cap);
    s[i] = cap * t;
    if (slope)
      slope[i] = 1.0 - t * t;
  }
}

static void test_b13_soft_cap(void **state) {
  (void)state;
  const int caps[] = {10, 15, 30, 50}, n = case_size(700, 150);
  for (int i = 0; i < 4; i++) {
    char score[32], name[32];
    snprintf(score, sizeof score, "softcap(%d)", caps[i]);
    snprintf(name, sizeof name, "B13 cap %d", caps[i]);
    cap = caps[i];
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = 128,
                        .heads = 4,
                        .kv_heads = i % 2 ? 2 : 4,
                        .batch = 1,
                        .n_q = n,
                        .n_k = n,
                        .mask = i < 2 ? "causal" : "causal & window(50, 0)",
                        .score = score,
                        .scale = 1.0f, /* so that scores reach the cap */
                        .reference_score = capped};
    case_check(name, &shape);
  }
}

/* ---- Tensors that each run passes ---- */

static void test_score_tensor_at_run_time(void **state) {
  (void)state;
  enum { LENGTH = 80, SPAN = 2 * LENGTH };
  float bias[2 * SPAN];
  for (int i = 0; i < 2 * SPAN; i++)
    bias[i] = sinf((float)i);
  rota_named_tensor tensor = {"bias", ROTA_FP32, 2, {2, SPAN}, {SPAN, 1}, bias};
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 48,
                      .heads = 2,
                      .batch = 2,
                      .n_q = LENGTH,
                      .n_k = LENGTH,
                      .score = "relative_bias(80)",
                      .tensors = &tensor,
                      .tensor_count = 1,
                      .backward = "ordered"};
  Trial *held = case_prepare(&shape);
  Digest expected = case_bits(held);
  shape.late_tensors = true;
  Trial *passed = case_prepare(&shape);
  assert_string_equal(case_bits(passed).hex, expected.hex);
  trial_destroy(held);
  trial_destroy(passed);
  case_check("bias passed at run time", &shape);
}

int cases_masks(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_b1_window_leaves_rows_empty),
      cmocka_unit_test(test_b1_padding_hides_anything),
      cmocka_unit_test(test_b2_scores_near_minus_200),
      cmocka_unit_test(test_b4_any_length),
      cmocka_unit_test(test_b5_growing_bias),
      cmocka_unit_test(test_b9_images),
      cmocka_unit_test(test_b12_sink_logit),
      cmocka_unit_test(test_b13_soft_cap),
      cmocka_unit_test(test_score_tensor_at_run_time),
  };
  return cmocka_run_group_tests_name("masks", tests, NULL, NULL);
}
