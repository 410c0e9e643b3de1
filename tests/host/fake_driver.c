/* A libcuda.so.1 without a GPU, for test_driver.c, which builds it: it launches nothing, but keeps
 * account of contexts, modules and memory, and refuses what a driver refuses: a call without a
 * current context, a handle from before a reset, a load or allocation during a capture whose mode
 * forbids it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

typedef int Result;
enum {
  OK = 0,
  INVALID_VALUE = 1,
  NO_BINARY = 209,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  DESTROYED = 709,
  COOPERATIVE_TOO_LARGE = 720,
  CAPTURE_UNSUPPORTED = 900,
  RELAXED = 2
};

FakeDriver fake_driver = {.capability = 90, .resident_blocks = 1};

enum { STACK = 16 };
static _Thread_local void *stack[STACK];
static _Thread_local int depth;
static int primary, other; /* their addresses are the contexts */

static void *current(void) {
  return depth ? stack[depth - 1] : 0;
}
static Result refuse(Result result) {
  fake_driver.errors++;
  return result;
}
/* Loads and allocations. */
static Result guard(void) {
  if (!current())
    return refuse(INVALID_CONTEXT);
  if (fake_driver.capturing && fake_driver.capture_mode != RELAXED)
    return refuse(CAPTURE_UNSUPPORTED);
  return OK;
}

Result cuInit(unsigned flags) {
  return fake_driver.inits++, flags ? INVALID_VALUE : OK;
}
Result cuDriverGetVersion(int *version) {
  return *version = 12020, OK;
}
Result cuGetErrorName(Result result, const char **name) {
  return *name = result == NO_BINARY ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_FAKE", OK;
}
Result cuGetErrorString(Result result, const char **text) {
  return *text = result == NO_BINARY ? "no kernel image is available" : "refused by the fake", OK;
}
Result cuDeviceGetCount(int *count) {
  return *count = 1, OK;
}
Result cuDeviceGet(int *device, int ordinal) {
  return *device = ordinal + 7, OK;
}
Result cuDeviceGetName(char *name, int size, int device) {
  return (void)device, strncpy(name, "Fake GPU", (size_t)size), OK;
}
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (device != 7)
    return refuse(INVALID_VALUE);
  *value = attribute == 75   ? fake_driver.capability / 10
           : attribute == 76 ? fake_driver.capability % 10
           : attribute == 16 ? 132
           : attribute == 38 ? 50 << 20
           : attribute == 97 ? 232448
           : attribute == 81 ? 233472
           : attribute == 82 ? 65536
                             : -1;
  return *value < 0 ? refuse(INVALID_VALUE) : OK;
}

Result cuDevicePrimaryCtxRetain(void **context, int device) {
  return (void)device, fake_driver.retained++, *context = &primary, OK;
}
Result cuDevicePrimaryCtxRelease_v2(int device) {
  return (void)device, fake_driver.retained--, OK;
}
Result cuDevicePrimaryCtxReset_v2(int device) {
  (void)device;
  fake_driver.resets++;
  fake_driver.modules = fake_driver.memory_blocks = 0;
  return OK;
}
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  return (void)device, *flags = 0, *active = fake_driver.retained > 0, OK;
}
Result cuCtxPushCurrent_v2(void *context) {
  if (depth == STACK)
    return refuse(INVALID_VALUE);
  fake_driver.depth++;
  return stack[depth++] = context, OK;
}
Result cuCtxPopCurrent_v2(void **context) {
  if (!depth)
    return refuse(INVALID_CONTEXT);
  fake_driver.depth--;
  return *context = stack[--depth], OK;
}
Result cuCtxGetCurrent(void **context) {
  return *context = current(), OK;
}
Result cuCtxCreate_v2(void **context, unsigned flags, int device) {
  return (void)flags, (void)device, *context = &other, cuCtxPushCurrent_v2(&other);
}
Result cuCtxGetId(void *context, unsigned long long *id) {
  return *id = context == &primary ? 100 + (unsigned)fake_driver.resets : 1, OK;
}
Result cuCtxSynchronize(void) {
  return OK;
}

