/* generator/text.c and status.c: growth, floats in any locale, files, sticky failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generator/text.h"

static void test_growth(void **state) {
  (void)state;
  Text text = {0};
  char expected[3000] = "";
  for (int i = 0; i < 300; i++) {
    char piece[16];
    snprintf(piece, sizeof piece, "%d,", i);
    strcat(expected, piece);
    if (i % 3 == 0)
      text_append(&text, piece);
    else if (i % 3 == 1)
      text_append_bytes(&text, piece, strlen(piece));
    else
      text_format(&text, "%d%s", i, ",");
  }
  assert_int_equal(text.length, strlen(expected));
  assert_int_equal(text_status(&text), ROTA_OK);
  char *released = text_release(&text);
  assert_string_equal(released, expected);
  assert_null(text.data);
  free(released);
  released = text_release(&text); /* of an empty text: an empty string, not NULL */
  assert_string_equal(released, "");
  free(released);
}

static void check_float(float value, const char *expected) {
  Text text = {0};
  text_append_float(&text, value);
  assert_string_equal(text.data, expected);
  text_free(&text);
}

static void test_floats(void **state) {
  (void)state;
  check_float(0.0f, "0.0");
  check_float(-0.0f, "-0.0");
  check_float(1.0f, "1.0");
  check_float(-2.5f, "-2.5");
  check_float(0.125f, "0.125");
  check_float(0.1f, "0.1");
  check_float(1250.0f, "1250.0");
  check_float(16777216.0f, "16777216.0");
  check_float(1e20f, "1e+20");
  check_float(1.5e-7f, "1.5e-07");
  check_float(0.00001f, "0.00001");
  check_float(FLT_MAX, "3.4028235e+38");
  check_float(FLT_TRUE_MIN, "1e-45");
  check_float(INFINITY, "INFINITY");
  check_float(-INFINITY, "-INFINITY");
  check_float(NAN, "NAN");
}

/* Every text reads back as its float, has a point or an exponent, and one digit less would not do.
 */
static void test_floats_round_trip(void **state) {
  (void)state;
  uint32_t bits = 12345;
  for (int i = 0; i < 20000; i++) {
    bits = bits * 1664525u + 1013904223u;
    float value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value))
      continue;
    Text text = {0};
    text_append_float(&text, value);
    assert_true(strtof(text.data, NULL) == value);
    assert_non_null(strpbrk(text.data, ".e"));
    int digits = 0;
    bool leading = true; /* zeros in front do not count, nor those at the end */
    int zeros = 0;
    for (const char *at = text.data; *at && *at != 'e'; at++) {
      if (*at < '0' || *at > '9')
        continue;
      if (*at != '0')
        leading = false;
      if (leading)
        continue;
      zeros = *at == '0' ? zeros + 1 : 0;
      digits++;
    }
    digits -= zeros;
    if (digits > 1) {
      char shorter[64];
      snprintf(shorter, sizeof shorter, "%.*e", digits - 2, (double)value);
      assert_false(strtof(shorter, NULL) == value);
    }
    text_free(&text);
  }
}

static void test_comma_locale(void **state) {
  (void)state;
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
  const char *set = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && !set; i++)
    set = setlocale(LC_ALL, names[i]);
  if (!set) {
    print_message("no locale with a decimal comma is installed: not tried here\n");
    skip();
  }
  char sample[16];
  snprintf(sample, sizeof sample, "%.1f", 0.5);
  assert_string_equal(sample, "0,5"); /* the locale is really in force */
  check_float(0.125f, "0.125");
  check_float(1.5e-7f, "1.5e-07");
  setlocale(LC_ALL, "C");
}

static void test_failure_is_sticky(void **state) {
  (void)state;
  Text text = {0};
  text_append(&text, "before");
  memory_fail_at(1);
  text_append(&text, " a piece that needs more room");
  memory_fail_at(0);
  text_append(&text, "!");
  assert_int_equal(text_status(&text), ROTA_OUT_OF_MEMORY);
  assert_string_equal(text.data, "before");
  assert_null(text_release(&text));
  assert_null(text.data);
}

static void test_files(void **state) {
  (void)state;
  char path[] = "/tmp/rota_text_XXXXXX";
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  char content[40000];
  for (size_t i = 0; i < sizeof content; i++)
    content[i] = (char)(i * 7);
  assert_int_equal(write(descriptor, content, sizeof content), sizeof content);
  close(descriptor);
  char *data;
  size_t length;
  assert_int_equal(text_read_file(path, &data, &length), ROTA_OK);
  assert_int_equal(length, sizeof content);
  assert_memory_equal(data, content, sizeof content);
  assert_int_equal(data[length], 0);
  free(data);
  for (long n = 1; n < 20; n++) { /* fails cleanly wherever memory runs out */
    memory_fail_at(n);
    rota_status status = text_read_file(path, &data, &length);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    if (n == 1)
      assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    if (status == ROTA_OK)
      free(data);
  }
  unlink(path);
  assert_int_equal(text_read_file(path, &data, &length), ROTA_FILE);
  assert_non_null(strstr(status_message(), path));
  assert_non_null(strstr(status_message(), "No such file"));
  assert_int_equal(text_read_file("/tmp", &data, &length), ROTA_FILE);
}

static void test_status(void **state) {
  (void)state;
  assert_int_equal(status_fail(ROTA_SCHEDULE, "tile %d", 3), ROTA_SCHEDULE);
  assert_string_equal(status_message(), "tile 3");
  assert_int_equal(status_prefix(ROTA_SCHEDULE, "layer %d: ", 2), ROTA_SCHEDULE);
  assert_string_equal(status_message(), "layer 2: tile 3");
  status_fail(ROTA_FILE, "because %s", status_message()); /* quoting itself is allowed */
  assert_string_equal(status_message(), "because layer 2: tile 3");
  for (int i = 0; i < 3000; i++)
    status_prefix(ROTA_FILE, "xx"); /* cut, not overrun */
  assert_int_equal(strlen(status_message()), 4095);
  status_clear();
  assert_string_equal(status_message(), "");
  assert_null(memory_allocate(SIZE_MAX, 2));
  assert_non_null(strstr(status_message(), "out of memory"));
  assert_null(memory_resize(NULL, SIZE_MAX / 2, 4));
  void *block = memory_allocate(0, 8);
  assert_non_null(block);
  free(block);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_growth),
      cmocka_unit_test(test_floats),
      cmocka_unit_test(test_floats_round_trip),
      cmocka_unit_test(test_comma_locale),
      cmocka_unit_test(test_failure_is_sticky),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_status),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
