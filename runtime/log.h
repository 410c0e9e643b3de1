/* Level 1. What Rota says on stderr: warnings, and the ladder of ROTA_DEBUG.
 *
 *     0  warnings alone          3  compile logs, files read and written
 *     1  one line per compile    4  every stage
 *     2  searches and cache hits */
#ifndef ROTA_RUNTIME_LOG_H
#define ROTA_RUNTIME_LOG_H

#include <stdatomic.h>

#include "generator/status.h"

enum { LOG_LEVEL_MAX = 4 };

/* Warnings of which a context gives each one once: what stays wrong would else be said at each
 * kernel. */
#define LOG_ONCE_LIST(X)                                                                           \
  X(NO_CACHE_DIRECTORY)                                                                            \
  X(CACHE_NOT_WRITABLE)                                                                            \
  X(CACHE_LOCK_TIMEOUT)                                                                            \
  X(DUMP_NOT_WRITABLE)                                                                             \
  X(COMPILER_TOO_OLD)
typedef enum LogOnce {
#define X(name) LOG_##name,
  LOG_ONCE_LIST(X)
#undef X
} LogOnce;

/* One per context; may be used by several threads at once. */
typedef struct Log {
  int level;
  atomic_uint said; /* bit i: LogOnce i was given */
} Log;

/* `level` 0 .. 4, or -1: ROTA_DEBUG. */
void log_init(Log *log, int level);
bool log_enabled(const Log *log, int level); /* false for a NULL log */

/* One line, "rota: ...", if the log's level is at least `level`. The newline is added. */
void log_print(const Log *log, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* One line, "rota: warning: ...", at every level (not for a NULL log). */
void log_warn(const Log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_warn_once(Log *log, LogOnce which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
