/* Schedules and bits on the CPU device: portable schedules give the same ones with any number of
 * workers; every schedule gives the same ones again, alone or in a batch; and plans with equal
 * digests never differ. */
#include "tests/support/trial.h"

#include "runtime/cpu_device.h"
#include "runtime/prepared.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static rota_context *context;

static const int worker_counts[] = {1, 8, 78, 132};
enum { WORKER_COUNTS = 4 };

static const char *const schedules[] = {
    "ascending", "descending", "shift",    "symmetric_shift", "shortest_first", "longest_first",
    "rotate",    "by_length",  "by_tiles", "optimized",       "tiers",          "halves"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static Trial *prepared(const char *schedule, const char *mask, int batch) {
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 16,
                      .heads = 2,
                      .kv_heads = 1,
                      .batch = batch,
                      .n_q = 600,
                      .n_k = 600,
                      .mask = mask,
                      .backward = "ordered",
                      .schedule = schedule,
                      .seed = 5};
  Trial *trial = trial_create(&shape);
  if (trial_prepare(trial, context, NULL) != ROTA_OK || trial_run(trial) != ROTA_OK)
    fail_msg("%s: %s", schedule, status_message());
  return trial;
}

/* The trial's backward pass as planned for so many workers: bits and pattern digest. */
static Digest bits_with(Trial *trial, int workers, Digest *pattern) {
  rota_plan *plan = trial->plans[ROTA_BACKWARD];
  Plan *before = plan->plan;
  rota_kernel *kernel = plan->kernel;
  kernel->schedule.workers = workers;
  rota_lengths lengths = {.batch = trial->shape.batch, .n_q = 600, .n_k = 600};
  rota_plan_request request = {.lengths = lengths};
  rota_plan *other;
  if (prepared_create(kernel, &request, &other) != ROTA_OK)
    fail_msg("%d workers: %s", workers, status_message());
  assert_int_equal(before->workspace.bytes, other->plan->workspace.bytes);
  *pattern = other->plan->pattern_digest;
  trial->plans[ROTA_BACKWARD] = other;
  if (trial_run(trial) != ROTA_OK)
    fail_msg("%s", status_message());
  trial->plans[ROTA_BACKWARD] = plan;
  prepared_destroy(other);
  return trial_all_bits(trial);
}

static void test_workers(void **state) {
  (void)state;
  static const char *const masks[] = {NULL, "causal", "causal & window(200, 0)"};
  int changed = 0;
  for (int m = 0; m < 3; m++)
    for (int i = 0; i < SCHEDULES; i++) {
      Trial *trial = prepared(schedules[i], masks[m], 1);
      bool portable = trial->kernels[ROTA_BACKWARD]->schedule.portable;
      Digest bits[WORKER_COUNTS], patterns[WORKER_COUNTS], pattern;
      for (int w = 0; w < WORKER_COUNTS; w++) {
        omp_set_num_threads(1 + w % 3); /* nor do the CPU's threads matter */
        bits[w] = bits_with(trial, worker_counts[w], &patterns[w]);
        assert_string_equal(bits_with(trial, worker_counts[w], &pattern).hex, bits[w].hex);
        for (int v = 0; v < w; v++) {
          bool same = strcmp(bits[v].hex, bits[w].hex) == 0;
          if (portable || strcmp(patterns[v].hex, patterns[w].hex) == 0)
            assert_true(same);
          changed += !same;
        }
        if (portable)
          assert_string_equal(patterns[w].hex, patterns[0].hex);
      }
      trial_destroy(trial);
    }
  /* The test sees a difference where there is one: a gang's size does change bits. */
  print_message("%d pairs of gangs differ\n", changed);
  assert_true(changed > 5);
}

static void test_schedules_agree_with_fp64(void **state) {
  (void)state;
  for (int i = 0; i < SCHEDULES; i++) {
    Trial *trial = prepared(schedules[i], "causal", 1);
    TrialReport report = trial_check(trial);
    if (!report.good) {
      trial_print_report(&report);
      fail_msg("%s", schedules[i]);
    }
    trial_destroy(trial);
  }
}

/* The first sequence of a batch, and its digest, are those of the sequence alone. */
static void test_batch(void **state) {
  (void)state;
  for (int i = 0; i < SCHEDULES; i++) {
    Trial *alone = prepared(schedules[i], "causal", 1),
          *three = prepared(schedules[i], "causal", 3);
    assert_string_equal(alone->plans[1]->digest.hex, three->plans[1]->digest.hex);
    for (int64_t row = 0; row < 600; row++)
      for (int head = 0; head < 2; head++)
        for (int d = 0; d < 16; d++) {
          trial_set(three, TRIAL_Q, 0, row, head, d, trial_get(alone, TRIAL_Q, 0, row, head, d));
          trial_set(three, TRIAL_D_O, 0, row, head, d,
                    trial_get(alone, TRIAL_D_O, 0, row, head, d));
          if (head == 0) {
            trial_set(three, TRIAL_K, 0, row, 0, d, trial_get(alone, TRIAL_K, 0, row, 0, d));
            trial_set(three, TRIAL_V, 0, row, 0, d, trial_get(alone, TRIAL_V, 0, row, 0, d));
          }
        }
    assert_int_equal(trial_run(three), ROTA_OK);
    for (int64_t row = 0; row < 600; row++)
      for (int d = 0; d < 16; d++)
        assert_true(trial_get(alone, TRIAL_D_Q, 0, row, 1, d) ==
                    trial_get(three, TRIAL_D_Q, 0, row, 1, d));
    trial_destroy(alone);
    trial_destroy(three);
  }
}

static int setup(void **state) {
  (void)state;
  rota_context_options options = {.cache_dir = ""};
  return rota_context_create(&options, &context) == ROTA_OK ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  rota_context_destroy(context);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_workers),
      cmocka_unit_test(test_schedules_agree_with_fp64),
      cmocka_unit_test(test_batch),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
