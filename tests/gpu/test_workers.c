/* Workers that run several chains each (and, forward, several query tiles), under every shipped
 * schedule, against fp64 and bit by bit against themselves: full and causal masks, windows, tiles
 * that nobody attends (chains without visits, query tiles without keys), sequences of unequal
 * lengths, grouped heads.
 *
 * `test_workers --cpu` runs small shapes on the CPU device, so that the test can be tried out;
 * `test_workers 4` starts at the case of that number. */
#include "tests/support/calls.h"
#include "tests/support/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN = 4 };

static const char *const schedules[] = {
    "ascending", "descending", "shift",    "symmetric_shift", "shortest_first", "longest_first",
    "rotate",    "by_length",  "by_tiles", "optimized",       "tiers",          "halves"};

static const int32_t unequal[] = {0, 700, 700, 1724, 1725, 3000};

typedef struct Case {
  const char *name;
  TrialShape shape;
} Case;

/* Lengths on a GPU: hundreds of chains, more than any has multiprocessors. */
static const Case cases[] = {
    {"full", {.head_dim = 128, .heads = 16, .batch = 3, .n_q = 1024, .n_k = 1024}},
    {"causal",
     {.head_dim = 128, .heads = 16, .batch = 3, .n_q = 1024, .n_k = 1024, .mask = "causal"}},
    {"causal d 64",
     {.head_dim = 64, .heads = 16, .batch = 3, .n_q = 1024, .n_k = 1024, .mask = "causal"}},
    {"window",
     {.head_dim = 128,
      .heads = 16,
      .batch = 3,
      .n_q = 1024,
      .n_k = 1024,
      .mask = "window(200, 0)"}},
    {"odd tiles only",
     {.head_dim = 64,
      .heads = 16,
      .batch = 3,
      .n_q = 1000,
      .n_k = 1100,
      .mask = "where \"(k // 128) % 2 == 1 and (q // 128) % 2 == 1\""}},
    {"few keys", /* most query tiles of a worker's queue have nothing to attend to */
     {.head_dim = 128, .heads = 16, .batch = 2, .n_q = 4096, .n_k = 512, .mask = "causal"}},
    {"unequal lengths",
     {.head_dim = 128,
      .heads = 16,
      .kv_heads = 8,
      .batch = 5,
      .mask = "causal",
      .cu_q = unequal,
      .cu_k = unequal}},
    {"few chains", /* who has run its own must not take another worker's */
     {.head_dim = 128, .heads = 8, .batch = 4, .n_q = 200, .n_k = 400}},
};
enum { CASES = sizeof cases / sizeof cases[0], SCHEDULES = sizeof schedules / sizeof schedules[0] };

static TrialShape shape_of(const Case *one, bool small) {
  TrialShape shape = one->shape;
  shape.dtype = ROTA_BF16;
  shape.backward = "ordered";
  shape.seed = 11;
  if (small) {
    shape.heads = shape.kv_heads ? 2 : 1;
    shape.kv_heads = shape.kv_heads ? 1 : 0;
    shape.head_dim = 16;
    shape.batch = shape.cu_q ? 2 : 1; /* the first two sequences */
    shape.n_q = shape.n_q ? 300 : 0;
    shape.n_k = shape.n_k ? 330 : 0;
  }
  return shape;
}

/* Under one schedule: right, and the same bits several times. */
static bool run_schedule(rota_context *context, const Gpu *gpu, TrialShape shape, const char *name,
                         TrialReferences *references, bool *made) {
  Trial *trial = trial_create(&shape);
  must(trial_prepare(trial, context, gpu));
  must(trial_run(trial));
  if (!*made)
    trial_references_make(trial, references);
  *made = true;
  TrialReport report = trial_compare(trial, references);
  Digest first = trial_all_bits(trial);
  int different = 0;
  for (int i = 0; i < AGAIN; i++) {
    must(trial_run(trial));
    different += strcmp(trial_all_bits(trial).hex, first.hex) != 0;
  }
  bool good = report.good && different == 0 && trial_margins_intact(trial);
  printf("%-16s %-16s %d of %d with other bits", name, shape.schedule, different, AGAIN);
  trial_print_report(&report);
  fflush(stdout); /* a schedule that hangs is the one after the last line */
  trial_destroy(trial);
  return good;
}

int main(int count, char **arguments) {
  bool cpu = count == 2 && strcmp(arguments[1], "--cpu") == 0;
  int first = count == 2 && !cpu ? atoi(arguments[1]) : 0;
  if (first < 0 || first >= CASES) {
    fprintf(stderr, "test_workers: no case %s; they are 0 to %d\n", arguments[1], CASES - 1);
    return 2;
  }
  Gpu gpu;
  if (!cpu && !gpu_open(&gpu))
    return TEST_SKIP;
  rota_context *context = calls_context();
  int failures = 0;
  for (int i = first; i < CASES; i++) {
    TrialShape shape = shape_of(&cases[i], cpu);
    TrialReferences references;
    bool made = false;
    for (int j = 0; j < SCHEDULES; j++) {
      shape.schedule = schedules[j];
      failures +=
          !run_schedule(context, cpu ? NULL : &gpu, shape, cases[i].name, &references, &made);
    }
    trial_references_free(&references);
  }
  printf("workers: %d of %d failed\n", failures, (CASES - first) * SCHEDULES);
  rota_context_destroy(context);
  if (!cpu)
    gpu_close(&gpu);
  return failures != 0;
}
