/* NVRTC through dlopen: see nvrtc.h. */
#include "runtime/nvrtc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/library.h"
#include "runtime/nvrtc_search.h"

/* ---- The part of NVRTC's ABI in use --------------------------------------------------------- */

typedef int NvrtcCode; /* nvrtcResult, an enum there */
enum {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
};
typedef struct NvrtcProgramState *NvrtcProgram;

/* Field, symbol, whether Rota can do without it, parameters. All return an NvrtcCode. */
#define NVRTC_SYMBOLS(X)                                                                           \
  X(version, nvrtcVersion, false, (int *major, int *minor))                                        \
  X(arch_count, nvrtcGetNumSupportedArchs, true, (int *count))                                     \
  X(archs, nvrtcGetSupportedArchs, true, (int *archs))                                             \
  X(create_program, nvrtcCreateProgram, false,                                                     \
    (NvrtcProgram * program, const char *source, const char *name, int header_count,               \
     const char *const *header_texts, const char *const *header_names))                            \
  X(destroy_program, nvrtcDestroyProgram, false, (NvrtcProgram * program))                         \
  X(compile_program, nvrtcCompileProgram, false,                                                   \
    (NvrtcProgram program, int option_count, const char *const *options))                          \
  X(log_size, nvrtcGetProgramLogSize, false, (NvrtcProgram program, size_t * size))                \
  X(log, nvrtcGetProgramLog, false, (NvrtcProgram program, char *log))                             \
  X(cubin_size, nvrtcGetCUBINSize, false, (NvrtcProgram program, size_t * size))                   \
  X(cubin, nvrtcGetCUBIN, false, (NvrtcProgram program, char *cubin))

enum {
  ARCHITECTURES_MAX = 64,
  OLDEST_VERSION = 11080, /* as nvrtc_version_number; the first that knows sm_90 */
  OPTIONS_MAX = 16,
};

/* A loaded library. Kept in a list for the life of the process: contexts share it, and unloading a
 * compiler that has threads and thread-local data of its own is a risk that saves nothing. */
typedef struct NvrtcLibrary {
#define X(field, symbol, optional, parameters) NvrtcCode(*field) parameters;
  NVRTC_SYMBOLS(X)
#undef X
  Library *library;
  char *asked; /* the path or name it was opened by */
  char version_text[16];
  int version_number; /* as OLDEST_VERSION */
  int architectures[ARCHITECTURES_MAX];
  size_t architecture_count;
  struct NvrtcLibrary *next;
} NvrtcLibrary;

static pthread_mutex_t loaded_mutex = PTHREAD_MUTEX_INITIALIZER;
static NvrtcLibrary *loaded;

struct Nvrtc {
  char *asked_path; /* NULL: search */
  const Log *log;
  pthread_mutex_t mutex; /* guards all below until it is set; set once, then constant */
  bool searched;
  NvrtcSearch search;
  const NvrtcLibrary *library;
  Digest identity;
  bool identified;
};

rota_status nvrtc_create(const char *path, const Log *log, Nvrtc **result) {
  *result = NULL;
  Nvrtc *nvrtc = memory_allocate(1, sizeof *nvrtc);
  if (!nvrtc)
    return ROTA_OUT_OF_MEMORY;
  nvrtc->log = log;
  if (path && *path) {
    nvrtc->asked_path = memory_copy_string(path);
    if (!nvrtc->asked_path) {
      free(nvrtc);
      return ROTA_OUT_OF_MEMORY;
    }
  }
  pthread_mutex_init(&nvrtc->mutex, NULL);
  *result = nvrtc;
  return ROTA_OK;
}

void nvrtc_destroy(Nvrtc *nvrtc) {
  if (!nvrtc)
    return;
  nvrtc_search_free(&nvrtc->search);
  pthread_mutex_destroy(&nvrtc->mutex);
  free(nvrtc->asked_path);
  free(nvrtc);
}

/* ---- Loading -------------------------------------------------------------------------------- */

static void ask_architectures(NvrtcLibrary *library) {
  int count = 0;
  if (!library->arch_count || !library->archs || library->arch_count(&count) != NVRTC_SUCCESS ||
      count < 1 || count > ARCHITECTURES_MAX ||
      library->archs(library->architectures) != NVRTC_SUCCESS)
    return;
  library->architecture_count = (size_t)count;
}

