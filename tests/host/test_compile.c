/* Compiling: what changes a key and what does not (case D7), threads (D15), no compiler or half of
 * one (D8), the dump directory, forks, memory running out; with the stand-in for NVRTC, and with
 * the real one where there is one. */
#include <pthread.h>
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
static Log quiet;
static char fake[512]; /* path of the stand-in */

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_open(&bench);
  log_init(&quiet, 0);
  snprintf(fake, sizeof fake, "%s", workbench_fake_nvrtc(&bench, "libnvrtc.so.13", ""));
  setenv("FAKE_NVRTC_LOG", workbench_path(&bench, "log"), 1);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  unsetenv("FAKE_NVRTC_LOG");
  unsetenv("FAKE_NVRTC_MS");
  workbench_clean_environment();
  workbench_close(&bench);
  return 0;
}

static Compiler *open_compiler(const char *nvrtc, const char *cache) {
  CompilerOptions options = {.cache_dir = cache, .nvrtc_path = nvrtc, .log = &quiet};
  Compiler *compiler;
  assert_int_equal(compiler_create(&options, &compiler), ROTA_OK);
  return compiler;
}

static Compiler *fake_compiler(void) {
  return open_compiler(fake, workbench_path(&bench, "cache"));
}

/* Compiles and destroys the program. */
static Cubin *compile_with(Compiler *compiler, Program *program, const char *architecture) {
  Cubin *cubin;
  rota_status status = compile_program(compiler, program, architecture, &cubin);
  program_destroy(program);
  if (status != ROTA_OK)
    fail_msg("%s", status_message());
  return cubin;
}

static int compiles(void) {
  return workbench_count_lines(workbench_path(&bench, "log"), "begin");
}

/* ---- Hits and keys -------------------------------------------------------------------------- */

static void memory_then_disk_then_compiler(void **state) {
  (void)state;
  Compiler *compiler = fake_compiler();
  Cubin *cold = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  assert_false(cold->hit);
  assert_true(cold->seconds > 0);
  assert_non_null(strstr(cold->log, "Used 77 registers"));
  Cubin *warm = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  compiler_destroy(compiler);
  compiler = fake_compiler();
  Cubin *disk = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  CompilerCounts counts = compiler_counts(compiler);
  assert_int_equal(counts.from_disk, 1);
  assert_int_equal(counts.compiled + counts.from_memory + counts.failed, 0);
  compiler_destroy(compiler);
  const Cubin *hits[] = {warm, disk};
  for (int i = 0; i < 2; i++) {
    assert_true(hits[i]->hit);
    assert_true(hits[i]->seconds == 0);
    assert_string_equal(hits[i]->log, "");
    assert_int_equal(hits[i]->bytes, cold->bytes);
    assert_memory_equal(hits[i]->data, cold->data, cold->bytes);
    assert_string_equal(hits[i]->key.hex, cold->key.hex);
    assert_string_equal(hits[i]->content.hex, cold->content.hex);
    assert_int_equal(hits[i]->nvrtc_version, 13000);
    assert_int_equal(hits[i]->registers, 77);
    assert_int_equal(hits[i]->spill_bytes, 48);
    assert_int_equal(hits[i]->shared_bytes, 256);
  }
  assert_int_equal(compiles(), 1);
  cubin_destroy(cold);
  cubin_destroy(warm);
  cubin_destroy(disk);
}

static Digest key_of(const char *nvrtc, bool line_info, const char *main_text, const char *header,
                     const char *architecture) {
  CompilerOptions options = {
      .cache_dir = "", .nvrtc_path = nvrtc, .line_info = line_info, .log = &quiet};
  Compiler *compiler;
  assert_int_equal(compiler_create(&options, &compiler), ROTA_OK);
  Cubin *cubin = compile_with(compiler, workbench_program(main_text, header), architecture);
  Digest key = cubin->key;
  cubin_destroy(cubin);
  compiler_destroy(compiler);
  return key;
}

