/* A GPU for tests, through the driver's table: memory, streams, graphs. Works in its own way into
 * the primary context, as an application does; Rota must leave that as it found it. Any failure
 * ends the test program with a message. */
#ifndef ROTA_TESTS_GPU_H
#define ROTA_TESTS_GPU_H

#include "runtime/device.h"

typedef struct Gpu {
  const Driver *driver;
  Device *device;
  CUstream stream;
} Gpu;

enum { TEST_SKIP = 77 }; /* exit status by which CTest counts a test as skipped */

/* The first GPU, with its primary context current in the calling thread. False, loudly, where there
 * is none. */
bool gpu_open(Gpu *gpu);
void gpu_close(Gpu *gpu);

void *gpu_allocate(const Gpu *gpu, size_t bytes);
void gpu_free(const Gpu *gpu, void *memory);
/* Complete on return. */
void gpu_write(const Gpu *gpu, void *to, const void *from, size_t bytes);
void gpu_read(const Gpu *gpu, void *to, const void *from, size_t bytes);
void gpu_fill(const Gpu *gpu, void *to, unsigned char byte, size_t bytes);

CUstream gpu_stream_create(const Gpu *gpu);
void gpu_stream_destroy(const Gpu *gpu, CUstream stream);
void gpu_synchronize(const Gpu *gpu, CUstream stream);

/* What is put on the stream between begin and end becomes a graph. `mode` is CAPTURE_GLOBAL or
 * another. */
void gpu_capture_begin(const Gpu *gpu, CUstream stream, int mode);
CUgraphExec gpu_capture_end(const Gpu *gpu, CUstream stream);
void gpu_graph_launch(const Gpu *gpu, CUgraphExec graph, CUstream stream);
void gpu_graph_destroy(const Gpu *gpu, CUgraphExec graph);

CUcontext gpu_current_context(const Gpu *gpu);

#endif
