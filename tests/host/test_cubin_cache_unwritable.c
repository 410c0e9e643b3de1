/* Case D4: a kernel cache in a place that cannot be written, or that fills up. It stays silent but
 * for one warning per context, serves what it has, and leaves no partial files. Permission bits do
 * not bind root, so places are used that bind everybody: below a regular file, /proc, a read-only
 * mount, a full file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/cubin_cache.h"
#include "tests/support/workbench.h"

static Workbench bench;

enum { CUBIN_BYTES = 100000 };
static unsigned char cubin[CUBIN_BYTES];

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_open(&bench);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  workbench_close(&bench);
  return 0;
}

/* Nothing half done is left in tmp/ or lock/, empty directories included. */
static void expect_no_debris(const char *directory) {
  workbench_shell("test -z \"$(ls -A %s/tmp %s/lock | grep -v : | grep .)\"", directory, directory);
}

static CacheEntry numbered_entry(int i) {
  memset(cubin, i, sizeof cubin);
  return (CacheEntry){.key = digest_of(&i, sizeof i),
                      .program = digest_of(&i, sizeof i),
                      .content = digest_of(cubin, sizeof cubin),
                      .architecture = "sm_90",
                      .label = "kernel",
                      .cubin = cubin,
                      .size = sizeof cubin};
}

/* What a context does with kernel i that is not in memory; true if the disk had it. */
static bool use(CubinCache *cache, int i) {
  CacheEntry entry = numbered_entry(i), found;
  if (cubin_cache_find(cache, &entry.program, &entry.key, &found)) {
    bool right = found.size == sizeof cubin && !memcmp(found.cubin, cubin, sizeof cubin);
    cache_entry_free(&found);
    assert_true(right);
    return true;
  }
  CacheLock lock;
  if (cubin_cache_lock(cache, &entry.key, 1, &lock) == CACHE_LOCK_HELD) {
    assert_false(cubin_cache_find_locked(cache, &entry.program, &entry.key, &found));
    cubin_cache_store(cache, &entry, "// source\n");
    cache_lock_release(&lock);
  }
  return false;
}

/* A new context (with a log of its own) uses kernels `from` .. `to`; returns how many were on disk,
 * and counts warnings. */
static int use_range(const char *directory, int from, int to, int *warnings) {
  Log log;
  log_init(&log, 0);
  workbench_capture(&bench);
  CubinCache *cache;
  assert_int_equal(cubin_cache_create(directory, 0, &log, &cache), ROTA_OK);
  int hits = 0;
  for (int i = from; i <= to; i++)
    hits += use(cache, i);
  cubin_cache_destroy(cache);
  *warnings = workbench_release(&bench);
  return hits;
}

static void expect_unwritable(const char *directory, const char *reason) {
  int warnings;
  for (int context = 0; context < 2; context++) {
    assert_int_equal(use_range(directory, 1, 5, &warnings), 0);
    if (warnings != 1 || (directory && !strstr(workbench_captured(), directory)) ||
        !strstr(workbench_captured(), reason) || !strstr(workbench_captured(), "ROTA_CACHE_DIR"))
      fail_msg("%s: %d warnings: %s", directory, warnings, workbench_captured());
  }
}

static void below_a_regular_file(void **state) {
  (void)state;
  workbench_write(workbench_path(&bench, "file"), "mine", 4);
  expect_unwritable(workbench_path(&bench, "file/cache"), "Not a directory");
  expect_unwritable(workbench_path(&bench, "file/deeper/cache"), "Not a directory");
  expect_unwritable(workbench_path(&bench, "file"), "Not a directory");
  assert_int_equal(workbench_count_lines(workbench_path(&bench, "file"), "mine"), 1);
}

static void in_a_place_without_files(void **state) {
  (void)state;
  expect_unwritable("/proc/rota", "cannot be written");
  expect_unwritable("/proc/self/rota", "cannot be written");
}

