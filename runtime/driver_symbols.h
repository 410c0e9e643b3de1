/* Level 0. The functions of the CUDA driver that Rota calls, one line each:
 *
 *     X(name in Driver, symbol of libcuda, REQUIRED or OPTIONAL, parameters)
 *
 * The symbol carries the version suffix of the ABI whose parameters are declared here
 * (cuMemAlloc_v2 takes 64-bit sizes); cuda.h hides these suffixes behind macros. OPTIONAL symbols
 * came with the driver named behind them and may be NULL. */
#ifndef ROTA_RUNTIME_DRIVER_SYMBOLS_H
#define ROTA_RUNTIME_DRIVER_SYMBOLS_H

/* clang-format off */
#define DRIVER_SYMBOLS(X)                                                                          \
  /* the driver and its devices */                                                                 \
  X(init, "cuInit", REQUIRED, (unsigned flags))                                                    \
  X(get_version, "cuDriverGetVersion", REQUIRED, (int *version))                                   \
  X(get_error_name, "cuGetErrorName", REQUIRED, (CUresult result, const char **name))              \
  X(get_error_string, "cuGetErrorString", REQUIRED, (CUresult result, const char **text))          \
  X(device_get_count, "cuDeviceGetCount", REQUIRED, (int *count))                                  \
  X(device_get, "cuDeviceGet", REQUIRED, (CUdevice *device, int ordinal))                          \
  X(device_get_name, "cuDeviceGetName", REQUIRED, (char *name, int size, CUdevice device))         \
  X(device_get_attribute, "cuDeviceGetAttribute", REQUIRED,                                        \
    (int *value, int attribute, CUdevice device))                                                  \
  /* contexts */                                                                                   \
  X(primary_retain, "cuDevicePrimaryCtxRetain", REQUIRED, (CUcontext *context, CUdevice device))   \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", REQUIRED, (CUdevice device))                  \
  X(primary_reset, "cuDevicePrimaryCtxReset_v2", REQUIRED, (CUdevice device))                      \
  X(primary_get_state, "cuDevicePrimaryCtxGetState", REQUIRED,                                     \
    (CUdevice device, unsigned *flags, int *active))                                               \
  X(context_push, "cuCtxPushCurrent_v2", REQUIRED, (CUcontext context))                            \
  X(context_pop, "cuCtxPopCurrent_v2", REQUIRED, (CUcontext *context))                             \
  X(context_get_current, "cuCtxGetCurrent", REQUIRED, (CUcontext *context))                        \
  X(context_create, "cuCtxCreate_v2", OPTIONAL,                                                    \
    (CUcontext *context, unsigned flags, CUdevice device))                                         \
  X(context_destroy, "cuCtxDestroy_v2", OPTIONAL, (CUcontext context))                             \
  X(context_get_id, "cuCtxGetId", OPTIONAL, (CUcontext context, unsigned long long *id)) /* 12.0 */\
  X(context_synchronize, "cuCtxSynchronize", REQUIRED, (void))                                     \
  /* modules and functions */                                                                      \
  X(module_load_data, "cuModuleLoadData", REQUIRED, (CUmodule *module, const void *image))         \
  X(module_unload, "cuModuleUnload", REQUIRED, (CUmodule module))                                  \
  X(module_get_function, "cuModuleGetFunction", REQUIRED,                                          \
    (CUfunction *function, CUmodule module, const char *name))                                     \
  X(function_load, "cuFuncLoad", OPTIONAL, (CUfunction function)) /* 12.4 */                       \
  X(function_get_attribute, "cuFuncGetAttribute", REQUIRED,                                        \
    (int *value, int attribute, CUfunction function))                                              \
  X(function_set_attribute, "cuFuncSetAttribute", REQUIRED,                                        \
    (CUfunction function, int attribute, int value))                                               \
  X(launch_kernel, "cuLaunchKernel", REQUIRED,                                                     \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                   \
     void **parameters, void **extra))                                                             \
  X(launch_cooperative, "cuLaunchCooperativeKernel", REQUIRED,                                     \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                   \
     void **parameters))                                                                           \
  X(launch_extended, "cuLaunchKernelEx", OPTIONAL,                                                 \
    (const LaunchConfig *config, CUfunction function, void **parameters, void **extra)) /* 11.8 */ \
  X(resident_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", REQUIRED,                      \
    (int *blocks, CUfunction function, int block_size, size_t shared_bytes))                       \
  X(tensor_map_encode, "cuTensorMapEncodeTiled", OPTIONAL,                                         \
    (void *map, int type, unsigned rank, void *address, const unsigned long long *sizes,           \
     const unsigned long long *strides, const unsigned *box, const unsigned *element_strides,      \
     int interleave, int swizzle, int promotion, int fill)) /* 12.0 */                             \
  /* memory */                                                                                     \
  X(memory_allocate, "cuMemAlloc_v2", REQUIRED, (CUdeviceptr *address, size_t bytes))              \
  X(memory_free, "cuMemFree_v2", REQUIRED, (CUdeviceptr address))                                  \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", REQUIRED,                                              \
    (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                             \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", REQUIRED,                                                \
    (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                                   \
  X(memory_set, "cuMemsetD8Async", REQUIRED,                                                       \
    (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))                          \
  /* streams, events, graphs */                                                                    \
  X(stream_create, "cuStreamCreate", REQUIRED, (CUstream *stream, unsigned flags))                 \
  X(stream_destroy, "cuStreamDestroy_v2", REQUIRED, (CUstream stream))                             \
  X(stream_synchronize, "cuStreamSynchronize", REQUIRED, (CUstream stream))                        \
  X(stream_begin_capture, "cuStreamBeginCapture_v2", REQUIRED, (CUstream stream, int mode))        \
  X(stream_end_capture, "cuStreamEndCapture", REQUIRED, (CUstream stream, CUgraph *graph))         \
  X(stream_is_capturing, "cuStreamIsCapturing", REQUIRED, (CUstream stream, int *status))          \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", REQUIRED, (int *mode))             \
  X(event_create, "cuEventCreate", REQUIRED, (CUevent *event, unsigned flags))                     \
  X(event_destroy, "cuEventDestroy_v2", REQUIRED, (CUevent event))                                 \
  X(event_record, "cuEventRecord", REQUIRED, (CUevent event, CUstream stream))                     \
  X(event_elapsed, "cuEventElapsedTime", REQUIRED,                                                 \
    (float *milliseconds, CUevent begin, CUevent end))                                             \
  X(event_synchronize, "cuEventSynchronize", REQUIRED, (CUevent event))                            \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", OPTIONAL,                                    \
    (CUgraphExec *executable, CUgraph graph, unsigned long long flags)) /* 11.4 */                 \
  X(graph_launch, "cuGraphLaunch", REQUIRED, (CUgraphExec executable, CUstream stream))            \
  X(graph_executable_destroy, "cuGraphExecDestroy", REQUIRED, (CUgraphExec executable))            \
  X(graph_destroy, "cuGraphDestroy", REQUIRED, (CUgraph graph))
/* clang-format on */

#endif
