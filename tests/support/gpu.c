/* A GPU for tests. */
#include "tests/support/gpu.h"

#include <stdio.h>
#include <stdlib.h>

static void must(rota_status status) {
  if (status == ROTA_OK)
    return;
  fprintf(stderr, "gpu: %s\n", status_message());
  exit(1);
}

#define MUST(name, arguments)                                                                      \
  must(driver_check(gpu->driver, gpu->driver->name arguments, #name, "test support"))

bool gpu_open(Gpu *gpu) {
  *gpu = (Gpu){0};
  rota_status status = device_open(0, &gpu->device);
  if (status == ROTA_NO_DEVICE) {
    fprintf(stderr, "\n*** SKIPPED: this test needs a GPU, and there is none.\n*** %s\n\n",
            status_message());
    return false;
  }
  must(status);
  gpu->driver = gpu->device->driver;
  MUST(context_push, (gpu->device->context));
  gpu->stream = gpu_stream_create(gpu);
  fprintf(stderr, "GPU: %s (%s), driver for CUDA %d.%d\n", gpu->device->name,
          gpu->device->target.name, gpu->driver->version / 1000, gpu->driver->version % 1000 / 10);
  return true;
}

void gpu_close(Gpu *gpu) {
  CUcontext popped;
  gpu_stream_destroy(gpu, gpu->stream);
  MUST(context_pop, (&popped));
  device_release(gpu->device);
}

void *gpu_allocate(const Gpu *gpu, size_t bytes) {
  CUdeviceptr address = 0;
  MUST(memory_allocate, (&address, bytes ? bytes : 1));
  return (void *)(uintptr_t)address;
}

void gpu_free(const Gpu *gpu, void *memory) {
  if (memory)
    MUST(memory_free, ((CUdeviceptr)(uintptr_t)memory));
}

void gpu_write(const Gpu *gpu, void *to, const void *from, size_t bytes) {
  if (bytes == 0)
    return;
  MUST(copy_to_device, ((CUdeviceptr)(uintptr_t)to, from, bytes, gpu->stream));
  gpu_synchronize(gpu, gpu->stream);
}

void gpu_read(const Gpu *gpu, void *to, const void *from, size_t bytes) {
  if (bytes == 0)
    return;
  MUST(copy_to_host, (to, (CUdeviceptr)(uintptr_t)from, bytes, gpu->stream));
  gpu_synchronize(gpu, gpu->stream);
}

void gpu_fill(const Gpu *gpu, void *to, unsigned char byte, size_t bytes) {
  if (bytes == 0)
    return;
  MUST(memory_set, ((CUdeviceptr)(uintptr_t)to, byte, bytes, gpu->stream));
  gpu_synchronize(gpu, gpu->stream);
}

CUstream gpu_stream_create(const Gpu *gpu) {
  CUstream stream;
  MUST(stream_create, (&stream, STREAM_NON_BLOCKING));
  return stream;
}

void gpu_stream_destroy(const Gpu *gpu, CUstream stream) {
  MUST(stream_destroy, (stream));
}

void gpu_synchronize(const Gpu *gpu, CUstream stream) {
  MUST(stream_synchronize, (stream));
}

void gpu_capture_begin(const Gpu *gpu, CUstream stream, int mode) {
  MUST(stream_begin_capture, (stream, mode));
}

CUgraphExec gpu_capture_end(const Gpu *gpu, CUstream stream) {
  CUgraph graph;
  CUgraphExec executable;
  MUST(stream_end_capture, (stream, &graph));
  MUST(graph_instantiate, (&executable, graph, 0));
  MUST(graph_destroy, (graph));
  return executable;
}

void gpu_graph_launch(const Gpu *gpu, CUgraphExec graph, CUstream stream) {
  MUST(graph_launch, (graph, stream));
}

void gpu_graph_destroy(const Gpu *gpu, CUgraphExec graph) {
  MUST(graph_executable_destroy, (graph));
}

CUcontext gpu_current_context(const Gpu *gpu) {
  CUcontext context = NULL;
  MUST(context_get_current, (&context));
  return context;
}
