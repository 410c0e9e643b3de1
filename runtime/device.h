/* Level 2. One CUDA device: its limits, its primary context, and memory in it.
 *
 * Rota works in the device's primary context, the one that the CUDA runtime and the frameworks use,
 * and pushes it around its own calls only, so that the caller finds the current context as it left
 * it, and a thread without one needs none.
 *
 * Anyone in the process may reset a primary context; modules and memory in it are then gone, and
 * their handles must not be touched. A Device stands for one life of the primary context, told by
 * the context's id: see device_is_live. */
#ifndef ROTA_RUNTIME_DEVICE_H
#define ROTA_RUNTIME_DEVICE_H

#include "generator/tiling.h"
#include "runtime/driver.h"

typedef struct Device {
  const Driver *driver;
  int ordinal;
  CUdevice handle;
  CUcontext context;             /* primary, retained while the Device lives */
  unsigned long long context_id; /* 0 where the driver (before 12.0) does not tell */
  CUstream upload; /* non-blocking: an upload neither waits for nor disturbs the caller's streams */
  Target target;
  char name[96]; /* "NVIDIA H200" */
  bool lost;     /* found reset before: not live again, whatever the driver says */
  int references;
} Device;

/* Opens a device. NO_DEVICE without a driver or GPU; INVALID_ARGUMENT for an ordinal that is not
 * there. */
rota_status device_open(int ordinal, Device **device);
Device *device_retain(Device *device);
void device_release(Device *device); /* NULL is fine */

/* False once the primary context was reset after device_open: no handle from before may be used
 * then. */
bool device_is_live(const Device *device);
/* Marks a device that was found not live. */
void device_give_up(Device *device);

/* Makes the primary context current for launches; each enter that succeeds is paired with a leave.
 * Fails with DRIVER and a clear message if the device is not live; `what` ("this plan") names what
 * was lost. */
rota_status device_enter(const Device *device, const char *what);
void device_leave(const Device *device);

/* The same for calls that load, allocate or free: these may come while a stream of the process is
 * being captured into a graph, and must not spoil the capture. `mode` keeps the thread's capture
 * mode for device_leave_setup. */
rota_status device_enter_setup(const Device *device, const char *what, int *mode);
void device_leave_setup(const Device *device, int mode);

/* Device memory holding a copy of `bytes`; complete on return. Address 0 for 0 bytes. */
rota_status device_upload(const Device *device, const void *data, size_t bytes,
                          CUdeviceptr *address);
/* Frees it, if the device is still live. */
void device_free(const Device *device, CUdeviceptr address);

#endif
