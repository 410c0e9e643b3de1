/* A plan together with its kernel and its tables on the device. */
#include "runtime/prepared.h"

#include <stdlib.h>

#include "generator/clock.h"
#include "generator/plan_works.h"

/* What decides the bits, besides the inputs: code, patterns, and the numbers that a kernel is
 * handed. */
static Digest digest_plan(const rota_plan *plan) {
  const Plan *tables = plan->plan;
  DigestStream *stream = digest_begin();
  digest_add_string(stream, plan->kernel->device == ROTA_DEVICE_CUDA ? "cuda" : "cpu");
  digest_add_string(stream, plan->kernel->code.hex);
  digest_add_string(stream, tables->pattern_digest.hex);
  digest_add(stream, &plan->kernel->spec.scale, sizeof plan->kernel->spec.scale);
  digest_add(stream, tables->bindings.parameters,
             (size_t)tables->symbols.parameter_count * sizeof tables->bindings.parameters[0]);
  return digest_end(stream);
}

static void measure(rota_plan *plan) {
  const Lengths *lengths = plan->plan->lengths;
  for (int b = 0; b < lengths->batch; b++) {
    int32_t q = lengths->rows_q[b], k = lengths->rows_k[b];
    plan->rows_q += q;
    plan->rows_k += k;
    if (q > plan->longest_q)
      plan->longest_q = q;
    if (k > plan->longest_k)
      plan->longest_k = k;
    if (lengths->begin_q[b] + q > plan->span_q)
      plan->span_q = lengths->begin_q[b] + q;
    if (lengths->begin_k[b] + k > plan->span_k)
      plan->span_k = lengths->begin_k[b] + k;
  }
  const RotaSequence *sequences = plan_section(plan->plan, plan->plan->sequences);
  int64_t count = plan->plan->sequences.count;
  if (count > 0)
    plan->tiles = sequences[count - 1].tile_begin + sequences[count - 1].q_tiles;
}

/* One dimension of a grid takes 2^31 - 1 blocks. */
static rota_status check_grids(const rota_plan *plan) {
  const Tiling *tiling = &plan->kernel->tiling;
  for (int i = 0; i < tiling->launch_count; i++) {
    int64_t blocks = plan_grid(plan->plan, tiling->launches[i].grid);
    if (blocks > INT32_MAX)
      return status_fail(ROTA_UNSUPPORTED,
                         "%s would need %lld blocks, more than a launch has (2147483647): split "
                         "the batch",
                         tiling->launches[i].entry, (long long)blocks);
  }
  return ROTA_OK;
}

/* A kernel that was only compiled cannot run here. */
static rota_status check_loaded(const rota_kernel *kernel) {
  if (kernel->device == ROTA_DEVICE_CPU || kernel->module)
    return ROTA_OK;
  return status_fail(ROTA_NO_DEVICE,
                     "the kernel was compiled for %s without a GPU that runs it: export it and "
                     "import it where one is, or prepare it for the CPU device",
                     kernel->target.name);
}

/* Workers that the kernel's device holds at once; INT32_MAX where none is loaded: the CPU device
 * adds in the plan's order without waiting. */
static int32_t resident_workers(const rota_kernel *kernel) {
  int64_t most = INT32_MAX;
  for (int i = 0; kernel->module && i < kernel->tiling.launch_count; i++) {
    int64_t blocks =
        (int64_t)kernel->module->resident[i] * kernel->module->device->target.multiprocessors;
    if (kernel->tiling.launches[i].grid == GRID_WORKERS && blocks < most)
      most = blocks;
  }
  return (int32_t)most;
}

/* Workers that wait for one another in any order must all be resident at once. */
static rota_status check_residency(const rota_plan *plan) {
  int32_t resident = resident_workers(plan->kernel);
  if (!plan->plan->co_resident || plan->plan->workers <= resident)
    return ROTA_OK;
  const Device *device = plan->kernel->module->device;
  return status_fail(ROTA_UNSUPPORTED,
                     "schedule '%s' has %d workers that wait for one another; device %d (%s) holds "
                     "%d at once: plan for this device, or use a portable schedule such as "
                     "shortest_first",
                     plan->plan->schedule, plan->plan->workers, device->ordinal, device->name,
                     resident);
}

/* A portable schedule's bits are the same with fewer workers, or with tickets. */
static void fit_workers(const rota_kernel *kernel, Schedule *schedule) {
  int32_t resident = resident_workers(kernel);
  if (!schedule->portable || schedule->workers <= resident)
    return;
  if (resident < 1)
    schedule->assignment = ASSIGN_TICKETS;
  else
    schedule->workers = resident;
}