/* In a child that is nobody, where the test runs as root. Exit status: 0, or the number of the
 * check that failed. */
static int use_closed_directory(void) {
  char directory[600];
  snprintf(directory, sizeof directory, "%s/closed", bench.root);
  int warnings;
  use_range(directory, 1, 2, &warnings);
  workbench_shell("chmod -R a-w %s", directory);
  if (use_range(directory, 1, 2, &warnings) != 2 || warnings != 0)
    return 1;
  if (use_range(directory, 1, 6, &warnings) != 2 || warnings != 1)
    return 2;
  if (!strstr(workbench_captured(), "Permission denied"))
    return 3;
  int files = workbench_count_files(directory);
  workbench_shell("chmod -R u+w %s", directory);
  return files == 6 ? 0 : 4;
}

static void permission_bits(void **state) {
  (void)state;
  enum { NOBODY = 65534 };
  bool root = geteuid() == 0;
  if (root)
    assert_int_equal(chown(bench.root, NOBODY, NOBODY), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    _exit(root && setresuid(NOBODY, NOBODY, NOBODY) != 0 ? 100 : use_closed_directory());
  assert_int_equal(workbench_wait(child), 0);
}

static void without_a_home(void **state) {
  (void)state;
  char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
  unsetenv("HOME");
  expect_unwritable(NULL, "HOME");
  /* Where it would be, otherwise. */
  Log log;
  log_init(&log, 0);
  CubinCache *cache;
  setenv("HOME", "/home/someone", 1);
  assert_int_equal(cubin_cache_create(NULL, 0, &log, &cache), ROTA_OK);
  assert_string_equal(cubin_cache_directory(cache), "/home/someone/.cache/rota");
  cubin_cache_destroy(cache);
  setenv("XDG_CACHE_HOME", "relative", 1); /* to be ignored, says its standard */
  assert_int_equal(cubin_cache_create(NULL, 0, &log, &cache), ROTA_OK);
  assert_string_equal(cubin_cache_directory(cache), "/home/someone/.cache/rota");
  cubin_cache_destroy(cache);
  setenv("XDG_CACHE_HOME", "/caches", 1);
  assert_int_equal(cubin_cache_create(NULL, 0, &log, &cache), ROTA_OK);
  assert_string_equal(cubin_cache_directory(cache), "/caches/rota");
  cubin_cache_destroy(cache);
  setenv("ROTA_CACHE_DIR", "/mine", 1);
  assert_int_equal(cubin_cache_create(NULL, 0, &log, &cache), ROTA_OK);
  assert_string_equal(cubin_cache_directory(cache), "/mine");
  assert_int_equal(cubin_cache_max_bytes(cache), 1 << 30);
  cubin_cache_destroy(cache);
  /* An empty one asks for no disk cache, which is no reason to warn. */
  setenv("ROTA_CACHE_DIR", "", 1);
  int warnings;
  assert_int_equal(use_range(NULL, 1, 3, &warnings) + warnings, 0);
  unsetenv("HOME");
  if (home)
    setenv("HOME", home, 1);
  free(home);
}

static void relative_directories_become_absolute(void **state) {
  (void)state;
  char *before = get_current_dir_name();
  Log log;
  log_init(&log, 0);
  CubinCache *cache;
  assert_int_equal(chdir(bench.root), 0);
  assert_int_equal(cubin_cache_create("here", 0, &log, &cache), ROTA_OK);
  assert_int_equal(chdir(before), 0);
  free(before);
  assert_string_equal(cubin_cache_directory(cache), workbench_path(&bench, "here"));
  use(cache, 1);
  assert_true(use(cache, 1));
  cubin_cache_destroy(cache);
}

/* A file size limit stands in for a full disk: every write beyond it fails in the middle. */
static void writes_that_fail_half_way(void **state) {
  (void)state;
  const char *directory = workbench_path(&bench, "cache");
  int warnings;
  assert_int_equal(use_range(directory, 1, 1, &warnings), 0);
  struct rlimit before, limit;
  getrlimit(RLIMIT_FSIZE, &before);
  limit = before;
  limit.rlim_cur = CUBIN_BYTES / 2;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  int hits = use_range(directory, 1, 5, &warnings);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  assert_int_equal(hits, 1); /* the warm one still serves */
  assert_int_equal(warnings, 1);
  assert_non_null(strstr(workbench_captured(), "File too large"));
  assert_int_equal(workbench_count_files(directory), 3);
  expect_no_debris(directory);
  /* And when there is room again, all is well. */
  assert_int_equal(use_range(directory, 1, 5, &warnings), 1);
  assert_int_equal(use_range(directory, 1, 5, &warnings), 5);
  assert_int_equal(warnings, 0);
}

/* ---- Mounts, in a child with a mount namespace of its own
 * ------------------------------------------ */

enum { CANNOT_MOUNT = 77 };

/* Exit status of `body` run where `directory` is a fresh tmpfs of that many bytes. */
static int in_small_file_system(const char *directory, int bytes, int (*body)(const char *)) {
  workbench_shell("mkdir -p %s", directory);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    char options[64];
    snprintf(options, sizeof options, "size=%d", bytes);
    bool mounted = unshare(CLONE_NEWNS) == 0 &&
                   mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("tmpfs", directory, "tmpfs", 0, options) == 0;
    _exit(mounted ? body(directory) : CANNOT_MOUNT);
  }
  int result = workbench_wait(child);
  if (result == CANNOT_MOUNT) {
    fprintf(stderr, "SKIPPED: file systems cannot be mounted here\n");
    skip();
  }
  return result;
}

