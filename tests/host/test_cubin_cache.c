/* The cubin cache on disk: what is stored comes back, damage is noticed (case D3), the size limit
 * holds, locks die with their holders, debris goes. Directories that cannot be written are in
 * test_cubin_cache_unwritable.c, processes in test_cache_processes.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/cache_tree.h"
#include "runtime/cubin_cache.h"
#include "runtime/files.h"
#include "tests/support/workbench.h"

static Workbench bench;
static Log quiet;
static CubinCache *cache;

enum { CUBIN_BYTES = 1000 };
static const char source_text[] = "// source of a kernel\n";

static CubinCache *open_cache(const char *directory, int64_t max_bytes) {
  CubinCache *opened;
  assert_int_equal(cubin_cache_create(directory, max_bytes, &quiet, &opened), ROTA_OK);
  return opened;
}

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_open(&bench);
  log_init(&quiet, 0);
  cache = open_cache(workbench_path(&bench, "cache"), 0);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  cubin_cache_destroy(cache);
  workbench_close(&bench);
  return 0;
}

/* ---- Entries -------------------------------------------------------------------------------- */

/* The i-th entry of a family; its cubin is the caller's array. Programs with equal i / 100 differ
 * by compiler alone. */
static CacheEntry numbered_entry(int i, unsigned char cubin[CUBIN_BYTES]) {
  for (int at = 0; at < CUBIN_BYTES; at++)
    cubin[at] = (unsigned char)(at * 7 + i);
  int program = i / 100;
  CacheEntry entry = {.key = digest_of(&i, sizeof i),
                      .program = digest_of(&program, sizeof program),
                      .content = digest_of(cubin, CUBIN_BYTES),
                      .architecture = "sm_90",
                      .nvrtc_version = 13000,
                      .label = "portable 64x64",
                      .registers = 100 + i % 100,
                      .spill_bytes = 8,
                      .shared_bytes = 48000,
                      .cubin = cubin,
                      .size = CUBIN_BYTES};
  return entry;
}

static void store_numbered(CubinCache *into, int i) {
  unsigned char cubin[CUBIN_BYTES];
  CacheEntry entry = numbered_entry(i, cubin);
  cubin_cache_store(into, &entry, source_text);
}

/* Looks for entry i; a hit must be right in every field. */
static bool find_numbered(CubinCache *in, int i, bool locked) {
  unsigned char cubin[CUBIN_BYTES];
  CacheEntry expected = numbered_entry(i, cubin), entry;
  bool found = locked ? cubin_cache_find_locked(in, &expected.program, &expected.key, &entry)
                      : cubin_cache_find(in, &expected.program, &expected.key, &entry);
  if (!found)
    return false;
  assert_int_equal(entry.size, CUBIN_BYTES);
  assert_memory_equal(entry.cubin, cubin, CUBIN_BYTES);
  assert_string_equal(entry.content.hex, expected.content.hex);
  assert_string_equal(entry.architecture, "sm_90");
  assert_string_equal(entry.label, "portable 64x64");
  assert_int_equal(entry.nvrtc_version, 13000);
  assert_int_equal(entry.registers, expected.registers);
  assert_int_equal(entry.spill_bytes, 8);
  assert_int_equal(entry.shared_bytes, 48000);
  cache_entry_free(&entry);
  return true;
}

/* Path of entry i, or of a file in it. */
static const char *numbered_path(int i, const char *file) {
  unsigned char cubin[CUBIN_BYTES];
  CacheEntry entry = numbered_entry(i, cubin);
  static char paths[4][600];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%.2s/%s%s%s", cubin_cache_directory(cache), entry.program.hex,
           entry.key.hex, *file ? "/" : "", file);
  return path;
}

static void expect_mode(const char *path, mode_t mode) {
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_mode & 0777, mode);
}

static void stored_entries_come_back(void **state) {
  (void)state;
  umask(0);
  assert_false(find_numbered(cache, 1, false));
  store_numbered(cache, 1);
  store_numbered(cache, 2);
  assert_true(find_numbered(cache, 1, false));
  assert_true(find_numbered(cache, 2, true));
  assert_false(find_numbered(cache, 3, true));
  CubinCache *other = open_cache(workbench_path(&bench, "cache"), 0);
  assert_true(find_numbered(other, 1, false));
  cubin_cache_destroy(other);
  /* Nobody else may read it, whatever the umask. */
  expect_mode(workbench_path(&bench, "cache"), 0700);
  expect_mode(numbered_path(1, ""), 0700);
  expect_mode(numbered_path(1, "kernel.cubin"), 0600);
  expect_mode(numbered_path(1, "meta.json"), 0600);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 6);
}

