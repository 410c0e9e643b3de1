/* Cases C: lengths, strides and layouts. */
#include "tests/support/cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- C5: both alignments of a causal mask ---- */

static void bottom_right(const void *context, const RowPosition *row, int32_t k_begin,
                         int32_t count, bool *out) {
  (void)context;
  for (int32_t i = 0; i < count; i++)
    out[i] = k_begin + i <= row->q + row->n_k - row->n_q;
}

static void top_left(const void *context, const RowPosition *row, int32_t k_begin, int32_t count,
                     bool *out) {
  (void)context;
  for (int32_t i = 0; i < count; i++)
    out[i] = k_begin + i <= row->q;
}

static void test_c5_causal_alignments(void **state) {
  (void)state;
  const int lengths[][2] = {{2, 5}, {5, 2}, {70, 200}, {200, 70}};
  for (int i = 0; i < 4; i++)
    for (int left = 0; left < 2; left++) {
      char name[48];
      snprintf(name, sizeof name, "C5 %s %d x %d", left ? "top left" : "bottom right",
               lengths[i][0], lengths[i][1]);
      TrialShape shape = {.dtype = ROTA_BF16,
                          .head_dim = 32,
                          .heads = 2,
                          .batch = 2,
                          .n_q = lengths[i][0],
                          .n_k = lengths[i][1],
                          .mask = left ? "causal{align = \"top_left\"}" : "causal",
                          .reference_mask = left ? top_left : bottom_right};
      case_check(name, &shape);
    }
}

/* ---- Scales of either sign; under the mask the first queries have no key ---- */

static void test_scale_of_either_sign(void **state) {
  (void)state;
  static const float scales[] = {-0.1f, 1e-3f, 0.75f};
  static const int dims[] = {64, 128, 256};
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < case_size(3, 1); j++) {
      char name[48];
      snprintf(name, sizeof name, "scale %g, head dim %d", (double)scales[i], dims[j]);
      TrialShape shape = {.dtype = j % 2 ? ROTA_FP16 : ROTA_BF16,
                          .head_dim = dims[j],
                          .heads = 4,
                          .kv_heads = 2,
                          .batch = 2,
                          .n_q = 200,
                          .n_k = 130,
                          .mask = "causal",
                          .scale = scales[i],
                          .d_lse = true};
      case_check(name, &shape);
    }
}

/* ---- C7: packed sequences, some without queries ---- */

static void test_c7_sequences_without_queries(void **state) {
  (void)state;
  static const int32_t full_q[] = {0, 0, 1208, 2048, 2048}, full_k[] = {0, 2538, 4280, 5120, 8192};
  static const int32_t small_q[] = {0, 0, 151, 256, 256}, small_k[] = {0, 317, 535, 640, 1024};
  static const char *const algorithms[] = {"ordered", "materialised"};
  for (int i = 0; i < case_size(4, 2); i++) {
    bool causal = i % 2 != 0;
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = 256,
                        .heads = 4,
                        .kv_heads = 1,
                        .batch = 4,
                        .mask = causal ? "causal" : NULL,
                        .cu_q = case_device.gpu ? full_q : small_q,
                        .cu_k = case_device.gpu ? full_k : small_k,
                        .backward = algorithms[i / 2]};
    case_check(causal ? "C7 causal" : "C7", &shape);
    Trial *trial = case_prepare(&shape);
    case_run(trial);
    for (int k = 0; k < shape.cu_k[1]; k++)
      for (int j = 0; j < 256; j++) {
        assert_true(trial_get(trial, TRIAL_D_K, 0, k, 0, j) == 0.0);
        assert_true(trial_get(trial, TRIAL_D_V, 0, k, 0, j) == 0.0);
      }
    trial_destroy(trial);
  }
}

/* ---- C11: caches in part used ---- */