/* Whether persistent workers draw chain items one by one. */
static bool draws_items(const Plan *plan) {
  const int *queue = plan_section(plan, plan->queue);
  bool each =
      tiling_get(&plan->tiling, "persistent", 0) && plan->workers == plan->chain_items.count;
  for (int32_t w = 0; each && w <= plan->workers; w++)
    each = queue[w] == w;
  return each;
}

static rota_status finish(rota_plan *plan) {
  measure(plan);
  plan->one_each = draws_items(plan->plan);
  ROTA_TRY(check_grids(plan));
  ROTA_TRY(check_residency(plan));
  plan->digest = digest_plan(plan);
  if (!plan->digest.hex[0])
    return ROTA_OUT_OF_MEMORY;
  if (plan->kernel->device == ROTA_DEVICE_CPU)
    return ROTA_OK;
  const Device *device = plan->kernel->module->device;
  const Works *works = &plan->plan->works;
  if (works->image_bytes > 0)
    ROTA_TRY(device_upload(device, works->image, works->image_bytes, &plan->works_image));
  return device_upload(device, plan->plan->image, plan->plan->image_bytes, &plan->image);
}

static rota_status begin(rota_kernel *kernel, rota_plan **result) {
  *result = NULL;
  ROTA_TRY(check_loaded(kernel));
  rota_plan *plan = memory_allocate(1, sizeof *plan);
  if (!plan)
    return ROTA_OUT_OF_MEMORY;
  plan->kernel = kernel_retain(kernel);
  *result = plan;
  return ROTA_OK;
}

static rota_status end(rota_status status, double started, rota_plan **plan) {
  if (status == ROTA_OK)
    status = finish(*plan);
  (*plan)->seconds = clock_seconds() - started;
  if (status == ROTA_OK)
    return ROTA_OK;
  prepared_destroy(*plan);
  *plan = NULL;
  return status;
}

/* A schedule whose functions lock the context's script while they run, not while the rest of the
 * plan is made. */
typedef struct Locked {
  rota_context *context;
  const Schedule *schedule;
} Locked;

static rota_status locked_pattern(const Schedule *schedule, const PatternView *view,
                                  PatternAnswer *answer) {
  const Locked *locked = schedule->owner;
  Schedule inner = *locked->schedule;
  inner.owner = context_lock_script(locked->context);
  rota_status status = inner.pattern(&inner, view, answer);
  context_unlock_script(locked->context);
  return status;
}

static rota_status locked_assign(const Schedule *schedule, const BatchView *view,
                                 BatchAnswer *answer) {
  const Locked *locked = schedule->owner;
  Schedule inner = *locked->schedule;
  inner.owner = context_lock_script(locked->context);
  rota_status status = inner.assign(&inner, view, answer);
  context_unlock_script(locked->context);
  return status;
}

rota_status prepared_create(rota_kernel *kernel, const rota_plan_request *request,
                            rota_plan **plan) {
  double started = clock_seconds();
  ROTA_TRY(begin(kernel, plan));
  Locked locked = {kernel->context, &kernel->schedule};
  Schedule schedule = kernel->schedule;
  schedule.owner = &locked;
  schedule.pattern = locked_pattern;
  schedule.assign = locked_assign;
  fit_workers(kernel, &schedule);
  rota_status status = plan_build(&kernel->spec, kernel->direction, &kernel->tiling, &schedule,
                                  request, &(*plan)->plan);
  return end(status, started, plan);
}

rota_status prepared_load(rota_kernel *kernel, const char *path, rota_plan **plan) {
  double started = clock_seconds();
  ROTA_TRY(begin(kernel, plan));
  rota_status status = plan_load(path, &kernel->program, &(*plan)->plan);
  /* The file tells tiling, scale and workspace; a kernel runs only what fits its own. */
  if (status == ROTA_OK)
    status = plan_matches((*plan)->plan, &kernel->spec, kernel->direction, &kernel->tiling);
  if (status == ROTA_OK)
    status = works_build(&kernel->spec, (*plan)->plan);
  return end(status, started, plan);
}

void prepared_destroy(rota_plan *plan) {
  if (!plan)
    return;
  if (plan->image)
    device_free(plan->kernel->module->device, plan->image);
  if (plan->works_image)
    device_free(plan->kernel->module->device, plan->works_image);
  plan_destroy(plan->plan);
  kernel_release(plan->kernel);
  free(plan);
}