/* Room for two entries. Exit status: 0, or the number of the check that failed. */
static int fill_disk(const char *root) {
  char directory[600];
  snprintf(directory, sizeof directory, "%s/cache", root);
  int warnings;
  if (use_range(directory, 1, 2, &warnings) != 0 || warnings != 0)
    return 1;
  if (use_range(directory, 1, 6, &warnings) != 2 || warnings != 1)
    return 2;
  if (!strstr(workbench_captured(), "No space left on device"))
    return 3;
  if (workbench_count_files(directory) != 6)
    return 4;
  expect_no_debris(directory);
  return use_range(directory, 1, 2, &warnings) != 2 || warnings != 0 ? 5 : 0;
}

static void full_file_system(void **state) {
  (void)state;
  assert_int_equal(
      in_small_file_system(workbench_path(&bench, "disk"), 3 * CUBIN_BYTES - 20000, fill_disk), 0);
}

static int read_only(const char *root) {
  char directory[600];
  snprintf(directory, sizeof directory, "%s/cache", root);
  int warnings;
  use_range(directory, 1, 2, &warnings);
  if (mount(NULL, root, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
    return CANNOT_MOUNT;
  if (use_range(directory, 1, 2, &warnings) != 2 || warnings != 0)
    return 1; /* warm entries serve, without a word */
  if (use_range(directory, 1, 6, &warnings) != 2 || warnings != 1)
    return 2;
  if (!strstr(workbench_captured(), "Read-only file system"))
    return 3;
  snprintf(directory, sizeof directory, "%s/another", root);
  return use_range(directory, 1, 6, &warnings) != 0 || warnings != 1 ? 4 : 0;
}

static void read_only_mount(void **state) {
  (void)state;
  assert_int_equal(in_small_file_system(workbench_path(&bench, "disk"), 1 << 20, read_only), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(below_a_regular_file),
      TEST(in_a_place_without_files),
      TEST(permission_bits),
      TEST(without_a_home),
      TEST(relative_directories_become_absolute),
      TEST(writes_that_fail_half_way),
      TEST(full_file_system),
      TEST(read_only_mount),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