static Digest cache_bits(const TrialShape *shape, double rest) {
  Trial *trial = case_prepare(shape);
  for (int b = 0; b < shape->batch; b++)
    for (int k = shape->used_k[b]; k < shape->n_k; k++)
      for (int h = 0; h < shape->kv_heads; h++)
        for (int i = 0; i < shape->head_dim; i++) {
          trial_set(trial, TRIAL_K, b, k, h, i, rest);
          trial_set(trial, TRIAL_V, b, k, h, i, rest);
        }
  Digest bits = case_bits(trial);
  for (int b = 0; b < shape->batch; b++) /* gradients of what is not in use: zeros */
    for (int k = shape->used_k[b]; k < shape->n_k; k++) {
      assert_true(trial_get(trial, TRIAL_D_K, b, k, 0, 1) == 0.0);
      assert_true(trial_get(trial, TRIAL_D_V, b, k, 0, 1) == 0.0);
    }
  trial_destroy(trial);
  return bits;
}

/* Bits of the results with `rest` in the queries past use and in their gradients of O. No mask cuts
 * those tiles: nothing but their number keeps the rows out. */
static Digest unused_query_bits(const TrialShape *shape, double rest) {
  Trial *trial = trial_create(shape);
  for (int b = 0; b < shape->batch; b++)
    for (int q = shape->used_q[b]; q < shape->n_q; q++)
      for (int h = 0; h < shape->heads; h++)
        for (int i = 0; i < shape->head_dim; i++) {
          trial_set(trial, TRIAL_Q, b, q, h, i, rest);
          trial_set(trial, TRIAL_D_O, b, q, h, i, rest);
        }
  assert_int_equal(trial_prepare(trial, case_device.context, case_device.gpu), ROTA_OK);
  Digest bits = case_bits(trial);
  trial_destroy(trial);
  return bits;
}

static void test_c11_unused_queries(void **state) {
  (void)state;
  static const int32_t used_q[] = {100, 64, 3, 0};
  static const char *const algorithms[] = {"ordered", "two_pass", "exact", "materialised"};
  for (int i = 0; i < case_size(4, 2); i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = i < 3 ? case_size(128, 16) : 512,
                        .heads = 2,
                        .batch = 4,
                        .n_q = 128,
                        .n_k = 256,
                        .used_q = used_q,
                        .backward = algorithms[i]};
    assert_string_equal(unused_query_bits(&shape, NAN).hex, unused_query_bits(&shape, 0.0).hex);
    case_check("C11 queries past use", &shape);
  }
}

static void test_c11_cache(void **state) {
  (void)state;
  static const int32_t used[] = {32, 64, 96, 48}, used_q[] = {3, 8, 0, 5};
  static const char *const algorithms[] = {"ordered", "two_pass", "exact", "materialised"};
  for (int i = 0; i < case_size(4, 2); i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = i < 3 ? 64 : 512,
                        .heads = 4,
                        .kv_heads = 2,
                        .batch = 4,
                        .n_q = 8,
                        .n_k = 128,
                        .used_k = used,
                        .mask = "causal",
                        .backward = algorithms[i]};
    assert_string_equal(cache_bits(&shape, NAN).hex, cache_bits(&shape, 0.0).hex);
    case_check("C11", &shape);
    shape.used_q = used_q;
    case_check("C11 with used queries", &shape);
  }
}

/* ---- C12: strides ---- */

