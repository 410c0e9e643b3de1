/* rota tune: measures the candidates for one shape on the device and writes the winner to a tuning
 * file. Without a GPU the model decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/commands.h"
#include "command/planned.h"
#include "command/progress.h"
#include "command/run_state.h"
#include "command/tuning.h"
#include "generator/script_tuning.h"
#include "runtime/kernel.h"
#include "runtime/prepared.h"

enum { ROUNDS = 7, BATCH_MAX = 200, LEFT_OUT_MAX = 16 };
static const double batch_seconds = 0.01; /* of launches one after another, at least */

/* One candidate: what it takes in the model and on the device. */
typedef struct Trial {
  const Candidate *candidate;
  rota_kernel *kernel;
  rota_plan *plan;
  double modelled; /* in the costs' unit */
  double seconds[ROUNDS];
  double median;
  int batch; /* launches per measurement */
  bool served;
} Trial;

typedef struct Tune {
  const Options *options;
  Model *model;
  Candidate *candidates;
  Trial *trials;
  int count;               /* of trials */
  bool told[LEFT_OUT_MAX]; /* by backward algorithm: that it is left out */
  TuningKey key;
  bool measured;
  char unit[16];
} Tune;

/* `two_pass` computes seven products where the others compute five. */
static double modelled_time(const Planned *planned) {
  double time = costs_units(planned->figures.figures.makespan);
  return !strcmp(planned->plan->tiling.algorithm, "two_pass") ? time * 7 / 5 : time;
}

/* Asks the model about a candidate; one that no kernel serves drops out. */
static rota_status model_trial(Tune *tune, Trial *trial) {
  Planned planned;
  Backward before = tune->model->spec.backward;
  tune->model->spec.backward = trial->candidate->backward;
  rota_status status = planned_create(tune->options, tune->model, ROTA_BACKWARD,
                                      trial->candidate->schedule, false, &planned);
  tune->model->spec.backward = before;
  trial->served = status == ROTA_OK;
  if (status == ROTA_OK) {
    trial->modelled = modelled_time(&planned);
    snprintf(tune->unit, sizeof tune->unit, "%s", planned.costs.unit);
  }
  planned_free(&planned);
  if (status != ROTA_UNSUPPORTED && status != ROTA_SCHEDULE)
    return status;
  char name[SYMBOL_NAME_MAX + 2];
  snprintf(name, sizeof name, " %s", trial->candidate->schedule);
  /* An algorithm that is not served is so with every schedule. */
  bool *told = &tune->told[trial->candidate->backward % LEFT_OUT_MAX];
  if (status == ROTA_SCHEDULE || !*told)
    fprintf(stderr, "rota tune: %s%s is left out: %s\n", backward_name(trial->candidate->backward),
            status == ROTA_SCHEDULE ? name : "", status_message());
  *told = *told || status == ROTA_UNSUPPORTED;
  status_clear();
  return ROTA_OK;
}

static rota_status model_trials(Tune *tune) {
  int all;
  ROTA_TRY(script_candidates(tune->model->script, &tune->model->spec, &tune->candidates, &all));
  tune->trials = memory_allocate((size_t)all + 1, sizeof(Trial));
  if (!tune->trials)
    return ROTA_OUT_OF_MEMORY;
  for (int i = 0; i < all; i++) {
    Trial *trial = &tune->trials[tune->count];
    *trial = (Trial){.candidate = &tune->candidates[i], .batch = 1};
    progress_show(i, all, trial->candidate->schedule);
    ROTA_TRY(model_trial(tune, trial));
    tune->count += trial->served;
  }
  progress_end();
  if (tune->count == 0)
    return status_fail(ROTA_UNSUPPORTED, "no candidate serves this model");
  return ROTA_OK;
}

/* ---- Measuring ---- */

static int compare_times(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Takes turns, so that all candidates meet the same clock and temperature. */
static rota_status measure_rounds(Tune *tune, RunState *run, void *workspace) {
  for (int i = 0; i < tune->count; i++) { /* warm up, and find the size of a batch */
    double seconds;
    ROTA_TRY(run_time_backward(run, tune->trials[i].plan, workspace, 1, &seconds));
    ROTA_TRY(run_time_backward(run, tune->trials[i].plan, workspace, 1, &seconds));
    double count = batch_seconds / (seconds > 1e-7 ? seconds : 1e-7);
    tune->trials[i].batch = count < 1 ? 1 : count > BATCH_MAX ? BATCH_MAX : (int)count;
  }
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < tune->count; i++) {
      Trial *trial = &tune->trials[round % 2 ? tune->count - 1 - i : i];
      progress_show(round * tune->count + i, ROUNDS * tune->count, trial->candidate->schedule);
      ROTA_TRY(
          run_time_backward(run, trial->plan, workspace, trial->batch, &trial->seconds[round]));
    }
  progress_end();
  for (int i = 0; i < tune->count; i++) {
    qsort(tune->trials[i].seconds, ROUNDS, sizeof(double), compare_times);
    tune->trials[i].median = tune->trials[i].seconds[ROUNDS / 2];
  }
  return ROTA_OK;
}

