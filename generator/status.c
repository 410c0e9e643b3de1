/* Level 0. Status codes with a message per thread, and the allocation functions that can be told to
 * fail.
 *
 * The message lives in a fixed buffer, so that running out of memory can be reported without
 * memory. */
#include "generator/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_MAX = 4096 }; /* bytes with NUL; longer messages are cut */

static _Thread_local char message[MESSAGE_MAX];

/* Allocations until one fails; 0: none will. */
static atomic_long countdown;

rota_status status_fail(rota_status status, const char *format, ...) {
  /* Arguments may point into the message itself (a wrapper quoting its cause): format aside. */
  char text[MESSAGE_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  memcpy(message, text, strlen(text) + 1);
  return status;
}

rota_status status_prefix(rota_status status, const char *format, ...) {
  char text[MESSAGE_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  size_t used = strlen(text);
  size_t rest = strlen(message);
  if (rest > sizeof text - 1 - used)
    rest = sizeof text - 1 - used;
  memcpy(text + used, message, rest);
  text[used + rest] = '\0';
  memcpy(message, text, used + rest + 1);
  return status;
}

const char *status_message(void) {
  return message;
}

void status_clear(void) {
  message[0] = '\0';
}

/* True when this allocation is the one that a test asked to fail. */
static bool must_fail(void) {
  long left = atomic_load_explicit(&countdown, memory_order_relaxed);
  while (left > 0) {
    if (atomic_compare_exchange_weak(&countdown, &left, left - 1))
      return left == 1;
  }
  return false;
}

void memory_fail_at(long n) {
  atomic_store(&countdown, n);
}

static void *out_of_memory(size_t count, size_t size) {
  status_fail(ROTA_OUT_OF_MEMORY, "out of memory: %zu items of %zu bytes were asked for", count,
              size);
  return NULL;
}

void *memory_allocate(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes))
    return out_of_memory(count, size);
  /* At least one byte, so that NULL always means failure. */
  void *block = must_fail() ? NULL : calloc(bytes ? bytes : 1, 1);
  return block ? block : out_of_memory(count, size);
}

void *memory_resize(void *old, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes))
    return out_of_memory(count, size);
  void *block = must_fail() ? NULL : realloc(old, bytes ? bytes : 1);
  return block ? block : out_of_memory(count, size);
}

char *memory_copy_string(const char *string) {
  size_t bytes = strlen(string) + 1;
  char *copy = memory_allocate(bytes, 1);
  if (copy)
    memcpy(copy, string, bytes);
  return copy;
}
