/* Cases E: what tanh makes of scores, near the bound between its two forms and everywhere else. */
#include "tests/support/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- E1: tanh itself ---- */

enum { SWEEP = 4096 };

/* A row's s as the sum of two bf16 numbers: 16 bits. Logarithmic, of both signs, and closely
 * around 0.6 of the cap. */
static double sweep_score(double cap, int row) {
  double half = SWEEP / 2, x = row % (SWEEP / 2) / half;
  double size = row < SWEEP / 2 ? cap * pow(10.0, 5.0 * x - 3.5) : cap * (0.59 + 0.02 * x);
  return row % 2 ? -size : size;
}

static float bf16_below(double x) {
  union {
    float f;
    uint32_t bits;
  } y = {.f = (float)x};
  y.bits &= 0xffff0000u;
  return y.f;
}

/* With a single key LSE is the score. */
static void check_sweep(int head_dim, int cap) {
  char score[32];
  snprintf(score, sizeof score, "softcap(%d)", cap);
  Trial *trial = case_prepare(&(TrialShape){.dtype = ROTA_BF16,
                                            .head_dim = head_dim,
                                            .batch = 1,
                                            .n_q = SWEEP,
                                            .n_k = 1,
                                            .score = score,
                                            .scale = 1.0f,
                                            .forward_only = true});
  for (int i = 0; i < head_dim; i++)
    trial_set(trial, TRIAL_K, 0, 0, 0, i, i < 2);
  static double s[SWEEP];
  const double special[] = {0.0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 1e-30};
  const int specials = sizeof special / sizeof special[0];
  for (int row = 0; row < SWEEP; row++) {
    double wanted = row < specials ? special[row] : sweep_score(cap, row);
    double high = row < specials ? wanted : (double)bf16_below(wanted);
    double low = row < specials ? 0.0 : (double)bf16_below(wanted - high);
    for (int i = 0; i < head_dim; i++)
      trial_set(trial, TRIAL_Q, 0, row, 0, i, i == 0 ? high : i == 1 ? low : 0.0);
    s[row] = trial_get(trial, TRIAL_Q, 0, row, 0, 0) + trial_get(trial, TRIAL_Q, 0, row, 0, 1);
  }
  case_run(trial);
  double worst = 0;
  for (int row = 0; row < SWEEP; row++) {
    double found = trial_get(trial, TRIAL_LSE, 0, row, 0, 0), right = cap * tanh(s[row] / cap);
    if (isnan(right)) {
      assert_true(isnan(found));
      continue;
    }
    /* LSE adds and takes away a power of two's logarithm. */
    double error = fabs(found - right) / (fabs(right) + 1e-3 * cap);
    if (!(error <= worst))
      worst = error;
    if (!(error < 1e-6))
      fail_msg("d %d, cap %d: s = %.9g gives %.9g, not %.9g", head_dim, cap, s[row], found, right);
  }
  printf("E1 head dim %d cap %d: error at most %.1e\n", head_dim, cap, worst);
  trial_destroy(trial);
}

static void test_e1_tanh(void **state) {
  (void)state;
  const int dims[] = {64, 128, 256, 512};
  for (int i = 0; i < case_size(4, 1); i++) {
    check_sweep(dims[i], 50);
    check_sweep(dims[i], 3);
  }
}

/* ---- E2: rows whose neighbours lie beyond the bound ---- */

enum { APART = 5 }; /* every fifth row stays as it is */

/* The bits of O, LSE and dQ of a row are the same whatever the other rows hold, in the same warp
 * or elsewhere: whether any score of a warp lies beyond the bound decides which code runs. */
static void check_neighbours(const TrialShape *shape) {
  Trial *trial = case_prepare(shape);
  case_run(trial);
  static const TrialRole roles[] = {TRIAL_O, TRIAL_LSE, TRIAL_D_Q};
  const int dims[] = {shape->head_dim, 1, shape->head_dim}, rows = (shape->n_q + APART - 1) / APART;
  double *kept = malloc(sizeof *kept * (size_t)rows * (size_t)(2 * shape->head_dim + 1));
  assert_non_null(kept);
  const double factors[] = {40.0, 0.01, 1e4};
  for (int turn = 0; turn <= 3; turn++) {
    double *at = kept;
    for (int role = 0; role < 3; role++)
      for (int row = 0; row < shape->n_q; row += APART)
        for (int i = 0; i < dims[role]; i++, at++) {
          double x = trial_get(trial, roles[role], 0, row, 0, i);
          if (turn == 0)
            *at = x;
          else if (x != *at)
            fail_msg("d %d: row %d of output %d has other bits", shape->head_dim, row, role);
        }
    for (int row = 0; turn < 3 && row < shape->n_q; row++)
      for (int i = 0; row % APART && i < shape->head_dim; i++) {
        double before = turn ? factors[turn - 1] : 1.0;
        double x = trial_get(trial, TRIAL_Q, 0, row, 0, i);
        trial_set(trial, TRIAL_Q, 0, row, 0, i, x / before * factors[turn]);
      }
    case_run(trial);
  }
  free(kept);
  trial_destroy(trial);
}

static void test_e2_neighbours(void **state) {
  (void)state;
  float slope[] = {0.05f};
  rota_named_tensor tensor = {"slope", ROTA_FP32, 1, {1}, {1}, slope};
  const int dims[] = {128, 64, 96, 192, 256, 512};
  const int n = case_size(600, 70);
  for (int i = 0; i < case_size(6, 1); i++)
    for (int masked = 0; masked < 2; masked++) {
      TrialShape shape = {.dtype = masked ? ROTA_BF16 : ROTA_FP16,
                          .head_dim = dims[i],
                          .batch = 1,
                          .n_q = n,
                          .n_k = n + 40,
                          .mask = masked ? "causal" : NULL,
                          .score = masked ? "softcap(5)" : "alibi >> softcap(30)",
                          .tensors = masked ? NULL : &tensor,
                          .tensor_count = !masked};
      check_neighbours(&shape);
    }
}

int cases_scores(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_e1_tanh),
      cmocka_unit_test(test_e2_neighbours),
  };
  return cmocka_run_group_tests_name("scores", tests, NULL, NULL);
}
