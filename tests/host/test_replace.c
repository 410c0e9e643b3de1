/* Files written whole or not at all: what a reader finds, and what a failure leaves. */
#include "generator/replace.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/text.h"

static char directory[] = "/tmp/rota-replace-XXXXXX";
static char path[64];

static int make_directory(void **state) {
  (void)state;
  if (!mkdtemp(directory))
    return -1;
  snprintf(path, sizeof path, "%s/file", directory);
  return 0;
}

static int remove_directory(void **state) {
  (void)state;
  unlink(path);
  return rmdir(directory);
}

/* Names in the directory, but for the dots. */
static int entries(void) {
  DIR *stream = opendir(directory);
  assert_non_null(stream);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(stream));)
    count += entry->d_name[0] != '.';
  closedir(stream);
  return count;
}

static void expect_content(const char *content, size_t bytes) {
  char *data;
  size_t length;
  assert_int_equal(text_read_file(path, &data, &length), ROTA_OK);
  assert_int_equal(length, bytes);
  assert_memory_equal(data, content, bytes);
  free(data);
}

static rota_status replace_text(const char *text) {
  const FilePiece piece = {text, strlen(text)};
  return file_replace(path, "the text", &piece, 1);
}

static void test_pieces_in_order(void **state) {
  (void)state;
  const FilePiece pieces[] = {{"one\0", 4}, {NULL, 0}, {"two", 3}};
  assert_int_equal(replace_text("a longer text that was there before"), ROTA_OK);
  assert_int_equal(file_replace(path, "the text", pieces, 3), ROTA_OK);
  expect_content("one\0two", 7);
  assert_int_equal(file_replace(path, "the text", NULL, 0), ROTA_OK);
  expect_content("", 0);
  assert_int_equal(entries(), 1);
}

static void expect_failure(const char *where, const char *reason) {
  const FilePiece piece = {"text", 4};
  char message[128];
  snprintf(message, sizeof message, "%s: cannot write the text: %s", where, reason);
  assert_int_equal(file_replace(where, "the text", &piece, 1), ROTA_FILE);
  assert_string_equal(status_message(), message);
}

static void test_failure_leaves_nothing(void **state) {
  (void)state;
  expect_failure("/nonexistent/directory/file", "No such file or directory");
  unlink(path);
  assert_int_equal(mkdir(path, 0700), 0); /* written beside it, but a directory stays in the way */
  expect_failure(path, "Is a directory");
  assert_int_equal(entries(), 1);
  assert_int_equal(rmdir(path), 0);
}

static void test_no_memory(void **state) {
  (void)state;
  assert_int_equal(replace_text("before"), ROTA_OK);
  int failures = 0;
  for (long n = 1; n < 20; n++) {
    memory_fail_at(n);
    rota_status status = replace_text("after");
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    expect_content("before", 6);
    failures++;
  }
  assert_true(failures > 0);
  expect_content("after", 5);
  assert_int_equal(entries(), 1);
}

enum { WRITERS = 4, ROUNDS = 50, BYTES = 20000 };

/* BYTES times one letter. */
static void *write_letter(void *letter) {
  char text[BYTES];
  memset(text, *(const char *)letter, BYTES);
  const FilePiece halves[] = {{text, BYTES / 2}, {text, BYTES / 2}};
  for (int i = 0; i < ROUNDS; i++)
    if (file_replace(path, "letters", halves, 2) != ROTA_OK)
      return letter;
  return NULL;
}

static void test_readers_see_whole_files(void **state) {
  (void)state;
  pthread_t writers[WRITERS];
  char letters[WRITERS] = {'a', 'b', 'c', 'd'};
  assert_null(write_letter(&letters[0]));
  for (int i = 0; i < WRITERS; i++)
    assert_int_equal(pthread_create(&writers[i], NULL, write_letter, &letters[i]), 0);
  for (int i = 0; i < ROUNDS; i++) {
    char *data;
    size_t length;
    assert_int_equal(text_read_file(path, &data, &length), ROTA_OK);
    assert_int_equal(length, BYTES);
    for (size_t at = 1; at < length; at++)
      if (data[at] != data[0])
        fail_msg("byte %zu is '%c' in a file of '%c'", at, data[at], data[0]);
    free(data);
  }
  for (int i = 0; i < WRITERS; i++) {
    void *failed;
    assert_int_equal(pthread_join(writers[i], &failed), 0);
    assert_null(failed);
  }
  assert_int_equal(entries(), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_in_order),
      cmocka_unit_test(test_failure_leaves_nothing),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_readers_see_whole_files),
  };
  return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
