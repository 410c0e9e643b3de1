/* Cases D: few queries against many keys, whose query tiles are cut into pieces
 * (generator/plan_pieces.h). The CPU device gets the plans of a GPU that does so, but computes rows
 * whole. */
#include "tests/support/cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* NULL: the GPU's own. */
static const char *architecture(void) {
  return case_device.gpu ? NULL : "sm_90";
}

static void test_d1_few_queries(void **state) {
  (void)state;
  static const struct {
    int heads, kv_heads, head_dim, head_dim_v, n_q, n_k;
    const char *mask, *score;
    bool sink;
  } cases[] = {
      {64, 8, 128, 0, 1, 8200, "causal", NULL, true},
      {8, 8, 64, 0, 1, 4000, NULL, NULL, false},
      {8, 1, 128, 0, 17, 33000, "causal & window(30000, 0)", NULL, false},
      {12, 4, 64, 0, 3, 5000, "where \"(k // 300 + q) % 3 ~= 0\"", NULL, true},
      {16, 2, 192, 128, 2, 5000, "causal & (window(2900, 0) | sinks(700))", "softcap(20)", true},
      {8, 2, 256, 0, 5, 6000, "causal & where \"h < 6 or k < 1500\"", NULL, false},
      {2, 2, 96, 0, 100, 20000, "causal", NULL, false},
      {2, 2, 128, 0, 130, 12000, NULL, NULL, false},
      {4, 2, 72, 80, 4, 4100, NULL, "score \"s - 0.001 * (h + 1) * abs(q - k)\"", false},
      /* Rows without a key, in some of the pieces or in all of them. */
      {8, 2, 128, 0, 4, 5000, "where \"q ~= 1 and (q % 2 == 0 or k < 700)\"", NULL, false},
      {8, 2, 64, 0, 4, 5000, "where \"q ~= 1 and (q % 2 == 0 or k < 700)\"", NULL, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[48];
    snprintf(name, sizeof name, "D1 %d x %d, d %d", cases[i].n_q, cases[i].n_k, cases[i].head_dim);
    TrialShape shape = {.dtype = i % 2 ? ROTA_FP16 : ROTA_BF16,
                        .head_dim = cases[i].head_dim,
                        .head_dim_v = cases[i].head_dim_v,
                        .heads = cases[i].heads,
                        .kv_heads = cases[i].kv_heads,
                        .batch = 2,
                        .n_q = cases[i].n_q,
                        .n_k = case_size(cases[i].n_k, cases[i].n_k / 4),
                        .mask = cases[i].mask,
                        .score = cases[i].score,
                        .sink = cases[i].sink,
                        .d_lse = true,
                        .backward = "two_pass",
                        .architecture = architecture()};
    case_check(name, &shape);
  }
}

static void test_d1_packed(void **state) {
  (void)state;
  static const int32_t cu_q[] = {0, 1, 5, 21, 21, 150},
                       cu_k[] = {0, 9000, 9100, 15000, 17500, 22000};
  static const int32_t small_q[] = {0, 1, 5, 21, 21, 50},
                       small_k[] = {0, 2000, 2025, 3500, 4100, 5200};
  for (int i = 0; i < 2; i++) {
    TrialShape shape = {.dtype = i ? ROTA_FP16 : ROTA_BF16,
                        .head_dim = i ? 64 : 128,
                        .heads = 16,
                        .kv_heads = 2,
                        .batch = 5,
                        .cu_q = case_device.gpu ? cu_q : small_q,
                        .cu_k = case_device.gpu ? cu_k : small_k,
                        .mask = i ? NULL : "causal",
                        .sink = i,
                        .backward = "two_pass",
                        .architecture = architecture()};
    case_check("D1 packed", &shape);
  }
}

/* Bits of the results with `rest` in what lies past use. */
static Digest cache_bits(const TrialShape *shape, double rest) {
  Trial *trial = trial_create(shape);
  for (int b = 0; b < shape->batch; b++) {
    for (int k = shape->used_k[b]; k < shape->n_k; k++)
      for (int h = 0; h < shape->kv_heads; h++)
        for (int i = 0; i < shape->head_dim; i++) {
          trial_set(trial, TRIAL_K, b, k, h, i, rest);
          trial_set(trial, TRIAL_V, b, k, h, i, rest);
        }
    for (int q = shape->used_q[b]; q < shape->n_q; q++)
      for (int h = 0; h < shape->heads; h++)
        for (int i = 0; i < shape->head_dim; i++)
          trial_set(trial, TRIAL_Q, b, q, h, i, rest);
  }
  assert_int_equal(trial_prepare(trial, case_device.context, case_device.gpu), ROTA_OK);
  Digest bits = case_bits(trial);
  trial_destroy(trial);
  return bits;
}

static void test_d1_cache(void **state) {
  (void)state;
  static const int32_t used[] = {6000, 3001, 5000, 100}, used_q[] = {1, 8, 0, 5};
  static const int32_t small[] = {1500, 751, 1250, 10};
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 128,
                      .heads = 8,
                      .kv_heads = 2,
                      .batch = 4,
                      .n_q = 8,
                      .n_k = case_size(6100, 1525),
                      .used_k = case_device.gpu ? used : small,
                      .used_q = used_q,
                      .mask = "causal",
                      .sink = true,
                      .backward = "two_pass",
                      .architecture = architecture()};
  assert_string_equal(cache_bits(&shape, NAN).hex, cache_bits(&shape, 0.0).hex);
  case_check("D1 cache", &shape);
}

