/* rota calibrate: what the DAG model charges on this GPU. Times the ordered backward pass of a few
 * shapes and schedules, in which visits, hand-offs and starts weigh differently, and fits the costs
 * so that the simulation gives those times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command/commands.h"
#include "command/progress.h"
#include "command/run_state.h"
#include "generator/costs_fit.h"
#include "generator/figures.h"
#include "generator/script_tuning.h"
#include "runtime/kernel.h"
#include "runtime/prepared.h"

/* The same number of tokens times heads in all, so that what lies outside the simulated kernel is
 * the same. Cheap orders tell visits and starts, costly ones hand-offs, causal ones partial tiles.
 */
enum { TOKENS = 65536, HEAD_DIM = 128, SCHEDULES_MAX = 4, ROUNDS = 5 };
static const double batch_seconds = 0.005;

static const struct {
  const char *mask;
  int length;
  const char *schedules[SCHEDULES_MAX];
} shapes[] = {
    {"full", 512, {"ascending", "shift", NULL}},
    {"full", 2048, {"ascending", "descending", "shift", NULL}},
    {"full", 8192, {"ascending", "shift", NULL}},
    {"causal", 512, {"ascending", "shortest_first", NULL}},
    {"causal", 2048, {"ascending", "descending", "shortest_first", "symmetric_shift"}},
    {"causal", 8192, {"ascending", "descending", "shortest_first", "symmetric_shift"}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SAMPLES_MAX = SHAPES * SCHEDULES_MAX };

/* One shape and schedule that was timed. */
typedef struct Sample {
  int shape;
  const char *schedule;
  rota_kernel *kernel;
  rota_plan *plan;
  PlanProblem problem;
  double seconds[ROUNDS];
} Sample;

typedef struct Calibration {
  const Options *options;
  Sample samples[SAMPLES_MAX];
  FitSample fits[SAMPLES_MAX];
  int count;
  Tiling tiling;
  Costs start;
  Fit fit;
} Calibration;

static int compare_times(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median of some rounds, each long enough to be timed by the host's clock. */
static rota_status time_sample(RunState *run, Sample *sample, void *workspace) {
  double seconds;
  ROTA_TRY(run_time(run, sample->plan, workspace, 2, &seconds));
  ROTA_TRY(run_time(run, sample->plan, workspace, 2, &seconds));
  int batch = 1 + (int)(batch_seconds / (seconds > 1e-6 ? seconds : 1e-6));
  for (int round = 0; round < ROUNDS; round++)
    ROTA_TRY(run_time(run, sample->plan, workspace, batch, &sample->seconds[round]));
  qsort(sample->seconds, ROUNDS, sizeof(double), compare_times);
  return ROTA_OK;
}

static rota_status add_sample(Calibration *calibration, RunState *run, int shape,
                              const char *schedule) {
  Sample *sample = &calibration->samples[calibration->count++];
  *sample = (Sample){.shape = shape, .schedule = schedule};
  Candidate candidate = {
      .direction = ROTA_BACKWARD, .backward = BACKWARD_ORDERED, .tiling = "auto"};
  snprintf(candidate.schedule, sizeof candidate.schedule, "%s", schedule);
  ROTA_TRY(run_prepare(run, &candidate, &sample->kernel, &sample->plan));
  void *workspace;
  ROTA_TRY(buffer_create(&run->buffers, rota_plan_workspace_size(sample->plan), &workspace));
  rota_status status = time_sample(run, sample, workspace);
  buffer_destroy(&run->buffers, workspace);
  ROTA_TRY(status);
  ROTA_TRY(plan_problem_build(sample->plan->plan, &sample->problem));
  calibration->tiling = sample->plan->plan->tiling;
  calibration->fits[calibration->count - 1] =
      (FitSample){&sample->problem.problem, 1e6 * COSTS_TICKS * sample->seconds[ROUNDS / 2]};
  return ROTA_OK;
}

/* One shape: tensors and forward pass once, then its schedules. */
static rota_status time_shape(Calibration *calibration, int shape) {
  char chunk[160];
  snprintf(chunk, sizeof chunk,
           "return rota.attention{head_dim = %d, heads = %d, mask = %s, backward = \"ordered\"}",
           HEAD_DIM, TOKENS / shapes[shape].length, shapes[shape].mask);
  Options options = *calibration->options;
  options.chunk = chunk;
  options.n_q = options.n_k = shapes[shape].length;
  options.backward = true;
  RunState run;
  rota_status status = run_open(&options, &run);
  if (status == ROTA_OK)
    status = run_repeat(&run);
  for (int i = 0; i < SCHEDULES_MAX && shapes[shape].schedules[i] && status == ROTA_OK; i++) {
    progress_show(calibration->count, SAMPLES_MAX, shapes[shape].schedules[i]);
    status = add_sample(calibration, &run, shape, shapes[shape].schedules[i]);
  }
  if (status == ROTA_OK)
    status = script_costs(run.model.script, &run.model.spec, &calibration->tiling, NULL, NULL,
                          &calibration->start);
  /* Plans outlive the run: the fit reads their tables, through problems of their own. */
  for (int i = 0; i < calibration->count; i++) {
    rota_plan_destroy(calibration->samples[i].plan);
    rota_kernel_destroy(calibration->samples[i].kernel);
    calibration->samples[i].plan = NULL;
    calibration->samples[i].kernel = NULL;
  }
  run_close(&run);
  return status;
}

/* ---- Results ---- */

static void show_round(int round) {
  progress_show(round, FIT_ROUNDS, "fitting");
}

static rota_status print_table(const Calibration *calibration) {
  printf("%-8s %7s %-18s %10s %10s\n", "mask", "length", "schedule", "measured", "modelled");
  for (int i = 0; i < calibration->count; i++) {
    double ticks;
    const Sample *sample = &calibration->samples[i];
    ROTA_TRY(costs_fit_time(calibration->fits[i].problem, &calibration->fit, &ticks));
    printf("%-8s %7d %-18s %7.1f us %7.1f us\n", shapes[sample->shape].mask,
           shapes[sample->shape].length, sample->schedule, calibration->fits[i].ticks / COSTS_TICKS,
           ticks / COSTS_TICKS);
  }
  const Costs *costs = &calibration->fit.costs;
  printf("tiles %d x %d, head dim %d: ", calibration->tiling.tile_q, calibration->tiling.tile_kv,
         HEAD_DIM);
#define X(name, letter, meaning) printf("%s %.3f, ", #name, costs_units(costs->name));
  COSTS_LIST(X)
#undef X
  printf("staging %d; outside %.1f us; error %.1f %%\n", costs->staging,
         calibration->fit.base / COSTS_TICKS, 100 * calibration->fit.error);
  return ROTA_OK;
}

static rota_status write_costs(const Calibration *calibration, const char *device,
                               const char *path) {
  Model model;
  Options options = {.chunk = "return rota.attention{head_dim = 128}"};
  char date[16], *text = NULL;
  time_t now = time(NULL);
  struct tm day;
  gmtime_r(&now, &day);
  strftime(date, sizeof date, "%Y-%m-%d", &day);
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK)
    status = script_cost_file(model.script, &model.spec, &calibration->tiling,
                              &calibration->fit.costs, device, date, &text);
  model_close(&model);
  FILE *file = status == ROTA_OK ? fopen(path, "w") : NULL;
  if (status == ROTA_OK && (!file || fputs(text, file) < 0 || fclose(file) != 0))
    status = status_fail(ROTA_FILE, "%s: cannot be written", path);
  free(text);
  if (status == ROTA_OK)
    printf("%s: written; used with --costs %s\n", path, path);
  return status;
}

static rota_status calibrate(Calibration *calibration, const char *device, const char *path) {
  for (int shape = 0; shape < SHAPES; shape++)
    ROTA_TRY(time_shape(calibration, shape));
  calibration->fit = (Fit){.costs = calibration->start, .base = 20.0 * COSTS_TICKS};
  ROTA_TRY(costs_fit(calibration->fits, calibration->count, show_round, &calibration->fit));
  progress_end();
  ROTA_TRY(print_table(calibration));
  return write_costs(calibration, device, path);
}

int command_calibrate(int count, char **arguments) {
  Options options;
  options_parse(count, arguments, OPTIONS_DEVICE | OPTIONS_OUTPUT, "",
                "Times the ordered backward pass of several shapes and schedules on the GPU, fits "
                "the DAG model's costs to them, and writes a cost file (--output, default "
                "rota-costs.lua) for --costs.",
                &options);
  Device *device = NULL;
  rota_status status =
      options.device == ROTA_DEVICE_CPU
          ? status_fail(ROTA_NO_DEVICE,
                        "the CPU device runs one worker after another: nobody waits")
          : device_open(options.ordinal, &device);
  if (status != ROTA_OK)
    status_prefix(status, "a GPU is needed to measure on, without one the H200's figures of "
                          "lua/costs.lua serve: ");
  Calibration *calibration = status == ROTA_OK ? memory_allocate(1, sizeof *calibration) : NULL;
  if (status == ROTA_OK && !calibration)
    status = ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK) {
    calibration->options = &options;
    status =
        calibrate(calibration, device->name, options.output ? options.output : "rota-costs.lua");
  }
  for (int i = 0; calibration && i < calibration->count; i++)
    plan_problem_free(&calibration->samples[i].problem);
  free(calibration);
  device_release(device);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("calibrate");
}
