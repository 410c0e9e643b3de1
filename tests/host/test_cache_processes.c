/* The cache between processes. Case D1: eight cold processes compile once, and once more if the one
 * at work is killed. Case D6: twenty processes, the same kernels in shuffled order, one under
 * another locale: same keys, no compile after the first. And eviction under fire. Workers are this
 * executable, run again. */
#define _GNU_SOURCE
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/compile.h"
#include "tests/support/workbench.h"

static Workbench bench;
static char cache[512], fake[512], compile_log[512];

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_open(&bench);
  snprintf(cache, sizeof cache, "%s", workbench_path(&bench, "cache"));
  snprintf(fake, sizeof fake, "%s", workbench_fake_nvrtc(&bench, "libnvrtc.so.13", ""));
  snprintf(compile_log, sizeof compile_log, "%s", workbench_path(&bench, "log"));
  setenv("FAKE_NVRTC_LOG", compile_log, 1);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  unsetenv("FAKE_NVRTC_LOG");
  unsetenv("FAKE_NVRTC_MS");
  workbench_close(&bench);
  return 0;
}

/* ---- The worker ----------------------------------------------------------------------------- */

/* worker CACHE NVRTC MAX_BYTES FIRST COUNT SEED RESULT [LOCALE]: compiles programs FIRST .. FIRST +
 * COUNT - 1 in an order that SEED decides, and writes a line "number key content" each to RESULT.
 * NVRTC "-": the installed one. */
static int work(int argc, char **argv) {
  if (argc > 8 && !setlocale(LC_ALL, argv[8]))
    return 77;
  Log log;
  log_init(&log, 0);
  CompilerOptions options = {.cache_dir = argv[1],
                             .nvrtc_path = strcmp(argv[2], "-") != 0 ? argv[2] : NULL,
                             .cache_max_bytes = strtoll(argv[3], NULL, 10),
                             .log = &log};
  Compiler *compiler;
  if (compiler_create(&options, &compiler) != ROTA_OK)
    return 2;
  int first = atoi(argv[4]), count = atoi(argv[5]);
  unsigned seed = (unsigned)atoi(argv[6]);
  /* Steps of a number prime to count visit all; the seed decides where to begin and how far to
   * step. */
  static const int steps[] = {1, 7, 11, 13, 17, 19, 23, 29};
  int step = steps[seed % 8];
  Text lines = {0};
  for (int i = 0; i < count; i++) {
    int number = first + (int)((seed + (unsigned)(i * step)) % (unsigned)count);
    Program *program = workbench_numbered_program(number);
    Cubin *cubin;
    if (compile_program(compiler, program, "sm_90", &cubin) != ROTA_OK) {
      fprintf(stderr, "worker: %s\n", status_message());
      return 1;
    }
    text_format(&lines, "%03d %s %s\n", number, cubin->key.hex, cubin->content.hex);
    cubin_destroy(cubin);
    program_destroy(program);
  }
  compiler_destroy(compiler);
  workbench_write(argv[7], lines.data, lines.length);
  text_free(&lines);
  return 0;
}

static pid_t start(int seed, const char *nvrtc, int64_t max_bytes, int first, int count,
                   const char *locale) {
  static char texts[5][600];
  snprintf(texts[0], sizeof texts[0], "%lld", (long long)max_bytes);
  snprintf(texts[1], sizeof texts[1], "%d", first);
  snprintf(texts[2], sizeof texts[2], "%d", count);
  snprintf(texts[3], sizeof texts[3], "%d", seed);
  snprintf(texts[4], sizeof texts[4], "%s/results/%d", bench.root, seed);
  const char *arguments[] = {cache,    nvrtc,    texts[0], texts[1], texts[2],
                             texts[3], texts[4], locale,   NULL};
  return workbench_spawn(arguments);
}

static int begun(void) {
  return workbench_count_lines(compile_log, "begin");
}

static int finished(void) {
  return workbench_count_lines(compile_log, "end");
}

