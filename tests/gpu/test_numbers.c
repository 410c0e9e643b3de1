/* Kernels on the GPU against fp64: dtypes, head dims, masks, lengths and algorithms, with random
 * inputs over poisoned outputs. The error may be twice that of the same computation with P, dS
 * and results rounded to the dtype. Then: the same bits over 200 runs, while another stream
 * keeps the GPU busy. Prints a table and a summary.
 *
 * `test_numbers --compile sm_90` compiles its kernels into ROTA_CACHE_DIR on a machine without a
 * GPU: taken along, they save the other machine the minutes. `test_numbers --part 0 4` runs the
 * first of four parts, each of which has its own kernels. */
#include "tests/support/calls.h"
#include "tests/support/load.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_MAX = 2048, REPEATS = 200, REPEAT_LENGTH = 1024 };

typedef struct MaskCase {
  const char *name, *mask;
  bool documents;
} MaskCase;

static const MaskCase masks[] = {
    {"causal", "causal", false},
    {"full", NULL, false},
    {"window", "window(100, 0)", false},
    {"document", "causal & document", true},
    {"free", "where \"(q >= k and q - k <= 256) or (q >= 4 and k <= 4)\"", false},
};
enum { MASKS = sizeof masks / sizeof masks[0] };
static const int dims[][2] = {{40, 40}, {64, 64}, {80, 80}, {128, 128}, {192, 128}, {256, 256}};
enum { DIMS = sizeof dims / sizeof dims[0] };
static const int lengths[][2] = {{1, 1}, {113, 113}, {1024, 1024}, {2048, 1024}};
/* "spread": `exact` by that bound. */
static const char *const algorithms[] = {"ordered", "two_pass", "exact", "spread", "atomic"};
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

typedef struct Totals {
  int combinations, unsupported, failures;
  double worst; /* error over yardstick */
  char worst_name[96];
} Totals;

static void count(Totals *totals, const TrialReport *report, const char *name) {
  totals->combinations++;
  totals->failures += !report->good;
  for (TrialRole role = 0; role < TRIAL_ROLES; role++) {
    double ratio =
        report->limit[role] > 0.0 ? 2.0 * report->error[role] / report->limit[role] : 0.0;
    if (ratio <= totals->worst)
      continue;
    totals->worst = ratio;
    snprintf(totals->worst_name, sizeof totals->worst_name, "%s", name);
  }
}

static int32_t ids[2 * LENGTH_MAX]; /* documents of 90 and 250 tokens */

static TrialShape shape_of(rota_dtype dtype, const int *dim, const MaskCase *mask,
                           const int *length, rota_named_tensor *documents) {
  int longest = length[0] > length[1] ? length[0] : length[1];
  TrialShape shape = {.dtype = dtype,
                      .head_dim = dim[0],
                      .head_dim_v = dim[1],
                      .heads = 8,
                      .kv_heads = 2,
                      .batch = longest > 200 ? 1 : 2,
                      .n_q = length[0],
                      .n_k = length[1],
                      .mask = mask->mask,
                      .seed = (uint64_t)(longest + dim[0])};
  *documents =
      (rota_named_tensor){"document", ROTA_INT32, 2, {shape.batch, longest}, {LENGTH_MAX, 1}, ids};
  if (mask->documents) {
    shape.tensors = documents;
    shape.tensor_count = 1;
  }
  return shape;
}

static void set_algorithm(TrialShape *shape, const char *algorithm) {
  bool spread = strcmp(algorithm, "spread") == 0;
  shape->backward = spread ? "exact" : algorithm;
  shape->bound = spread ? algorithm : NULL;
  shape->nondeterministic = strcmp(algorithm, "atomic") == 0;
}

static void stop(const char *name, const char *algorithm) {
  printf("%s %s: %s\n", name, algorithm, rota_error_message());
  exit(1);
}