/* One thing at a time: each must lead to a key of its own. */
static void every_cause_changes_the_key(void **state) {
  (void)state;
  char other[512], older[512];
  snprintf(other, sizeof other, "%s",
           workbench_fake_nvrtc(&bench, "other.so", "-DFAKE_BUILD='\"two\"'"));
  snprintf(older, sizeof older, "%s",
           workbench_fake_nvrtc(&bench, "older.so", "-DFAKE_VERSION=12080"));
  Digest keys[] = {
      key_of(fake, false, "int a;\n", "int b;\n", "sm_90"),
      key_of(other, false, "int a;\n", "int b;\n", "sm_90"),
      key_of(older, false, "int a;\n", "int b;\n", "sm_90"),
      key_of(fake, true, "int a;\n", "int b;\n", "sm_90"),
      key_of(fake, false, "int c;\n", "int b;\n", "sm_90"),
      key_of(fake, false, "int a;\n", "int d;\n", "sm_90"),
      key_of(fake, false, "int b;\n", "int a;\n", "sm_90"),
      key_of(fake, false, "int a;\n", "int b;\n", "sm_90a"),
      key_of(fake, false, "int a;\n", "int b;\n", "sm_80"),
      key_of(fake, false, "int a;\nint b;\n", "", "sm_90"),
  };
  int count = (int)(sizeof keys / sizeof *keys);
  for (int i = 0; i < count; i++)
    for (int j = 0; j < i; j++)
      if (!strcmp(keys[i].hex, keys[j].hex))
        fail_msg("cases %d and %d have one key", j, i);
}

static void what_changes_no_bits_changes_no_key(void **state) {
  (void)state;
  Digest key = key_of(fake, false, "int a;\n", "int b;\n", "sm_90");
  workbench_shell("cp %s %s/copy.so && touch %s", fake, bench.root, fake);
  Digest touched = key_of(fake, false, "int a;\n", "int b;\n", "sm_90");
  assert_string_equal(key.hex, touched.hex);
  Digest moved = key_of(workbench_path(&bench, "copy.so"), false, "int a;\n", "int b;\n", "sm_90");
  assert_string_equal(key.hex, moved.hex);
  /* #line decides nothing but messages, unless line information is embedded. */
  Digest lined = key_of(fake, false, "#line 7 \"mask.lua\"\nint a;\n", "int b;\n", "sm_90");
  assert_string_equal(key.hex, lined.hex);
  Digest seven = key_of(fake, true, "#line 7 \"mask.lua\"\nint a;\n", "int b;\n", "sm_90");
  Digest eight = key_of(fake, true, "#line 8 \"mask.lua\"\nint a;\n", "int b;\n", "sm_90");
  assert_string_not_equal(seven.hex, eight.hex);
}

static void architectures_are_checked(void **state) {
  (void)state;
  static const char *const wrong[] = {"",       "sm_",      "sm_9",    "90",       "compute_90",
                                      "sm_90b", "sm_90 -G", "sm_../x", "sm_12345", NULL};
  Compiler *compiler = fake_compiler();
  Program *program = workbench_numbered_program(1);
  for (int i = 0; i < 10; i++) {
    Cubin *cubin;
    assert_int_equal(compile_program(compiler, program, wrong[i], &cubin), ROTA_INVALID_ARGUMENT);
    assert_null(cubin);
  }
  program_destroy(program);
  compiler_destroy(compiler);
}

static void ptxas_words_are_read(void **state) {
  (void)state;
  Cubin cubin = {0};
  cubin_read_log(&cubin,
                 "ptxas info    : 4 bytes gmem\n"
                 "ptxas info    : Compiling entry function 'g' for 'sm_90'\n"
                 "ptxas info    : Function properties for g\n"
                 "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes "
                 "spill loads\n"
                 "ptxas info    : Used 168 registers, used 0 barriers\n"
                 "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                 "ptxas info    : Used 40 registers, used 1 barriers, 49152 bytes smem, 400 "
                 "bytes cmem[0]");
  assert_int_equal(cubin.registers, 168);
  assert_int_equal(cubin.spill_bytes, 16);
  assert_int_equal(cubin.shared_bytes, 49152);
  cubin_read_log(&cubin, "registers bytes smem\n registers");
  assert_int_equal(cubin.registers + cubin.spill_bytes + cubin.shared_bytes, 0);
}

/* ---- Failures ------------------------------------------------------------------------------- */

static void expect_failure(Compiler *compiler, int program_number, const char *architecture,
                           rota_status expected, const char *const *words) {
  Program *program = workbench_numbered_program(program_number);
  Cubin *cubin;
  assert_int_equal(compile_program(compiler, program, architecture, &cubin), expected);
  assert_null(cubin);
  for (int i = 0; words[i]; i++)
    if (!strstr(status_message(), words[i]))
      fail_msg("expected \"%s\" in: %s", words[i], status_message());
  program_destroy(program);
}

