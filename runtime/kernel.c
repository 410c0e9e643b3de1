/* Kernels: from a spec to something that runs. */
#include "runtime/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/clock.h"
#include "generator/program.h"

static rota_status check_request(const rota_kernel_request *request) {
  if (request->direction != ROTA_FORWARD && request->direction != ROTA_BACKWARD)
    return status_fail(ROTA_INVALID_ARGUMENT, "direction is %d; ROTA_FORWARD and ROTA_BACKWARD are",
                       (int)request->direction);
  if (request->device != ROTA_DEVICE_AUTO && request->device != ROTA_DEVICE_CUDA &&
      request->device != ROTA_DEVICE_CPU)
    return status_fail(ROTA_INVALID_ARGUMENT, "device is %d; it is ROTA_DEVICE_AUTO, _CUDA or _CPU",
                       (int)request->device);
  if (request->layout != ROTA_LAYOUT_ALIGNED && request->layout != ROTA_LAYOUT_ANY)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "layout is %d; it is ROTA_LAYOUT_ALIGNED or ROTA_LAYOUT_ANY",
                       (int)request->layout);
  return ROTA_OK;
}

static rota_status named_target(rota_context *context, const char *name, Target *target) {
  Script *script = context_lock_script(context);
  rota_status status = script_target(script, name, target);
  context_unlock_script(context);
  return status;
}

/* Device and target. Where a named architecture is not that of a GPU here, CUDA means compile only,
 * AUTO means the CPU. */
static rota_status choose_device(rota_context *context, const rota_kernel_request *request,
                                 KernelChoice *choice) {
  const char *name = request->architecture;
  if (name)
    ROTA_TRY(named_target(context, name, &choice->target));
  rota_status status = ROTA_NO_DEVICE;
  if (request->device != ROTA_DEVICE_CPU)
    status = context_device(context, request->device_ordinal, &choice->device);
  bool absent = status == ROTA_NO_DEVICE;
  /* A GPU that the driver cannot open (held exclusively, say) is not usable either. */
  if (request->device == ROTA_DEVICE_AUTO)
    absent = absent || status == ROTA_DRIVER;
  if (status != ROTA_OK && !absent)
    return status;
  if (choice->device && name && !module_runs_on(&choice->target, &choice->device->target)) {
    device_release(choice->device);
    choice->device = NULL;
  }
  bool cuda = choice->device || (request->device == ROTA_DEVICE_CUDA && name);
  if (!cuda && request->device == ROTA_DEVICE_CUDA)
    return status;
  choice->kind = cuda ? ROTA_DEVICE_CUDA : ROTA_DEVICE_CPU;
  if (name)
    return ROTA_OK;
  if (!choice->device)
    return named_target(context, "sm_80", &choice->target);
  choice->target = choice->device->target;
  return ROTA_OK;
}

rota_status kernel_schedule(rota_context *context, const Spec *spec, const Tiling *tiling,
                            const Target *device, Schedule *schedule) {
  Script *script = context_lock_script(context);
  rota_status status = script_schedule(script, spec, tiling, device, schedule);
  context_unlock_script(context);
  schedule->owner = NULL;
  return status;
}

static rota_status choose_tiling(rota_context *context, const Spec *spec,
                                 const rota_kernel_request *request, KernelChoice *choice) {
  Script *script = context_lock_script(context);
  rota_status status = script_tiling(script, spec, request->direction, request->layout,
                                     &choice->target, &choice->tiling);
  context_unlock_script(context);
  if (status != ROTA_OK)
    return status;
  /* A GPU may have more or fewer multiprocessors than its kind has as a rule. */
  const Target *device = choice->device ? &choice->device->target : &choice->target;
  return kernel_schedule(context, spec, &choice->tiling, device, &choice->schedule);
}

rota_status kernel_choose(rota_context *context, const Spec *spec,
                          const rota_kernel_request *request, KernelChoice *choice) {
  memset(choice, 0, sizeof *choice);
  ROTA_TRY(check_request(request));
  rota_status status = choose_device(context, request, choice);
  if (status == ROTA_OK)
    status = choose_tiling(context, spec, request, choice);
  if (status != ROTA_OK)
    kernel_choice_free(choice);
  return status;
}

void kernel_choice_free(KernelChoice *choice) {
  device_release(choice->device);
  choice->device = NULL;
}

static rota_status build_source(rota_kernel *kernel, Program **program) {
  ROTA_TRY(program_build(&kernel->spec, kernel->direction, kernel->layout, &kernel->tiling,
                         kernel->context->store, program));
  kernel->program = program_digest(*program, false);
  if (!kernel->program.hex[0])
    return ROTA_OUT_OF_MEMORY;
  kernel->code = kernel->program;
  return program_flatten(*program, &kernel->source);
}