static void any_compiler_serves_a_program(void **state) {
  (void)state;
  unsigned char cubin[CUBIN_BYTES];
  CacheEntry found;
  Digest program = numbered_entry(101, cubin).program;
  assert_false(cubin_cache_find_program(cache, &program, &found));
  store_numbered(cache, 1); /* of another program */
  for (int i = 101; i < 104; i++)
    store_numbered(cache, i);
  const char *smallest = NULL;
  Digest keys[3];
  for (int i = 0; i < 3; i++) {
    keys[i] = numbered_entry(101 + i, cubin).key;
    if (!smallest || strcmp(keys[i].hex, smallest) < 0)
      smallest = keys[i].hex;
  }
  assert_true(cubin_cache_find_program(cache, &program, &found));
  assert_string_equal(found.key.hex, smallest);
  assert_string_equal(found.program.hex, program.hex);
  cache_entry_free(&found);
}

/* ---- Damage --------------------------------------------------------------------------------- */

/* Entry 1 was just damaged: it must be noticed, with one warning, and healed by the next store. */
static void expect_healed(const char *how) {
  workbench_capture(&bench);
  bool unlocked = find_numbered(cache, 1, false);
  bool locked = find_numbered(cache, 1, true);
  bool again = find_numbered(cache, 1, true);
  int warnings = workbench_release(&bench);
  if (unlocked || locked || again || warnings != 1)
    fail_msg("%s: found %d %d %d, %d warnings", how, unlocked, locked, again, warnings);
  assert_non_null(strstr(workbench_captured(), "damaged entry"));
  assert_non_null(strstr(workbench_captured(), numbered_path(1, "")));
  store_numbered(cache, 1);
  assert_true(find_numbered(cache, 1, false));
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 6);
}

static void damage_is_noticed_and_healed(void **state) {
  (void)state;
  static const char *const damages[] = {"truncate -s 0 %s/kernel.cubin",
                                        "truncate -s 500 %s/kernel.cubin",
                                        "truncate -s 2000 %s/kernel.cubin",
                                        "rm %s/kernel.cubin",
                                        "rm %s/kernel.cubin && mkdir %s/kernel.cubin",
                                        "rm %s/kernel.cubin && mkfifo %s/kernel.cubin",
                                        "truncate -s 0 %s/meta.json",
                                        "truncate -s 200 %s/meta.json",
                                        "rm %s/meta.json",
                                        "rm %s/meta.json && mkdir %s/meta.json",
                                        "echo '{}' >%s/meta.json",
                                        "echo '{\"format\": 1}' >%s/meta.json",
                                        "echo '[1, 2' >%s/meta.json",
                                        "rm -r %s && touch %s",
                                        "rm %s/*"};
  store_numbered(cache, 1);
  store_numbered(cache, 2);
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    char command[2048];
    /* GCC cannot see the formats; each takes the path once or twice. */
    const char *path = numbered_path(1, "");
    Text text = {0};
    for (const char *at = damages[i]; *at; at++) {
      if (at[0] == '%') {
        text_append(&text, path);
        at++;
      } else {
        text_append_bytes(&text, at, 1);
      }
    }
    snprintf(command, sizeof command, "%s", text.data);
    text_free(&text);
    workbench_shell("%s", command);
    expect_healed(damages[i]);
  }
  workbench_shell("cp %s/kernel.cubin %s/", numbered_path(2, ""), numbered_path(1, ""));
  expect_healed("another kernel's cubin");
  workbench_shell("rm -r %s && cp -r %s %s", numbered_path(1, ""), numbered_path(2, ""),
                  numbered_path(1, ""));
  expect_healed("another kernel's entry");
  assert_true(find_numbered(cache, 2, true));
}

/* Every byte of cubin and description, flipped in turn: never a wrong result. (A space of the JSON
 * text may change.) */
static void no_flipped_byte_passes(void **state) {
  (void)state;
  static const char *const files[] = {"kernel.cubin", "meta.json"};
  workbench_capture(&bench);
  int noticed = 0, total = 0;
  for (int file = 0; file < 2; file++) {
    store_numbered(cache, 1);
    const char *path = numbered_path(1, files[file]);
    char *bytes;
    size_t size;
    assert_int_equal(text_read_file(path, &bytes, &size), ROTA_OK);
    for (size_t at = 0; at < size; at++) {
      for (int bit = 0; bit < 8; bit += file == 0 ? 7 : 1) {
        bytes[at] = (char)(bytes[at] ^ 1 << bit);
        workbench_write(path, bytes, size);
        noticed += !find_numbered(cache, 1, false); /* a hit is compared in every field */
        total++;
        bytes[at] = (char)(bytes[at] ^ 1 << bit);
      }
    }
    free(bytes);
    assert_true(noticed > total * 9 / 10);
  }
  workbench_release(&bench);
}

