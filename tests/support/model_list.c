/* Lists of models for tests: see model_list.h. */
#include "tests/support/model_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *test_source_directory(void) {
  const char *directory = getenv("ROTA_TEST_SOURCE");
  return directory ? directory : ".";
}

static void parse_line(const char *path, const char *text, ModelLine *line) {
  char direction[16], layout[16];
  int used = 0;
  if (sscanf(text, "%63s %15s %15s %15s %n", line->name, direction, layout, line->architecture,
             &used) != 4 ||
      !used || strlen(text + used) >= sizeof line->chunk) {
    fprintf(stderr, "%s: malformed line: %s\n", path, text);
    abort();
  }
  line->direction = !strcmp(direction, "backward") ? ROTA_BACKWARD : ROTA_FORWARD;
  line->layout = !strcmp(layout, "any") ? ROTA_LAYOUT_ANY : ROTA_LAYOUT_ALIGNED;
  strcpy(line->chunk, text + used);
}

ModelLine *model_list_read(const char *path, int *count) {
  char full[512];
  snprintf(full, sizeof full, "%s/%s", test_source_directory(), path);
  FILE *file = fopen(full, "r");
  if (!file) {
    perror(full);
    abort();
  }
  ModelLine *lines = NULL;
  char text[1024];
  *count = 0;
  while (fgets(text, sizeof text, file)) {
    text[strcspn(text, "\n")] = 0;
    if (!text[0] || text[0] == '#')
      continue;
    lines = realloc(lines, (size_t)(*count + 1) * sizeof *lines);
    if (!lines)
      abort();
    memset(&lines[*count], 0, sizeof *lines);
    parse_line(full, text, &lines[(*count)++]);
  }
  fclose(file);
  return lines;
}

rota_status model_line_build(Script *script, const Store *store, const ModelLine *line, Spec *spec,
                             Tiling *tiling, Program **program) {
  Target target;
  *program = NULL;
  ROTA_TRY(script_spec(script, line->chunk, line->name, spec));
  rota_status status = script_target(script, line->architecture, &target);
  if (status == ROTA_OK)
    status = script_tiling(script, spec, line->direction, line->layout, &target, tiling);
  if (status == ROTA_OK)
    status = program_build(spec, line->direction, line->layout, tiling, store, program);
  if (status != ROTA_OK)
    spec_free(spec);
  return status;
}
