/* rota tune: measures the candidates for one shape on the device and writes the winners to a tuning
 * file: the forward pass's tiling, then the backward pass's algorithm, tiling and schedule. Without
 * a GPU the ranking of tilings and the DAG model decide. */
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

enum { ROUNDS = 7, BATCH_MAX = 200, LEFT_OUT_MAX = 16, LABEL_MAX = SYMBOL_NAME_MAX + 48 };
static const double batch_seconds = 0.01; /* of launches one after another, at least */

/* One candidate: what it takes in the model and on the device. */
typedef struct Trial {
  const Candidate *candidate;
  rota_kernel *kernel;
  rota_plan *plan;
  double modelled; /* backward: in the costs' unit */
  double seconds[ROUNDS];
  double median;
  int batch; /* launches per measurement */
} Trial;

/* Those of one direction, best first in the end. */
typedef struct Trials {
  rota_direction direction;
  Trial *list;
  int count;
} Trials;

typedef struct Tune {
  const Options *options;
  Model *model;
  Candidate *candidates;
  Trials trials[2];        /* by direction */
  bool told[LEFT_OUT_MAX]; /* by backward algorithm: that it is left out */
  TuningKey key;
  bool measured;
  char unit[16];
} Tune;

static void label(const Candidate *candidate, char text[LABEL_MAX]) {
  if (candidate->direction == ROTA_FORWARD)
    snprintf(text, LABEL_MAX, "forward %s", candidate->tiling);
  else
    snprintf(text, LABEL_MAX, "%s %s %s", backward_name(candidate->backward), candidate->tiling,
             candidate->schedule);
}

static void show(int done, int total, const Candidate *candidate) {
  char text[LABEL_MAX];
  label(candidate, text);
  progress_show(done, total, text);
}

/* ---- In the model ---- */

/* `two_pass` computes seven products where the others compute five. */
static double modelled_time(const Planned *planned) {
  if (planned->plan->direction == ROTA_FORWARD)
    return 0;
  double time = costs_units(planned->figures.figures.makespan);
  return !strcmp(planned->plan->tiling.algorithm, "two_pass") ? time * 7 / 5 : time;
}

static void tell_left_out(Tune *tune, const Candidate *candidate, rota_status status) {
  char text[LABEL_MAX];
  label(candidate, text);
  /* An algorithm that is not served is so with every schedule. */
  bool *told = &tune->told[candidate->backward % LEFT_OUT_MAX];
  if (status == ROTA_SCHEDULE || !*told)
    fprintf(stderr, "rota tune: %s is left out: %s\n",
            status == ROTA_SCHEDULE ? text : backward_name(candidate->backward), status_message());
  *told = *told || status == ROTA_UNSUPPORTED;
  status_clear();
}

/* Asks the model about a candidate; one that no kernel serves drops out. */
static rota_status model_trial(Tune *tune, const Candidate *candidate) {
  Planned planned;
  Spec *spec = &tune->model->spec;
  Spec before = *spec; /* a plain copy: what it holds is still the model's */
  spec->backward = candidate->backward;
  memcpy(spec->tiling[candidate->direction], candidate->tiling, TILING_CHOICE_MAX);
  rota_status status = planned_create(tune->options, tune->model, candidate->direction,
                                      candidate->schedule, false, &planned);
  *spec = before;
  if (status == ROTA_OK) {
    Trials *trials = &tune->trials[candidate->direction];
    trials->list[trials->count++] =
        (Trial){.candidate = candidate, .batch = 1, .modelled = modelled_time(&planned)};
    snprintf(tune->unit, sizeof tune->unit, "%s", planned.costs.unit);
  }
  planned_free(&planned);
  if (status != ROTA_UNSUPPORTED && status != ROTA_SCHEDULE)
    return status;
  if (candidate->direction == ROTA_FORWARD)
    return status;
  tell_left_out(tune, candidate, status);
  return ROTA_OK;
}

/* Whether it is to be tried: where nothing is measured, only the tiling that is ranked first. */
static bool wanted(const Tune *tune, const Candidate *candidate) {
  const Options *options = tune->options;
  if (!options->both_directions && candidate->direction != options->direction)
    return false;
  return tune->measured || candidate->direction == ROTA_FORWARD || candidate->rank == 1;
}