static void refused_source_brings_its_log(void **state) {
  (void)state;
  Compiler *compiler = fake_compiler();
  Program *program = workbench_program("#error no\n", "");
  Cubin *cubin;
  for (int round = 0; round < 2; round++) { /* a failure is not kept */
    assert_int_equal(compile_program(compiler, program, "sm_90", &cubin), ROTA_COMPILE);
    assert_null(cubin);
    assert_non_null(strstr(status_message(), "main.cu(2): error: #error was found"));
    assert_non_null(strstr(status_message(), "for sm_90"));
  }
  assert_int_equal(compiles(), 2);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 0);
  program_destroy(program);
  compiler_destroy(compiler);
}

/* Case D8: a warm cache serves without a compiler, or with half of one; a cold one says what is
 * missing. */
static void without_a_compiler(void **state) {
  (void)state;
  char partial[512], limited[512], text[512];
  snprintf(partial, sizeof partial, "%s",
           workbench_fake_nvrtc(&bench, "partial.so", "-DFAKE_NO_BUILTINS"));
  snprintf(limited, sizeof limited, "%s",
           workbench_fake_nvrtc(&bench, "limited.so", "-DFAKE_ARCHITECTURES=80"));
  snprintf(text, sizeof text, "%s/text.so", bench.root);
  workbench_write(text, "no library", 10);
  const char *cache = workbench_path(&bench, "cache");
  Compiler *compiler = open_compiler(fake, cache);
  Cubin *cold = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  compiler_destroy(compiler);
  const struct {
    const char *nvrtc;
    rota_status status;
    const char *words[4];
  } cases[] = {
      {"/nowhere/libnvrtc.so.13",
       ROTA_NO_COMPILER,
       {"not found", "/nowhere/libnvrtc.so.13: no such file", "ROTA_NVRTC", NULL}},
      {text, ROTA_NO_COMPILER, {"could not be used", text, "ROTA_NVRTC", NULL}},
      {partial, ROTA_NO_COMPILER, {"builtins", partial, "libnvrtc-builtins.so.13.0", NULL}},
      {limited, ROTA_UNSUPPORTED, {"sm_90", "it knows sm_80", limited, NULL}},
  };
  for (int i = 0; i < 4; i++) {
    compiler = open_compiler(cases[i].nvrtc, cache);
    Cubin *warm = compile_with(compiler, workbench_numbered_program(1), "sm_90");
    assert_true(warm->hit);
    assert_string_equal(warm->content.hex, cold->content.hex);
    assert_string_equal(warm->key.hex, cold->key.hex);
    cubin_destroy(warm);
    expect_failure(compiler, 2, "sm_90", cases[i].status, cases[i].words);
    compiler_destroy(compiler);
  }
  cubin_destroy(cold);
}

static void damage_heals(void **state) {
  (void)state;
  Compiler *compiler = fake_compiler();
  Cubin *first = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  compiler_destroy(compiler);
  for (int round = 0; round < 2; round++) {
    workbench_shell("truncate -s 2048 %s/cache/*/*/kernel.cubin", bench.root);
    workbench_capture(&bench);
    for (int run = 0; run < 3; run++) {
      compiler = fake_compiler();
      Cubin *cubin = compile_with(compiler, workbench_numbered_program(1), "sm_90");
      assert_string_equal(cubin->content.hex, first->content.hex);
      assert_int_equal(cubin->hit, run > 0);
      cubin_destroy(cubin);
      compiler_destroy(compiler);
    }
    assert_int_equal(workbench_release(&bench), 1);
  }
  assert_int_equal(compiles(), 3);
  cubin_destroy(first);
}

