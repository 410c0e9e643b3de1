/* A stand-in for libnvrtc.so, built by tests with `cc -shared`: it knows the functions that Rota
 * calls, and its "cubin" is a function of every byte it was given. So tests see what reaches the
 * compiler, how often, and in which process, on machines without NVRTC as well.
 *
 * Macros: FAKE_VERSION (13000), FAKE_BUILD (any text: makes another build), FAKE_NO_BUILTINS,
 * FAKE_ARCHITECTURES (80, 90). Environment: FAKE_NVRTC_LOG names a file that gets "begin PID" and
 * "end PID" lines; FAKE_NVRTC_MS is how long a compile takes. A source with `#error` in it is
 * refused. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif
#ifndef FAKE_BUILD
#define FAKE_BUILD "one"
#endif
#ifndef FAKE_ARCHITECTURES
#define FAKE_ARCHITECTURES 80, 90
#endif
#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6, BUILTINS = 7 };

EXPORT const char fake_build[] = FAKE_BUILD;

typedef struct Program {
  char *input; /* names and texts, one after another */
  size_t length;
  char log[512];
  char cubin[4096]; /* 4 KB, like the smallest real ones */
  int compiled;
} Program;

EXPORT int nvrtcVersion(int *major, int *minor) {
  *major = FAKE_VERSION / 1000;
  *minor = FAKE_VERSION % 1000 / 10;
  return SUCCESS;
}

static const int architectures[] = {FAKE_ARCHITECTURES};

EXPORT int nvrtcGetNumSupportedArchs(int *count) {
  *count = (int)(sizeof architectures / sizeof *architectures);
  return SUCCESS;
}

EXPORT int nvrtcGetSupportedArchs(int *list) {
  memcpy(list, architectures, sizeof architectures);
  return SUCCESS;
}

static void add(Program *program, const char *text) {
  size_t more = strlen(text) + 1;
  char *grown = realloc(program->input, program->length + more);
  if (!grown)
    abort();
  memcpy(grown + program->length, text, more);
  program->input = grown;
  program->length += more;
}

EXPORT int nvrtcCreateProgram(Program **result, const char *source, const char *name, int count,
                              const char *const *texts, const char *const *names) {
  Program *program = calloc(1, sizeof *program);
  if (!program)
    return 1;
  add(program, fake_build);
  add(program, name);
  add(program, source);
  for (int i = 0; i < count; i++) {
    add(program, names[i]);
    add(program, texts[i]);
  }
  *result = program;
  return SUCCESS;
}

EXPORT int nvrtcDestroyProgram(Program **program) {
  free((*program)->input);
  free(*program);
  *program = NULL;
  return SUCCESS;
}

static void note(const char *what) {
  const char *path = getenv("FAKE_NVRTC_LOG");
  int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  if (file < 0)
    return;
  char line[64];
  int length = snprintf(line, sizeof line, "%s %ld\n", what, (long)getpid());
  if (write(file, line, (size_t)length) != length)
    abort();
  close(file);
}

/* FNV-1a, spread over the cubin's words by a linear congruence. */
static void make_cubin(Program *program) {
  unsigned long long state = 14695981039346656037ull;
  for (size_t i = 0; i < program->length; i++)
    state = (state ^ (unsigned char)program->input[i]) * 1099511628211ull;
  memcpy(program->cubin, "\177ELF", 4);
  for (size_t i = 4; i < sizeof program->cubin; i++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    program->cubin[i] = (char)(state >> 56);
  }
}

EXPORT int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
  note("begin");
  const char *ms = getenv("FAKE_NVRTC_MS");
  long pause = ms ? strtol(ms, NULL, 10) : 0;
  nanosleep(&(struct timespec){pause / 1000, pause % 1000 * 1000000}, NULL);
#ifdef FAKE_NO_BUILTINS
  snprintf(program->log, sizeof program->log,
           "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n");
  return BUILTINS;
#endif
  for (size_t i = 0; i < program->length; i += strlen(program->input + i) + 1)
    if (strstr(program->input + i, "#error")) {
      snprintf(program->log, sizeof program->log,
               "main.cu(1): warning: first\nmain.cu(2): error: #error was found\n");
      note("end");
      return COMPILATION;
    }
  for (int i = 0; i < count; i++)
    add(program, options[i]);
  make_cubin(program);
  program->compiled = 1;
  snprintf(program->log, sizeof program->log,
           "ptxas info    : Compiling entry function 'f' for 'sm_90'\n"
           "    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n"
           "ptxas info    : Used 77 registers, used 1 barriers, 256 bytes smem\n");
  note("end");
  return SUCCESS;
}

EXPORT int nvrtcGetProgramLogSize(Program *program, size_t *size) {
  *size = strlen(program->log) + 1;
  return SUCCESS;
}

EXPORT int nvrtcGetProgramLog(Program *program, char *log) {
  strcpy(log, program->log);
  return SUCCESS;
}

EXPORT int nvrtcGetCUBINSize(Program *program, size_t *size) {
  *size = program->compiled ? sizeof program->cubin : 0;
  return SUCCESS;
}

EXPORT int nvrtcGetCUBIN(Program *program, char *cubin) {
  memcpy(cubin, program->cubin, sizeof program->cubin);
  return SUCCESS;
}
