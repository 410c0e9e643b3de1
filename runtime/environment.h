/* Level 0. The environment: the only module that reads it, so that this list is all that can change
 * Rota's behaviour from outside. */
#ifndef ROTA_RUNTIME_ENVIRONMENT_H
#define ROTA_RUNTIME_ENVIRONMENT_H

#include "generator/status.h"

/* Identifier, variable, whether an empty value says something (else it counts as unset), meaning.
 * The ROTA_ ones come first. */
#define ENVIRONMENT_LIST(X)                                                                        \
  X(DEBUG, "ROTA_DEBUG", false, "0 (quiet) to 4 (every stage), printed to stderr")                 \
  X(CACHE_DIR, "ROTA_CACHE_DIR", true, "directory of the cubin cache; empty: no disk cache")       \
  X(NVRTC, "ROTA_NVRTC", false, "path of libnvrtc.so.*, in place of a search")                     \
  X(DUMP_DIR, "ROTA_DUMP_DIR", false, "directory that gets each program's files and cubin")        \
  X(OVERRIDE_DIR, "ROTA_OVERRIDE_DIR", false, "directory whose lua/ and templates/ files win")     \
  X(XDG_CACHE_HOME, "XDG_CACHE_HOME", false, "parent of the default cache directory")              \
  X(HOME, "HOME", false, "the default cache is ~/.cache/rota; wheels in ~/.local are searched")    \
  X(LIBRARY_PATH, "LD_LIBRARY_PATH", false, "searched for NVRTC, as by the dynamic linker")        \
  X(CUDA_PATH, "CUDA_PATH", false, "a CUDA toolkit, searched for NVRTC")                           \
  X(CUDA_HOME, "CUDA_HOME", false, "a CUDA toolkit, searched for NVRTC")                           \
  X(VIRTUAL_ENV, "VIRTUAL_ENV", false, "a Python environment, searched for NVRTC's wheel")         \
  X(CONDA_PREFIX, "CONDA_PREFIX", false, "a Conda environment, searched for NVRTC")                \
  X(PATH, "PATH", false, "tells where Python is, whose wheels are searched for NVRTC")

typedef enum Environment {
#define X(id, name, empty, meaning) ENVIRONMENT_##id,
  ENVIRONMENT_LIST(X)
#undef X
      ENVIRONMENT_COUNT
} Environment;

/* The value, NULL if unset. Borrowed until the process changes its environment: copy what is kept.
 */
const char *environment_get(Environment variable);
const char *environment_name(Environment variable);
const char *environment_meaning(Environment variable);

#endif