/* Every result file says the same, in sorted order. */
static void expect_equal_results(int count) {
  workbench_shell("cd %s/results && for f in *; do sort $f >../sorted && md5sum <../sorted; done | "
                  "sort -u >../sums && test `wc -l <../sums` = 1 && test `ls | wc -l` = %d",
                  bench.root, count);
}

static void expect_no_debris(void) {
  char path[600];
  snprintf(path, sizeof path, "%s/tmp", cache);
  assert_int_equal(workbench_count_files(path), 0);
  snprintf(path, sizeof path, "%s/lock", cache);
  assert_int_equal(workbench_count_files(path), 0);
}

/* ---- D1 ------------------------------------------------------------------------------------- */

enum { PROCESSES = 8 };

static void eight_cold_processes_compile_once(void **state) {
  (void)state;
  setenv("FAKE_NVRTC_MS", "300", 1);
  pid_t workers[PROCESSES];
  workbench_capture(&bench);
  for (int i = 0; i < PROCESSES; i++)
    workers[i] = start(i, fake, 0, 1, 1, NULL);
  int failures = 0;
  for (int i = 0; i < PROCESSES; i++)
    failures += workbench_wait(workers[i]) != 0;
  assert_int_equal(workbench_release(&bench), 0);
  assert_int_equal(failures, 0);
  assert_int_equal(begun(), 1);
  expect_equal_results(PROCESSES);
  expect_no_debris();
}

/* Process of the first "begin" line, waited for. */
static pid_t compiling_process(void) {
  char *text;
  size_t length;
  double begin = workbench_seconds();
  while (begun() == 0 && workbench_seconds() - begin < 60)
    workbench_sleep_ms(2);
  assert_true(begun() > 0);
  assert_int_equal(text_read_file(compile_log, &text, &length), ROTA_OK);
  long pid = strtol(text + strlen("begin "), NULL, 10);
  free(text);
  return (pid_t)pid;
}

static void a_killed_compiler_is_replaced(void **state) {
  (void)state;
  setenv("FAKE_NVRTC_MS", "1500", 1);
  pid_t workers[PROCESSES];
  for (int i = 0; i < PROCESSES; i++)
    workers[i] = start(i, fake, 0, 1, 1, NULL);
  pid_t victim = compiling_process();
  workbench_sleep_ms(100); /* the others are waiting by now, or will be */
  assert_int_equal(kill(victim, SIGKILL), 0);
  int killed = 0, failures = 0;
  for (int i = 0; i < PROCESSES; i++) {
    int result = workbench_wait(workers[i]);
    killed += result == -SIGKILL && workers[i] == victim;
    failures += result != 0;
  }
  assert_int_equal(killed, 1);
  assert_int_equal(failures, 1);
  assert_int_equal(begun(), 2);
  assert_int_equal(finished(), 1);
  expect_equal_results(PROCESSES - 1);
  expect_no_debris();
}

/* ---- D6 ------------------------------------------------------------------------------------- */

enum { KERNELS = 30, FRESH_PROCESSES = 20 };

/* Makes a locale with a decimal comma where none is installed; false (loudly) where that cannot be
 * done. */
static bool have_comma_locale(void) {
  char *before = strdup(setlocale(LC_ALL, NULL));
  bool have = setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
  setlocale(LC_ALL, before);
  free(before);
  if (have)
    return true;
  char command[600];
  snprintf(command, sizeof command,
           "mkdir -p %s/locale && localedef -i de_DE -f UTF-8 %s/locale/de_DE.UTF-8 2>/dev/null",
           bench.root, bench.root);
  if (system(command) != 0) {
    fprintf(stderr, "SKIPPED in part: no locale with a decimal comma is installed, nor what makes "
                    "one (Debian's package locales)\n");
    return false;
  }
  setenv("LOCPATH", workbench_path(&bench, "locale"), 1);
  return true;
}