/* CUlaunchConfig and its attributes. */
typedef struct FakeConfig {
  unsigned x, y, z, threads, ty, tz, shared;
  void *stream;
  struct {
    int id, padding, value, rest[15];
  } * attributes;
  unsigned attribute_count;
} FakeConfig;
enum { MAP_BYTES = 128 };

/* A module remembers the life of the context it was loaded in; functions are their modules. */
typedef struct FakeModule {
  int life;
} FakeModule;
enum { MODULES = 256 };
static FakeModule modules[MODULES];
static int modules_used;
Result cuModuleLoadData(FakeModule **module, const void *image) {
  Result result = guard();
  if (result)
    return result;
  if (fake_driver.refuse_load)
    return NO_BINARY;
  if (!image || modules_used == MODULES)
    return refuse(INVALID_VALUE);
  *module = &modules[modules_used++];
  (*module)->life = fake_driver.resets;
  fake_driver.modules++;
  return OK;
}
Result cuModuleUnload(FakeModule *module) {
  if (module->life != fake_driver.resets)
    return refuse(INVALID_HANDLE);
  Result result = guard();
  if (result)
    return result;
  module->life = -1;
  fake_driver.modules--;
  return OK;
}
Result cuModuleGetFunction(FakeModule **function, FakeModule *module, const char *name) {
  if (strncmp(name, "rota_", 5))
    return refuse(NOT_FOUND);
  return *function = module, OK;
}
Result cuFuncGetAttribute(int *value, int attribute, FakeModule *function) {
  return (void)function, *value = attribute == 4 ? 111 : attribute == 3 ? 8 : 1024, OK;
}
Result cuFuncSetAttribute(FakeModule *function, int attribute, int value) {
  if (attribute != 8)
    return refuse(INVALID_VALUE);
  return (void)function, fake_driver.max_dynamic = (unsigned)value, OK;
}
Result cuLaunchKernel(FakeModule *function, unsigned x, unsigned y, unsigned z, unsigned threads,
                      unsigned ty, unsigned tz, unsigned shared, void *stream, void **parameters,
                      void **extra) {
  (void)extra;
  if (current() != &primary)
    return refuse(INVALID_CONTEXT);
  if (function->life != fake_driver.resets || stream == (void *)1)
    return refuse(INVALID_HANDLE);
  if (!x || y != 1 || z != 1 || !threads || ty != 1 || tz != 1)
    return refuse(INVALID_VALUE);
  fake_driver.launches++;
  fake_driver.last_grid = x;
  fake_driver.last_threads = threads;
  fake_driver.last_shared = shared;
  memcpy(fake_driver.last_block, parameters[0], (size_t)fake_driver.block_bytes);
  for (int i = 0; i < fake_driver.maps; i++)
    memcpy(&fake_driver.last_maps[i], (char *)parameters[1] + i * MAP_BYTES, sizeof(FakeMap));
  return OK;
}
/* Programmatic serialization is the one attribute that is known. */
Result cuLaunchKernelEx(const FakeConfig *config, FakeModule *function, void **parameters,
                        void **extra) {
  if (config->attribute_count != 1 || config->attributes->id != 6 || config->attributes->value != 1)
    return refuse(INVALID_VALUE);
  Result result =
      cuLaunchKernel(function, config->x, config->y, config->z, config->threads, config->ty,
                     config->tz, config->shared, config->stream, parameters, extra);
  fake_driver.overlapping_launches += result == OK;
  return result;
}
/* As cuda.h says what is legal. */
Result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                              const unsigned long long *size, const unsigned long long *stride,
                              const unsigned *box, const unsigned *step, int interleave,
                              int swizzle, int promotion, int fill) {
  _Static_assert(sizeof(FakeMap) <= MAP_BYTES, "a map is opaque, but not larger");
  int bad = (uintptr_t)map % 64 || rank != 4 || !address || (uintptr_t)address % 16 || interleave;
  for (unsigned i = 0; i < 4 && !bad; i++)
    bad = !size[i] || size[i] > 1ull << 32 || !box[i] || box[i] > 256 || step[i] != 1 ||
          (i < 3 && (stride[i] % 16 || stride[i] >= 1ull << 40));
  if (bad || box[0] * 2 > 128)
    return refuse(INVALID_VALUE);
  FakeMap made = {
      .address = address, .type = type, .swizzle = swizzle, .promotion = promotion, .fill = fill};
  memcpy(made.size, size, sizeof made.size);
  memcpy(made.stride, stride, sizeof made.stride);
  memcpy(made.box, box, sizeof made.box);
  return memcpy(map, &made, sizeof made), OK;
}
Result cuLaunchCooperativeKernel(FakeModule *function, unsigned x, unsigned y, unsigned z,
                                 unsigned threads, unsigned ty, unsigned tz, unsigned shared,
                                 void *stream, void **parameters) {
  if (x > 132 * (unsigned)fake_driver.resident_blocks)
    return refuse(COOPERATIVE_TOO_LARGE);
  fake_driver.cooperative_launches++;
  return cuLaunchKernel(function, x, y, z, threads, ty, tz, shared, stream, parameters, 0);
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, FakeModule *function, int threads,
                                                   size_t shared) {
  (void)function, (void)threads, (void)shared;
  return *blocks = fake_driver.resident_blocks, OK;
}