static void run_shape(rota_context *context, const Gpu *gpu, TrialShape shape, const char *name,
                      Totals *totals) {
  TrialReferences references;
  bool made = false;
  for (int i = 0; i < ALGORITHMS; i++) {
    set_algorithm(&shape, algorithms[i]);
    Trial *trial = trial_create(&shape);
    rota_status status = trial_prepare(trial, context, gpu);
    if (status == ROTA_UNSUPPORTED) { /* an answer, but one that the table shows */
      printf("%-34s %-8s %s\n", name, algorithms[i], rota_error_message());
      totals->unsupported++;
      trial_destroy(trial);
      continue;
    }
    if (status != ROTA_OK || trial_run(trial) != ROTA_OK)
      stop(name, algorithms[i]);
    if (!made)
      trial_references_make(trial, &references);
    made = true;
    TrialReport report = trial_compare(trial, &references);
    printf("%-34s %-8s", name, algorithms[i]);
    trial_print_report(&report);
    if (!trial_margins_intact(trial))
      report.good = false;
    count(totals, &report, name);
    trial_destroy(trial);
  }
  if (!made)
    stop(name, "no algorithm");
  trial_references_free(&references);
}

/* One entry per kernel family: all dims under the first mask, all masks at head dims 64 and 128. */
typedef struct Config {
  rota_dtype dtype;
  int dim, mask;
} Config;

static int list_configs(Config *configs, int part, int parts) {
  int number = 0, all = 0;
  for (int dtype = 0; dtype < 2; dtype++)
    for (int dim = 0; dim < DIMS; dim++)
      for (int mask = 0; mask < MASKS; mask++)
        if ((mask == 0 || dims[dim][0] == 64 || dims[dim][0] == 128) && all++ % parts == part)
          configs[number++] = (Config){dtype ? ROTA_FP16 : ROTA_BF16, dim, mask};
  return number;
}

/* Compiles all kernels side by side into the context's memory; without this the test waits for
 * one after another. */
static void compile_all(rota_context *context, const char *architecture, const Gpu *gpu,
                        const Config *configs, int number) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int i = 0; i < number * ALGORITHMS; i++) {
    const Config *config = &configs[i / ALGORITHMS];
    const int shortest[2] = {1, 1};
    rota_named_tensor documents;
    TrialShape shape =
        shape_of(config->dtype, dims[config->dim], &masks[config->mask], shortest, &documents);
    set_algorithm(&shape, algorithms[i % ALGORITHMS]);
    rota_spec_fields fields = {.dtype = shape.dtype,
                               .head_dim = shape.head_dim,
                               .head_dim_v = shape.head_dim_v,
                               .heads = shape.heads,
                               .kv_heads = shape.kv_heads,
                               .mask = shape.mask,
                               .allow_nondeterministic = shape.nondeterministic,
                               .backward = shape.backward,
                               .bound = shape.bound};
    rota_spec *spec;
    if (rota_spec_create(context, &fields, &spec) != ROTA_OK)
      continue; /* run_shape will say it */
    for (int direction = 0; direction < 2; direction++) {
      rota_kernel *kernel;
      rota_kernel_request request = {.direction = (rota_direction)direction,
                                     .device = gpu ? ROTA_DEVICE_CUDA : ROTA_DEVICE_CPU,
                                     .architecture = architecture};
      if (architecture)
        request.device = ROTA_DEVICE_CUDA;
      if (rota_kernel_prepare(context, spec, &request, &kernel) == ROTA_OK)
        rota_kernel_destroy(kernel);
    }
    rota_spec_destroy(spec);
  }
}

/* The same bits `repeats` times, under a load that differs from run to run. */
static bool repeat(rota_context *context, const Gpu *gpu, TrialShape shape, const char *name,
                   int repeats) {
  Load load = load_start(context, gpu);
  Trial *trial = trial_create(&shape);
  if (gpu)
    trial->stream = gpu->stream; /* not the legacy stream, which waits for others */
  if (trial_prepare(trial, context, gpu) != ROTA_OK || trial_run(trial) != ROTA_OK)
    stop(name, shape.backward);
  Digest first = trial_all_bits(trial);
  int different = 0;
  for (int i = 1; i < repeats; i++) {
    load_push(&load, i % 5);
    if (trial_run(trial) != ROTA_OK)
      exit(1);
    different += strcmp(trial_all_bits(trial).hex, first.hex) != 0;
  }
  printf("%-34s %-8s %d runs, %d with other bits (%s)\n", name,
         shape.bound ? shape.bound : shape.backward, repeats, different, first.hex);
  trial_destroy(trial);
  load_stop(&load);
  return different == 0;
}

