/* The context: what all kernels share. */
#include "runtime/context.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/environment.h"

static rota_status fill(rota_context *context, const rota_context_options *options) {
  log_init(&context->log, options->debug);
  ROTA_TRY(store_create(environment_get(ENVIRONMENT_OVERRIDE_DIR), &context->store));
  ROTA_TRY(script_create(context->store, &context->script));
  CompilerOptions wanted = {.cache_dir = options->cache_dir,
                            .cache_max_bytes = options->cache_max_bytes,
                            .nvrtc_path = options->nvrtc_path,
                            .log = &context->log};
  return compiler_create(&wanted, &context->compiler);
}

static rota_status check_options(const rota_context_options *options) {
  if (options->cache_max_bytes < 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "cache_max_bytes is %lld; 0 means 1 GiB",
                       (long long)options->cache_max_bytes);
  if (options->debug < -1 || options->debug > LOG_LEVEL_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "debug is %d; -1 (ROTA_DEBUG) and 0 to %d are levels",
                       options->debug, LOG_LEVEL_MAX);
  return ROTA_OK;
}

rota_status context_create(const rota_context_options *options, rota_context **result) {
  const rota_context_options defaults = {.debug = -1};
  *result = NULL;
  if (!options)
    options = &defaults;
  ROTA_TRY(check_options(options));
  rota_context *context = memory_allocate(1, sizeof *context);
  if (!context)
    return ROTA_OUT_OF_MEMORY;
  pthread_mutex_init(&context->script_lock, NULL);
  pthread_mutex_init(&context->device_lock, NULL);
  rota_status status = fill(context, options);
  if (status != ROTA_OK) {
    context_destroy(context);
    return status;
  }
  *result = context;
  return ROTA_OK;
}

void context_destroy(rota_context *context) {
  if (!context)
    return;
  while (context->modules) {
    Module *next = context->modules->next;
    module_release(context->modules);
    context->modules = next;
  }
  for (int i = 0; i < DEVICES_MAX; i++)
    device_release(context->devices[i]);
  compiler_destroy(context->compiler);
  script_destroy(context->script);
  store_destroy(context->store);
  pthread_mutex_destroy(&context->script_lock);
  pthread_mutex_destroy(&context->device_lock);
  free(context);
}

Script *context_lock_script(rota_context *context) {
  pthread_mutex_lock(&context->script_lock);
  return context->script;
}

void context_unlock_script(rota_context *context) {
  pthread_mutex_unlock(&context->script_lock);
}

/* Forgets a device whose primary context was reset, and its modules. Kernels and plans that still
 * hold them see that they are stale and say so. */
static void forget_device(rota_context *context, int ordinal) {
  Device *device = context->devices[ordinal];
  device_give_up(device);
  for (Module **link = &context->modules; *link;) {
    Module *module = *link;
    if (module->device != device) {
      link = &module->next;
      continue;
    }
    *link = module->next;
    module_release(module);
  }
  device_release(device);
  context->devices[ordinal] = NULL;
}

static rota_status find_device(rota_context *context, int ordinal, Device **result) {
  Device **slot = &context->devices[ordinal];
  if (*slot && !device_is_live(*slot)) {
    log_warn(&context->log, "the primary context of device %d was reset; opening it again",
             ordinal);
    forget_device(context, ordinal);
  }
  if (!*slot) {
    ROTA_TRY(device_open(ordinal, slot));
    log_print(&context->log, 2, "device %d: %s, %s, driver for CUDA %d.%d", ordinal, (*slot)->name,
              (*slot)->target.name, (*slot)->driver->version / 1000,
              (*slot)->driver->version % 1000 / 10);
  }
  *result = device_retain(*slot);
  return ROTA_OK;
}

rota_status context_device(rota_context *context, int ordinal, Device **device) {
  *device = NULL;
  if (ordinal < 0 || ordinal >= DEVICES_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "device_ordinal is %d; devices count from 0 to %d",
                       ordinal, DEVICES_MAX - 1);
  pthread_mutex_lock(&context->device_lock);
  rota_status status = find_device(context, ordinal, device);
  pthread_mutex_unlock(&context->device_lock);
  return status;
}

static Module *find_module(rota_context *context, const Device *device, const Digest *key) {
  pthread_mutex_lock(&context->device_lock);
  Module *module = context->modules;
  while (module && (module->device != device || strcmp(module->key.hex, key->hex) != 0))
    module = module->next;
  if (module)
    module_retain(module);
  pthread_mutex_unlock(&context->device_lock);
  return module;
}

rota_status context_module(rota_context *context, Device *device, const ModuleRequest *request,
                           Module **module) {
  *module = NULL;
  Digest key = module_key(request);
  if (!key.hex[0])
    return ROTA_OUT_OF_MEMORY;
  *module = find_module(context, device, &key);
  if (*module)
    return ROTA_OK;
  /* Loading takes milliseconds and runs unlocked; of two threads that load the same, one module is
   * used once more than needed, which does no harm. */
  ROTA_TRY(module_load(device, request, &key, module));
  pthread_mutex_lock(&context->device_lock);
  (*module)->next = context->modules;
  context->modules = module_retain(*module);
  pthread_mutex_unlock(&context->device_lock);
  return ROTA_OK;
}