/* Fills the table. False with a line in `tried` if the library is none that serves. */
static bool bind_symbols(NvrtcLibrary *library, const char *name, Text *tried) {
#define X(field, symbol, optional, parameters)                                                     \
  {                                                                                                \
    void *address = library_symbol(library->library, #symbol);                                     \
    if (!address && !(optional)) {                                                                 \
      text_format(tried, "    %s: has no %s\n", name, #symbol);                                    \
      return false;                                                                                \
    }                                                                                              \
    memcpy(&library->field, &address, sizeof address); /* ISO C has no cast for this */            \
  }
  NVRTC_SYMBOLS(X)
#undef X
  int major = 0, minor = 0;
  if (library->version(&major, &minor) != NVRTC_SUCCESS || major < 0 || major > 999 || minor < 0 ||
      minor > 99) {
    text_format(tried, "    %s: does not tell its version\n", name);
    return false;
  }
  library->version_number = major * 1000 + minor * 10;
  Text version = {0};
  text_format(&version, "%d.%d", major, minor);
  if (!version.failed)
    memcpy(library->version_text, version.data, version.length + 1);
  text_free(&version);
  if (library->version_number < OLDEST_VERSION) {
    text_format(tried, "    %s: is version %d.%d; 11.8 or newer is needed\n", name, major, minor);
    return false;
  }
  ask_architectures(library);
  return true;
}

/* The library of that name, from the list or newly opened; NULL with a line in `tried`. Called with
 * loaded_mutex held. */
static const NvrtcLibrary *open_library(const char *name, Text *tried) {
  for (const NvrtcLibrary *known = loaded; known; known = known->next)
    if (!strcmp(known->asked, name))
      return known;
  NvrtcLibrary *library = memory_allocate(1, sizeof *library);
  if (!library)
    return NULL;
  library->library = library_open((const char *const[]){name, NULL}, tried);
  library->asked = memory_copy_string(name);
  if (!library->library || !library->asked || !bind_symbols(library, name, tried)) {
    library_close(library->library);
    free(library->asked);
    free(library);
    return NULL;
  }
  library->next = loaded;
  loaded = library;
  return library;
}

/* ---- Which library: called with nvrtc->mutex held ----------------------------------------------
 */

static rota_status not_found(const Nvrtc *nvrtc, const char *tried) {
  return status_fail(
      ROTA_NO_COMPILER,
      "NVRTC (libnvrtc) was not found, and the kernel is not in the cache. Looked for in:\n"
      "%s%s%s"
      "Install NVRTC (the CUDA toolkit's libnvrtc, or the wheel nvidia-cuda-nvrtc), or set "
      "ROTA_NVRTC to the path of libnvrtc.so.*",
      nvrtc->search.places.data ? nvrtc->search.places.data : "",
      *tried ? "These could not be used:\n" : "", tried);
}

static rota_status search_once(Nvrtc *nvrtc) {
  if (nvrtc->searched)
    return ROTA_OK;
  ROTA_TRY(nvrtc_search(nvrtc->asked_path, &nvrtc->search));
  nvrtc->searched = true;
  log_print(nvrtc->log, 3, "NVRTC was looked for in:\n%s", nvrtc->search.places.data);
  return ROTA_OK;
}

static rota_status identify_file(Nvrtc *nvrtc, const char *path) {
  ROTA_TRY(nvrtc_file_identity(path, &nvrtc->identity));
  nvrtc->identified = true;
  return ROTA_OK;
}

static rota_status load_locked(Nvrtc *nvrtc) {
  if (nvrtc->library)
    return ROTA_OK;
  ROTA_TRY(search_once(nvrtc));
  Text tried = {0};
  pthread_mutex_lock(&loaded_mutex);
  for (size_t i = 0; i < nvrtc->search.count && !nvrtc->library; i++)
    nvrtc->library = open_library(nvrtc->search.found[i], &tried);
  pthread_mutex_unlock(&loaded_mutex);
  rota_status status = ROTA_OK;
  if (!nvrtc->library) {
    status = tried.failed ? text_status(&tried) : not_found(nvrtc, tried.data ? tried.data : "");
  } else {
    status = identify_file(nvrtc, library_path(nvrtc->library->library));
    log_print(nvrtc->log, 2, "NVRTC %s from %s", nvrtc->library->version_text,
              library_path(nvrtc->library->library));
  }
  text_free(&tried);
  return status;
}

static rota_status identify_locked(Nvrtc *nvrtc) {
  if (nvrtc->identified)
    return ROTA_OK;
  ROTA_TRY(search_once(nvrtc));
  for (size_t i = 0; i < nvrtc->search.count; i++) {
    const char *path = nvrtc->search.found[i];
    if (!strchr(path, '/'))
      break; /* the linker's names: only loading tells which file */
    if (identify_file(nvrtc, path) == ROTA_OK)
      return ROTA_OK;
  }
  return load_locked(nvrtc);
}

rota_status nvrtc_identify(Nvrtc *nvrtc, Digest *identity) {
  pthread_mutex_lock(&nvrtc->mutex);
  rota_status status = identify_locked(nvrtc);
  *identity = nvrtc->identity;
  pthread_mutex_unlock(&nvrtc->mutex);
  return status;
}

rota_status nvrtc_load(Nvrtc *nvrtc) {
  pthread_mutex_lock(&nvrtc->mutex);
  rota_status status = load_locked(nvrtc);
  pthread_mutex_unlock(&nvrtc->mutex);
  return status;
}

const char *nvrtc_path(const Nvrtc *nvrtc) {
  return library_path(nvrtc->library->library);
}

const char *nvrtc_version(const Nvrtc *nvrtc) {
  return nvrtc->library->version_text;
}

int nvrtc_version_number(const Nvrtc *nvrtc) {
  return nvrtc->library->version_number;
}

const int *nvrtc_architectures(const Nvrtc *nvrtc, size_t *count) {
  *count = nvrtc->library->architecture_count;
  return *count ? nvrtc->library->architectures : NULL;
}

/* ---- Compiling ------------------------------------------------------------------------------ */

enum { FIRST_EXACT_VERSION = 12000 }; /* that knows sm_90a */

/* Asked before compiling, because NVRTC's own words are "invalid value for --gpu-architecture". */
static rota_status check_architecture(const Nvrtc *nvrtc, const char *architecture) {
  size_t count;
  const int *known = nvrtc_architectures(nvrtc, &count);
  long wanted = strncmp(architecture, "sm_", 3) == 0 ? strtol(architecture + 3, NULL, 10) : 0;
  bool exact = strchr(architecture, 'a') != NULL;
  bool serves = !exact || nvrtc_version_number(nvrtc) >= FIRST_EXACT_VERSION;
  Text list = {0};
  bool found = count == 0 && serves;
  for (size_t i = 0; i < count && !found; i++) {
    found = known[i] == wanted && serves;
    text_format(&list, "%ssm_%d", i ? ", " : "", known[i]);
  }
  rota_status status = ROTA_OK;
  if (!found)
    status = status_fail(
        ROTA_UNSUPPORTED,
        "NVRTC %s (%s) does not know the architecture %s; it knows %s. Ask for one of these, or "
        "set ROTA_NVRTC to another libnvrtc.so.*",
        nvrtc_version(nvrtc), nvrtc_path(nvrtc), architecture, list.data ? list.data : "none");
  text_free(&list);
  return status;
}

/* From the first line that reports an error; the whole log if none does. */
static const char *first_error(const char *log) {
  const char *error = strstr(log, "error");
  if (!error)
    return log;
  while (error > log && error[-1] != '\n')
    error--;
  return error;
}

static rota_status refused(const Nvrtc *nvrtc, NvrtcCode code, const NvrtcRequest *request,
                           const char *log) {
  const char *version = nvrtc_version(nvrtc), *path = nvrtc_path(nvrtc);
  switch (code) {
  case NVRTC_ERROR_OUT_OF_MEMORY:
    return status_fail(ROTA_OUT_OF_MEMORY, "NVRTC %s ran out of memory compiling %s", version,
                       request->names[0]);
  case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
    return status_fail(
        ROTA_NO_COMPILER,
        "NVRTC %s (%s) cannot use its builtins: put libnvrtc-builtins.so of the same version "
        "beside it, or set ROTA_NVRTC to a complete installation.\n%s",
        version, path, log);
  case NVRTC_ERROR_INVALID_OPTION:
    return status_fail(ROTA_COMPILE, "NVRTC %s (%s) refused an option for %s:\n%s", version, path,
                       request->architecture, log);
  case NVRTC_ERROR_COMPILATION:
    return status_fail(ROTA_COMPILE, "NVRTC %s refused %s for %s:\n%s", version, request->names[0],
                       request->architecture, first_error(log));
  default:
    return status_fail(ROTA_COMPILE, "NVRTC %s (%s) failed with code %d on %s for %s:\n%s", version,
                       path, code, request->names[0], request->architecture, log);
  }
}

/* The log is wanted above all where compiling failed, so its own failure changes nothing. */
static char *take_log(const NvrtcLibrary *library, NvrtcProgram program) {
  size_t size = 0;
  if (library->log_size(program, &size) != NVRTC_SUCCESS)
    size = 0;
  char *log = memory_allocate(size + 1, 1);
  if (log && size && library->log(program, log) != NVRTC_SUCCESS)
    *log = 0;
  return log;
}

static rota_status take_cubin(const NvrtcLibrary *library, NvrtcProgram program,
                              NvrtcResult *result) {
  size_t size = 0;
  if (library->cubin_size(program, &size) != NVRTC_SUCCESS || size == 0)
    return status_fail(ROTA_COMPILE, "NVRTC %s gave no cubin", library->version_text);
  result->cubin = memory_allocate(size, 1);
  if (!result->cubin)
    return ROTA_OUT_OF_MEMORY;
  if (library->cubin(program, (char *)result->cubin) != NVRTC_SUCCESS)
    return status_fail(ROTA_COMPILE, "NVRTC %s would not hand out its cubin",
                       library->version_text);
  result->size = size;
  return ROTA_OK;
}

static rota_status compile_created(const Nvrtc *nvrtc, NvrtcProgram program,
                                   const NvrtcRequest *request, NvrtcResult *result) {
  const NvrtcLibrary *library = nvrtc->library;
  const char *options[OPTIONS_MAX + 1];
  char architecture[64];
  if (request->option_count > OPTIONS_MAX || strlen(request->architecture) > 32)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "more than %d compile options, or an architecture of "
                       "more than 32 characters",
                       OPTIONS_MAX);
  snprintf(architecture, sizeof architecture, "-arch=%s", request->architecture);
  options[0] = architecture;
  for (int i = 0; i < request->option_count; i++)
    options[i + 1] = request->options[i];
  NvrtcCode code = library->compile_program(program, request->option_count + 1, options);
  result->log = take_log(library, program);
  if (code != NVRTC_SUCCESS)
    return refused(nvrtc, code, request, result->log ? result->log : "");
  return result->log ? take_cubin(library, program, result) : ROTA_OUT_OF_MEMORY;
}

rota_status nvrtc_compile(Nvrtc *nvrtc, const NvrtcRequest *request, NvrtcResult *result) {
  *result = (NvrtcResult){0};
  ROTA_TRY(nvrtc_load(nvrtc));
  ROTA_TRY(check_architecture(nvrtc, request->architecture));
  const NvrtcLibrary *library = nvrtc->library;
  NvrtcProgram program = NULL;
  NvrtcCode code =
      library->create_program(&program, request->texts[0], request->names[0], request->count - 1,
                              request->texts + 1, request->names + 1);
  if (code != NVRTC_SUCCESS)
    return refused(nvrtc, code, request, "nvrtcCreateProgram failed");
  rota_status status = compile_created(nvrtc, program, request, result);
  library->destroy_program(&program);
  if (status != ROTA_OK) {
    free(result->cubin);
    result->cubin = NULL;
    result->size = 0;
  }
  return status;
}

void nvrtc_result_free(NvrtcResult *result) {
  free(result->cubin);
  free(result->log);
  *result = (NvrtcResult){0};
}
