/* Memory where a kernel runs: see buffers.h. */
#include "command/buffers.h"

#include <stdlib.h>
#include <string.h>

rota_status buffers_open(rota_device_kind kind, int ordinal, Buffers *buffers) {
  buffers->device = NULL;
  return kind == ROTA_DEVICE_CUDA ? device_open(ordinal, &buffers->device) : ROTA_OK;
}

void buffers_close(Buffers *buffers) {
  device_release(buffers->device);
}

static CUdeviceptr device_address(const void *address) {
  return (CUdeviceptr)(uintptr_t)address;
}

rota_status buffer_create(const Buffers *buffers, size_t bytes, void **address) {
  *address = NULL;
  size_t rounded = (bytes + 256) / 256 * 256;
  if (!buffers->device) {
    *address = aligned_alloc(256, rounded);
    return *address ? ROTA_OK : status_fail(ROTA_OUT_OF_MEMORY, "%zu bytes of memory", rounded);
  }
  CUdeviceptr memory = 0;
  const Driver *driver = buffers->device->driver;
  ROTA_TRY(device_enter(buffers->device, "a buffer"));
  rota_status status =
      driver_check(driver, driver->memory_allocate(&memory, rounded), "cuMemAlloc", "a buffer");
  device_leave(buffers->device);
  *address = (void *)(uintptr_t)memory;
  return status;
}

void buffer_destroy(const Buffers *buffers, void *address) {
  if (!buffers->device)
    free(address);
  else if (address)
    device_free(buffers->device, device_address(address));
}

/* One copy or fill of the device's memory, waited for. */
typedef enum Transfer { TRANSFER_IN, TRANSFER_POISON, TRANSFER_OUT } Transfer;

static rota_status transfer(const Buffers *buffers, Transfer kind, void *host, const void *device,
                            size_t bytes) {
  const Driver *driver = buffers->device->driver;
  CUdeviceptr address = device_address(device);
  ROTA_TRY(device_enter(buffers->device, "a buffer"));
  int result = driver->context_synchronize();
  if (!result && bytes) {
    if (kind == TRANSFER_IN)
      result = driver->copy_to_device(address, host, bytes, NULL);
    else if (kind == TRANSFER_OUT)
      result = driver->copy_to_host(host, address, bytes, NULL);
    else
      result = driver->memory_set(address, 0xff, bytes, NULL);
  }
  if (!result)
    result = driver->context_synchronize();
  rota_status status = driver_check(driver, result, "a transfer", "a buffer");
  device_leave(buffers->device);
  return status;
}

rota_status buffer_write(const Buffers *buffers, void *address, const void *data, size_t bytes) {
  if (buffers->device)
    return transfer(buffers, data ? TRANSFER_IN : TRANSFER_POISON, (void *)data, address, bytes);
  if (data)
    memcpy(address, data, bytes);
  else
    memset(address, 0xff, bytes);
  return ROTA_OK;
}

rota_status buffer_read(const Buffers *buffers, void *data, const void *address, size_t bytes) {
  if (buffers->device)
    return transfer(buffers, TRANSFER_OUT, data, address, bytes);
  memcpy(data, address, bytes);
  return ROTA_OK;
}

rota_status buffers_synchronize(const Buffers *buffers) {
  return buffers->device ? transfer(buffers, TRANSFER_POISON, NULL, NULL, 0) : ROTA_OK;
}