static void fresh_processes_agree(const char *nvrtc, int kernels, int processes) {
  bool comma = have_comma_locale();
  for (int i = 0; i < processes; i++) {
    const char *locale = i == 1 && comma ? "de_DE.UTF-8" : NULL;
    assert_int_equal(workbench_wait(start(i, nvrtc, 0, 1, kernels, locale)), 0);
    if (nvrtc == fake)
      assert_int_equal(begun(), kernels); /* all of them by the first process */
  }
  unsetenv("LOCPATH");
  expect_equal_results(processes);
  assert_int_equal(workbench_count_files(cache), 3 * kernels);
}

static void shuffled_processes_share_all_kernels(void **state) {
  (void)state;
  fresh_processes_agree(fake, KERNELS, FRESH_PROCESSES);
}

/* With the installed NVRTC, fewer kernels: a second process must find what the first compiled. */
static void real_compiles_are_shared(void **state) {
  (void)state;
  Log log;
  log_init(&log, 0);
  Nvrtc *nvrtc;
  assert_int_equal(nvrtc_create(NULL, &log, &nvrtc), ROTA_OK);
  rota_status found = nvrtc_load(nvrtc);
  nvrtc_destroy(nvrtc);
  if (found != ROTA_OK) {
    fprintf(stderr, "SKIPPED: no NVRTC on this machine\n");
    skip();
  }
  fresh_processes_agree("-", 3, 3);
}

/* Case D3 between processes: several find the same damage at once; one of them repairs it. */
static void damage_is_repaired_once(void **state) {
  (void)state;
  assert_int_equal(workbench_wait(start(0, fake, 0, 1, 1, NULL)), 0);
  workbench_shell("truncate -s 1000 %s/*/*/kernel.cubin", cache);
  setenv("FAKE_NVRTC_MS", "200", 1);
  pid_t workers[PROCESSES];
  workbench_capture(&bench);
  for (int i = 1; i < PROCESSES; i++)
    workers[i] = start(i, fake, 0, 1, 1, NULL);
  int failures = 0;
  for (int i = 1; i < PROCESSES; i++)
    failures += workbench_wait(workers[i]) != 0;
  assert_int_equal(workbench_release(&bench), 1);
  assert_int_equal(failures, 0);
  assert_int_equal(begun(), 2);
  expect_equal_results(PROCESSES);
  expect_no_debris();
}

/* A cache with room for four of sixteen kernels, and four processes that want all: much is compiled
 * again and evicted under readers' hands; nothing fails, and nothing that is merely vanishing is
 * taken for damage. */
static void eviction_disturbs_nobody(void **state) {
  (void)state;
  enum { WORKERS = 4, ROUNDS = 3 };
  workbench_capture(&bench);
  int failures = 0;
  for (int round = 0; round < ROUNDS; round++) {
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++)
      workers[i] = start(round * WORKERS + i, fake, 24000, 1, 16, NULL);
    for (int i = 0; i < WORKERS; i++)
      failures += workbench_wait(workers[i]) != 0;
  }
  assert_int_equal(workbench_release(&bench), 0);
  assert_int_equal(failures, 0);
  assert_true(begun() > 16);
  expect_equal_results(WORKERS * ROUNDS);
  expect_no_debris();
  Log log;
  log_init(&log, 0);
  CubinCache *opened;
  CubinCacheList list;
  assert_int_equal(cubin_cache_create(cache, 24000, &log, &opened), ROTA_OK);
  assert_int_equal(cubin_cache_list(opened, &list), ROTA_OK);
  assert_int_equal(list.damaged, 0);
  assert_true(list.count >= 1 && list.count < 16);
  cubin_cache_list_free(&list);
  cubin_cache_destroy(opened);
}

int main(int argc, char **argv) {
  if (argc > 7)
    return work(argc, argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(eight_cold_processes_compile_once),
      TEST(a_killed_compiler_is_replaced),
      TEST(shuffled_processes_share_all_kernels),
      TEST(real_compiles_are_shared),
      TEST(damage_is_repaired_once),
      TEST(eviction_disturbs_nobody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