/* An entry of a future version is left alone, without a word. */
static void other_formats_are_misses(void **state) {
  (void)state;
  store_numbered(cache, 1);
  workbench_shell("sed -i 's/\"format\": 1/\"format\": 2/' %s", numbered_path(1, "meta.json"));
  workbench_capture(&bench);
  assert_false(find_numbered(cache, 1, true));
  assert_int_equal(workbench_release(&bench), 0);
}

/* ---- Size ----------------------------------------------------------------------------------- */

static void set_age(int i, int seconds) {
  workbench_shell("touch -d '%d seconds ago' %s", seconds, numbered_path(i, "meta.json"));
}

static void least_recently_used_goes_first(void **state) {
  (void)state;
  for (int i = 0; i < 8; i++) {
    store_numbered(cache, i);
    set_age(i, 1000 - i);
  }
  assert_true(find_numbered(cache, 0, false)); /* now the youngest */
  double used;
  int64_t bytes;
  assert_true(cache_entry_stat(numbered_path(0, ""), &used, &bytes));
  int64_t limit = 6 * bytes; /* 5 stay: 6 minus an eighth */
  CubinCache *small = open_cache(workbench_path(&bench, "cache"), limit);
  store_numbered(small, 8);
  for (int i = 1; i <= 4; i++)
    assert_false(find_numbered(small, i, true));
  assert_true(find_numbered(small, 0, true) && find_numbered(small, 5, true) &&
              find_numbered(small, 6, true) && find_numbered(small, 7, true) &&
              find_numbered(small, 8, true));
  /* The limit holds whatever comes, and what is larger than all of it is not stored. */
  for (int i = 20; i < 60; i++) {
    store_numbered(small, i);
    CubinCacheList list;
    assert_int_equal(cubin_cache_list(small, &list), ROTA_OK);
    assert_true(list.bytes <= limit && list.damaged == 0 && list.count >= 4);
    cubin_cache_list_free(&list);
    assert_true(find_numbered(small, i, true));
  }
  cubin_cache_destroy(small);
  small = open_cache(workbench_path(&bench, "cache2"), CUBIN_BYTES / 2);
  store_numbered(small, 1);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache2")), 0);
  cubin_cache_destroy(small);
}

static void locked_entries_are_not_evicted(void **state) {
  (void)state;
  unsigned char cubin[CUBIN_BYTES];
  store_numbered(cache, 1);
  set_age(1, 1000);
  CacheEntry entry = numbered_entry(1, cubin);
  CacheLock lock;
  assert_int_equal(cubin_cache_lock(cache, &entry.key, 1, &lock), CACHE_LOCK_HELD);
  CubinCache *small = open_cache(workbench_path(&bench, "cache"), CUBIN_BYTES + 1200);
  store_numbered(small, 2);
  assert_true(find_numbered(small, 1, true));
  cache_lock_release(&lock);
  store_numbered(small, 3);
  assert_false(find_numbered(small, 1, true));
  cubin_cache_destroy(small);
}

/* ---- Locks ---------------------------------------------------------------------------------- */

static void lock_excludes_and_times_out(void **state) {
  (void)state;
  const char *path = workbench_path(&bench, "lock");
  CacheLock first, second;
  int error;
  assert_int_equal(cache_lock_acquire(path, 1, &first, &error), CACHE_LOCK_HELD);
  double begin = workbench_seconds();
  assert_int_equal(cache_lock_acquire(path, 0, &second, &error), CACHE_LOCK_TIMEOUT);
  assert_true(workbench_seconds() - begin < 0.2);
  begin = workbench_seconds();
  assert_int_equal(cache_lock_acquire(path, 0.2, &second, &error), CACHE_LOCK_TIMEOUT);
  double waited = workbench_seconds() - begin;
  assert_true(waited >= 0.2 && waited < 2);
  cache_lock_release(&first);
  assert_int_equal(access(path, F_OK), -1); /* no file stays */
  assert_int_equal(cache_lock_acquire(path, 0, &second, &error), CACHE_LOCK_HELD);
  cache_lock_release(&second);
  assert_int_equal(cache_lock_acquire("/nowhere/lock", 5, &first, &error), CACHE_LOCK_UNAVAILABLE);
  assert_int_equal(error, ENOENT);
}

