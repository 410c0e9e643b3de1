/* Reads lists of models: lines of `name direction layout architecture return rota.attention{...}`.
 */
#ifndef ROTA_TESTS_MODEL_LIST_H
#define ROTA_TESTS_MODEL_LIST_H

#include "generator/program.h"
#include "generator/script.h"

typedef struct ModelLine {
  char name[64];
  rota_direction direction;
  rota_layout layout;
  char architecture[16];
  char chunk[512];
} ModelLine;

/* Directory of the source tree: ROTA_TEST_SOURCE, else the current directory. */
const char *test_source_directory(void);

/* All lines of a list below the source tree; the caller frees. Aborts on a malformed list. */
ModelLine *model_list_read(const char *path, int *count);

/* From a line to spec, tiling and program; the caller frees spec and program. */
rota_status model_line_build(Script *script, const Store *store, const ModelLine *line, Spec *spec,
                             Tiling *tiling, Program **program);

#endif
