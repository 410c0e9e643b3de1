/* Cases A: the same bits, and an end. */
#include "tests/support/cases.h"
#include "tests/support/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void check_runs(const TrialShape *shape, int runs, const Load *load) {
  Trial *trial = case_prepare(shape);
  if (case_device.gpu)
    trial->stream = case_device.gpu->stream; /* not the legacy stream, which waits for others */
  Digest first = case_bits(trial);
  for (int i = 1; i < runs; i++) {
    load_push(load, i % 4);
    Digest again = case_bits(trial);
    if (strcmp(first.hex, again.hex) != 0)
      fail_msg("run %d has other bits", i);
  }
  /* A kernel made anew, not from the first context's memory. */
  rota_context *fresh;
  rota_context_options options = {.cache_dir = "", .debug = -1};
  assert_int_equal(rota_context_create(&options, &fresh), ROTA_OK);
  assert_int_equal(trial_prepare(trial, fresh, case_device.gpu), ROTA_OK);
  assert_string_equal(case_bits(trial).hex, first.hex);
  trial_destroy(trial);
  rota_context_destroy(fresh);
}

static void test_a1_same_bits(void **state) {
  (void)state;
  Load load = load_start(case_device.context, case_device.gpu);
  int length = case_size(1024, 200);
  static const char *const algorithms[] = {"ordered", "two_pass", "exact"};
  for (int i = 0; i < case_size(3, 2); i++) {
    const char *backward = algorithms[i];
    TrialShape small = {.dtype = ROTA_FP16,
                        .head_dim = 64,
                        .heads = case_size(12, 2),
                        .batch = 2,
                        .n_q = length,
                        .n_k = length,
                        .backward = backward};
    check_runs(&small, case_size(50, 3), &load);
    TrialShape grouped = {.dtype = ROTA_BF16,
                          .head_dim = 64,
                          .heads = case_size(16, 8),
                          .kv_heads = case_size(2, 1),
                          .batch = 1,
                          .n_q = length,
                          .n_k = length,
                          .mask = "causal",
                          .backward = backward};
    check_runs(&grouped, case_size(50, 3), &load);
    grouped.head_dim = 128;
    check_runs(&grouped, case_size(50, 3), &load);
    TrialShape large = {.dtype = ROTA_BF16,
                        .head_dim = 128,
                        .heads = case_size(32, 2),
                        .batch = case_size(32, 2),
                        .n_q = length,
                        .n_k = length,
                        .mask = "causal",
                        .backward = backward};
    check_runs(&large, case_size(5, 2), &load);
  }
  load_stop(&load);
}

static void test_a3_finishes(void **state) {
  (void)state;
  static const char *const masks[] = {
      "causal & window(300, math.huge)",
      "where \"(k // 128) % 2 == 1\"",
      "where \"(k // 128) % 2 == 1 and (q // 64) % 2 == 1\"",
      "where \"(k // 64) % 2 == 1 and k <= q + n_k - n_q\"",
  };
  static const int lengths[][2] = {{640, 640}, {300, 640}, {640, 300}};
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 3; j++) {
      char name[64];
      snprintf(name, sizeof name, "A3 mask %d, %d x %d", i, lengths[j][0], lengths[j][1]);
      TrialShape shape = {.dtype = ROTA_BF16,
                          .head_dim = case_size(64, 16),
                          .heads = 2,
                          .batch = 1,
                          .n_q = lengths[j][0],
                          .n_k = lengths[j][1],
                          .mask = masks[i]};
      case_check(name, &shape);
    }
}

/* Each optional feature under `deterministic`: the same bits, or refused before launch. */
static void test_a5_stable_or_refused(void **state) {
  (void)state;
  static const int32_t cu[] = {0, 33, 33, 160};
  int n = case_size(400, 140), dim = case_size(64, 16);
  const TrialShape shapes[] = {
      {.dtype = ROTA_BF16,
       .head_dim = dim,
       .heads = 2,
       .batch = 2,
       .n_q = n,
       .n_k = n,
       .sink = true,
       .d_lse = true},
      {.dtype = ROTA_BF16,
       .head_dim = dim,
       .heads = 2,
       .batch = 2,
       .n_q = n,
       .n_k = n,
       .mask = "where \"(q * 7 + k * 3) % 5 < 2\""},
      {.dtype = ROTA_BF16,
       .head_dim = dim,
       .heads = 2,
       .batch = 3,
       .cu_q = cu,
       .cu_k = cu,
       .mask = "causal"},
      {.dtype = ROTA_BF16,
       .head_dim = 256,
       .heads = 2,
       .batch = 1,
       .n_q = n,
       .n_k = n,
       .mask = "causal"},
  };
  const char *names[] = {"A5 sink", "A5 custom mask", "A5 packed", "A5 d 256"};
  for (int i = 0; i < 4; i++)
    case_check(names[i], &shapes[i]);
  TrialShape wide = {.dtype = ROTA_BF16, .head_dim = 1032, .batch = 1, .n_q = 8, .n_k = 8};
  Trial *trial = trial_create(&wide);
  rota_status status = trial_prepare(trial, case_device.context, case_device.gpu);
  assert_true(status == ROTA_UNSUPPORTED || status == ROTA_INVALID_ARGUMENT);
  assert_non_null(strstr(rota_error_message(), "1032"));
  trial_destroy(trial);
  TrialShape atomic = {
      .dtype = ROTA_BF16, .head_dim = 64, .batch = 1, .n_q = 8, .n_k = 8, .backward = "atomic"};
  trial = trial_create(&atomic);
  assert_int_equal(trial_prepare(trial, case_device.context, case_device.gpu),
                   ROTA_NONDETERMINISTIC);
  trial_destroy(trial);
}