/* Room for two cubins of 4 KB in memory: the longest unused goes, and comes back from disk. */
static void memory_is_bounded(void **state) {
  (void)state;
  CompilerOptions options = {.cache_dir = workbench_path(&bench, "cache"),
                             .nvrtc_path = fake,
                             .memory_bytes = 10000,
                             .log = &quiet};
  Compiler *compiler;
  assert_int_equal(compiler_create(&options, &compiler), ROTA_OK);
  static const int order[] = {1, 2, 1, 3, 1, 2};
  for (int i = 0; i < 6; i++)
    cubin_destroy(compile_with(compiler, workbench_numbered_program(order[i]), "sm_90"));
  CompilerCounts counts = compiler_counts(compiler);
  assert_int_equal(counts.compiled, 3);
  assert_int_equal(counts.from_memory, 2); /* 1, twice */
  assert_int_equal(counts.from_disk, 1);   /* 2, after 3 had taken its place */
  compiler_destroy(compiler);
}

/* Whatever allocation fails, the answer is OUT_OF_MEMORY or right, and the compiler serves on. */
static void memory_failures_are_survived(void **state) {
  (void)state;
  Compiler *compiler = fake_compiler();
  Cubin *right = compile_with(compiler, workbench_numbered_program(0), "sm_90");
  int failures = 0;
  for (long n = 1; n < 200; n++) {
    int number = n % 2 ? 0 : (int)n; /* one that is in memory, and a new one */
    Program *program = workbench_numbered_program(number);
    Cubin *cubin;
    memory_fail_at(n / 2 + 1);
    rota_status status = compile_program(compiler, program, "sm_90", &cubin);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    assert_true((status == ROTA_OK) == (cubin != NULL));
    failures += status != ROTA_OK;
    if (number == 0 && cubin)
      assert_string_equal(cubin->content.hex, right->content.hex);
    cubin_destroy(cubin);
    program_destroy(program);
  }
  assert_true(failures > 10);
  cubin_destroy(right);
  compiler_destroy(compiler);
}

/* ---- Threads and forks ---------------------------------------------------------------------- */

enum { THREADS = 16 };

typedef struct Asker {
  Compiler *compiler;
  int program;
  bool wrong; /* asks for a program that does not compile */
  rota_status status;
  Digest content;
  char message[256];
  pthread_t thread;
} Asker;

static void *ask(void *argument) {
  Asker *asker = argument;
  Program *program = asker->wrong ? workbench_program("#error no\n", "")
                                  : workbench_numbered_program(asker->program);
  Cubin *cubin;
  asker->status = compile_program(asker->compiler, program, "sm_90", &cubin);
  if (cubin)
    asker->content = cubin->content;
  snprintf(asker->message, sizeof asker->message, "%s", status_message());
  cubin_destroy(cubin);
  program_destroy(program);
  return NULL;
}

/* All threads at once, thread i asking for first + i * step. */
static void ask_all(Compiler *compiler, Asker askers[THREADS], int first, int step, bool wrong) {
  for (int i = 0; i < THREADS; i++) {
    askers[i] = (Asker){.compiler = compiler, .program = first + i * step, .wrong = wrong};
    assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(askers[i].thread, NULL);
}

/* Case D15. */
static void threads_compile_each_key_once(void **state) {
  (void)state;
  setenv("FAKE_NVRTC_MS", "30", 1);
  Asker askers[THREADS];
  Compiler *compiler = fake_compiler();
  ask_all(compiler, askers, 100, 1, false);
  assert_int_equal(compiles(), THREADS);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(askers[i].status, ROTA_OK);
    for (int j = 0; j < i; j++)
      assert_string_not_equal(askers[i].content.hex, askers[j].content.hex);
  }
  ask_all(compiler, askers, 7, 0, false);
  assert_int_equal(compiles(), THREADS + 1);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(askers[i].status, ROTA_OK);
    assert_string_equal(askers[i].content.hex, askers[0].content.hex);
  }
  CompilerCounts counts = compiler_counts(compiler);
  assert_int_equal(counts.compiled, THREADS + 1);
  assert_int_equal(counts.from_memory, THREADS - 1);
  assert_int_equal(counts.from_disk + counts.failed, 0);
  compiler_destroy(compiler);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache/lock")), 0);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache/tmp")), 0);
}

static void threads_share_a_failure(void **state) {
  (void)state;
  setenv("FAKE_NVRTC_MS", "200", 1);
  Asker askers[THREADS];
  Compiler *compiler = fake_compiler();
  ask_all(compiler, askers, 0, 0, true);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(askers[i].status, ROTA_COMPILE);
    assert_non_null(strstr(askers[i].message, "#error was found"));
  }
  assert_true(compiles() < THREADS); /* those that waited did not try again */
  compiler_destroy(compiler);
}

