/* Compares a run's outputs with dense attention in fp64. */
#include <stdlib.h>

#include "command/run_state.h"
#include "generator/plan.h"
#include "runtime/cpu_numbers.h"
#include "runtime/reference.h"

/* The inputs as the reference reads them: in host memory. */
static rota_arguments host_arguments(const RunState *run) {
  rota_arguments arguments = run->arguments;
  arguments.q.data = run->tensors[RUN_q].host;
  arguments.k.data = run->tensors[RUN_k].host;
  arguments.v.data = run->tensors[RUN_v].host;
  arguments.d_o.data = run->tensors[RUN_d_o].host;
  arguments.sink = run->tensors[RUN_sink].host;
  return arguments;
}

static double compare(const RunState *run, int index, const double *want) {
  const RunTensor *tensor = &run->tensors[index];
  rota_dtype dtype = tensor->fp32 ? ROTA_FP32 : run->model.spec.dtype;
  ReferenceError error = {0};
  for (size_t i = 0; i < tensor->count; i++) {
    float got;
    numbers_load(dtype, (const char *)tensor->host + i * (size_t)dtype_size(dtype), 1, &got);
    reference_error_add(&error, (double)got, want[i]);
  }
  return reference_error(&error);
}

static rota_status compare_all(const RunState *run, const Plan *plan, RunErrors *errors) {
  const Spec *spec = &run->model.spec;
  rota_arguments arguments = host_arguments(run);
  ReferenceProblem problem = {.direction = run->passes == 2 ? ROTA_BACKWARD : ROTA_FORWARD,
                              .dtype = spec->dtype,
                              .head_dim = spec->head_dim,
                              .head_dim_v = spec->head_dim_v,
                              .heads = run->inputs.heads,
                              .kv_heads = run->inputs.kv_heads,
                              .scale = spec->scale,
                              .lengths = plan->lengths,
                              .arguments = &arguments};
  ReferenceExpressions expressions = {spec, &plan->bindings};
  reference_use_expressions(&problem, &expressions);
  ReferenceResult result = {0};
  ROTA_TRY(reference_run(&problem, &result));
  const struct {
    int index;
    const double *want;
  } outputs[] = {{RUN_o, result.o},     {RUN_lse, result.lse}, {RUN_d_q, result.d_q},
                 {RUN_d_k, result.d_k}, {RUN_d_v, result.d_v}, {RUN_d_sink, result.d_sink}};
  for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
    if (run->tensors[outputs[i].index].address && outputs[i].want)
      errors->error[outputs[i].index] = compare(run, outputs[i].index, outputs[i].want);
  reference_free(&result);
  return ROTA_OK;
}

rota_status run_check(const RunState *run, RunErrors *errors) {
  for (int i = 0; i < RUN_TENSOR_COUNT; i++)
    errors->error[i] = -1;
  /* A plan of its own for lengths and bindings: the public one does not show them. */
  Model *model = (Model *)&run->model;
  Target target;
  Tiling tiling;
  Plan *plan;
  rota_plan_request request = inputs_plan_request(run->options, &run->inputs);
  ROTA_TRY(model_target(run->options, model, &target));
  Spec spec = model->spec; /* what it holds is the model's; any tiles will do */
  spec.spread = false;
  snprintf(spec.tiling[ROTA_FORWARD], TILING_CHOICE_MAX, "auto");
  ROTA_TRY(script_tiling(model->script, &spec, ROTA_FORWARD, ROTA_LAYOUT_ANY, &target, &tiling));
  ROTA_TRY(plan_build(&model->spec, ROTA_FORWARD, &tiling, NULL, &request, &plan));
  rota_status status = compare_all(run, plan, errors);
  plan_destroy(plan);
  return status;
}
