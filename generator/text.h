/* Level 1. A growing string, for generated source and messages. Independent of the locale.
 *
 * Allocation failure is sticky: appends turn into no-ops and text_status says so at the end, so
 * that emitters need no check per line. Invariant: data is NUL-terminated or NULL. */
#ifndef ROTA_GENERATOR_TEXT_H
#define ROTA_GENERATOR_TEXT_H

#include "generator/status.h"

typedef struct Text {
  char *data;
  size_t length, capacity;
  bool failed;
} Text;

void text_append(Text *text, const char *string);
void text_append_bytes(Text *text, const void *bytes, size_t count);
/* printf, but %f, %g and %e are not to be used (locale): see text_append_float. */
void text_format(Text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Shortest decimal that reads back as the same float, always with '.' or 'e': "0.125", "1e+20",
 * "INFINITY", "-INFINITY", "NAN". */
void text_append_float(Text *text, float value);
/* OK, or OUT_OF_MEMORY if an append failed. */
rota_status text_status(const Text *text);
/* Hands the string over to the caller (never NULL unless failed) and empties the text. */
char *text_release(Text *text);
void text_free(Text *text);
/* Reads a whole file into memory, with a NUL after it. */
rota_status text_read_file(const char *path, char **data, size_t *length);

#endif
