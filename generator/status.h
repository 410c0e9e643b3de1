/* Level 0. The one way in which a function fails: a status code, and a message kept per thread. */
#ifndef ROTA_GENERATOR_STATUS_H
#define ROTA_GENERATOR_STATUS_H

#include "rota/rota.h"

/* Records the message (printf format; what, where, what to do) and returns `status`. */
rota_status status_fail(rota_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Puts a prefix such as "layer 3: " before the recorded message; returns `status`. */
rota_status status_prefix(rota_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *status_message(void);
void status_clear(void);

/* Passes a failure on. */
#define ROTA_TRY(call)                                                                             \
  do {                                                                                             \
    rota_status rota_try_status = (call);                                                          \
    if (rota_try_status != ROTA_OK)                                                                \
      return rota_try_status;                                                                      \
  } while (0)

/* calloc and realloc that record OUT_OF_MEMORY; NULL on failure. Tests make the n-th one fail. */
void *memory_allocate(size_t count, size_t size);
void *memory_resize(void *old, size_t count, size_t size);
char *memory_copy_string(const char *string);
/* Test hook: fail the n-th allocation from now (0: never). */
void memory_fail_at(long n);

#endif