static void test_c12_strides_do_not_matter(void **state) {
  (void)state;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 8,
                      .kv_heads = 1,
                      .batch = 2,
                      .n_q = 130,
                      .n_k = 130,
                      .mask = "causal",
                      .backward = "ordered",
                      .d_lse = true};
  Trial *plain = case_prepare(&shape), *spread = trial_create(&shape),
        *expanded = trial_create(&shape);
  Digest expected = case_bits(plain);
  trial_restride(spread, TRIAL_D_O, 64 * 8 * 400, 64 * 24, 64 * 2);
  trial_restride(spread, TRIAL_Q, 64 * 130, 64, 64 * 130 * 2); /* heads outermost */
  trial_restride(spread, TRIAL_K, 64, 64 * 2, 8);
  assert_int_equal(trial_prepare(spread, case_device.context, case_device.gpu), ROTA_OK);
  assert_string_equal(case_bits(spread).hex, expected.hex);
  /* As autograd hands it over: one vector for all rows. */
  trial_restride(expanded, TRIAL_D_O, 0, 0, 0);
  trial_restride(expanded, TRIAL_D_LSE, 0, 0, 0);
  for (int b = 0; b < 2; b++)
    for (int q = 0; q < 130; q++)
      for (int h = 0; h < 8; h++) {
        for (int i = 0; i < 64; i++)
          trial_set(plain, TRIAL_D_O, b, q, h, i, trial_get(expanded, TRIAL_D_O, 0, 0, 0, i));
        trial_set(plain, TRIAL_D_LSE, b, q, h, 0, trial_get(expanded, TRIAL_D_LSE, 0, 0, 0, 0));
      }
  assert_int_equal(trial_prepare(expanded, case_device.context, case_device.gpu), ROTA_OK);
  assert_string_equal(case_bits(expanded).hex, case_bits(plain).hex);
  trial_destroy(plain);
  trial_destroy(spread);
  trial_destroy(expanded);
}

static void test_any_layout_any_dim(void **state) {
  (void)state;
  const int dims[][2] = {{8, 8},    {46, 46},   {72, 72}, {88, 88},
                         {64, 128}, {192, 128}, {1, 3},   {320, 264}};
  for (int i = 0; i < 8; i++) {
    char name[48];
    snprintf(name, sizeof name, "any layout, d %d/%d", dims[i][0], dims[i][1]);
    TrialShape shape = {.dtype = i % 2 ? ROTA_FP16 : ROTA_BF16,
                        .head_dim = dims[i][0],
                        .head_dim_v = dims[i][1],
                        .heads = 4,
                        .kv_heads = 2,
                        .batch = 2,
                        .n_q = 77,
                        .n_k = 141,
                        .mask = "causal",
                        .layout = ROTA_LAYOUT_ANY,
                        .heads_outside = i % 3 == 0,
                        .sink = i == 1,
                        .d_lse = true};
    case_check(name, &shape);
  }
}

/* ---- C14: head dims ---- */

/* Each with the algorithm that is chosen for it. */
static void test_c14_head_dims(void **state) {
  (void)state;
  const int dims[][2] = {{512, 512}, {192, 128}, {576, 512}, {320, 256}, {64, 128},
                         {88, 88},   {80, 80},   {72, 72},   {46, 46},   {8, 8}};
  for (int i = 0; i < 10; i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = dims[i][0],
                        .head_dim_v = dims[i][1],
                        .heads = 28,
                        .kv_heads = 4,
                        .batch = 1,
                        .n_q = case_size(300, 40),
                        .n_k = case_size(433, 50),
                        .mask = "causal",
                        .layout = dims[i][0] % 8 ? ROTA_LAYOUT_ANY : ROTA_LAYOUT_ALIGNED};
    Trial *trial = case_prepare(&shape);
    Digest first = case_bits(trial), second = case_bits(trial);
    assert_string_equal(first.hex, second.hex);
    TrialReport report = trial_check(trial);
    printf("  C14, d %d/%d ", dims[i][0], dims[i][1]);
    trial_print_report(&report);
    assert_true(report.good);
    assert_true(trial_margins_intact(trial));
    trial_destroy(trial);
  }
}

/* ---- C15: nothing to do ---- */

