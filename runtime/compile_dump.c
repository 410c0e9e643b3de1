/* ROTA_DUMP_DIR: see compile_dump.h. */
#include "runtime/compile_dump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/files.h"

static void dump_file(const char *root, const char *name, const char *file, const void *bytes,
                      size_t size, Log *log) {
  char *path = files_path("%s/%s/%s", root, name, file);
  int error = path ? files_make_parents(path) : ENOMEM;
  if (!error)
    error = files_write(AT_FDCWD, path, bytes, size);
  if (error)
    log_warn_once(log, LOG_DUMP_NOT_WRITABLE, "ROTA_DUMP_DIR: %s cannot be written: %s",
                  path ? path : root, strerror(error));
  free(path);
}

void compile_dump_program(const char *root, const char *name, const Program *program, Log *log) {
  if (!root)
    return;
  for (int i = 0; i < program->count; i++) {
    const ProgramFile *file = &program->files[i];
    dump_file(root, name, file->name, file->text, strlen(file->text), log);
  }
}

void compile_dump_cubin(const char *root, const char *name, const Cubin *cubin, const char *text,
                        Log *log) {
  if (!root)
    return;
  if (cubin)
    dump_file(root, name, "kernel.cubin", cubin->data, cubin->bytes, log);
  dump_file(root, name, "compile.log", text, strlen(text), log);
}