/* A process that forks while a thread compiles: the child has no such thread, and must not wait for
 * it. */
static void a_forked_child_compiles_for_itself(void **state) {
  (void)state;
  setenv("FAKE_NVRTC_MS", "400", 1);
  Compiler *compiler = open_compiler(fake, "");
  Asker asker = {.compiler = compiler, .program = 5};
  assert_int_equal(pthread_create(&asker.thread, NULL, ask, &asker), 0);
  for (int wait = 0; compiles() == 0 && wait < 10000; wait++)
    workbench_sleep_ms(5);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    Asker own = {.compiler = compiler, .program = 5};
    ask(&own);
    _exit(own.status == ROTA_OK ? 0 : 1);
  }
  pthread_join(asker.thread, NULL);
  assert_int_equal(asker.status, ROTA_OK);
  assert_int_equal(workbench_wait(child), 0);
  assert_int_equal(compiles(), 2);
  compiler_destroy(compiler);
}

/* ---- Other people's processes, and the dump directory
 * ---------------------------------------------- */

/* A lock that is never released costs the time limit and one warning, not the kernel. */
static void a_stuck_lock_is_not_waited_for(void **state) {
  (void)state;
  CompilerOptions options = {.cache_dir = workbench_path(&bench, "cache"),
                             .nvrtc_path = fake,
                             .lock_seconds = 0.3,
                             .log = &quiet};
  Compiler *compiler;
  assert_int_equal(compiler_create(&options, &compiler), ROTA_OK);
  Cubin *probe = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  workbench_shell("rm -r %s/cache/??", bench.root);
  compiler_destroy(compiler);
  assert_int_equal(compiler_create(&options, &compiler), ROTA_OK);
  CacheLock lock;
  assert_int_equal(cubin_cache_lock(compiler_cache(compiler), &probe->key, 1, &lock),
                   CACHE_LOCK_HELD);
  workbench_capture(&bench);
  double begin = workbench_seconds();
  Cubin *cubin = compile_with(compiler, workbench_numbered_program(1), "sm_90");
  double seconds = workbench_seconds() - begin;
  assert_int_equal(workbench_release(&bench), 1);
  assert_true(seconds >= 0.3 && seconds < 5);
  assert_string_equal(cubin->content.hex, probe->content.hex);
  assert_false(cubin->hit);
  assert_int_equal(workbench_count_files(workbench_path(&bench, "cache")), 1); /* the lock */
  cache_lock_release(&lock);
  cubin_destroy(cubin);
  cubin_destroy(probe);
  compiler_destroy(compiler);
}

static void dump_directory_gets_all_files(void **state) {
  (void)state;
  setenv("ROTA_DUMP_DIR", workbench_path(&bench, "dump"), 1);
  for (int round = 0; round < 2; round++) { /* compiled, then from the cache */
    Compiler *compiler = fake_compiler();
    Program *program = workbench_numbered_program(1);
    Cubin *cubin;
    assert_int_equal(compile_program(compiler, program, "sm_90", &cubin), ROTA_OK);
    assert_int_equal(workbench_count_files(workbench_path(&bench, "dump")), 4);
    workbench_write(workbench_path(&bench, "expected/main.cu"), program->files[0].text,
                    strlen(program->files[0].text));
    workbench_write(workbench_path(&bench, "expected/templates/lib/part.cuh"),
                    program->files[1].text, strlen(program->files[1].text));
    workbench_write(workbench_path(&bench, "expected/kernel.cubin"), cubin->data, cubin->bytes);
    workbench_write(workbench_path(&bench, "expected/compile.log"), cubin->log, strlen(cubin->log));
    workbench_shell("diff -r %s/expected %s/dump/*_sm_90 && rm -r %s/dump", bench.root, bench.root,
                    bench.root);
    cubin_destroy(cubin);
    program_destroy(program);
    compiler_destroy(compiler);
  }
  workbench_write(workbench_path(&bench, "dump"), "", 0); /* a file in its place */
  workbench_capture(&bench);
  Compiler *compiler = fake_compiler();
  cubin_destroy(compile_with(compiler, workbench_numbered_program(2), "sm_90"));
  cubin_destroy(compile_with(compiler, workbench_numbered_program(3), "sm_90"));
  assert_int_equal(workbench_release(&bench), 1);
  compiler_destroy(compiler);
}