static void lock_dies_with_its_holder(void **state) {
  (void)state;
  const char *path = workbench_path(&bench, "lock");
  int ready[2];
  assert_int_equal(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    CacheLock held;
    int failure;
    char answer = cache_lock_acquire(path, 1, &held, &failure) == CACHE_LOCK_HELD ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1)
      _exit(1);
    pause();
    _exit(0);
  }
  char answer = 0;
  assert_int_equal(read(ready[0], &answer, 1), 1);
  assert_int_equal(answer, 'y');
  CacheLock lock;
  int error;
  assert_int_equal(cache_lock_acquire(path, 0, &lock, &error), CACHE_LOCK_TIMEOUT);
  kill(child, SIGKILL);
  assert_int_equal(cache_lock_acquire(path, 5, &lock, &error), CACHE_LOCK_HELD);
  cache_lock_release(&lock);
  assert_int_equal(workbench_wait(child), -SIGKILL);
  close(ready[0]);
  close(ready[1]);
}

/* A child forked while the lock is held shares the open file; releasing must free the lock all the
 * same. */
static void lock_is_not_kept_by_a_forked_child(void **state) {
  (void)state;
  const char *path = workbench_path(&bench, "lock");
  CacheLock lock, next;
  int error;
  assert_int_equal(cache_lock_acquire(path, 1, &lock, &error), CACHE_LOCK_HELD);
  int keep = open(path, O_RDWR); /* the file outlives its name for the child */
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  cache_lock_release(&lock);
  assert_int_equal(flock(keep, LOCK_EX | LOCK_NB), 0);
  close(keep);
  assert_int_equal(cache_lock_acquire(path, 0, &next, &error), CACHE_LOCK_HELD);
  cache_lock_release(&next);
  kill(child, SIGKILL);
  workbench_wait(child);
}

/* Stands before libc's: the next call finds that the lock's holder has just removed the file and
 * let go. */
static const char *removed_before_flock;

int flock(int file, int operation) {
  if (removed_before_flock)
    unlink(removed_before_flock);
  removed_before_flock = NULL;
  return (int)syscall(SYS_flock, file, operation);
}

static void lock_of_a_removed_file_is_no_lock(void **state) {
  (void)state;
  const char *path = workbench_path(&bench, "lock");
  CacheLock lock, second;
  int error;
  removed_before_flock = path;
  assert_int_equal(cache_lock_acquire(path, 0, &lock, &error), CACHE_LOCK_HELD);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(cache_lock_acquire(path, 0, &second, &error), CACHE_LOCK_TIMEOUT);
  cache_lock_release(&lock);
}

/* Several processes add to one number in a file: without exclusion, additions get lost. */
static void lock_excludes_under_contention(void **state) {
  (void)state;
  enum { ADDERS = 4, ROUNDS = 150 };
  const char *path = workbench_path(&bench, "lock"), *number = workbench_path(&bench, "number");
  workbench_write(number, "0", 1);
  pid_t children[ADDERS];
  for (int i = 0; i < ADDERS; i++) {
    children[i] = fork();
    for (int round = 0; children[i] == 0 && round < ROUNDS; round++) {
      CacheLock lock;
      int error;
      char *text = NULL, next[32];
      size_t length;
      if (cache_lock_acquire(path, 60, &lock, &error) != CACHE_LOCK_HELD ||
          text_read_file(number, &text, &length) != ROTA_OK)
        _exit(1);
      snprintf(next, sizeof next, "%d", atoi(text) + 1);
      free(text);
      if (files_write(AT_FDCWD, number, next, strlen(next)) != 0)
        _exit(2);
      cache_lock_release(&lock);
    }
    if (children[i] == 0)
      _exit(0);
  }
  for (int i = 0; i < ADDERS; i++)
    assert_int_equal(workbench_wait(children[i]), 0);
  char *text;
  size_t length;
  assert_int_equal(text_read_file(number, &text, &length), ROTA_OK);
  assert_int_equal(atoi(text), ADDERS * ROUNDS);
  free(text);
}

/* ---- Debris --------------------------------------------------------------------------------- */

