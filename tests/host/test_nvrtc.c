/* NVRTC: where it is looked for, how a build is told from another, what is said when it is missing,
 * incomplete or does not know the architecture (case D8), and, where a real one is installed,
 * compiling from memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/nvrtc.h"
#include "runtime/nvrtc_search.h"
#include "tests/support/workbench.h"

static Workbench bench;
static Log silent;

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  log_init(&silent, 0);
  workbench_open(&bench);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_close(&bench);
  return 0;
}

/* An empty file is enough for the search, which loads nothing. */
static void place(const char *path) {
  workbench_write(path, "", 0);
}

static void expect_first(const char *expected) {
  NvrtcSearch search;
  assert_int_equal(nvrtc_search(NULL, &search), ROTA_OK);
  assert_true(search.count > 0);
  assert_string_equal(search.found[0], expected);
  nvrtc_search_free(&search);
}

static bool finds(const char *expected) {
  NvrtcSearch search;
  assert_int_equal(nvrtc_search(NULL, &search), ROTA_OK);
  bool found = false;
  for (size_t i = 0; i < search.count; i++)
    found |= !strcmp(search.found[i], expected);
  nvrtc_search_free(&search);
  return found;
}

/* ---- Search --------------------------------------------------------------------------------- */

static void named_path_is_the_only_one(void **state) {
  (void)state;
  place(workbench_path(&bench, "given/libnvrtc.so.13"));
  place(workbench_path(&bench, "variable/mine.so"));
  setenv("ROTA_NVRTC", workbench_path(&bench, "variable/mine.so"), 1);
  NvrtcSearch search;
  assert_int_equal(nvrtc_search(NULL, &search), ROTA_OK);
  assert_int_equal(search.count, 1);
  assert_string_equal(search.found[0], workbench_path(&bench, "variable/mine.so"));
  nvrtc_search_free(&search);
  assert_int_equal(nvrtc_search(workbench_path(&bench, "given/libnvrtc.so.13"), &search), ROTA_OK);
  assert_int_equal(search.count, 1);
  assert_string_equal(search.found[0], workbench_path(&bench, "given/libnvrtc.so.13"));
  nvrtc_search_free(&search);
  assert_int_equal(nvrtc_search(workbench_path(&bench, "given"), &search), ROTA_OK);
  assert_int_equal(search.count, 0);
  assert_non_null(strstr(search.places.data, "given: not a file"));
  nvrtc_search_free(&search);
}

static void linker_path_comes_first(void **state) {
  (void)state;
  char *before = getenv("LD_LIBRARY_PATH") ? strdup(getenv("LD_LIBRARY_PATH")) : NULL;
  char list[512];
  snprintf(list, sizeof list, "::/nowhere:%s/a:%s/b", bench.root, bench.root);
  setenv("LD_LIBRARY_PATH", list, 1);
  place(workbench_path(&bench, "b/libnvrtc.so.12"));
  expect_first(workbench_path(&bench, "b/libnvrtc.so.12"));
  place(workbench_path(&bench, "a/libnvrtc.so"));
  expect_first(workbench_path(&bench, "a/libnvrtc.so"));
  place(workbench_path(&bench, "a/libnvrtc.so.12"));
  expect_first(workbench_path(&bench, "a/libnvrtc.so.12"));
  place(workbench_path(&bench, "a/libnvrtc.so.13"));
  expect_first(workbench_path(&bench, "a/libnvrtc.so.13"));
  unsetenv("LD_LIBRARY_PATH");
  if (before)
    setenv("LD_LIBRARY_PATH", before, 1);
  free(before);
}

static void toolkits_are_found(void **state) {
  (void)state;
  place(workbench_path(&bench, "toolkit/lib64/libnvrtc.so.13"));
  setenv("CUDA_HOME", workbench_path(&bench, "toolkit"), 1);
  assert_true(finds(workbench_path(&bench, "toolkit/lib64/libnvrtc.so.13")));
  unsetenv("CUDA_HOME");
  assert_false(finds(workbench_path(&bench, "toolkit/lib64/libnvrtc.so.13")));
  setenv("CUDA_PATH", workbench_path(&bench, "toolkit"), 1);
  assert_true(finds(workbench_path(&bench, "toolkit/lib64/libnvrtc.so.13")));
}

#define WHEEL "lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"

