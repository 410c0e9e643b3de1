/* A cubin loaded into a device. */
#include "runtime/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Digest module_key(const ModuleRequest *request) {
  DigestStream *stream = digest_begin();
  digest_add(stream, request->cubin, request->bytes);
  for (int i = 0; i < request->tiling->launch_count; i++) {
    const Launch *launch = &request->tiling->launches[i];
    digest_add_string(stream, launch->entry);
    digest_add(stream, &launch->threads, sizeof launch->threads);
    digest_add(stream, &launch->shared_bytes, sizeof launch->shared_bytes);
  }
  return digest_end(stream);
}

bool module_runs_on(const Target *code, const Target *device) {
  size_t length = strlen(code->name);
  bool exact = length > 0 && code->name[length - 1] == 'a';
  if (exact)
    return code->sm == device->sm;
  return code->sm / 10 == device->sm / 10 && code->sm <= device->sm;
}

static rota_status load_failure(const Device *device, const ModuleRequest *request,
                                CUresult result) {
  rota_status status = driver_check(device->driver, result, "module_load_data", "loading a kernel");
  if (status == ROTA_OUT_OF_MEMORY)
    return status;
  char compiler[32] = "a compiler of unknown version";
  if (request->nvrtc_version > 0)
    snprintf(compiler, sizeof compiler, "NVRTC %d.%d", request->nvrtc_version / 1000,
             request->nvrtc_version % 1000 / 10);
  int driver = device->driver->version;
  return status_prefix(status,
                       "the cubin for %s, made by %s, does not load on device %d (%s, %s) with a "
                       "driver for CUDA %d.%d; a driver at least as new as the compiler, or an "
                       "older NVRTC (ROTA_NVRTC), helps: ",
                       request->architecture, compiler, device->ordinal, device->name,
                       device->target.name, driver / 1000, driver % 1000 / 10);
}

static int larger(int a, int b) {
  return a > b ? a : b;
}

/* One entry: found, loaded for good, allowed its shared memory, and measured. */
static rota_status find_entry(Module *module, int index, const Launch *launch) {
  const Driver *driver = module->device->driver;
  CUfunction *function = &module->functions[index];
  DRIVER_TRY(driver, module_get_function, (function, module->handle, launch->entry), launch->entry);
  /* Lazy loading would put the load into the first launch. */
  if (driver->function_load)
    DRIVER_TRY(driver, function_load, (*function), launch->entry);
  if (launch->shared_bytes > 0)
    DRIVER_TRY(driver, function_set_attribute,
               (*function, FUNCTION_MAX_DYNAMIC_SHARED, launch->shared_bytes),
               "allowing a kernel its shared memory");
  int registers, local, shared;
  DRIVER_TRY(driver, function_get_attribute, (&registers, FUNCTION_REGISTERS, *function),
             launch->entry);
  DRIVER_TRY(driver, function_get_attribute, (&local, FUNCTION_LOCAL_BYTES, *function),
             launch->entry);
  DRIVER_TRY(driver, function_get_attribute, (&shared, FUNCTION_SHARED_BYTES, *function),
             launch->entry);
  DRIVER_TRY(driver, resident_blocks,
             (&module->resident[index], *function, launch->threads, (size_t)launch->shared_bytes),
             launch->entry);
  module->registers = larger(module->registers, registers);
  module->spill_bytes = larger(module->spill_bytes, local);
  module->shared_bytes = larger(module->shared_bytes, shared + launch->shared_bytes);
  return ROTA_OK;
}

static rota_status load_entries(Module *module, const ModuleRequest *request) {
  CUresult result = module->device->driver->module_load_data(&module->handle, request->cubin);
  if (result != 0) {
    module->handle = NULL;
    return load_failure(module->device, request, result);
  }
  for (int i = 0; i < request->tiling->launch_count; i++)
    ROTA_TRY(find_entry(module, i, &request->tiling->launches[i]));
  return ROTA_OK;
}

rota_status module_load(Device *device, const ModuleRequest *request, const Digest *key,
                        Module **result) {
  *result = NULL;
  Module *module = memory_allocate(1, sizeof *module);
  if (!module)
    return ROTA_OUT_OF_MEMORY;
  module->references = 1;
  module->device = device_retain(device);
  module->key = *key;
  int mode;
  rota_status status = device_enter_setup(device, "this context", &mode);
  if (status == ROTA_OK) {
    status = load_entries(module, request);
    device_leave_setup(device, mode);
  }
  if (status != ROTA_OK) {
    module_release(module);
    return status;
  }
  *result = module;
  return ROTA_OK;
}

Module *module_retain(Module *module) {
  __atomic_add_fetch(&module->references, 1, __ATOMIC_RELAXED);
  return module;
}

static void unload(const Module *module) {
  int mode = 0;
  if (device_enter_setup(module->device, "a module", &mode) != ROTA_OK)
    return;
  module->device->driver->module_unload(module->handle);
  device_leave_setup(module->device, mode);
}

void module_release(Module *module) {
  if (!module || __atomic_sub_fetch(&module->references, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  if (module->handle)
    unload(module);
  device_release(module->device);
  free(module);
}
