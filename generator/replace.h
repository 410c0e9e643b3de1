/* Level 2. Files that readers see whole or not at all: written beside their place, then renamed. */
#ifndef ROTA_GENERATOR_REPLACE_H
#define ROTA_GENERATOR_REPLACE_H

#include "generator/status.h"

typedef struct FilePiece {
  const void *data; /* may be NULL where bytes is 0 */
  size_t bytes;
} FilePiece;

/* Makes a file of the pieces, one after another, in place of what `path` names. On failure (FILE:
 * "PATH: cannot write WHAT: reason") that stays as it was, and nothing is left beside it. Safe
 * among threads and processes that write the same path: one of them is the last. */
rota_status file_replace(const char *path, const char *what, const FilePiece *pieces, int count);

#endif
