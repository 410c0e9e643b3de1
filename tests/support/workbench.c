/* What tests of the compiler and its cache share: see workbench.h. */
#define _GNU_SOURCE /* nftw, mkdtemp */
#include "tests/support/workbench.h"

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/text.h"
#include "runtime/environment.h"
#include "runtime/files.h"

void workbench_open(Workbench *bench) {
  snprintf(bench->root, sizeof bench->root, "/tmp/rota-test-XXXXXX");
  assert_non_null(mkdtemp(bench->root));
}

void workbench_close(Workbench *bench) {
  assert_int_equal(files_remove_tree(bench->root), 0);
}

const char *workbench_path(const Workbench *bench, const char *name) {
  static char paths[64][512];
  static unsigned next;
  char *path = paths[next++ % 64];
  snprintf(path, sizeof paths[0], "%s/%s", bench->root, name);
  return path;
}

void workbench_write(const char *path, const void *bytes, size_t size) {
  assert_int_equal(files_make_parents(path), 0);
  unlink(path); /* cutting an existing file makes some file systems wait for the disk */
  assert_int_equal(files_write(AT_FDCWD, path, bytes, size), 0);
}

void workbench_shell(const char *format, ...) {
  char command[2048];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(command, sizeof command, format, arguments);
  va_end(arguments);
  assert_true(length > 0 && length < (int)sizeof command);
  if (system(command) != 0)
    fail_msg("failed: %s", command);
}

static int file_count;

static int count_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
  (void)path;
  (void)info;
  (void)place;
  file_count += kind != FTW_D && kind != FTW_DP && kind != FTW_DNR;
  return 0;
}

int workbench_count_files(const char *path) {
  file_count = 0;
  nftw(path, count_one, 8, FTW_PHYS);
  return file_count;
}

int workbench_count_lines(const char *path, const char *prefix) {
  char *text;
  size_t length;
  if (text_read_file(path, &text, &length) != ROTA_OK)
    return 0;
  int count = 0;
  for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
    count += strncmp(line, prefix, strlen(prefix)) == 0;
  free(text);
  return count;
}

/* The source tree: as CTest says, else from this file's own place in it. */
static void source_root(char *root, size_t size) {
  const char *given = getenv("ROTA_TEST_SOURCE");
  snprintf(root, size, "%s", given ? given : __FILE__);
  for (int up = 0; up < 3 && !given; up++) {
    char *slash = strrchr(root, '/');
    if (slash)
      *slash = 0;
    else
      snprintf(root, size, ".");
  }
}

const char *workbench_fake_nvrtc(const Workbench *bench, const char *name,
                                 const char *definitions) {
  const char *path = workbench_path(bench, name);
  char root[512];
  source_root(root, sizeof root);
  assert_int_equal(files_make_parents(path), 0);
  /* In a clean environment: a sanitizer that is preloaded here has no business in the compiler. */
  workbench_shell(
      "env -u LD_PRELOAD cc -shared -fPIC -Wl,--build-id %s -o %s %s/tests/host/fake_nvrtc.c",
      definitions, path, root);
  return path;
}

int workbench_fake_driver(const Workbench *bench) {
  char root[512];
  source_root(root, sizeof root);
  workbench_shell("env -u LD_PRELOAD cc -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o %s "
                  "%s/tests/host/fake_driver.c",
                  workbench_path(bench, "libcuda.so.1"), root);
  const char *nvrtc = workbench_fake_nvrtc(bench, "libnvrtc.so.13", "");
  setenv("LD_LIBRARY_PATH", bench->root, 1);
  return workbench_wait(workbench_spawn((const char *[]){nvrtc, NULL}));
}

Program *workbench_program(const char *main_text, const char *header_text) {
  Program *program = memory_allocate(1, sizeof *program);
  assert_non_null(program);
  program->files = memory_allocate(2, sizeof *program->files);
  assert_non_null(program->files);
  program->count = 2;
  program->files[0].name = memory_copy_string("main.cu");
  program->files[0].text = memory_copy_string(main_text);
  program->files[1].name = memory_copy_string("templates/lib/part.cuh");
  program->files[1].text = memory_copy_string(header_text);
  return program;
}

Program *workbench_numbered_program(int i) {
  char text[512];
  snprintf(
      text, sizeof text,
      "// kernel number %d | test\n"
      "#include \"templates/lib/part.cuh\"\n"
      "extern \"C\" __global__ void rota_kernel(float *out) { out[threadIdx.x] = part(%d); }\n",
      i, i);
  return workbench_program(text,
                           "#pragma once\n__device__ inline float part(int x) { return x; }\n");
}

/* ---- stderr --------------------------------------------------------------------------------- */

static int saved_stderr = -1;
static char *captured;

void workbench_capture(const Workbench *bench) {
  fflush(stderr);
  int file = open(workbench_path(bench, "stderr"), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  assert_true(file >= 0);
  saved_stderr = dup(2);
  assert_true(dup2(file, 2) == 2);
  close(file);
}

int workbench_release(const Workbench *bench) {
  fflush(stderr);
  assert_true(dup2(saved_stderr, 2) == 2);
  close(saved_stderr);
  free(captured);
  size_t length;
  assert_int_equal(text_read_file(workbench_path(bench, "stderr"), &captured, &length), ROTA_OK);
  fputs(captured, stderr);
  int warnings = workbench_count_lines(workbench_path(bench, "stderr"), "rota: warning:");
  unlink(workbench_path(bench, "stderr"));
  return warnings;
}

const char *workbench_captured(void) {
  return captured ? captured : "";
}

/* ---- Processes ------------------------------------------------------------------------------ */

pid_t workbench_spawn(const char *const *arguments) {
  enum { ARGUMENTS_MAX = 16 };
  char *copy[ARGUMENTS_MAX + 2] = {(char *)"worker"};
  int count = 1;
  for (; arguments[count - 1] && count <= ARGUMENTS_MAX; count++)
    copy[count] = (char *)arguments[count - 1];
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    execv("/proc/self/exe", copy);
    _exit(127);
  }
  return child;
}

int workbench_wait(pid_t child) {
  int status;
  assert_true(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void workbench_clean_environment(void) {
  /* Compilers are found by PATH, and HOME does no harm where ROTA_CACHE_DIR is given. */
  for (int i = 0; i < ENVIRONMENT_COUNT; i++)
    if (i != ENVIRONMENT_PATH && i != ENVIRONMENT_HOME && i != ENVIRONMENT_LIBRARY_PATH)
      unsetenv(environment_name((Environment)i));
}

double workbench_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void workbench_sleep_ms(long ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}
