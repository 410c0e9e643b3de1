/* The ladder of ROTA_DEBUG and warnings: see log.h. */
#include "runtime/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/environment.h"

void log_init(Log *log, int level) {
  log->level = level < LOG_LEVEL_MAX ? level : LOG_LEVEL_MAX;
  atomic_init(&log->said, 0);
  if (level >= 0)
    return;
  log->level = 0;
  const char *text = environment_get(ENVIRONMENT_DEBUG);
  if (!text)
    return;
  char *end;
  long value = strtol(text, &end, 10);
  if (*end || end == text || value < 0)
    log_warn(log, "ROTA_DEBUG is \"%s\"; a level from 0 to %d was expected", text, LOG_LEVEL_MAX);
  else
    log->level = value < LOG_LEVEL_MAX ? (int)value : LOG_LEVEL_MAX;
}

bool log_enabled(const Log *log, int level) {
  return log && log->level >= level;
}

/* Formats the line aside and hands it to stdio as one piece, so that the lines of processes and
 * threads do not mix. */
static void print_line(const char *prefix, const char *format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  size_t head = strlen(prefix);
  /* Plain malloc: a log line that cannot be printed is no failure of the call that wanted to. */
  char *line = length < 0 ? NULL : malloc(head + (size_t)length + 2);
  if (line) {
    memcpy(line, prefix, head + 1);
    vsnprintf(line + head, (size_t)length + 1, format, again);
    size_t end = head + (size_t)length;
    if (line[end - 1] != '\n')
      line[end++] = '\n';
    fwrite(line, 1, end, stderr);
  }
  free(line);
  va_end(again);
}

void log_print(const Log *log, int level, const char *format, ...) {
  if (!log_enabled(log, level))
    return;
  va_list arguments;
  va_start(arguments, format);
  print_line("rota: ", format, arguments);
  va_end(arguments);
}

void log_warn(const Log *log, const char *format, ...) {
  if (!log)
    return;
  va_list arguments;
  va_start(arguments, format);
  print_line("rota: warning: ", format, arguments);
  va_end(arguments);
}

void log_warn_once(Log *log, LogOnce which, const char *format, ...) {
  unsigned bit = 1u << which;
  if (!log || (atomic_fetch_or(&log->said, bit) & bit))
    return;
  va_list arguments;
  va_start(arguments, format);
  print_line("rota: warning: ", format, arguments);
  va_end(arguments);
}