static void test_c15_empty(void **state) {
  (void)state;
  const int sizes[][3] = {{2, 5, 0}, {2, 0, 5}, {0, 5, 5}, {2, 0, 0}};
  static const char *const algorithms[] = {"ordered", "two_pass", "atomic"};
  for (int i = 0; i < 12; i++) {
    const int *size = sizes[i / 3];
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = 64,
                        .heads = 2,
                        .batch = size[0],
                        .n_q = size[1],
                        .n_k = size[2],
                        .mask = "causal",
                        .backward = algorithms[i % 3],
                        .nondeterministic = true};
    Trial *trial = case_prepare(&shape);
    case_run(trial);
    for (int b = 0; b < size[0]; b++) {
      for (int q = 0; q < size[1]; q++)
        for (int j = 0; j < 64; j++) {
          assert_true(trial_get(trial, TRIAL_O, b, q, 1, j) == 0.0);
          assert_true(trial_get(trial, TRIAL_D_Q, b, q, 1, j) == 0.0);
          assert_true(trial_get(trial, TRIAL_LSE, b, q, 1, 0) == -INFINITY);
        }
      for (int k = 0; k < size[2]; k++)
        for (int j = 0; j < 64; j++) {
          assert_true(trial_get(trial, TRIAL_D_K, b, k, 1, j) == 0.0);
          assert_true(trial_get(trial, TRIAL_D_V, b, k, 1, j) == 0.0);
        }
    }
    assert_true(trial_margins_intact(trial));
    trial_destroy(trial);
  }
}

/* ---- The masks of the vocabulary that other cases leave out ---- */

static void test_documents(void **state) {
  (void)state;
  int32_t ids[2][200];
  for (int i = 0; i < 400; i++)
    ids[i / 200][i % 200] = (i % 200) / (i < 200 ? 37 : 90);
  rota_named_tensor tensor = {"document", ROTA_INT32, 2, {2, 200}, {200, 1}, ids};
  TrialShape shape = {.dtype = ROTA_FP16,
                      .head_dim = 32,
                      .heads = 2,
                      .batch = 2,
                      .n_q = 200,
                      .n_k = 200,
                      .mask = "causal & document",
                      .tensors = &tensor,
                      .tensor_count = 1};
  case_check("documents", &shape);
}

/* ---- Heads of a group side by side in a query tile: sizes that divide a tile and others, few
 * queries and many ---- */

static void test_groups(void **state) {
  (void)state;
  static const int32_t cu_q[] = {0, 1, 5, 21, 150}, cu_k[] = {0, 900, 1030, 1159, 1300};
  static const int32_t small_q[] = {0, 1, 5, 21, 60}, small_k[] = {0, 90, 130, 159, 220};
  static const struct {
    int heads, kv_heads, head_dim;
    const char *mask, *score;
    bool sink;
  } groups[] = {{8, 1, 128, "causal", NULL, true},
                {12, 1, 64, "window(100, 0)", NULL, false},
                {6, 2, 128, NULL, "softcap(20)", false},
                {10, 2, 192, "causal", NULL, false},
                {64, 1, 128, "causal & dilated(2)", NULL, false},
                {37, 1, 64, "causal", "score \"s - 0.01 * (h + 1) * abs(q - k)\"", true},
                {8, 2, 128, "causal & where \"h < 6 or k < 50\"", NULL, false}};
  for (int i = 0; i < 7; i++) {
    char name[48];
    snprintf(name, sizeof name, "group of %d", groups[i].heads / groups[i].kv_heads);
    TrialShape shape = {.dtype = i % 2 ? ROTA_FP16 : ROTA_BF16,
                        .head_dim = groups[i].head_dim,
                        .heads = groups[i].heads,
                        .kv_heads = groups[i].kv_heads,
                        .batch = 4,
                        .mask = groups[i].mask,
                        .score = groups[i].score,
                        .sink = groups[i].sink,
                        .cu_q = case_device.gpu ? cu_q : small_q,
                        .cu_k = case_device.gpu ? cu_k : small_k,
                        .backward = "two_pass"};
    case_check(name, &shape);
  }
}

int cases_shapes(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scale_of_either_sign),
      cmocka_unit_test(test_c5_causal_alignments),
      cmocka_unit_test(test_c7_sequences_without_queries),
      cmocka_unit_test(test_c11_cache),
      cmocka_unit_test(test_c11_unused_queries),
      cmocka_unit_test(test_c12_strides_do_not_matter),
      cmocka_unit_test(test_any_layout_any_dim),
      cmocka_unit_test(test_c14_head_dims),
      cmocka_unit_test(test_c15_empty),
      cmocka_unit_test(test_documents),
      cmocka_unit_test(test_groups),
  };
  return cmocka_run_group_tests_name("shapes", tests, NULL, NULL);
}
