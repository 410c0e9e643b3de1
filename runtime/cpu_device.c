/* Sets a run up and hands it to its pass. */
#include "runtime/cpu_device.h"

#include "runtime/cpu_backward.h"
#include "runtime/cpu_forward.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Tensors of the score that come with the call instead of the plan: data and strides of the
 * call, sizes as planned. */
static void bind_tensors(CpuRun *run) {
  const rota_arguments *arguments = run->arguments;
  const Symbols *symbols = &run->plan->symbols;
  run->bindings = run->plan->bindings;
  for (int t = 0; t < symbols->tensor_count; t++) {
    TensorBinding *binding = &run->bindings.tensors[t];
    for (int i = 0; i < arguments->tensor_count && !binding->data; i++) {
      const rota_named_tensor *given = &arguments->tensors[i];
      if (strcmp(given->name, symbols->tensors[t].name) != 0)
        continue;
      binding->data = given->data;
      memcpy(binding->stride, given->stride, sizeof binding->stride);
    }
  }
}

static int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

static void view_plan(CpuRun *run, void *workspace) {
  const Plan *plan = run->plan;
  run->sequences = plan_section(plan, plan->sequences);
  run->rows = plan_section(plan, plan->rows);
  run->runs = plan_section(plan, plan->runs);
  run->row_items = plan_section(plan, plan->row_items);
  run->chains = plan_section(plan, plan->chains);
  run->visits = plan_section(plan, plan->visits);
  run->chain_items = plan_section(plan, plan->chain_items);
  run->tile_q = plan->tiling.tile_q;
  run->tile_kv = plan->tiling.tile_kv;
  run->heads = plan->heads;
  run->kv_heads = plan->kv_heads;
  run->group = plan->heads / plan->kv_heads;
  run->q_rows = round_up(run->tile_q, 4);
  run->kv_pitch = round_up(run->tile_kv, 8);
  run->qk_pitch = round_up(run->spec->head_dim, 8);
  run->v_pitch = round_up(run->spec->head_dim_v, 8);
  run->delta = workspace ? (float *)(void *)((char *)workspace + plan->workspace.delta) : NULL;
}

rota_status cpu_device_run(const Plan *plan, const Spec *spec, const rota_arguments *arguments,
                           void *workspace) {
  CpuRun run = {.plan = plan, .spec = spec, .arguments = arguments};
  bind_tensors(&run);
  view_plan(&run, workspace);
  int64_t rows = plan_q_tiles(plan) * plan->heads;
  int64_t items = rows > plan->chain_items.count ? rows : plan->chain_items.count;
  run.threads = omp_get_max_threads();
  if (run.threads > items)
    run.threads = items > 0 ? (int)items : 1;
  run.scratch_bytes = cpu_scratch_bytes(&run);
  run.scratch = memory_allocate((size_t)run.threads, run.scratch_bytes);
  if (!run.scratch)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = ROTA_OK;
  if (plan->direction == ROTA_FORWARD)
    cpu_forward(&run);
  else
    status = cpu_backward(&run);
  free(run.scratch);
  return status;
}