static void wheels_are_found(void **state) {
  (void)state;
  place(workbench_path(&bench, "venv/" WHEEL));
  assert_false(finds(workbench_path(&bench, "venv/" WHEEL)));
  setenv("VIRTUAL_ENV", workbench_path(&bench, "venv"), 1);
  assert_true(finds(workbench_path(&bench, "venv/" WHEEL)));
  unsetenv("VIRTUAL_ENV");
  /* The Python on PATH: its own prefix, and the base that it links to. */
  char *before = strdup(getenv("PATH"));
  char list[4096];
  place(workbench_path(&bench, "base/" WHEEL));
  place(workbench_path(&bench, "base/bin/python3"));
  workbench_shell("mkdir -p %s/venv/bin && ln -s ../../base/bin/python3 %s/venv/bin/python",
                  bench.root, bench.root);
  snprintf(list, sizeof list, "relative:%s/venv/bin:%s", bench.root, before);
  setenv("PATH", list, 1);
  assert_true(finds(workbench_path(&bench, "venv/" WHEEL)));
  assert_true(finds(workbench_path(&bench, "base/" WHEEL)));
  setenv("PATH", before, 1);
  free(before);
}

static void conda_and_shims_are_found(void **state) {
  (void)state;
  place(workbench_path(&bench, "conda/lib/libnvrtc.so.12"));
  setenv("CONDA_PREFIX", workbench_path(&bench, "conda"), 1);
  assert_true(finds(workbench_path(&bench, "conda/lib/libnvrtc.so.12")));
  char *before = strdup(getenv("PATH"));
  char list[4096];
  place(workbench_path(&bench, "pyenv/shims/python3"));
  place(workbench_path(&bench, "pyenv/versions/3.11.7/" WHEEL));
  snprintf(list, sizeof list, "%s/pyenv/shims:%s", bench.root, before);
  setenv("PATH", list, 1);
  assert_true(finds(workbench_path(&bench, "pyenv/versions/3.11.7/" WHEEL)));
  setenv("PATH", before, 1);
  free(before);
}

/* ---- Identity ------------------------------------------------------------------------------- */

static Digest identity_of(const char *path) {
  Digest identity;
  assert_int_equal(nvrtc_file_identity(path, &identity), ROTA_OK);
  return identity;
}

static void builds_are_told_apart(void **state) {
  (void)state;
  const char *one = workbench_fake_nvrtc(&bench, "one.so", "");
  const char *two = workbench_fake_nvrtc(&bench, "two.so", "-DFAKE_BUILD='\"two\"'");
  const char *bare = workbench_fake_nvrtc(&bench, "bare.so", "-Wl,--build-id=none");
  const char *bare_two =
      workbench_fake_nvrtc(&bench, "bare2.so", "-Wl,--build-id=none -DFAKE_BUILD='\"two\"'");
  workbench_shell("cp %s %s/copy.so; cp %s %s/bare_copy.so", one, bench.root, bare, bench.root);
  workbench_shell("touch -d 2001-01-01 %s/copy.so", bench.root);
  assert_string_equal(identity_of(one).hex, identity_of(workbench_path(&bench, "copy.so")).hex);
  assert_string_not_equal(identity_of(one).hex, identity_of(two).hex);
  assert_string_equal(identity_of(bare).hex,
                      identity_of(workbench_path(&bench, "bare_copy.so")).hex);
  assert_string_not_equal(identity_of(bare).hex, identity_of(bare_two).hex);
  Digest identity;
  assert_int_equal(nvrtc_file_identity("/nowhere/libnvrtc.so", &identity), ROTA_FILE);
}

/* Cut anywhere, or with any header byte changed, a file still has some identity. */
static void damaged_libraries_have_identities(void **state) {
  (void)state;
  const char *whole = workbench_fake_nvrtc(&bench, "whole.so", "");
  char *bytes;
  size_t size;
  assert_int_equal(text_read_file(whole, &bytes, &size), ROTA_OK);
  const char *path = workbench_path(&bench, "damaged.so");
  for (size_t cut = 0; cut < 1200; cut += 7) {
    workbench_write(path, bytes, cut);
    identity_of(path);
  }
  for (size_t at = 0; at < 1024; at++) {
    char kept = bytes[at];
    bytes[at] = (char)(at % 3 ? 0xff : kept ^ 0x10);
    workbench_write(path, bytes, 2048);
    identity_of(path);
    bytes[at] = kept;
  }
  free(bytes);
}

/* ---- Loading -------------------------------------------------------------------------------- */

static Nvrtc *nvrtc_at(const char *path) {
  Nvrtc *nvrtc;
  assert_int_equal(nvrtc_create(path, &silent, &nvrtc), ROTA_OK);
  return nvrtc;
}