/* Blocks that a reset took stay readable, but are no longer known. */
enum { BLOCKS = 256 };
static void *blocks[BLOCKS];
static int blocks_used;
Result cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  Result result = guard();
  if (result)
    return result;
  if (blocks_used == BLOCKS)
    return refuse(INVALID_VALUE);
  void *memory = blocks[blocks_used++] = malloc(bytes);
  fake_driver.memory_blocks++;
  return *address = (uintptr_t)memory, OK;
}
Result cuMemFree_v2(unsigned long long address) {
  Result result = guard();
  if (result)
    return result;
  for (int i = 0; i < blocks_used; i++) {
    if ((uintptr_t)blocks[i] != address)
      continue;
    free(blocks[i]);
    blocks[i] = 0;
    fake_driver.memory_blocks--;
    return OK;
  }
  return refuse(INVALID_VALUE);
}
Result cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
  /* The legacy stream would join the capture; the upload has its own. */
  if (!current() || !stream)
    return refuse(INVALID_CONTEXT);
  return memcpy((void *)(uintptr_t)to, from, bytes), OK;
}
Result cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
  return (void)stream, memcpy(to, (void *)(uintptr_t)from, bytes), OK;
}
Result cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *stream) {
  return (void)stream, memset((void *)(uintptr_t)to, value, bytes), OK;
}
Result cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = fake_driver.capture_mode;
  fake_driver.capture_mode = *mode;
  return *mode = before, OK;
}
Result cuStreamCreate(void **stream, unsigned flags) {
  Result result = guard();
  if (result)
    return result;
  return (void)flags, *stream = &primary, OK;
}
Result cuStreamDestroy_v2(void *stream) {
  return (void)stream, current() ? OK : refuse(201);
}
Result cuStreamSynchronize(void *stream) {
  return (void)stream, current() ? OK : refuse(201);
}

/* Not called by what is tested; a driver has them. */
#define UNUSED(name)                                                                               \
  Result name(void) {                                                                              \
    return refuse(INVALID_VALUE);                                                                  \
  }
UNUSED(cuStreamBeginCapture_v2)
UNUSED(cuStreamEndCapture)
UNUSED(cuStreamIsCapturing)
UNUSED(cuEventCreate)
UNUSED(cuEventDestroy_v2)
UNUSED(cuEventRecord)
UNUSED(cuEventElapsedTime)
UNUSED(cuEventSynchronize)
UNUSED(cuGraphLaunch)
UNUSED(cuGraphExecDestroy)
UNUSED(cuGraphDestroy)