static int repeat_all(rota_context *context, const Gpu *gpu, int part, int parts) {
  const Config configs[] = {{ROTA_BF16, 1, 0},
                            {ROTA_BF16, 3, 0},
                            {ROTA_FP16, 3, 2},
                            {ROTA_BF16, 4, 3},
                            {ROTA_FP16, 1, 1}};
  int failures = 0;
  for (int i = part; i < (int)(sizeof configs / sizeof configs[0]); i += parts)
    for (int j = 0; j < 4; j++) { /* ordered, two_pass, exact, spread */
      const Config *config = &configs[i];
      if (j >= 2 && dims[config->dim][0] > 128)
        continue; /* not served */
      const int square[2] = {REPEAT_LENGTH, REPEAT_LENGTH};
      rota_named_tensor documents;
      TrialShape shape =
          shape_of(config->dtype, dims[config->dim], &masks[config->mask], square, &documents);
      set_algorithm(&shape, algorithms[j]);
      char name[96];
      snprintf(name, sizeof name, "%s d %d/%d %s %d, repeated", dtype_name(config->dtype),
               shape.head_dim, shape.head_dim_v, masks[config->mask].name, REPEAT_LENGTH);
      failures += !repeat(context, gpu, shape, name, REPEATS);
    }
  return failures;
}

static int run_part(const Gpu *gpu, int part, int parts) {
  rota_context *context = calls_context();
  for (int i = 0; i < 2 * LENGTH_MAX; i++)
    ids[i] = i % LENGTH_MAX / (i < LENGTH_MAX ? 90 : 250);
  Config configs[2 * DIMS * MASKS];
  int number = list_configs(configs, part, parts);
  double start = omp_get_wtime();
  compile_all(context, NULL, gpu, configs, number);
  printf("%d kernel families prepared in %.1f s; columns: error / error of the dtype\n", number,
         omp_get_wtime() - start);
  Totals totals = {0};
  for (int i = 0; i < number; i++)
    for (int j = 0; j < (int)(sizeof lengths / sizeof lengths[0]); j++) {
      const Config *config = &configs[i];
      rota_named_tensor documents;
      TrialShape shape =
          shape_of(config->dtype, dims[config->dim], &masks[config->mask], lengths[j], &documents);
      char name[96];
      snprintf(name, sizeof name, "%s d %d/%d %s %dx%d", dtype_name(config->dtype), shape.head_dim,
               shape.head_dim_v, masks[config->mask].name, shape.n_q, shape.n_k);
      run_shape(context, gpu, shape, name, &totals);
    }
  int unstable = repeat_all(context, gpu, part, parts);
  rota_context_destroy(context);
  printf("numbers: %d combinations, %d too large, %d not served; largest error %.2f times the "
         "dtype's own (%s); "
         "%d unstable\n",
         totals.combinations, totals.failures, totals.unsupported, totals.worst, totals.worst_name,
         unstable);
  return totals.failures != 0 || unstable != 0;
}

static int compile_only(const char *architecture) {
  Config configs[2 * DIMS * MASKS];
  rota_context *context = calls_context();
  compile_all(context, architecture, NULL, configs, list_configs(configs, 0, 1));
  rota_context_destroy(context);
  return 0;
}

int main(int count, char **arguments) {
  if (count == 3 && strcmp(arguments[1], "--compile") == 0)
    return compile_only(arguments[2]);
  bool partial = count == 4 && strcmp(arguments[1], "--part") == 0;
  int part = partial ? atoi(arguments[2]) : 0, parts = partial ? atoi(arguments[3]) : 1;
  if ((count > 1 && !partial) || part < 0 || part >= parts) {
    fprintf(stderr,
            "usage: test_numbers [--compile ARCHITECTURE | --part PART PARTS], PART from 0\n");
    return 2;
  }
  Gpu gpu;
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  setvbuf(stdout, NULL, _IOLBF, 0);
  int failed = run_part(&gpu, part, parts);
  gpu_close(&gpu);
  return failed;
}