static void expect_load_failure(const char *path, const char *words) {
  Nvrtc *nvrtc = nvrtc_at(path);
  assert_int_equal(nvrtc_load(nvrtc), ROTA_NO_COMPILER);
  if (!strstr(status_message(), words) || !strstr(status_message(), path) ||
      !strstr(status_message(), "ROTA_NVRTC"))
    fail_msg("expected %s and %s in: %s", words, path, status_message());
  nvrtc_destroy(nvrtc);
}

static void unusable_libraries_are_named(void **state) {
  (void)state;
  expect_load_failure("/nowhere/libnvrtc.so.13", "no such file");
  static const char bytes[256] = "no library";
  workbench_write(workbench_path(&bench, "text.so"), bytes, sizeof bytes);
  expect_load_failure(workbench_path(&bench, "text.so"), "text.so: ");
  workbench_shell("echo 'int other;' | env -u LD_PRELOAD cc -x c -shared -o %s/other.so -",
                  bench.root);
  expect_load_failure(workbench_path(&bench, "other.so"), "has no nvrtcVersion");
  expect_load_failure(workbench_fake_nvrtc(&bench, "old.so", "-DFAKE_VERSION=11020"),
                      "is version 11.2; 11.8 or newer is needed");
}

static void broken_candidate_is_passed_over(void **state) {
  (void)state;
  char *before = getenv("LD_LIBRARY_PATH") ? strdup(getenv("LD_LIBRARY_PATH")) : NULL;
  char list[512];
  snprintf(list, sizeof list, "%s/a:%s/b", bench.root, bench.root);
  workbench_write(workbench_path(&bench, "a/libnvrtc.so.13"), "debris", 6);
  const char *good = workbench_fake_nvrtc(&bench, "b/libnvrtc.so.12", "-DFAKE_VERSION=12040");
  setenv("LD_LIBRARY_PATH", list, 1);
  Nvrtc *nvrtc = nvrtc_at(NULL);
  Digest guessed, loaded;
  assert_int_equal(nvrtc_identify(nvrtc, &guessed), ROTA_OK);
  assert_int_equal(nvrtc_load(nvrtc), ROTA_OK);
  assert_int_equal(nvrtc_identify(nvrtc, &loaded), ROTA_OK);
  assert_string_equal(nvrtc_path(nvrtc), good);
  assert_string_equal(nvrtc_version(nvrtc), "12.4");
  assert_string_not_equal(guessed.hex, loaded.hex);
  assert_string_equal(loaded.hex, identity_of(good).hex);
  nvrtc_destroy(nvrtc);
  unsetenv("LD_LIBRARY_PATH");
  if (before)
    setenv("LD_LIBRARY_PATH", before, 1);
  free(before);
}

/* ---- Compiling ------------------------------------------------------------------------------ */

static rota_status compile_text(Nvrtc *nvrtc, const char *main_text, const char *header,
                                const char *architecture, NvrtcResult *result) {
  const char *names[] = {"main.cu", "templates/part.cuh"};
  const char *texts[] = {main_text, header};
  const char *options[] = {"--std=c++17", "--ptxas-options=-v"};
  NvrtcRequest request = {names, texts, 2, architecture, options, 2};
  return nvrtc_compile(nvrtc, &request, result);
}

static void unknown_architecture_lists_the_known(void **state) {
  (void)state;
  const char *path = workbench_fake_nvrtc(&bench, "some.so", "-DFAKE_ARCHITECTURES=80,86,90");
  Nvrtc *nvrtc = nvrtc_at(path);
  NvrtcResult result;
  assert_int_equal(compile_text(nvrtc, "", "", "sm_130", &result), ROTA_UNSUPPORTED);
  char expected[512];
  snprintf(expected, sizeof expected,
           "NVRTC 13.0 (%s) does not know the architecture sm_130; it knows sm_80, sm_86, sm_90. "
           "Ask for one of these, or set ROTA_NVRTC to another libnvrtc.so.*",
           path);
  assert_string_equal(status_message(), expected);
  nvrtc_result_free(&result);
  assert_int_equal(compile_text(nvrtc, "", "", "sm_90a", &result), ROTA_OK);
  nvrtc_result_free(&result);
  nvrtc_destroy(nvrtc);
}

static void missing_builtins_are_named(void **state) {
  (void)state;
  const char *path = workbench_fake_nvrtc(&bench, "nobuiltins.so", "-DFAKE_NO_BUILTINS");
  Nvrtc *nvrtc = nvrtc_at(path);
  NvrtcResult result;
  assert_int_equal(compile_text(nvrtc, "", "", "sm_90", &result), ROTA_NO_COMPILER);
  assert_non_null(strstr(status_message(), path));
  assert_non_null(strstr(status_message(), "libnvrtc-builtins.so"));
  assert_non_null(strstr(result.log, "failed to open libnvrtc-builtins"));
  nvrtc_result_free(&result);
  nvrtc_destroy(nvrtc);
}

