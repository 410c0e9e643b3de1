/* The generated source: collects the files that main.cu reaches: see program.h. */
#include "generator/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "generator/emit.h"

enum { PROGRAM_FILES_MAX = 64, INCLUDE_DEPTH_MAX = 16 };

static const ProgramFile *find_file(const Program *program, const char *name, size_t length) {
  for (int i = 0; i < program->count; i++)
    if (strlen(program->files[i].name) == length && !memcmp(program->files[i].name, name, length))
      return &program->files[i];
  return NULL;
}

/* Takes the text over. */
static rota_status add_file(Program *program, const char *name, Text *text) {
  rota_status status = text_status(text);
  if (status != ROTA_OK || program->count == PROGRAM_FILES_MAX) {
    text_free(text);
    if (status != ROTA_OK)
      return status;
    return status_fail(ROTA_INTERNAL, "a program has more than %d files", PROGRAM_FILES_MAX);
  }
  char *copy = memory_copy_string(name);
  if (!copy) {
    text_free(text);
    return ROTA_OUT_OF_MEMORY;
  }
  ProgramFile *file = &program->files[program->count++];
  file->name = copy;
  file->text = text_release(text);
  return ROTA_OK;
}

/* The name in a line `#include "name"`; NULL if the line is another one. */
static const char *include_name(const char *line, size_t *length) {
  static const char directive[] = "#include \"";
  if (strncmp(line, directive, sizeof directive - 1) != 0)
    return NULL;
  const char *name = line + sizeof directive - 1;
  *length = strcspn(name, "\"\n");
  return name[*length] == '"' ? name : NULL;
}

static const char *next_line(const char *line) {
  const char *end = strchr(line, '\n');
  return end ? end + 1 : line + strlen(line);
}

/* Adds the templates that `text` includes and that are not there yet, depth first. */
static rota_status add_includes(Program *program, const Store *store, const char *includer,
                                const char *text) {
  for (const char *line = text; *line; line = next_line(line)) {
    size_t length;
    const char *name = include_name(line, &length);
    if (!name || find_file(program, name, length))
      continue;
    char path[128];
    if (length >= sizeof path)
      return status_fail(ROTA_INTERNAL, "%s includes a name of %zu characters", includer, length);
    memcpy(path, name, length);
    path[length] = 0;
    size_t size;
    const char *content = store_get(store, path, &size);
    if (!content)
      return status_fail(ROTA_INTERNAL,
                         "%s includes \"%s\", which is neither generated nor a template", includer,
                         path);
    Text copy = {0};
    text_append_bytes(&copy, content, size);
    ROTA_TRY(add_file(program, path, &copy));
    ROTA_TRY(add_includes(program, store, path, content));
  }
  return ROTA_OK;
}

static int compare_files(const void *a, const void *b) {
  return strcmp(((const ProgramFile *)a)->name, ((const ProgramFile *)b)->name);
}

static rota_status add_generated(Program *program, const Spec *spec, rota_layout layout,
                                 const Tiling *tiling) {
  Text text = {0};
  emit_main(spec, layout, tiling, &text);
  ROTA_TRY(add_file(program, "main.cu", &text));
  emit_spec(spec, layout, &text);
  ROTA_TRY(add_file(program, "spec.cuh", &text));
  emit_tiling(tiling, &text);
  ROTA_TRY(add_file(program, "tiling.cuh", &text));
  emit_mask(spec, &text);
  ROTA_TRY(add_file(program, "mask.cuh", &text));
  emit_score(spec, &text);
  ROTA_TRY(add_file(program, "score.cuh", &text));
  emit_instructions(spec, tiling, &text);
  return add_file(program, "instructions.cuh", &text);
}

rota_status program_build(const Spec *spec, rota_direction direction, rota_layout layout,
                          const Tiling *tiling, const Store *store, Program **result) {
  *result = NULL;
  Program *program = memory_allocate(1, sizeof *program);
  if (!program)
    return ROTA_OUT_OF_MEMORY;
  program->direction = direction;
  program->files = memory_allocate(PROGRAM_FILES_MAX, sizeof *program->files);
  rota_status status =
      program->files ? add_generated(program, spec, layout, tiling) : ROTA_OUT_OF_MEMORY;
  /* add_includes appends to the list that this loop walks over; the generated files come first. */
  int generated = status == ROTA_OK ? program->count : 0;
  for (int i = 0; i < generated && status == ROTA_OK; i++)
    status = add_includes(program, store, program->files[i].name, program->files[i].text);
  if (status != ROTA_OK) {
    program_destroy(program);
    return status;
  }
  qsort(program->files + 1, (size_t)program->count - 1, sizeof *program->files, compare_files);
  *result = program;
  return ROTA_OK;
}

void program_destroy(Program *program) {
  if (!program)
    return;
  assert(program->files || program->count == 0);
  for (int i = 0; i < program->count; i++) {
    free(program->files[i].name);
    free(program->files[i].text);
  }
  free(program->files);
  free(program);
}

/* Copies a file, each header in place of its first #include; #line and #pragma once have no place
 * in one file. */
static rota_status flatten_file(const Program *program, const ProgramFile *file, bool *done,
                                int depth, Text *out) {
  if (depth > INCLUDE_DEPTH_MAX)
    return status_fail(ROTA_INTERNAL, "includes nest deeper than %d at %s", INCLUDE_DEPTH_MAX,
                       file->name);
  done[file - program->files] = true;
  text_format(out, "// ---- %s ----\n", file->name);
  for (const char *line = file->text; *line; line = next_line(line)) {
    size_t length;
    const char *name = include_name(line, &length);
    const ProgramFile *included = name ? find_file(program, name, length) : NULL;
    if (included) {
      if (!done[included - program->files])
        ROTA_TRY(flatten_file(program, included, done, depth + 1, out));
    } else if (strncmp(line, "#line ", 6) != 0 && strncmp(line, "#pragma once", 12) != 0) {
      text_append_bytes(out, line, (size_t)(next_line(line) - line));
    }
  }
  text_format(out, "// ---- end of %s ----\n", file->name);
  return ROTA_OK;
}

rota_status program_flatten(const Program *program, char **source) {
  *source = NULL;
  bool done[PROGRAM_FILES_MAX] = {false};
  Text out = {0};
  rota_status status = flatten_file(program, &program->files[0], done, 0, &out);
  if (status == ROTA_OK)
    status = text_status(&out);
  if (status != ROTA_OK) {
    text_free(&out);
    return status;
  }
  *source = text_release(&out);
  return ROTA_OK;
}

/* Line by line, each framed by its length. */
static void digest_text(DigestStream *stream, const char *text, bool with_lines) {
  for (const char *line = text; *line; line = next_line(line))
    if (with_lines || strncmp(line, "#line ", 6) != 0)
      digest_add(stream, line, (size_t)(next_line(line) - line));
}

Digest program_digest(const Program *program, bool with_lines) {
  DigestStream *stream = digest_begin();
  for (int i = 0; i < program->count; i++) {
    digest_add_string(stream, program->files[i].name);
    digest_text(stream, program->files[i].text, with_lines);
  }
  return digest_end(stream);
}
