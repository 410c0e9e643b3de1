/* Level 1. The CUDA driver, through dlopen of libcuda.so.1: a table of functions, and errors in
 * words.
 *
 * No CUDA header is used: what is declared here is the part of the driver's ABI that Rota calls.
 * The driver is looked for when first asked for, never when the library is loaded, and stays open
 * for the life of the process. */
#ifndef ROTA_RUNTIME_DRIVER_H
#define ROTA_RUNTIME_DRIVER_H

#include "generator/status.h"
#include "runtime/driver_symbols.h"

typedef int CUresult; /* an enum there; 0 is success */
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr; /* a device address */

/* Values of the driver's enums that Rota uses (CU_DEVICE_ATTRIBUTE_*, CU_FUNC_ATTRIBUTE_*, ...). */
enum {
  DRIVER_INVALID_IMAGE = 200,
  DRIVER_INVALID_CONTEXT = 201,
  DRIVER_NO_BINARY_FOR_GPU = 209,
  DRIVER_UNSUPPORTED_PTX_VERSION = 222,
  DRIVER_INVALID_HANDLE = 400,
  DRIVER_CONTEXT_IS_DESTROYED = 709,
  DRIVER_OUT_OF_MEMORY = 2,

  DEVICE_MULTIPROCESSORS = 16,
  DEVICE_L2_BYTES = 38,
  DEVICE_CAPABILITY_MAJOR = 75,
  DEVICE_CAPABILITY_MINOR = 76,
  DEVICE_SHARED_PER_SM = 81,
  DEVICE_REGISTERS_PER_SM = 82,
  DEVICE_SHARED_PER_BLOCK_OPTIN = 97,

  FUNCTION_SHARED_BYTES = 1, /* static */
  FUNCTION_LOCAL_BYTES = 3,  /* per thread */
  FUNCTION_REGISTERS = 4,
  FUNCTION_MAX_DYNAMIC_SHARED = 8,

  CAPTURE_GLOBAL = 0,
  CAPTURE_THREAD_LOCAL = 1,
  CAPTURE_RELAXED = 2,
  STREAM_NON_BLOCKING = 1,

  LAUNCH_COOPERATIVE = 2,
  LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,

  TENSOR_MAP_FLOAT16 = 6,
  TENSOR_MAP_BFLOAT16 = 9,
  TENSOR_MAP_INTERLEAVE_NONE = 0,
  TENSOR_MAP_SWIZZLE_128B = 3,
  TENSOR_MAP_PROMOTION_256B = 3,
  TENSOR_MAP_FILL_ZEROS = 0,
};

/* CUlaunchAttribute: a number that says which, and a union of 64 bytes. */
typedef struct LaunchAttribute {
  int id;
  int padding;
  union {
    int number;
    unsigned char bytes[64];
    long long alignment;
  } value;
} LaunchAttribute;

/* CUlaunchConfig. */
typedef struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z;
  unsigned shared_bytes;
  CUstream stream;
  LaunchAttribute *attributes;
  unsigned attribute_count;
} LaunchConfig;

typedef struct Driver {
#define X(name, symbol, need, parameters) CUresult(*name) parameters;
  DRIVER_SYMBOLS(X)
#undef X
  int version;      /* the newest CUDA that it serves: 13000 for 13.0 */
  int device_count; /* at least 1 */
  const char *path; /* the file that was loaded */
} Driver;

/* The process's driver, initialised, with a GPU behind it. NO_DEVICE says what is missing and where
 * it was looked for. A failure is remembered: cuInit answers the same for the life of a process.
 * Thread-safe. */
rota_status driver_get(const Driver **driver);

/* OK for result 0; else DRIVER (OUT_OF_MEMORY where memory ran out) with "CALL: NAME (TEXT)" and
 * `purpose`. */
rota_status driver_check(const Driver *driver, CUresult result, const char *call,
                         const char *purpose);

/* driver->NAME arguments, checked; returns from the calling function on failure. */
#define DRIVER_TRY(driver, name, arguments, purpose)                                               \
  ROTA_TRY(driver_check(driver, (driver)->name arguments, #name, purpose))

#endif
