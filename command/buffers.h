/* Memory where a kernel runs: the GPU's or the host's. */
#ifndef ROTA_COMMAND_BUFFERS_H
#define ROTA_COMMAND_BUFFERS_H

#include "runtime/device.h"

typedef struct Buffers {
  Device *device; /* NULL: host memory */
} Buffers;

/* `kind` is CUDA or CPU. */
rota_status buffers_open(rota_device_kind kind, int ordinal, Buffers *buffers);
void buffers_close(Buffers *buffers);

/* At least one byte, 256-byte aligned, any content. */
rota_status buffer_create(const Buffers *buffers, size_t bytes, void **address);
void buffer_destroy(const Buffers *buffers, void *address); /* NULL is fine */
/* Copies in, waiting for it; `data` NULL fills with 0xff bytes: NaN in every dtype. */
rota_status buffer_write(const Buffers *buffers, void *address, const void *data, size_t bytes);
/* Waits for all launches, then copies out. */
rota_status buffer_read(const Buffers *buffers, void *data, const void *address, size_t bytes);
/* Waits for all launches. */
rota_status buffers_synchronize(const Buffers *buffers);

#endif