static rota_status measure(Tune *tune, RunState *run) {
  ROTA_TRY(run_open(tune->options, run));
  ROTA_TRY(run_repeat(run)); /* o and lse */
  size_t bytes = 0;
  for (int i = 0; i < tune->count; i++) {
    Trial *trial = &tune->trials[i];
    progress_show(i, tune->count, trial->candidate->schedule);
    ROTA_TRY(run_prepare_backward(run, trial->candidate->backward, trial->candidate->schedule,
                                  &trial->kernel, &trial->plan));
    size_t needed = rota_plan_workspace_size(trial->plan);
    bytes = needed > bytes ? needed : bytes;
  }
  void *workspace;
  ROTA_TRY(buffer_create(&run->buffers, bytes, &workspace));
  rota_status status = measure_rounds(tune, run, workspace);
  buffer_destroy(&run->buffers, workspace);
  return status;
}

/* ---- Results ---- */

static double time_of(const Tune *tune, const Trial *trial) {
  return tune->measured ? trial->median : trial->modelled;
}

static int compare_trials(const void *a, const void *b) {
  const Trial *x = a, *y = b;
  double p = x->median > 0 ? x->median : x->modelled, q = y->median > 0 ? y->median : y->modelled;
  if (p != q)
    return p > q ? 1 : -1;
  return x->candidate < y->candidate ? -1 : 1; /* the order of lua/tuning.lua */
}

static json_t *describe(const Tune *tune) {
  json_t *list = json_array();
  for (int i = 0; i < tune->count; i++) {
    const Trial *trial = &tune->trials[i];
    json_t *entry = json_pack(
        "{s:s s:s s:f s:s}", "backward", backward_name(trial->candidate->backward), "schedule",
        trial->candidate->schedule, "modelled", trial->modelled, "unit", tune->unit);
    if (tune->measured) {
      json_object_set_new(entry, "milliseconds", json_real(1e3 * trial->median));
      json_object_set_new(entry, "digest", json_string(trial->plan->digest.hex));
    }
    json_array_append_new(list, entry);
  }
  return list;
}

static void print_table(const Tune *tune, const char *path) {
  printf("%s; shape %s on %s, %s\n", tune->key.spec, tune->key.shape, tune->key.device,
         tune->measured ? "measured" : "by the model alone: no GPU to measure on");
  printf("%-10s %-26s %12s %14s\n", "backward", "schedule", tune->measured ? "ms" : "", "modelled");
  for (int i = 0; i < tune->count; i++) {
    const Trial *trial = &tune->trials[i];
    char time[32] = "";
    if (tune->measured)
      snprintf(time, sizeof time, "%.3f", 1e3 * trial->median);
    printf("%-10s %-26s %12s %11.1f %s\n", backward_name(trial->candidate->backward),
           trial->candidate->schedule, time, trial->modelled, tune->unit);
  }
  printf("%s: written; adopt it with --tuning %s\n", path, path);
}

/* Candidates sorted, the fastest into the file. */
static rota_status finish(Tune *tune) {
  const char *path = tune->options->output ? tune->options->output : "rota-tuning.json";
  qsort(tune->trials, (size_t)tune->count, sizeof(Trial), compare_trials);
  const Trial *best = &tune->trials[0];
  TuningChoice choice = {.backward = best->candidate->backward, .measured = tune->measured};
  memcpy(choice.schedule, best->candidate->schedule, sizeof choice.schedule);
  choice.milliseconds = time_of(tune, best) * (tune->measured ? 1e3 : 1e-3);
  json_t *list = describe(tune);
  rota_status status = tuning_record(path, &tune->key, &choice, list);
  if (status == ROTA_OK && tune->options->json)
    status = json_print(json_incref(list));
  else if (status == ROTA_OK)
    print_table(tune, path);
  json_decref(list);
  return status;
}

static void close_tune(Tune *tune) {
  for (int i = 0; i < tune->count; i++) {
    rota_plan_destroy(tune->trials[i].plan);
    rota_kernel_destroy(tune->trials[i].kernel);
  }
  free(tune->trials);
  free(tune->candidates);
  tuning_key_free(&tune->key);
}

int command_tune(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_SHAPE | OPTIONS_RUN | OPTIONS_DEVICE | OPTIONS_ARCH |
                    OPTIONS_COSTS | OPTIONS_OUTPUT | OPTIONS_JSON,
                "MODEL.lua",
                "Times backward algorithms and schedules for one shape and writes the fastest to a "
                "tuning file (--output, default rota-tuning.json), which `rota run --tuning` "
                "adopts. Without a GPU the DAG model decides.",
                &options);
  options.backward = true;
  Model model;
  RunState run = {.options = NULL};
  Tune tune = {.options = &options, .model = &model};
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK)
    status = tuning_key_create(&options, &model, &tune.key);
  if (status == ROTA_OK)
    status = model_trials(&tune);
  tune.measured = tune.key.device_present || options.device == ROTA_DEVICE_CPU;
  if (status == ROTA_OK && tune.measured)
    status = measure(&tune, &run);
  if (status == ROTA_OK)
    status = finish(&tune);
  int result = status == ROTA_OK ? EXIT_SUCCESS : command_fail("tune");
  close_tune(&tune);
  if (run.options)
    run_close(&run);
  model_close(&model);
  return result;
}
