/* Level 9. Kernels: a spec turned into a program, compiled and loaded; the rota_kernel of the
 * public interface.
 *
 * A kernel is on a CUDA device (module set), on the CPU device (nothing to load), or compiled only
 * (module NULL, device CUDA): the architecture that was named is not that of a GPU here. The last
 * kind can be looked at and exported. */
#ifndef ROTA_RUNTIME_KERNEL_H
#define ROTA_RUNTIME_KERNEL_H

#include "generator/spec.h"
#include "runtime/context.h"

struct rota_spec {
  Spec spec;
};

struct rota_kernel {
  int references; /* of the user and of plans */
  rota_context *context;
  Spec spec;
  rota_direction direction;
  rota_layout layout;
  rota_device_kind device; /* CUDA or CPU */
  Target target;
  Tiling tiling;
  Schedule schedule; /* its script is the spec's; its owner is set while planning */
  char *source;      /* flattened */
  Digest program;    /* of the source without #line */
  Digest code;       /* of what runs: the cubin's bytes, or the program on the CPU device */
  Cubin *cubin;      /* owned; NULL on the CPU device */
  Module *module;    /* retained; NULL unless loaded */
  double load_seconds;
};

/* All that is decided before anything is compiled. */
typedef struct KernelChoice {
  rota_device_kind kind;
  Device *device; /* retained; NULL on the CPU device and for compile-only kernels */
  Target target;
  Tiling tiling;
  Schedule schedule;
} KernelChoice;

/* Chooses device, target, tiling and schedule for a request. */
rota_status kernel_choose(rota_context *context, const Spec *spec,
                          const rota_kernel_request *request, KernelChoice *choice);
void kernel_choice_free(KernelChoice *choice);
/* The schedule of a spec and tiling on a device whose target is given. */
rota_status kernel_schedule(rota_context *context, const Spec *spec, const Tiling *tiling,
                            const Target *device, Schedule *schedule);

rota_status kernel_prepare(rota_context *context, const Spec *spec,
                           const rota_kernel_request *request, rota_kernel **kernel);
/* Loads the kernel's cubin into a device, or takes it from the context's memory. */
rota_status kernel_load(rota_kernel *kernel, Device *device);
rota_kernel *kernel_retain(rota_kernel *kernel);
void kernel_release(rota_kernel *kernel); /* NULL is fine */
void kernel_info(const rota_kernel *kernel, rota_kernel_info *info);

/* One file with all that planning and running need (export.c). */
rota_status kernel_export(const rota_kernel *kernel, const char *path);
rota_status kernel_import(rota_context *context, const char *path, int ordinal,
                          rota_kernel **kernel);

#endif
