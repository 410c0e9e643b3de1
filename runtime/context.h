/* Level 8. The context: what all kernels share. Store and Lua (one thread at a time), the compiler
 * with its cache, the devices that were opened, the modules that were loaded. Safe for any number
 * of threads. */
#ifndef ROTA_RUNTIME_CONTEXT_H
#define ROTA_RUNTIME_CONTEXT_H

#include <pthread.h>

#include "generator/script.h"
#include "runtime/compile.h"
#include "runtime/module.h"

enum { DEVICES_MAX = 64 };

struct rota_context {
  Log log;
  Store *store;
  Compiler *compiler;
  pthread_mutex_t script_lock;
  Script *script;               /* used between context_lock_script and context_unlock_script */
  pthread_mutex_t device_lock;  /* guards the two below */
  Device *devices[DEVICES_MAX]; /* opened ones, by ordinal */
  Module *modules;              /* list; each holds one reference */
};

rota_status context_create(const rota_context_options *options, rota_context **context);
void context_destroy(rota_context *context); /* NULL is fine */

Script *context_lock_script(rota_context *context);
void context_unlock_script(rota_context *context);

/* The device, opened when first asked for and again after its primary context was reset; retained
 * for the caller. */
rota_status context_device(rota_context *context, int ordinal, Device **device);
/* A module loaded before, or loaded now; retained for the caller. */
rota_status context_module(rota_context *context, Device *device, const ModuleRequest *request,
                           Module **module);

#endif
