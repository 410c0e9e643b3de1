/* Level 7. A cubin loaded into a device: the entries of a tiling's launches, ready to launch, and
 * what they use. */
#ifndef ROTA_RUNTIME_MODULE_H
#define ROTA_RUNTIME_MODULE_H

#include "generator/digest.h"
#include "runtime/device.h"

/* What is loaded, and words for a message if it does not load. */
typedef struct ModuleRequest {
  const void *cubin;
  size_t bytes;
  const char *architecture; /* that it was compiled for */
  int nvrtc_version;        /* that compiled it: 13000 for 13.0; 0: not known */
  const Tiling *tiling;     /* names the entries and their dynamic shared memory */
} ModuleRequest;

typedef struct Module {
  struct Module *next; /* in the context's list */
  int references;
  Device *device; /* retained */
  Digest key;     /* of cubin and launches: see module_key */
  CUmodule handle;
  CUfunction functions[LAUNCHES_MAX];       /* of tiling->launches */
  int resident[LAUNCHES_MAX];               /* blocks of each that a multiprocessor holds at once */
  int registers, spill_bytes, shared_bytes; /* worst entry of each */
} Module;

/* Same key and device: the same module serves. "" where memory ran out. */
Digest module_key(const ModuleRequest *request);
/* Loads now, not at the first launch (which may come inside a stream capture). DRIVER names driver
 * and compiler versions. */
rota_status module_load(Device *device, const ModuleRequest *request, const Digest *key,
                        Module **module);
Module *module_retain(Module *module);
void module_release(Module *module); /* NULL is fine */

/* Whether code for the architecture `code` runs on a GPU of `device`: same major version, no newer
 * minor one; "sm_90a" on 9.0 alone. */
bool module_runs_on(const Target *code, const Target *device);

#endif
