/* Running a plan. */
#include "runtime/launch.h"

#include "runtime/cpu_device.h"
#include "runtime/tensor_maps.h"

/* What the entries of one run have in common. */
typedef struct Run {
  const rota_plan *plan;
  RotaArguments block;
  RotaTensorMaps maps; /* as many as the tiling has */
  CUstream stream;
} Run;

/* Starts a kernel by the plainest call that serves; `*call` is its name in DRIVER_SYMBOLS. */
static CUresult start(const Driver *driver, CUfunction function, const LaunchConfig *config,
                      bool cooperative, bool overlaps, void **parameters, const char **call) {
  if (cooperative) {
    /* Without overlap: on a stream the driver takes both attributes and ignores that one (H200,
     * CUDA 13.0). */
    *call = "launch_cooperative";
    return driver->launch_cooperative(function, config->grid_x, 1, 1, config->block_x, 1, 1,
                                      config->shared_bytes, config->stream, parameters);
  }
  if (overlaps && driver->launch_extended) {
    *call = "launch_extended";
    return driver->launch_extended(config, function, parameters, NULL);
  }
  *call = "launch_kernel"; /* waits for all before it on the stream: right, if later */
  return driver->launch_kernel(function, config->grid_x, 1, 1, config->block_x, 1, 1,
                               config->shared_bytes, config->stream, parameters, NULL);
}

/* One kernel of the tiling on the stream; its arguments are copied by the driver before this
 * returns. */
static rota_status launch_entry(Run *run, int index) {
  const rota_plan *plan = run->plan;
  const Launch *launch = &plan->kernel->tiling.launches[index];
  const Module *module = plan->kernel->module;
  int64_t blocks = plan_grid(plan->plan, launch->grid);
  if (blocks == 0)
    return ROTA_OK;
  if (launch->grid == GRID_HEADS && !run->block.d_sink)
    return ROTA_OK; /* gradient not wanted */
  const Driver *driver = module->device->driver;
  /* An entry takes the maps where the tiling has some; else the driver looks at the first alone. */
  void *parameters[] = {&run->block, &run->maps};
  LaunchAttribute overlap = {.id = LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.number = 1};
  const LaunchConfig config = {.grid_x = (unsigned)blocks,
                               .grid_y = 1,
                               .grid_z = 1,
                               .block_x = (unsigned)launch->threads,
                               .block_y = 1,
                               .block_z = 1,
                               .shared_bytes = (unsigned)launch->shared_bytes,
                               .stream = run->stream,
                               .attributes = &overlap,
                               .attribute_count = 1};
  /* Workers that wait for any other must all be resident: the driver sees to it, or refuses. */
  bool cooperative = plan->plan->co_resident && launch->grid == GRID_WORKERS;
  const char *call;
  CUresult result = start(driver, module->functions[index], &config, cooperative, launch->overlaps,
                          parameters, &call);
  rota_status status = driver_check(driver, result, call, launch->entry);
  if (result != DRIVER_INVALID_HANDLE && result != DRIVER_INVALID_CONTEXT)
    return status;
  return status_prefix(status, "is the stream one of device %d's primary context? ",
                       module->device->ordinal);
}

/* All kernels of the tiling, in order, on one stream. The caller's context is back on return. */
static rota_status launch_all(const rota_plan *plan, const rota_arguments *arguments,
                              void *workspace, CUstream stream) {
  Run run;
  run.plan = plan;
  run.stream = stream;
  arguments_fill(plan, arguments, workspace, &run.block);
  const Device *device = plan->kernel->module->device;
  ROTA_TRY(device_enter(device, "this plan"));
  rota_status status = tensor_maps_fill(plan, &run.block, &run.maps);
  for (int i = 0; i < plan->kernel->tiling.launch_count && status == ROTA_OK; i++)
    status = launch_entry(&run, i);
  device_leave(device);
  return status;
}

rota_status launch_plan(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                        size_t workspace_bytes, void *stream) {
  ROTA_TRY(arguments_check(plan, arguments));
  ROTA_TRY(arguments_check_workspace(plan, workspace, workspace_bytes));
  if (plan->kernel->device == ROTA_DEVICE_CPU)
    return cpu_device_run(plan->plan, &plan->kernel->spec, arguments, workspace);
  return launch_all(plan, arguments, workspace, stream);
}
