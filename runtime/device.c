/* One CUDA device: limits, primary context, memory. */
#include "runtime/device.h"

#include <stdio.h>
#include <stdlib.h>

static rota_status read_target(Device *device) {
  const Driver *driver = device->driver;
  int major = 0, minor = 0, l2 = 0;
  Target *target = &device->target;
  const struct {
    int attribute, *value;
  } wanted[] = {
      {DEVICE_CAPABILITY_MAJOR, &major},
      {DEVICE_CAPABILITY_MINOR, &minor},
      {DEVICE_L2_BYTES, &l2},
      {DEVICE_MULTIPROCESSORS, &target->multiprocessors},
      {DEVICE_SHARED_PER_BLOCK_OPTIN, &target->shared_per_block},
      {DEVICE_SHARED_PER_SM, &target->shared_per_sm},
      {DEVICE_REGISTERS_PER_SM, &target->registers_per_sm},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    DRIVER_TRY(driver, device_get_attribute, (wanted[i].value, wanted[i].attribute, device->handle),
               "reading a device's limits");
  }
  target->sm = 10 * major + minor;
  target->l2_bytes = l2;
  target->tensor_maps = target->sm >= 90 && driver->tensor_map_encode;
  snprintf(target->name, sizeof target->name, "sm_%d", target->sm);
  if (target->sm < 80)
    return status_fail(ROTA_NO_DEVICE,
                       "device %d (%s) has compute capability %d.%d; 8.0 or newer is needed",
                       device->ordinal, device->name, major, minor);
  return ROTA_OK;
}

/* What needs the context: its id and a stream. */
static rota_status open_context(Device *device) {
  const Driver *driver = device->driver;
  DRIVER_TRY(driver, primary_retain, (&device->context, device->handle),
             "retaining the primary context");
  if (driver->context_get_id) {
    DRIVER_TRY(driver, context_get_id, (device->context, &device->context_id),
               "identifying the primary context");
  }
  DRIVER_TRY(driver, context_push, (device->context), "entering the primary context");
  CUresult result = driver->stream_create(&device->upload, STREAM_NON_BLOCKING);
  CUcontext popped;
  driver->context_pop(&popped);
  return driver_check(driver, result, "stream_create", "making a stream for uploads");
}

/* Capture rules are relaxed meanwhile: the first retain of a context allocates. */
static rota_status open_relaxed(Device *device) {
  int mode = CAPTURE_RELAXED;
  DRIVER_TRY(device->driver, exchange_capture_mode, (&mode), "opening a device");
  rota_status status = open_context(device);
  device->driver->exchange_capture_mode(&mode);
  return status;
}

rota_status device_open(int ordinal, Device **result) {
  *result = NULL;
  const Driver *driver;
  ROTA_TRY(driver_get(&driver));
  if (ordinal < 0 || ordinal >= driver->device_count)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "device_ordinal %d: this process sees %d GPU(s), "
                       "numbered from 0",
                       ordinal, driver->device_count);
  Device *device = memory_allocate(1, sizeof *device);
  if (!device)
    return ROTA_OUT_OF_MEMORY;
  device->driver = driver;
  device->ordinal = ordinal;
  device->references = 1;
  rota_status status = driver_check(driver, driver->device_get(&device->handle, ordinal),
                                    "device_get", "opening a device");
  if (status == ROTA_OK) {
    CUresult named = driver->device_get_name(device->name, sizeof device->name, device->handle);
    status = driver_check(driver, named, "device_get_name", "opening a device");
  }
  if (status == ROTA_OK)
    status = read_target(device);
  if (status == ROTA_OK)
    status = open_relaxed(device);
  if (status != ROTA_OK) {
    device_release(device);
    return status;
  }
  *result = device;
  return ROTA_OK;
}

Device *device_retain(Device *device) {
  __atomic_add_fetch(&device->references, 1, __ATOMIC_RELAXED);
  return device;
}

void device_release(Device *device) {
  if (!device || __atomic_sub_fetch(&device->references, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  if (device->context) {
    int mode;
    if (device->upload && device_enter_setup(device, "a stream", &mode) == ROTA_OK) {
      device->driver->stream_destroy(device->upload);
      device_leave_setup(device, mode);
    }
    /* A reset does not undo a retain: each is released once, whatever happened between. */
    device->driver->primary_release(device->handle);
  }
  free(device);
}

bool device_is_live(const Device *device) {
  if (__atomic_load_n(&device->lost, __ATOMIC_ACQUIRE))
    return false;
  const Driver *driver = device->driver;
  unsigned flags;
  int active = 0;
  if (driver->primary_get_state(device->handle, &flags, &active) != 0 || !active)
    return false;
  if (!device->context_id)
    return true;
  unsigned long long id = 0;
  return driver->context_get_id(device->context, &id) == 0 && id == device->context_id;
}

void device_give_up(Device *device) {
  __atomic_store_n(&device->lost, true, __ATOMIC_RELEASE);
}

rota_status device_enter(const Device *device, const char *what) {
  if (!device_is_live(device))
    return status_fail(ROTA_DRIVER,
                       "the primary context of device %d was reset since %s was made, and took its "
                       "memory along: destroy the plans and kernels from before the reset and "
                       "prepare them again",
                       device->ordinal, what);
  return driver_check(device->driver, device->driver->context_push(device->context), "context_push",
                      "entering the primary context");
}

void device_leave(const Device *device) {
  CUcontext popped;
  device->driver->context_pop(&popped);
}

rota_status device_enter_setup(const Device *device, const char *what, int *mode) {
  ROTA_TRY(device_enter(device, what));
  *mode = CAPTURE_RELAXED;
  rota_status status = driver_check(device->driver, device->driver->exchange_capture_mode(mode),
                                    "exchange_capture_mode", "entering the primary context");
  if (status != ROTA_OK)
    device_leave(device);
  return status;
}

void device_leave_setup(const Device *device, int mode) {
  device->driver->exchange_capture_mode(&mode);
  device_leave(device);
}

static rota_status allocate_and_copy(const Device *device, const void *data, size_t bytes,
                                     CUdeviceptr *address) {
  const Driver *driver = device->driver;
  DRIVER_TRY(driver, memory_allocate, (address, bytes), "allocating a plan's tables");
  CUresult result = driver->copy_to_device(*address, data, bytes, device->upload);
  if (result == 0)
    result = driver->stream_synchronize(device->upload);
  if (result == 0)
    return ROTA_OK;
  driver->memory_free(*address);
  *address = 0;
  return driver_check(driver, result, "copy_to_device", "uploading a plan's tables");
}

rota_status device_upload(const Device *device, const void *data, size_t bytes,
                          CUdeviceptr *address) {
  *address = 0;
  if (bytes == 0)
    return ROTA_OK;
  int mode;
  ROTA_TRY(device_enter_setup(device, "this kernel", &mode));
  rota_status status = allocate_and_copy(device, data, bytes, address);
  device_leave_setup(device, mode);
  return status;
}

void device_free(const Device *device, CUdeviceptr address) {
  int mode;
  if (!address || device_enter_setup(device, "memory", &mode) != ROTA_OK)
    return;
  device->driver->memory_free(address);
  device_leave_setup(device, mode);
}