/* Gathers the bits of one sequence's results at rows [begin, begin + rows) of a packed trial. */
static Digest sequence_bits(const Trial *trial, int b, int rows) {
  DigestStream *stream = digest_begin();
  assert_non_null(stream);
  static const TrialRole roles[] = {TRIAL_O, TRIAL_LSE, TRIAL_D_Q, TRIAL_D_K, TRIAL_D_V};
  for (int i = 0; i < 5; i++) {
    const TrialBuffer *buffer = &trial->buffers[roles[i]];
    for (int row = 0; row < rows; row++)
      for (int head = 0; head < buffer->heads; head++)
        for (int j = 0; j < buffer->dim; j++) {
          double value = trial_get(trial, roles[i], b, row, head, j);
          digest_add(stream, &value, sizeof value);
        }
  }
  return digest_end(stream);
}

enum { PLACES = 3, OTHERS = 16 };

/* A sequence alone, and among short ones at several places: always the same bits. */
static void test_a4_whatever_else_is_in_the_batch(void **state) {
  (void)state;
  const int rows = 300, places[PLACES] = {0, 7, OTHERS};
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 4,
                      .kv_heads = 2,
                      .mask = "causal",
                      .backward = "ordered"};
  int32_t alone[] = {0, rows};
  shape.batch = 1;
  shape.cu_q = shape.cu_k = alone;
  Trial *single = case_prepare(&shape);
  case_run(single);
  Digest expected = sequence_bits(single, 0, rows);
  for (int p = 0; p < PLACES; p++) {
    int32_t cu[OTHERS + 2] = {0};
    for (int b = 0; b <= OTHERS; b++)
      cu[b + 1] = cu[b] + (b == places[p] ? rows : 3 + 5 * b);
    shape.batch = OTHERS + 1;
    shape.cu_q = shape.cu_k = cu;
    Trial *packed = case_prepare(&shape);
    static const TrialRole inputs[] = {TRIAL_Q, TRIAL_K, TRIAL_V, TRIAL_D_O};
    for (int i = 0; i < 4; i++)
      for (int row = 0; row < rows; row++)
        for (int head = 0; head < single->buffers[inputs[i]].heads; head++)
          for (int j = 0; j < 64; j++)
            trial_set(packed, inputs[i], places[p], row, head, j,
                      trial_get(single, inputs[i], 0, row, head, j));
    case_run(packed);
    assert_string_equal(sequence_bits(packed, places[p], rows).hex, expected.hex);
    trial_destroy(packed);
  }
  trial_destroy(single);
}

/* mean_square of another forward pass: NaN, not a wrong gradient. V's mean is far from 0, so that
 * |O|^2 shows it. */
static void test_a6_spread_of_another_pass(void **state) {
  (void)state;
  const int rows = 300;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .batch = 1,
                      .n_q = rows,
                      .n_k = rows,
                      .mask = "causal",
                      .backward = "exact",
                      .bound = "spread"};
  Trial *trial = trial_create(&shape);
  for (int row = 0; row < rows; row++)
    for (int j = 0; j < 64; j++)
      trial_set(trial, TRIAL_V, 0, row, 0, j, 30 + trial_get(trial, TRIAL_V, 0, row, 0, j));
  rota_status status = trial_prepare(trial, case_device.context, case_device.gpu);
  if (status == ROTA_UNSUPPORTED) {
    printf("  %s\n", rota_error_message());
    trial_destroy(trial);
    skip();
  }
  assert_int_equal(status, ROTA_OK);
  for (int spoilt = 0; spoilt < 2; spoilt++) {
    case_run(trial);
    const TrialBuffer *squares = &trial->buffers[TRIAL_MEAN_SQUARE];
    if (spoilt) { /* floats of 0.75 */
      gpu_fill(trial->gpu, squares->device, 0x3f, squares->bytes);
      assert_int_equal(trial_launch(trial, ROTA_BACKWARD), ROTA_OK);
      trial_download(trial);
    }
    for (int row = 0; row < rows; row++)
      assert_int_equal(isnan(trial_get(trial, TRIAL_D_Q, 0, row, 0, 0)) != 0, spoilt);
  }
  trial_destroy(trial);
}

int cases_determinism(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a1_same_bits),
      cmocka_unit_test(test_a3_finishes),
      cmocka_unit_test(test_a4_whatever_else_is_in_the_batch),
      cmocka_unit_test(test_a5_stable_or_refused),
      cmocka_unit_test(test_a6_spread_of_another_pass),
  };
  return cmocka_run_group_tests_name("determinism", tests, NULL, NULL);
}