/* ---- The real one --------------------------------------------------------------------------- */

/* The installed NVRTC; skips the test where there is none. */
static Nvrtc *real_nvrtc(void) {
  Nvrtc *nvrtc = nvrtc_at(NULL);
  if (nvrtc_load(nvrtc) != ROTA_OK) {
    fprintf(stderr, "SKIPPED: no NVRTC on this machine\n%s\n", status_message());
    nvrtc_destroy(nvrtc);
    skip();
  }
  return nvrtc;
}

static const char kernel_text[] =
    "#include \"templates/part.cuh\"\n"
    "extern \"C\" __global__ void f(float *out) { out[threadIdx.x] = part(2.0f); }\n";
static const char part_text[] =
    "#pragma once\n__device__ inline float part(float x) { return x * x; }\n";

static void real_compiles_from_memory(void **state) {
  (void)state;
  Nvrtc *nvrtc = real_nvrtc();
  size_t count;
  const int *known = nvrtc_architectures(nvrtc, &count);
  assert_true(count > 0 && known[0] >= 50);
  NvrtcResult result;
  static const char *const architectures[] = {"sm_80", "sm_90", "sm_90a"};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(compile_text(nvrtc, kernel_text, part_text, architectures[i], &result),
                     ROTA_OK);
    /* A cubin is ELF for machine 190 (EM_CUDA), not PTX text. */
    assert_true(result.size > 64 && memcmp(result.cubin, "\177ELF", 4) == 0);
    assert_int_equal(result.cubin[18] | result.cubin[19] << 8, 190);
    assert_non_null(strstr(result.log, "registers"));
    nvrtc_result_free(&result);
  }
  assert_int_equal(compile_text(nvrtc, kernel_text, part_text, "sm_999", &result),
                   ROTA_UNSUPPORTED);
  nvrtc_result_free(&result);
  nvrtc_destroy(nvrtc);
}

static void real_errors_name_their_place(void **state) {
  (void)state;
  Nvrtc *nvrtc = real_nvrtc();
  NvrtcResult result;
  assert_int_equal(compile_text(nvrtc, kernel_text,
                                "#pragma once\n\nfloat part(float x) { oops; }\n", "sm_90",
                                &result),
                   ROTA_COMPILE);
  assert_null(result.cubin);
  assert_non_null(strstr(result.log, "templates/part.cuh(3): error"));
  assert_non_null(strstr(status_message(), "templates/part.cuh(3): error"));
  nvrtc_result_free(&result);
  assert_int_equal(
      compile_text(nvrtc, "#line 7 \"my_mask.lua\"\nint x = oops;\n", "", "sm_90", &result),
      ROTA_COMPILE);
  assert_non_null(strstr(status_message(), "my_mask.lua(7): error"));
  nvrtc_result_free(&result);
  nvrtc_destroy(nvrtc);
}

/* A copy of the real library that asks for builtins under a name that nobody has: case D8. */
static void real_without_builtins(void **state) {
  (void)state;
  Nvrtc *nvrtc = real_nvrtc();
  const char *path = workbench_path(&bench, "libnvrtc.so.13");
  workbench_shell("LC_ALL=C sed 's/libnvrtc-builtins[.]so/libnvrtc-nobodyss.so/g' %s >%s",
                  nvrtc_path(nvrtc), path);
  workbench_shell("! cmp -s %s %s", nvrtc_path(nvrtc), path);
  nvrtc_destroy(nvrtc);
  nvrtc = nvrtc_at(path);
  NvrtcResult result;
  assert_int_equal(compile_text(nvrtc, kernel_text, part_text, "sm_90", &result), ROTA_NO_COMPILER);
  assert_non_null(strstr(status_message(), "cannot use its builtins"));
  assert_non_null(strstr(status_message(), path));
  assert_non_null(strstr(result.log, "libnvrtc-nobodyss"));
  nvrtc_result_free(&result);
  nvrtc_destroy(nvrtc);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(named_path_is_the_only_one),
      TEST(linker_path_comes_first),
      TEST(toolkits_are_found),
      TEST(wheels_are_found),
      TEST(conda_and_shims_are_found),
      TEST(builds_are_told_apart),
      TEST(damaged_libraries_have_identities),
      TEST(unusable_libraries_are_named),
      TEST(broken_candidate_is_passed_over),
      TEST(unknown_architecture_lists_the_known),
      TEST(missing_builtins_are_named),
      TEST(real_compiles_from_memory),
      TEST(real_errors_name_their_place),
      TEST(real_without_builtins),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
