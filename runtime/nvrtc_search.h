/* Level 1. Where NVRTC may be: looks at files without loading any.
 *
 * libnvrtc has 100 MB, and loading it costs 5 ms with a warm page cache, 200 ms with a cold one. A
 * kernel that is in the cache needs only the library's identity, which is read from its file; so
 * the places are walked by stat, and the dynamic linker's own search comes last. */
#ifndef ROTA_RUNTIME_NVRTC_SEARCH_H
#define ROTA_RUNTIME_NVRTC_SEARCH_H

#include "generator/digest.h"
#include "generator/text.h"

typedef struct NvrtcSearch {
  char **found; /* paths of existing files, the preferred first; the linker's bare names (no '/') at
                   the end */
  size_t count;
  Text places; /* one line "    PLACE: what was there" each, for messages and `rota doctor` */
} NvrtcSearch;

/* Order: `path` (may be NULL), else ROTA_NVRTC: each of them excludes all that follow;
 * LD_LIBRARY_PATH; CUDA_PATH and CUDA_HOME; /usr/local/cuda, then /usr/local/cuda-*, the newest
 * first; the system's library directories; wheels of active Python environments and of the Python
 * on PATH; last the linker's names. */
rota_status nvrtc_search(const char *path, NvrtcSearch *search);
void nvrtc_search_free(NvrtcSearch *search);

/* Which build a library file is: from its ELF build id, or from all its bytes where it has none.
 * FILE if unreadable. */
rota_status nvrtc_file_identity(const char *path, Digest *identity);

#endif