static rota_status model_trials(Tune *tune) {
  int all;
  Target target;
  Model *model = tune->model;
  ROTA_TRY(model_target(tune->options, model, &target));
  CandidateRequest request = {.spec = &model->spec,
                              .target = &target,
                              .layout = run_layout(tune->options, &model->spec),
                              .n_q = tune->key.n_q,
                              .n_k = tune->key.n_k};
  ROTA_TRY(script_candidates(model->script, &request, &tune->candidates, &all));
  for (int direction = 0; direction < 2; direction++) {
    tune->trials[direction].direction = (rota_direction)direction;
    tune->trials[direction].list = memory_allocate((size_t)all + 1, sizeof(Trial));
    if (!tune->trials[direction].list)
      return ROTA_OUT_OF_MEMORY;
  }
  for (int i = 0; i < all; i++) {
    if (!wanted(tune, &tune->candidates[i]))
      continue;
    show(i, all, &tune->candidates[i]);
    ROTA_TRY(model_trial(tune, &tune->candidates[i]));
  }
  progress_end();
  if (tune->trials[ROTA_FORWARD].count + tune->trials[ROTA_BACKWARD].count == 0)
    return status_fail(ROTA_UNSUPPORTED, "no candidate serves this model");
  return ROTA_OK;
}

/* ---- Measuring ---- */

static int compare_times(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Takes turns, so that all candidates meet the same clock and temperature. */
static rota_status measure_rounds(Trials *trials, RunState *run, void *workspace) {
  const int count = trials->count;
  for (int i = 0; i < count; i++) { /* warm up, and find the size of a batch */
    Trial *trial = &trials->list[i];
    double seconds;
    ROTA_TRY(run_time(run, trial->plan, workspace, 1, &seconds));
    ROTA_TRY(run_time(run, trial->plan, workspace, 1, &seconds));
    double batch = batch_seconds / (seconds > 1e-7 ? seconds : 1e-7);
    trial->batch = batch < 1 ? 1 : batch > BATCH_MAX ? BATCH_MAX : (int)batch;
  }
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < count; i++) {
      Trial *trial = &trials->list[round % 2 ? count - 1 - i : i];
      show(round * count + i, ROUNDS * count, trial->candidate);
      ROTA_TRY(run_time(run, trial->plan, workspace, trial->batch, &trial->seconds[round]));
    }
  progress_end();
  for (int i = 0; i < count; i++) {
    qsort(trials->list[i].seconds, ROUNDS, sizeof(double), compare_times);
    trials->list[i].median = trials->list[i].seconds[ROUNDS / 2];
  }
  return ROTA_OK;
}

static rota_status measure_direction(Trials *trials, RunState *run) {
  size_t bytes = 0;
  for (int i = 0; i < trials->count; i++) {
    Trial *trial = &trials->list[i];
    show(i, trials->count, trial->candidate);
    ROTA_TRY(run_prepare(run, trial->candidate, &trial->kernel, &trial->plan));
    size_t needed = rota_plan_workspace_size(trial->plan);
    bytes = needed > bytes ? needed : bytes;
  }
  void *workspace;
  ROTA_TRY(buffer_create(&run->buffers, bytes, &workspace));
  rota_status status = measure_rounds(trials, run, workspace);
  buffer_destroy(&run->buffers, workspace);
  return status;
}

static rota_status measure(Tune *tune, RunState *run) {
  ROTA_TRY(run_open(tune->options, run));
  ROTA_TRY(run_repeat(run)); /* o and lse, for the backward pass */
  for (int direction = 0; direction < 2; direction++)
    if (tune->trials[direction].count > 0)
      ROTA_TRY(measure_direction(&tune->trials[direction], run));
  return ROTA_OK;
}

/* ---- Results ---- */

/* Equal times, and forward tilings that were not measured, keep the order of lua/tuning.lua. */
static int compare_trials(const void *a, const void *b) {
  const Trial *x = a, *y = b;
  double p = x->median > 0 ? x->median : x->modelled, q = y->median > 0 ? y->median : y->modelled;
  if (p != q)
    return p > q ? 1 : -1;
  return x->candidate < y->candidate ? -1 : 1;
}

static json_t *describe_trial(const Tune *tune, const Trial *trial) {
  const Candidate *candidate = trial->candidate;
  json_t *entry =
      json_pack("{s:s s:i}", "tiling", candidate->tiling, "tiling_rank", candidate->rank);
  if (candidate->direction == ROTA_BACKWARD) {
    json_object_set_new(entry, "backward", json_string(backward_name(candidate->backward)));
    json_object_set_new(entry, "schedule", json_string(candidate->schedule));
    json_object_set_new(entry, "modelled", json_real(trial->modelled));
    json_object_set_new(entry, "unit", json_string(tune->unit));
  }
  if (tune->measured) {
    json_object_set_new(entry, "milliseconds", json_real(1e3 * trial->median));
    json_object_set_new(entry, "digest", json_string(trial->plan->digest.hex));
  }
  return entry;
}

