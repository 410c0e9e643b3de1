/* The CUDA driver: found, initialised and kept for the life of the process. */
#include "runtime/driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/library.h"

/* The real library first. The name without a version exists where only the toolkit's stub is
 * installed, whose cuInit fails; it comes last and its failure is explained. WSL keeps the driver
 * outside the linker's path. */
static const char *const driver_names[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
                                           "libcuda.so", NULL};

/* The one driver of the process, guarded by `lock`. */
static struct {
  pthread_mutex_t lock;
  bool attempted;
  Library *library;
  Driver driver;
  rota_status status;
  char message[1024]; /* of the failure, told again on each call */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static rota_status find_symbols(Library *library, Driver *driver) {
  enum { OPTIONAL, REQUIRED };
#define X(name, symbol, need, parameters)                                                          \
  {                                                                                                \
    void *address = library_symbol(library, symbol);                                               \
    if (!address && (need) == REQUIRED)                                                            \
      return status_fail(ROTA_NO_DEVICE,                                                           \
                         "%s has no %s: the CUDA driver is too old (11.4 or newer is needed)",     \
                         library_path(library), symbol);                                           \
    /* POSIX lets a data pointer carry a function; C wants the bytes copied. */                    \
    memcpy(&driver->name, &address, sizeof address);                                               \
  }
  DRIVER_SYMBOLS(X)
#undef X
  return ROTA_OK;
}

static rota_status initialise(Library *library, Driver *driver) {
  ROTA_TRY(find_symbols(library, driver));
  driver->path = library_path(library);
  CUresult result = driver->init(0);
  if (result == 0)
    result = driver->get_version(&driver->version);
  if (result == 0)
    result = driver->device_get_count(&driver->device_count);
  if (result != 0) {
    const char *name = NULL, *text = NULL;
    driver->get_error_name(result, &name);
    driver->get_error_string(result, &text);
    return status_fail(ROTA_NO_DEVICE,
                       "%s does not start: cuInit: %s (%s); see that nvidia-smi works, or use the "
                       "CPU device",
                       driver->path, name ? name : "unknown error", text ? text : "no text");
  }
  if (driver->device_count < 1)
    return status_fail(ROTA_NO_DEVICE, "%s sees no GPU; is CUDA_VISIBLE_DEVICES empty?",
                       driver->path);
  return ROTA_OK;
}

static rota_status find_driver(void) {
  Text tried = {0};
  Library *library = library_open(driver_names, &tried);
  if (!library) {
    rota_status status =
        status_fail(ROTA_NO_DEVICE,
                    "no CUDA driver: libcuda.so.1 does not load; install NVIDIA's driver, or "
                    "use the CPU device. Tried:\n%s",
                    tried.data ? tried.data : "");
    text_free(&tried);
    return status;
  }
  text_free(&tried);
  rota_status status = initialise(library, &process.driver);
  /* On failure the library stays loaded: unloading a driver whose cuInit ran is not safe. Its path
   * may be in a message. */
  process.library = library;
  return status;
}

rota_status driver_get(const Driver **driver) {
  *driver = NULL;
  pthread_mutex_lock(&process.lock);
  if (!process.attempted) {
    process.attempted = true;
    process.status = find_driver();
    if (process.status != ROTA_OK) {
      strncpy(process.message, status_message(), sizeof process.message - 1);
    }
  }
  rota_status status = process.status;
  pthread_mutex_unlock(&process.lock);
  /* Written once under the lock, constant from then on. */
  if (status != ROTA_OK)
    return status_fail(status, "%s", process.message);
  *driver = &process.driver;
  return ROTA_OK;
}

static const char *symbol_of(const char *call) {
#define X(name, symbol, need, parameters)                                                          \
  if (strcmp(call, #name) == 0)                                                                    \
    return symbol;
  DRIVER_SYMBOLS(X)
#undef X
  return call;
}

rota_status driver_check(const Driver *driver, CUresult result, const char *call,
                         const char *purpose) {
  if (result == 0)
    return ROTA_OK;
  const char *name = NULL, *text = NULL;
  driver->get_error_name(result, &name);
  driver->get_error_string(result, &text);
  return status_fail(result == DRIVER_OUT_OF_MEMORY ? ROTA_OUT_OF_MEMORY : ROTA_DRIVER,
                     "%s: %s failed with %s (%d: %s)", purpose, symbol_of(call),
                     name ? name : "unknown error", result, text ? text : "no text");
}
