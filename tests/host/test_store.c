/* generator/store.c and digest.c: what is compiled in, and what an override directory may change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "generator/digest.h"
#include "generator/store.h"
#include "generator/text.h"

static void check_sorted(const Store *store) {
  const char *const *paths = store_paths(store);
  for (int i = 0; paths[i] && paths[i + 1]; i++)
    assert_true(strcmp(paths[i], paths[i + 1]) < 0);
}

/* Each embedded file is the source tree's, byte for byte. */
static void test_embedded(void **state) {
  (void)state;
  Store *store;
  assert_int_equal(store_create(NULL, &store), ROTA_OK);
  check_sorted(store);
  assert_non_null(store_get(store, "lua/main.lua", NULL));
  assert_non_null(store_get(store, "templates/lib/abi.h", NULL));
  assert_null(store_get(store, "lua/none.lua", NULL));
  assert_null(store_get(store, "", NULL));
  const char *source = getenv("ROTA_TEST_SOURCE");
  for (const char *const *path = store_paths(store); *path && source; path++) {
    char full[4096];
    snprintf(full, sizeof full, "%s/%s", source, *path);
    char *data;
    size_t length, embedded;
    assert_int_equal(text_read_file(full, &data, &length), ROTA_OK);
    const char *text = store_get(store, *path, &embedded);
    assert_int_equal(length, embedded);
    assert_memory_equal(data, text, length + 1);
    free(data);
  }
  store_destroy(store);
}

static void write_file(const char *root, const char *path, const char *text) {
  char full[256];
  snprintf(full, sizeof full, "%s/%s", root, path);
  FILE *file = fopen(full, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void make_folder(const char *root, const char *path) {
  char full[256];
  snprintf(full, sizeof full, "%s/%s", root, path);
  assert_int_equal(mkdir(full, 0700), 0);
}

static void test_override(void **state) {
  (void)state;
  char root[] = "/tmp/rota_store_XXXXXX";
  assert_non_null(mkdtemp(root));
  make_folder(root, "lua");
  make_folder(root, "lua/architectures");
  write_file(root, "lua/masks.lua", "return {}");
  write_file(root, "lua/masks.lua~", "an editor's backup");
  write_file(root, "lua/architectures/mine.lua", "return 1");
  char link[64];
  snprintf(link, sizeof link, "%s/lua/loop", root);
  assert_int_equal(symlink(root, link), 0);

  Store *store;
  size_t length;
  assert_int_equal(store_create(root, &store), ROTA_OK);
  check_sorted(store);
  assert_string_equal(store_get(store, "lua/masks.lua", &length), "return {}");
  assert_int_equal(length, 9);
  assert_string_equal(store_get(store, "lua/architectures/mine.lua", NULL), "return 1");
  assert_non_null(store_get(store, "lua/scores.lua", NULL)); /* not overridden: as embedded */
  assert_null(store_get(store, "lua/masks.lua~", NULL));
  store_destroy(store);

  for (long n = 1;; n++) { /* memory running out anywhere: an error, no leak */
    memory_fail_at(n);
    rota_status status = store_create(root, &store);
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    assert_null(store);
    assert_true(n < 10000);
  }
  store_destroy(store);

  char command[128];
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
  assert_int_equal(store_create(root, &store), ROTA_FILE);
  assert_non_null(strstr(status_message(), root));
  store_destroy(NULL);
}

static void test_digest(void **state) {
  (void)state;
  /* XXH3's published value for no bytes and seed 0. */
  assert_string_equal(digest_of("", 0).hex, "99aa06d3014798d86001c324468d497f");
  assert_string_not_equal(digest_of("a", 1).hex, digest_of("b", 1).hex);
  const char *const pieces[3][2] = {{"ab", "c"}, {"a", "bc"}, {"ab", "c"}};
  Digest digests[3];
  for (int i = 0; i < 3; i++) {
    DigestStream *stream = digest_begin();
    digest_add_string(stream, pieces[i][0]);
    digest_add_string(stream, pieces[i][1]);
    digests[i] = digest_end(stream);
    assert_int_equal(strlen(digests[i].hex), 32);
  }
  assert_string_not_equal(digests[0].hex, digests[1].hex);
  assert_string_equal(digests[0].hex, digests[2].hex);
  memory_fail_at(1);
  DigestStream *none = digest_begin();
  memory_fail_at(0);
  assert_null(none);
  digest_add_string(none, "ignored");
  assert_string_equal(digest_end(none).hex, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_embedded),
      cmocka_unit_test(test_override),
      cmocka_unit_test(test_digest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