/* ---- A4 with pieces: a sequence's bits alone and in a batch ---- */

static Digest sequence_bits(const Trial *trial, int b, int rows) {
  DigestStream *stream = digest_begin();
  static const TrialRole roles[] = {TRIAL_O, TRIAL_LSE};
  for (int i = 0; i < 2; i++) {
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

static void copy_sequence(const Trial *from, Trial *to, int b, int n_q, int n_k) {
  static const TrialRole roles[] = {TRIAL_Q, TRIAL_K, TRIAL_V};
  for (int i = 0; i < 3; i++)
    for (int row = 0; row < (i ? n_k : n_q); row++)
      for (int head = 0; head < from->buffers[roles[i]].heads; head++)
        for (int j = 0; j < from->buffers[roles[i]].dim; j++)
          trial_set(to, roles[i], b, row, head, j, trial_get(from, roles[i], 0, row, head, j));
}

enum { SEQUENCES = 5 };

static void test_d2_whatever_else_is_in_the_batch(void **state) {
  (void)state;
  static const int n_q[SEQUENCES] = {1, 4, 130, 0, 17},
                   keys[SEQUENCES] = {9000, 3000, 2600, 500, 7000};
  int32_t cu_q[SEQUENCES + 1] = {0}, cu_k[SEQUENCES + 1] = {0};
  for (int b = 0; b < SEQUENCES; b++) {
    cu_q[b + 1] = cu_q[b] + n_q[b];
    cu_k[b + 1] = cu_k[b] + case_size(keys[b], keys[b] / 4);
  }
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 8,
                      .kv_heads = 2,
                      .batch = SEQUENCES,
                      .cu_q = cu_q,
                      .cu_k = cu_k,
                      .mask = "causal",
                      .forward_only = true,
                      .architecture = architecture()};
  Trial *together = case_prepare(&shape);
  Digest alone_bits[SEQUENCES];
  for (int b = 0; b < SEQUENCES; b++) {
    const int32_t alone_q[] = {0, n_q[b]}, alone_k[] = {0, cu_k[b + 1] - cu_k[b]};
    shape.batch = 1;
    shape.cu_q = alone_q;
    shape.cu_k = alone_k;
    Trial *alone = case_prepare(&shape);
    copy_sequence(alone, together, b, alone_q[1], alone_k[1]);
    case_run(alone);
    alone_bits[b] = sequence_bits(alone, 0, n_q[b]);
    trial_destroy(alone);
  }
  case_run(together);
  for (int b = 0; b < SEQUENCES; b++)
    assert_string_equal(sequence_bits(together, b, n_q[b]).hex, alone_bits[b].hex);
  trial_destroy(together);
}

int cases_pieces(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_d1_few_queries),
      cmocka_unit_test(test_d1_packed),
      cmocka_unit_test(test_d1_cache),
      cmocka_unit_test(test_d2_whatever_else_is_in_the_batch),
  };
  return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
