/* Level 2. NVRTC, the compiler from CUDA C++ to cubin: a shared library found at run time, called
 * through a table.
 *
 * No CUDA header is used: what is declared in nvrtc.c is the part of NVRTC's ABI that Rota calls.
 * The library is identified without being loaded, loaded when first compiled with, and then kept
 * for the life of the process. */
#ifndef ROTA_RUNTIME_NVRTC_H
#define ROTA_RUNTIME_NVRTC_H

#include "generator/digest.h"
#include "runtime/log.h"

/* One choice of NVRTC. May be used by several threads at once. */
typedef struct Nvrtc Nvrtc;

/* `path`: NULL, or the library to use in place of a search. Touches no file yet. The log must
 * outlive the result. */
rota_status nvrtc_create(const char *path, const Log *log, Nvrtc **nvrtc);
void nvrtc_destroy(Nvrtc *nvrtc);

/* Which build would compile: equal identities, equal cubins. Does not load the library unless only
 * the linker can find it. NO_COMPILER says where it was looked for. Loading may settle on another
 * file: ask again after nvrtc_load. */
rota_status nvrtc_identify(Nvrtc *nvrtc, Digest *identity);
/* Loads the first of the found libraries that can be. NO_COMPILER says what was tried. */
rota_status nvrtc_load(Nvrtc *nvrtc);

/* After nvrtc_load: the file, "13.0", and the architectures it knows as ascending numbers (80, 90,
 * ...; NULL and 0 if it does not say). Borrowed from `nvrtc`. */
const char *nvrtc_path(const Nvrtc *nvrtc);
const char *nvrtc_version(const Nvrtc *nvrtc);
int nvrtc_version_number(const Nvrtc *nvrtc); /* 13000 for 13.0 */
const int *nvrtc_architectures(const Nvrtc *nvrtc, size_t *count);

/* A program as NVRTC takes it: files[0] is compiled, the others are headers, included by their
 * exact names. */
typedef struct NvrtcRequest {
  const char *const *names, *const *texts;
  int count;
  const char *architecture;   /* "sm_90", "sm_90a" */
  const char *const *options; /* without -arch */
  int option_count;
} NvrtcRequest;

typedef struct NvrtcResult {
  unsigned char *cubin; /* NULL on failure */
  size_t size;
  char *log; /* what NVRTC and ptxas said, also on failure; NULL only where memory ran out */
} NvrtcResult;

/* Compiles; loads the library if need be. UNSUPPORTED: it does not know the architecture. COMPILE:
 * it refused the source; the message quotes the first error. NO_COMPILER: not found, or its
 * builtins library is missing. */
rota_status nvrtc_compile(Nvrtc *nvrtc, const NvrtcRequest *request, NvrtcResult *result);
void nvrtc_result_free(NvrtcResult *result);

#endif
