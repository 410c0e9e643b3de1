/* What tests of the compiler and its cache share: temporary directories, processes, captured
 * stderr, small programs, and the stand-in for NVRTC. Failures of these helpers themselves fail the
 * test. */
#ifndef ROTA_TESTS_WORKBENCH_H
#define ROTA_TESTS_WORKBENCH_H

#include <sys/types.h>

#include "generator/program.h"

/* A fresh directory, gone after workbench_close. */
typedef struct Workbench {
  char root[64];
} Workbench;
void workbench_open(Workbench *bench);
void workbench_close(Workbench *bench);
/* "ROOT/name", in one of 64 rotating buffers. */
const char *workbench_path(const Workbench *bench, const char *name);
void workbench_write(const char *path, const void *bytes, size_t size);
/* Runs a shell command (printf format), which must succeed. */
void workbench_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Number of directory entries below a path that are no directories, at any depth; 0 if it does not
 * exist. */
int workbench_count_files(const char *path);
/* Lines of a file that begin with `prefix`; 0 if there is none. */
int workbench_count_lines(const char *path, const char *prefix);

/* Builds tests/host/fake_nvrtc.c with the given macro definitions ("-DFAKE_BUILD='\"two\"'"), as
 * ROOT/name. */
const char *workbench_fake_nvrtc(const Workbench *bench, const char *name, const char *definitions);

/* Runs this executable again with stand-ins for the driver (tests/host/fake_driver.c, found as
 * libcuda.so.1) and for NVRTC, whose path is the one argument of the second run. Returns its exit
 * status. */
int workbench_fake_driver(const Workbench *bench);

/* A program of main.cu and one header; `main_text` and `header_text` are copied. */
Program *workbench_program(const char *main_text, const char *header_text);
/* The i-th of a family of different programs. */
Program *workbench_numbered_program(int i);

/* Sends stderr into ROOT/stderr until workbench_release, which returns how many warnings it got,
 * and prints all. */
void workbench_capture(const Workbench *bench);
int workbench_release(const Workbench *bench);
/* What was captured last. */
const char *workbench_captured(void);

/* Runs this executable again with the given arguments (NULL at the end). */
pid_t workbench_spawn(const char *const *arguments);
/* Exit status of a child; -N for death by signal N. */
int workbench_wait(pid_t child);
/* Removes every variable that Rota's runtime looks at, so that tests start equal. */
void workbench_clean_environment(void);
double workbench_seconds(void); /* monotonic */
void workbench_sleep_ms(long ms);

#endif
