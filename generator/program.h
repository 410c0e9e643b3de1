/* Level 5. The generated source: main.cu and the headers it includes, as NVRTC takes them. */
#ifndef ROTA_GENERATOR_PROGRAM_H
#define ROTA_GENERATOR_PROGRAM_H

#include "generator/spec.h"
#include "generator/store.h"
#include "generator/tiling.h"

typedef struct ProgramFile {
  char *name; /* as in #include "..." */
  char *text;
} ProgramFile;

typedef struct Program {
  ProgramFile *files; /* files[0] is main.cu; the headers that it reaches follow, sorted by name */
  int count;
  rota_direction direction;
} Program;

rota_status program_build(const Spec *spec, rota_direction direction, rota_layout layout,
                          const Tiling *tiling, const Store *store, Program **program);
void program_destroy(Program *program);
/* One self-contained file: every header once, in place of its first #include. */
rota_status program_flatten(const Program *program, char **source);
/* Hash of every byte that NVRTC sees, without #line lines unless `with_lines`. */
Digest program_digest(const Program *program, bool with_lines);

#endif
