/* One `rota run`: see run_state.h. */
#include "command/run_state.h"

#include <stdlib.h>
#include <string.h>

#include "generator/clock.h"

#include "command/tuning.h"
#include "runtime/kernel.h"

static void describe_tensors(RunState *run) {
  const Spec *spec = &run->model.spec;
  const rota_lengths *lengths = &run->inputs.lengths;
  const int64_t ROWS_Q = lengths->n_q, ROWS_K = lengths->n_k, ROWS_NONE = 1;
  const int64_t HEADS_QUERY = run->inputs.heads, HEADS_KV = run->inputs.kv_heads;
  const int64_t DIM_QK = spec->head_dim, DIM_V = spec->head_dim_v, DIM_ONE = 1;
  const bool ROLE_INPUT = false, ROLE_OUTPUT = true, PASS_FORWARD = false, PASS_BACKWARD = true;
  const RunTensor tensors[] = {
#define X(tensor, row, head, width, is_fp32, role, pass)                                           \
  {.name = #tensor,                                                                                \
   .rows = ROWS_##row,                                                                             \
   .heads = HEADS_##head,                                                                          \
   .dim = DIM_##width,                                                                             \
   .fp32 = is_fp32,                                                                                \
   .output = ROLE_##role,                                                                          \
   .backward = PASS_##pass},
      RUN_TENSORS(X)
#undef X
  };
  memcpy(run->tensors, tensors, sizeof tensors);
  for (int i = 0; i < RUN_TENSOR_COUNT; i++) {
    RunTensor *tensor = &run->tensors[i];
    bool shared = i == RUN_sink || i == RUN_d_sink; /* not per sequence */
    int64_t count = (shared ? 1 : lengths->batch) * tensor->rows * tensor->heads * tensor->dim;
    tensor->count = (size_t)count;
    tensor->bytes = tensor->count * (size_t)(tensor->fp32 ? 4 : dtype_size(spec->dtype));
  }
}

/* Tensors that this run has: no gradients without --backward, no sink and no mean_square without
 * one in the spec. */
static bool tensor_in_use(const RunState *run, int i) {
  if ((i == RUN_sink || i == RUN_d_sink) && !run->model.spec.sink_logit)
    return false;
  if (i == RUN_mean_square && !run->model.spec.spread)
    return false;
  return run->passes == 2 || !run->tensors[i].backward;
}

static rota_status fill_input(RunState *run, int i) {
  RunTensor *tensor = &run->tensors[i];
  uint64_t seed = run->options->seed * RUN_TENSOR_COUNT + (uint64_t)i;
  if (!tensor->fp32)
    return inputs_tensor(&run->inputs, &run->model.spec, tensor->name, tensor->count, seed,
                         &tensor->host);
  /* Sink logits, about the size of a score. */
  float *values = memory_allocate(tensor->count, sizeof *values);
  if (!values)
    return ROTA_OUT_OF_MEMORY;
  for (size_t head = 0; head < tensor->count; head++)
    values[head] = 0.25f * (float)(head % 7) - 0.5f;
  tensor->host = values;
  return ROTA_OK;
}

static rota_status create_tensors(RunState *run) {
  ROTA_TRY(buffers_open(run->device, run->options->ordinal, &run->buffers));
  run->buffers_opened = true;
  for (int i = 0; i < RUN_TENSOR_COUNT; i++) {
    RunTensor *tensor = &run->tensors[i];
    if (!tensor_in_use(run, i))
      continue;
    ROTA_TRY(buffer_create(&run->buffers, tensor->bytes, &tensor->address));
    if (tensor->output) {
      tensor->host = memory_allocate(tensor->bytes + 1, 1);
      if (!tensor->host)
        return ROTA_OUT_OF_MEMORY;
      continue;
    }
    ROTA_TRY(fill_input(run, i));
    ROTA_TRY(buffer_write(&run->buffers, tensor->address, tensor->host, tensor->bytes));
  }
  for (int pass = 0; pass < run->passes; pass++)
    ROTA_TRY(buffer_create(&run->buffers, rota_plan_workspace_size(run->plans[pass]),
                           &run->workspaces[pass]));
  return ROTA_OK;
}

static rota_tensor strided(const RunTensor *tensor) {
  int64_t stride_row = tensor->heads * tensor->dim;
  return (rota_tensor){tensor->address, tensor->rows * stride_row, stride_row, tensor->dim};
}

static void fill_arguments(RunState *run) {
  const RunTensor *tensors = run->tensors;
  run->arguments = (rota_arguments){.q = strided(&tensors[RUN_q]),
                                    .k = strided(&tensors[RUN_k]),
                                    .v = strided(&tensors[RUN_v]),
                                    .o = strided(&tensors[RUN_o]),
                                    .lse = strided(&tensors[RUN_lse]),
                                    .mean_square = strided(&tensors[RUN_mean_square]),
                                    .d_o = strided(&tensors[RUN_d_o]),
                                    .d_q = strided(&tensors[RUN_d_q]),
                                    .d_k = strided(&tensors[RUN_d_k]),
                                    .d_v = strided(&tensors[RUN_d_v]),
                                    .sink = tensors[RUN_sink].address,
                                    .d_sink = tensors[RUN_d_sink].address};
}

rota_layout run_layout(const Options *options, const Spec *spec) {
  int64_t vector = 16 / dtype_size(spec->dtype); /* elements of a 16-byte access */
  bool aligned = spec->head_dim % vector == 0 && spec->head_dim_v % vector == 0;
  return aligned ? options->layout : ROTA_LAYOUT_ANY;
}

/* Kernel and plan of one direction. */
static rota_status prepare(RunState *run, const rota_spec *chosen, rota_direction direction,
                           rota_kernel **kernel, rota_plan **plan) {
  rota_kernel_request request = {.direction = direction,
                                 .device = run->options->device,
                                 .device_ordinal = run->options->ordinal,
                                 .layout = run_layout(run->options, &run->model.spec),
                                 .architecture = run->options->architecture};
  ROTA_TRY(rota_kernel_prepare(run->context, chosen, &request, kernel));
  rota_plan_request plan_request = inputs_plan_request(run->options, &run->inputs);
  return rota_plan_create(*kernel, &plan_request, plan);
}

rota_status run_prepare(RunState *run, const Candidate *candidate, rota_kernel **kernel,
                        rota_plan **plan) {
  *kernel = NULL;
  *plan = NULL;
  rota_spec chosen;
  spec_copy(&chosen.spec, &run->spec->spec);
  chosen.spec.backward = candidate->backward;
  memcpy(chosen.spec.tiling[candidate->direction], candidate->tiling, TILING_CHOICE_MAX);
  rota_status status = model_set_schedule(&chosen.spec, candidate->schedule);
  if (status == ROTA_OK)
    status = prepare(run, &chosen, candidate->direction, kernel, plan);
  spec_free(&chosen.spec);
  return status;
}

/* --tuning and --schedule: how it is done, in the spec. */
static rota_status choose_how(RunState *run) {
  const Options *options = run->options;
  if (options->tuning) {
    ROTA_TRY(tuning_adopt(options, &run->model));
    run->spec->spec.backward = run->model.spec.backward;
    memcpy(run->spec->spec.tiling, run->model.spec.tiling, sizeof run->model.spec.tiling);
    ROTA_TRY(model_set_schedule(&run->spec->spec, run->model.spec.schedule));
  }
  return options->schedule ? model_set_schedule(&run->spec->spec, options->schedule) : ROTA_OK;
}

rota_status run_open(const Options *options, RunState *run) {
  *run = (RunState){.options = options, .passes = options->backward ? 2 : 1};
  ROTA_TRY(model_open(options, &run->model));
  ROTA_TRY(inputs_open(options, &run->model.spec, &run->inputs));
  ROTA_TRY(rota_context_create(NULL, &run->context));
  ROTA_TRY(
      rota_spec_create_from_script(run->context, run->model.text, run->model.name, &run->spec));
  ROTA_TRY(choose_how(run));
  for (int pass = 0; pass < run->passes; pass++)
    ROTA_TRY(prepare(run, run->spec, pass == 0 ? ROTA_FORWARD : ROTA_BACKWARD, &run->kernels[pass],
                     &run->plans[pass]));
  rota_kernel_info info;
  rota_kernel_get_info(run->kernels[0], &info);
  run->device = info.device;
  describe_tensors(run);
  ROTA_TRY(create_tensors(run));
  fill_arguments(run);
  return ROTA_OK;
}

void run_close(RunState *run) {
  if (run->buffers_opened) {
    for (int i = 0; i < RUN_TENSOR_COUNT; i++) {
      buffer_destroy(&run->buffers, run->tensors[i].address);
      free(run->tensors[i].host);
    }
    for (int pass = 0; pass < 2; pass++)
      buffer_destroy(&run->buffers, run->workspaces[pass]);
    buffers_close(&run->buffers);
  }
  for (int pass = 0; pass < 2; pass++) {
    rota_plan_destroy(run->plans[pass]);
    rota_kernel_destroy(run->kernels[pass]);
  }
  rota_spec_destroy(run->spec);
  rota_context_destroy(run->context);
  inputs_close(&run->inputs);
  model_close(&run->model);
}

static rota_status run_pass(RunState *run, int pass, double *seconds) {
  ROTA_TRY(buffers_synchronize(&run->buffers));
  double start = clock_seconds();
  ROTA_TRY(rota_run(run->plans[pass], &run->arguments, run->workspaces[pass],
                    rota_plan_workspace_size(run->plans[pass]), NULL));
  ROTA_TRY(buffers_synchronize(&run->buffers));
  *seconds = clock_seconds() - start;
  return ROTA_OK;
}

rota_status run_time(RunState *run, const rota_plan *plan, void *workspace, int count,
                     double *seconds) {
  ROTA_TRY(buffers_synchronize(&run->buffers));
  double start = clock_seconds();
  for (int i = 0; i < count; i++)
    ROTA_TRY(rota_run(plan, &run->arguments, workspace, rota_plan_workspace_size(plan), NULL));
  ROTA_TRY(buffers_synchronize(&run->buffers));
  *seconds = (clock_seconds() - start) / count;
  return ROTA_OK;
}

/* Poisons outputs and workspace, runs, reads back; `same` tells whether the bits are the first
 * run's. */
static rota_status run_once(RunState *run, bool first, double seconds[2], bool *same) {
  *same = true;
  for (int i = 0; i < RUN_TENSOR_COUNT; i++)
    if (run->tensors[i].output && run->tensors[i].address)
      ROTA_TRY(buffer_write(&run->buffers, run->tensors[i].address, NULL, run->tensors[i].bytes));
  for (int pass = 0; pass < run->passes; pass++) {
    ROTA_TRY(buffer_write(&run->buffers, run->workspaces[pass], NULL,
                          rota_plan_workspace_size(run->plans[pass])));
    ROTA_TRY(run_pass(run, pass, &seconds[pass]));
  }
  for (int i = 0; i < RUN_TENSOR_COUNT; i++) {
    RunTensor *tensor = &run->tensors[i];
    if (!tensor->output || !tensor->address)
      continue;
    void *result = first ? tensor->host : memory_allocate(tensor->bytes + 1, 1);
    if (!result)
      return ROTA_OUT_OF_MEMORY;
    rota_status status = buffer_read(&run->buffers, result, tensor->address, tensor->bytes);
    if (!first) {
      *same = *same && !memcmp(result, tensor->host, tensor->bytes);
      free(result);
    }
    ROTA_TRY(status);
  }
  return ROTA_OK;
}

static int compare_times(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

rota_status run_repeat(RunState *run) {
  run->repeats = run->options->repeat;
  double *times[2];
  for (int pass = 0; pass < 2; pass++)
    times[pass] = memory_allocate((size_t)run->repeats, sizeof(double));
  rota_status status = times[0] && times[1] ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (int i = 0; i < run->repeats && status == ROTA_OK; i++) {
    double seconds[2] = {0};
    bool same;
    status = run_once(run, i == 0, seconds, &same);
    run->equal += same;
    for (int pass = 0; pass < 2; pass++)
      times[pass][i] = seconds[pass];
  }
  for (int pass = 0; pass < 2; pass++) {
    if (status == ROTA_OK) {
      qsort(times[pass], (size_t)run->repeats, sizeof(double), compare_times);
      run->seconds[pass] = times[pass][run->repeats / 2];
    }
    free(times[pass]);
  }
  return status;
}
