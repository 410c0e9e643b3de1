/* Level 1. The growing string behind generated source and messages, and whole files read into
 * memory. */
#include "generator/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FIRST_CAPACITY = 8, /* small on purpose: growth is exercised by every caller */
  FLOAT_DIGITS = 9,   /* significant decimal digits that tell any two floats apart */
};

/* Makes room for `more` bytes and a NUL. */
static bool reserve(Text *text, size_t more) {
  if (text->failed)
    return false;
  size_t needed;
  if (__builtin_add_overflow(text->length + 1, more, &needed)) {
    text->failed = true;
    return false;
  }
  if (text->data && needed <= text->capacity)
    return true;
  size_t capacity = text->capacity ? text->capacity : FIRST_CAPACITY;
  while (capacity < needed)
    capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
  char *data = memory_resize(text->data, capacity, 1);
  if (!data) {
    text->failed = true;
    return false;
  }
  text->data = data;
  text->capacity = capacity;
  return true;
}

void text_append_bytes(Text *text, const void *bytes, size_t count) {
  if (!reserve(text, count))
    return;
  if (count)
    memcpy(text->data + text->length, bytes, count);
  text->length += count;
  text->data[text->length] = '\0';
}

void text_append(Text *text, const char *string) {
  text_append_bytes(text, string, strlen(string));
}

void text_format(Text *text, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int count = vsnprintf(NULL, 0, format, arguments);
  if (count < 0)
    text->failed = true;
  if (count >= 0 && reserve(text, (size_t)count)) {
    vsnprintf(text->data + text->length, (size_t)count + 1, format, again);
    text->length += (size_t)count;
  }
  va_end(again);
  va_end(arguments);
}

/* The fewest significant digits that read back as `value` (finite, positive), and the decimal
 * exponent of the first one. printf and strtof agree on the locale's decimal point; here it is
 * skipped. Returns the count. */
static int shortest_digits(float value, char digits[FLOAT_DIGITS + 1], int *exponent) {
  char buffer[64];
  for (int precision = 0; precision < FLOAT_DIGITS; precision++) {
    snprintf(buffer, sizeof buffer, "%.*e", precision, (double)value);
    if (strtof(buffer, NULL) == value)
      break;
  }
  int count = 0;
  const char *at = buffer;
  for (; *at != 'e'; at++) {
    if (*at >= '0' && *at <= '9' && count < FLOAT_DIGITS)
      digits[count++] = *at;
  }
  digits[count] = '\0';
  *exponent = (int)strtol(at + 1, NULL, 10);
  return count;
}

/* Digits without exponent: 0.00125, 1.25, 1250.0. */
static void append_plain(Text *text, const char *digits, int count, int exponent) {
  if (exponent < 0) {
    text_append(text, "0.");
    for (int i = -1; i > exponent; i--)
      text_append(text, "0");
    text_append(text, digits);
    return;
  }
  for (int i = 0; i <= exponent; i++)
    text_append_bytes(text, i < count ? digits + i : "0", 1);
  text_append(text, ".");
  text_append(text, count > exponent + 1 ? digits + exponent + 1 : "0");
}

void text_append_float(Text *text, float value) {
  if (isnan(value)) {
    text_append(text, "NAN");
    return;
  }
  if (signbit(value))
    text_append(text, "-");
  value = fabsf(value);
  if (isinf(value)) {
    text_append(text, "INFINITY");
    return;
  }
  char digits[FLOAT_DIGITS + 1];
  int exponent;
  int count = shortest_digits(value, digits, &exponent);
  if (exponent >= -5 && exponent < FLOAT_DIGITS) {
    append_plain(text, digits, count, exponent);
    return;
  }
  text_append_bytes(text, digits, 1);
  if (count > 1)
    text_format(text, ".%s", digits + 1);
  text_format(text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

rota_status text_status(const Text *text) {
  if (!text->failed)
    return ROTA_OK;
  return status_fail(ROTA_OUT_OF_MEMORY, "out of memory after %zu bytes of text", text->length);
}

char *text_release(Text *text) {
  char *data = NULL;
  if (reserve(text, 0)) {
    data = text->data;
    data[text->length] = '\0';
  } else {
    free(text->data);
  }
  *text = (Text){0};
  return data;
}

void text_free(Text *text) {
  free(text->data);
  *text = (Text){0};
}

rota_status text_read_file(const char *path, char **data, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file)
    return status_fail(ROTA_FILE, "%s: cannot be opened: %s", path, strerror(errno));
  Text text = {0};
  char buffer[16384];
  size_t count;
  errno = 0;
  while ((count = fread(buffer, 1, sizeof buffer, file)) > 0)
    text_append_bytes(&text, buffer, count);
  int error = ferror(file) ? errno : 0;
  fclose(file);
  if (error) {
    text_free(&text);
    return status_fail(ROTA_FILE, "%s: cannot be read: %s", path, strerror(error));
  }
  *length = text.length;
  *data = text_release(&text);
  return *data ? ROTA_OK : status_fail(ROTA_OUT_OF_MEMORY, "%s: out of memory reading it", path);
}
