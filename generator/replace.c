/* Whole files by renaming: see replace.h. */
#include "generator/replace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "generator/text.h"

/* With the process's number: tells apart what threads and processes write beside one target. */
static atomic_uint writes;

/* 0 or an errno value. */
static int write_pieces(const char *path, const FilePiece *pieces, int count) {
  FILE *file = fopen(path, "wb");
  if (!file)
    return errno;
  int error = 0;
  for (int i = 0; i < count && !error; i++)
    if (pieces[i].bytes && fwrite(pieces[i].data, pieces[i].bytes, 1, file) != 1)
      error = errno;
  /* A full disk may show only when the last buffer goes out. */
  if (fclose(file) != 0 && !error)
    error = errno;
  if (error)
    unlink(path);
  return error;
}

rota_status file_replace(const char *path, const char *what, const FilePiece *pieces, int count) {
  Text aside = {0};
  unsigned number = atomic_fetch_add(&writes, 1);
  text_format(&aside, "%s.%ld.%u.partial", path, (long)getpid(), number);
  rota_status status = text_status(&aside);
  int error = status == ROTA_OK ? write_pieces(aside.data, pieces, count) : 0;
  if (status == ROTA_OK && !error && rename(aside.data, path) != 0) {
    error = errno;
    unlink(aside.data);
  }
  text_free(&aside);
  return error ? status_fail(ROTA_FILE, "%s: cannot write %s: %s", path, what, strerror(error))
               : status;
}