rota_status kernel_load(rota_kernel *kernel, Device *device) {
  ModuleRequest request = {.cubin = kernel->cubin->data,
                           .bytes = kernel->cubin->bytes,
                           .architecture = kernel->target.name,
                           .nvrtc_version = kernel->cubin->nvrtc_version,
                           .tiling = &kernel->tiling};
  return context_module(kernel->context, device, &request, &kernel->module);
}

static rota_status compile_and_load(rota_kernel *kernel, const Program *program, Device *device) {
  ROTA_TRY(
      compile_program(kernel->context->compiler, program, kernel->target.name, &kernel->cubin));
  kernel->code = kernel->cubin->content;
  return device ? kernel_load(kernel, device) : ROTA_OK;
}

/* Everything after the choice. */
static rota_status build(rota_kernel *kernel, Device *device) {
  double begin = clock_seconds();
  Program *program = NULL;
  rota_status status = build_source(kernel, &program);
  if (status == ROTA_OK && kernel->device == ROTA_DEVICE_CUDA)
    status = compile_and_load(kernel, program, device);
  program_destroy(program);
  double compile = kernel->cubin ? kernel->cubin->seconds : 0;
  kernel->load_seconds = clock_seconds() - begin - compile;
  return status;
}

/* A kernel of the choice, compiled and loaded. */
static rota_status make(rota_context *context, const Spec *spec, const rota_kernel_request *request,
                        const KernelChoice *choice, rota_kernel **result) {
  rota_kernel *kernel = memory_allocate(1, sizeof *kernel);
  if (!kernel)
    return ROTA_OUT_OF_MEMORY;
  kernel->references = 1;
  kernel->context = context;
  kernel->direction = request->direction;
  kernel->layout = request->layout;
  kernel->device = choice->kind;
  kernel->target = choice->target;
  kernel->tiling = choice->tiling;
  kernel->schedule = choice->schedule;
  /* What it runs on follows from what it is compiled for: "sm_90a" is 9.0 alone. */
  const char *code = tiling_code(&choice->tiling, &choice->target);
  snprintf(kernel->target.name, sizeof kernel->target.name, "%s", code);
  spec_copy(&kernel->spec, spec);
  kernel->schedule.script = kernel->spec.script;
  rota_status status = build(kernel, choice->device);
  if (status == ROTA_OK)
    *result = kernel;
  else
    kernel_release(kernel);
  return status;
}

rota_status kernel_prepare(rota_context *context, const Spec *spec,
                           const rota_kernel_request *request, rota_kernel **result) {
  *result = NULL;
  KernelChoice choice;
  ROTA_TRY(kernel_choose(context, spec, request, &choice));
  rota_status status = make(context, spec, request, &choice, result);
  if (status == ROTA_UNSUPPORTED && choice.tiling.code[0]) {
    /* The compiler is older than these instructions: without them, then. */
    log_warn_once(&context->log, LOG_COMPILER_TOO_OLD, "slower kernels than this GPU could run: %s",
                  status_message());
    choice.target.tensor_maps = false;
    status = choose_tiling(context, spec, request, &choice);
    if (status == ROTA_OK)
      status = make(context, spec, request, &choice, result);
  }
  kernel_choice_free(&choice);
  return status;
}

rota_kernel *kernel_retain(rota_kernel *kernel) {
  __atomic_add_fetch(&kernel->references, 1, __ATOMIC_RELAXED);
  return kernel;
}

void kernel_release(rota_kernel *kernel) {
  if (!kernel || __atomic_sub_fetch(&kernel->references, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  module_release(kernel->module);
  cubin_destroy(kernel->cubin);
  spec_free(&kernel->spec);
  free(kernel->source);
  free(kernel);
}

void kernel_info(const rota_kernel *kernel, rota_kernel_info *info) {
  const Cubin *cubin = kernel->cubin;
  const Module *module = kernel->module;
  *info = (rota_kernel_info){.device = kernel->device,
                             .load_seconds = kernel->load_seconds,
                             .architecture = kernel->target.name,
                             .algorithm = kernel->tiling.algorithm,
                             .compile_log = ""};
  if (cubin) {
    info->cache_hit = cubin->hit;
    info->compile_seconds = cubin->seconds;
    info->cubin_bytes = cubin->bytes;
    info->registers = cubin->registers;
    info->spill_bytes = cubin->spill_bytes;
    info->shared_bytes = cubin->shared_bytes + tiling_shared_bytes(&kernel->tiling);
    info->compile_log = cubin->log ? cubin->log : "";
  }
  if (module) { /* the driver knows best */
    info->registers = module->registers;
    info->spill_bytes = module->spill_bytes;
    info->shared_bytes = module->shared_bytes;
  }
}