static void print_trial(const Tune *tune, const Trial *trial) {
  const Candidate *candidate = trial->candidate;
  bool forward = candidate->direction == ROTA_FORWARD;
  char time[32] = "", modelled[48] = "";
  if (tune->measured)
    snprintf(time, sizeof time, "%.3f", 1e3 * trial->median);
  if (!forward)
    snprintf(modelled, sizeof modelled, "%11.1f %s", trial->modelled, tune->unit);
  printf("%-12s %-8s %4d  %-26s %10s %14s\n",
         forward ? "forward" : backward_name(candidate->backward), candidate->tiling,
         candidate->rank, forward ? "" : candidate->schedule, time, modelled);
}

static void print_table(const Tune *tune, const char *path) {
  printf("%s; shape %s on %s, %s\n", tune->key.spec, tune->key.shape, tune->key.device,
         tune->measured ? "measured" : "by the model alone: no GPU to measure on");
  printf("%-12s %-8s %4s  %-26s %10s %14s\n", "pass", "tiles", "rank", "schedule",
         tune->measured ? "ms" : "", "modelled");
  for (int direction = 0; direction < 2; direction++)
    for (int i = 0; i < tune->trials[direction].count; i++)
      print_trial(tune, &tune->trials[direction].list[i]);
  printf("%s: written; adopt it with --tuning %s\n", path, path);
}

/* Candidates sorted, the fastest of each direction into the file. */
static rota_status finish(Tune *tune) {
  const char *path = tune->options->output ? tune->options->output : "rota-tuning.json";
  TuningRecord record = {.measured = tune->measured};
  json_t *all = json_array();
  for (int direction = 0; direction < 2; direction++) {
    Trials *trials = &tune->trials[direction];
    if (trials->count == 0)
      continue;
    qsort(trials->list, (size_t)trials->count, sizeof(Trial), compare_trials);
    record.best[direction] = trials->list[0].candidate;
    const Trial *best = &trials->list[0];
    record.milliseconds[direction] = tune->measured ? 1e3 * best->median : 1e-3 * best->modelled;
    record.candidates[direction] = json_array();
    for (int i = 0; i < trials->count; i++)
      json_array_append_new(record.candidates[direction], describe_trial(tune, &trials->list[i]));
    json_array_extend(all, record.candidates[direction]);
  }
  rota_status status = tuning_record(path, &tune->key, &record);
  if (status == ROTA_OK && tune->options->json)
    status = json_print(json_incref(all));
  else if (status == ROTA_OK)
    print_table(tune, path);
  json_decref(all);
  for (int direction = 0; direction < 2; direction++)
    json_decref(record.candidates[direction]);
  return status;
}

static void close_tune(Tune *tune) {
  for (int direction = 0; direction < 2; direction++) {
    Trials *trials = &tune->trials[direction];
    for (int i = 0; i < trials->count; i++) {
      rota_plan_destroy(trials->list[i].plan);
      rota_kernel_destroy(trials->list[i].kernel);
    }
    free(trials->list);
  }
  free(tune->candidates);
  tuning_key_free(&tune->key);
}

int command_tune(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_SHAPE | OPTIONS_RUN | OPTIONS_DEVICE | OPTIONS_DIRECTION |
                    OPTIONS_ARCH | OPTIONS_COSTS | OPTIONS_OUTPUT | OPTIONS_JSON,
                "MODEL.lua",
                "Times tilings of the forward pass, and algorithms, tilings and schedules of the "
                "backward pass, for one shape, and writes the fastest to a tuning file (--output, "
                "default rota-tuning.json), which `rota run --tuning` adopts. Without a GPU the "
                "ranking of tilings and the DAG model decide.",
                &options);
  options.backward = options.both_directions || options.direction == ROTA_BACKWARD;
  Model model;
  RunState run = {.options = NULL};
  Tune tune = {.options = &options, .model = &model};
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK)
    status = tuning_key_create(&options, &model, &tune.key);
  tune.measured = tune.key.device_present || options.device == ROTA_DEVICE_CPU;
  if (status == ROTA_OK)
    status = model_trials(&tune);
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