static void debris_goes_and_drafts_stay(void **state) {
  (void)state;
  const char *root = workbench_path(&bench, "cache");
  CacheDraft live, dead;
  assert_int_equal(cache_tree_begin(root, &live), 0);
  assert_int_equal(cache_tree_begin(root, &dead), 0);
  char dead_path[600];
  snprintf(dead_path, sizeof dead_path, "%s", dead.path);
  assert_int_equal(files_write(dead.directory, "kernel.cubin", "x", 1), 0);
  close(dead.directory); /* as the kernel does for a process that was killed */
  free(dead.path);
  workbench_write(workbench_path(&bench, "cache/lock/0123456789abcdef0123456789abcdef"), "", 0);
  workbench_write(workbench_path(&bench, "cache/tmp/file"), "", 0);
  cache_tree_clean(root, 60); /* too young */
  assert_int_equal(access(dead_path, F_OK), 0);
  workbench_shell("touch -d '2 minutes ago' %s/tmp/* %s/lock/*", root, root);
  store_numbered(cache, 1); /* a context's first store cleans */
  assert_int_equal(access(dead_path, F_OK), -1);
  assert_int_equal(access(live.path, F_OK), 0);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache/lock")), 0);
  assert_int_equal(access(workbench_path(&bench, "cache/tmp/file"), F_OK), -1);
  cache_tree_abandon(&live);
  assert_int_equal(workbench_count_files(root), 3);
}

/* ---- rota cache ----------------------------------------------------------------------------- */

static void listing_and_clearing(void **state) {
  (void)state;
  CubinCacheList list;
  assert_int_equal(cubin_cache_list(cache, &list), ROTA_OK); /* no directory yet */
  assert_int_equal(list.count, 0);
  for (int i = 0; i < 5; i++) {
    store_numbered(cache, i);
    set_age(i, 100 * i + 5);
  }
  workbench_shell("printf x >>%s", numbered_path(3, "source.cu"));
  workbench_shell("printf x >>%s", numbered_path(4, "kernel.cubin"));
  workbench_write(workbench_path(&bench, "cache/README"), "mine", 4);
  workbench_write(workbench_path(&bench, "cache/ab/notes"), "mine", 4);
  assert_int_equal(cubin_cache_list(cache, &list), ROTA_OK);
  assert_int_equal(list.count, 5);
  assert_int_equal(list.damaged, 2);
  int64_t bytes = 0;
  for (size_t i = 0; i < list.count; i++) {
    const CubinCacheItem *item = &list.items[i];
    assert_true(item->age >= 100 * (double)i + 4 && item->age < 100 * (double)i + 60);
    assert_int_equal(item->damaged, i >= 3);
    assert_string_equal(item->label, i < 3 ? "portable 64x64" : "");
    assert_string_equal(item->architecture, i < 3 ? "sm_90" : "");
    bytes += item->bytes;
  }
  assert_non_null(strstr(list.items[3].reason, "source.cu"));
  assert_non_null(strstr(list.items[4].reason, "kernel.cubin"));
  assert_int_equal(list.bytes, bytes);
  cubin_cache_list_free(&list);
  size_t removed;
  int64_t freed;
  assert_int_equal(cubin_cache_clear(cache, &removed, &freed), ROTA_OK);
  assert_int_equal(removed, 5);
  assert_int_equal(freed, bytes);
  /* What is not ours stays. */
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 2);
  assert_false(find_numbered(cache, 0, true));
}

/* Memory that runs out anywhere costs an entry, never the process or a wrong entry. */
static void memory_failures_are_survived(void **state) {
  (void)state;
  for (long n = 1; n < 40; n++) {
    memory_fail_at(n);
    store_numbered(cache, 1);
    memory_fail_at(n);
    find_numbered(cache, 1, true);
    memory_fail_at(n);
    CubinCacheList list;
    if (cubin_cache_list(cache, &list) == ROTA_OK)
      cubin_cache_list_free(&list);
    memory_fail_at(0);
  }
  store_numbered(cache, 1);
  assert_true(find_numbered(cache, 1, true));
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 3);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(stored_entries_come_back),          TEST(any_compiler_serves_a_program),
      TEST(damage_is_noticed_and_healed),      TEST(no_flipped_byte_passes),
      TEST(other_formats_are_misses),          TEST(least_recently_used_goes_first),
      TEST(locked_entries_are_not_evicted),    TEST(lock_excludes_and_times_out),
      TEST(lock_dies_with_its_holder),         TEST(lock_is_not_kept_by_a_forked_child),
      TEST(lock_of_a_removed_file_is_no_lock), TEST(lock_excludes_under_contention),
      TEST(debris_goes_and_drafts_stay),       TEST(listing_and_clearing),
      TEST(memory_failures_are_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
