/* What the cases share. */
#include "tests/support/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CaseDevice case_device;

int case_size(int full, int small) {
  return case_device.gpu ? full : small;
}

Trial *case_prepare(const TrialShape *shape) {
  Trial *trial = trial_create(shape);
  if (trial_prepare(trial, case_device.context, case_device.gpu) != ROTA_OK)
    fail_msg("%s: %s", shape->mask ? shape->mask : "no mask", rota_error_message());
  return trial;
}

void case_run(Trial *trial) {
  if (trial_run(trial) != ROTA_OK)
    fail_msg("%s", rota_error_message());
}

Digest case_bits(Trial *trial) {
  case_run(trial);
  return trial_all_bits(trial);
}

/* False where the algorithm does not serve the shape. */
static bool check_algorithm(const char *name, const TrialShape *shape, TrialReferences *references,
                            bool first_algorithm) {
  Trial *trial = trial_create(shape);
  rota_status status = trial_prepare(trial, case_device.context, case_device.gpu);
  if (status == ROTA_UNSUPPORTED) {
    printf("  %-28s %s\n", name, rota_error_message());
    trial_destroy(trial);
    return false;
  }
  if (status != ROTA_OK)
    fail_msg("%s: %s", name, rota_error_message());
  Digest first = case_bits(trial), second = case_bits(trial);
  if (first_algorithm)
    trial_references_make(trial, references);
  TrialReport report = trial_compare(trial, references);
  if (first_algorithm || !report.good) {
    printf("  %-28s %-8s", name, shape->bound ? shape->bound : shape->backward);
    trial_print_report(&report);
  }
  if (!report.good)
    fail_msg("%s, %s: the error is too large", name, shape->backward);
  if (strcmp(shape->backward, "atomic") != 0)
    assert_string_equal(first.hex, second.hex);
  assert_true(trial_margins_intact(trial));
  trial_destroy(trial);
  return true;
}

void case_check(const char *name, const TrialShape *shape) {
  enum { EXACT = 4, EXACT_BY_SPREAD, COUNT };
  static const char *const algorithms[] = {"ordered",      "two_pass", "atomic",
                                           "materialised", "exact",    "exact"};
  TrialReferences references;
  bool made = false;
  for (int i = 0; i < COUNT; i++) {
    TrialShape with = *shape;
    if (shape->backward && strcmp(shape->backward, algorithms[i]) != 0)
      continue;
    /* Where it would be chosen; and it is compiled for GPUs alone. */
    if (i == 3 && !shape->backward && (!case_device.gpu || shape->head_dim <= 128))
      continue;
    if (i >= EXACT && !shape->backward && !case_device.gpu) /* for GPUs alone, too */
      continue;
    /* On the CPU `atomic` goes by the ranks, as `ordered` does: test_cpu_device has it. */
    if (!case_device.gpu && !shape->backward && i == 2)
      continue;
    with.backward = algorithms[i];
    with.bound = i == EXACT_BY_SPREAD ? "spread" : NULL;
    with.nondeterministic = strcmp(algorithms[i], "atomic") == 0;
    if (check_algorithm(name, &with, &references, !made))
      made = true;
  }
  if (!made)
    fail_msg("%s: no algorithm serves it", name);
  trial_references_free(&references);
}

static bool chosen(const char *group, const char *name) {
  return !group || !strcmp(group, name);
}

int cases_run(const Gpu *gpu, const char *group) {
  if (group && strcmp(group, "determinism") && strcmp(group, "masks") && strcmp(group, "shapes") &&
      strcmp(group, "pieces") && strcmp(group, "scores")) {
    fprintf(stderr, "cases: no group %s; they are determinism, masks, shapes, pieces and scores\n",
            group);
    return 1;
  }
  rota_context_options options = {.cache_dir = getenv("ROTA_CACHE_DIR") ? NULL : "", .debug = -1};
  case_device.gpu = gpu;
  if (rota_context_create(&options, &case_device.context) != ROTA_OK) {
    fprintf(stderr, "%s\n", rota_error_message());
    return 1;
  }
  int failures = 0;
  if (chosen(group, "determinism"))
    failures += cases_determinism();
  if (chosen(group, "masks"))
    failures += cases_masks();
  if (chosen(group, "shapes"))
    failures += cases_shapes();
  if (chosen(group, "pieces"))
    failures += cases_pieces();
  if (chosen(group, "scores"))
    failures += cases_scores();
  rota_context_destroy(case_device.context);
  return failures;
}
