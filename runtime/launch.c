/* Running a plan. */
#include "runtime/launch.h"

#include "runtime/cpu_device.h"

/* One kernel of the tiling on the stream; its argument block is copied by the driver before this
 * returns. */
static rota_status launch_entry(const rota_plan *plan, int index, RotaArguments *block,
                                CUstream stream) {
  const Launch *launch = &plan->kernel->tiling.launches[index];
  const Module *module = plan->kernel->module;
  int64_t blocks = plan_grid(plan->plan, launch->grid);
  if (blocks == 0)
    return ROTA_OK;
  if (launch->grid == GRID_HEADS && !block->d_sink)
    return ROTA_OK; /* gradient not wanted */
  void *parameters[] = {block};
  const Driver *driver = module->device->driver;
  CUfunction function = module->functions[index];
  unsigned grid = (unsigned)blocks, threads = (unsigned)launch->threads;
  unsigned shared = (unsigned)launch->shared_bytes;
  /* Workers that wait for any other must all be resident: the driver sees to it, or refuses. */
  bool cooperative = plan->plan->co_resident && launch->grid == GRID_WORKERS;
  CUresult result = cooperative ? driver->launch_cooperative(function, grid, 1, 1, threads, 1, 1,
                                                             shared, stream, parameters)
                                : driver->launch_kernel(function, grid, 1, 1, threads, 1, 1, shared,
                                                        stream, parameters, NULL);
  rota_status status = driver_check(
      driver, result, cooperative ? "launch_cooperative" : "launch_kernel", launch->entry);
  if (result != DRIVER_INVALID_HANDLE && result != DRIVER_INVALID_CONTEXT)
    return status;
  return status_prefix(status, "is the stream one of device %d's primary context? ",
                       module->device->ordinal);
}

/* All kernels of the tiling, in order, on one stream. The caller's context is back on return. */
static rota_status launch_all(const rota_plan *plan, const rota_arguments *arguments,
                              void *workspace, CUstream stream) {
  RotaArguments block;
  arguments_fill(plan, arguments, workspace, &block);
  const Device *device = plan->kernel->module->device;
  ROTA_TRY(device_enter(device, "this plan"));
  rota_status status = ROTA_OK;
  for (int i = 0; i < plan->kernel->tiling.launch_count && status == ROTA_OK; i++)
    status = launch_entry(plan, i, &block, stream);
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
