/* Level 0. Files and directories, as the cache and ROTA_DUMP_DIR need them.
 *
 * Functions return 0 or an errno value: what a missing or unwritable file means is the caller's to
 * say. All that is created is for its owner alone: directories 0700, files 0600. */
#ifndef ROTA_RUNTIME_FILES_H
#define ROTA_RUNTIME_FILES_H

#include "generator/status.h"

/* "FORMAT" formatted into fresh memory; NULL where that ran out. For paths. */
char *files_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Makes the parents of a file. */
int files_make_parents(const char *path);
/* Reads a regular file in an open directory, with a NUL after it. EISDIR if it is none; EFBIG if
 * larger than `limit` bytes. */
int files_read(int directory, const char *name, size_t limit, unsigned char **bytes, size_t *size);
/* Creates a file in an open directory (AT_FDCWD: any path), replacing one. Removed again if it
 * cannot be written whole. */
int files_write(int directory, const char *name, const void *bytes, size_t size);
/* Removes a file, or a directory with all it holds; follows no symbolic links. ENOENT is no error.
 */
int files_remove_tree(const char *path);

#endif