/* ---- The real one --------------------------------------------------------------------------- */

/* With a table that makes the cubin as large as a backward kernel's. */
static Program *real_program(void) {
  return workbench_program("// square | test\n#include \"templates/lib/part.cuh\"\n"
                           "extern \"C\" __device__ int table[25000] = {1, 2, 3};\n"
                           "extern \"C\" __global__ void f(float *out) {\n"
                           "  __shared__ float part[1000];\n"
                           "  part[threadIdx.x] = square(out[threadIdx.x]);\n  __syncthreads();\n"
                           "  out[threadIdx.x] = part[999 - threadIdx.x];\n}\n",
                           "#pragma once\ninline float square(float x) { return x * x; }\n");
}

/* Best of several runs, in ms, from a fresh compiler to the cubin in memory. */
static double warm_milliseconds(const char *cache, double *all) {
  double best = 1e9;
  for (int run = 0; run < 20; run++) {
    double begin = workbench_seconds();
    Compiler *compiler = open_compiler(NULL, cache);
    Cubin *cubin = compile_with(compiler, real_program(), "sm_90");
    double ms = 1e3 * (workbench_seconds() - begin);
    if (ms < best)
      best = ms;
    *all += ms / 20;
    assert_true(cubin->hit);
    cubin_destroy(cubin);
    compiler_destroy(compiler);
  }
  return best;
}

static void real_compiles_and_starts_warm(void **state) {
  (void)state;
  const char *cache = workbench_path(&bench, "cache");
  Compiler *compiler = open_compiler(NULL, cache);
  if (nvrtc_load(compiler_nvrtc(compiler)) != ROTA_OK) {
    compiler_destroy(compiler);
    fprintf(stderr, "SKIPPED: no NVRTC on this machine\n%s\n", status_message());
    skip();
  }
  Cubin *cubin = compile_with(compiler, real_program(), "sm_90");
  assert_false(cubin->hit);
  assert_memory_equal(cubin->data, "\177ELF", 4);
  assert_true(cubin->bytes > 100000);
  assert_true(cubin->registers > 0 && cubin->registers < 64);
  assert_int_equal(cubin->shared_bytes, 4000);
  assert_int_equal(cubin->spill_bytes, 0);
  compiler_destroy(compiler);
  double mean = 0, best = warm_milliseconds(cache, &mean);
  printf("cold compile %.1f ms; warm start %.3f ms (best), %.3f ms (mean) for %zu bytes\n",
         1e3 * cubin->seconds, best, mean, cubin->bytes);
  assert_true(best < 5);
  cubin_destroy(cubin);
}

/* Case D15 with the real compiler. */
static void real_threads_compile_each_key_once(void **state) {
  (void)state;
  Compiler *compiler = open_compiler(NULL, workbench_path(&bench, "cache"));
  if (nvrtc_load(compiler_nvrtc(compiler)) != ROTA_OK) {
    compiler_destroy(compiler);
    fprintf(stderr, "SKIPPED: no NVRTC on this machine\n%s\n", status_message());
    skip();
  }
  Asker askers[THREADS];
  ask_all(compiler, askers, 100, 1, false);
  ask_all(compiler, askers, 7, 0, false);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(askers[i].status, ROTA_OK);
    assert_string_equal(askers[i].content.hex, askers[0].content.hex);
  }
  CompilerCounts counts = compiler_counts(compiler);
  assert_int_equal(counts.compiled, THREADS + 1);
  assert_int_equal(counts.failed, 0);
  compiler_destroy(compiler);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(memory_then_disk_then_compiler),
      TEST(every_cause_changes_the_key),
      TEST(what_changes_no_bits_changes_no_key),
      TEST(architectures_are_checked),
      TEST(ptxas_words_are_read),
      TEST(refused_source_brings_its_log),
      TEST(without_a_compiler),
      TEST(damage_heals),
      TEST(memory_is_bounded),
      TEST(memory_failures_are_survived),
      TEST(threads_compile_each_key_once),
      TEST(threads_share_a_failure),
      TEST(a_forked_child_compiles_for_itself),
      TEST(a_stuck_lock_is_not_waited_for),
      TEST(dump_directory_gets_all_files),
      TEST(real_compiles_and_starts_warm),
      TEST(real_threads_compile_each_key_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
