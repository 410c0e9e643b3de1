/* Generated source against golden files, reviewed as diffs; and its independence of process, locale
 * and irrelevant fields. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/model_list.h"

static Store *store;
static Script *script;

/* The generated files alone: templates have their own history. */
static char *generated_text(const Program *program) {
  Text text = {0};
  for (int i = 0; i < program->count; i++) {
    const ProgramFile *file = &program->files[i];
    if (strncmp(file->name, "templates/", 10) == 0)
      continue;
    text_format(&text, "==== %s ====\n%s", file->name, file->text);
  }
  assert_int_equal(text_status(&text), ROTA_OK);
  return text_release(&text);
}

static void build(const ModelLine *line, Program **program) {
  Spec spec;
  Tiling tiling;
  rota_status status = model_line_build(script, store, line, &spec, &tiling, program);
  if (status != ROTA_OK)
    fail_msg("%s: %s", line->name, status_message());
  spec_free(&spec);
}

static void compare_golden(const ModelLine *line, const char *text) {
  char path[512];
  const char *direction = line->direction == ROTA_BACKWARD ? "backward" : "forward";
  snprintf(path, sizeof path, "%s/tests/golden/%s_%s.txt", test_source_directory(), line->name,
           direction);
  if (getenv("ROTA_UPDATE_GOLDEN")) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return;
  }
  char *golden;
  size_t length;
  if (text_read_file(path, &golden, &length) != ROTA_OK)
    fail_msg("%s", status_message());
  if (strcmp(golden, text) != 0)
    fail_msg("%s differs; after a wanted change run with ROTA_UPDATE_GOLDEN=1 and review the "
             "diff. Now:\n%s",
             path, text);
  free(golden);
}

static void test_golden_sources(void **state) {
  (void)state;
  int count;
  ModelLine *lines = model_list_read("tests/golden/models.txt", &count);
  assert_true(count >= 5);
  for (int i = 0; i < count; i++) {
    Program *program;
    build(&lines[i], &program);
    char *text = generated_text(program);
    compare_golden(&lines[i], text);
    free(text);
    program_destroy(program);
  }
  free(lines);
}

static Digest digest_of_chunk(const char *chunk, bool with_lines) {
  ModelLine line = {"digest", ROTA_FORWARD, ROTA_LAYOUT_ALIGNED, "sm_80", ""};
  strcpy(line.chunk, chunk);
  Program *program;
  build(&line, &program);
  Digest digest = program_digest(program, with_lines);
  program_destroy(program);
  return digest;
}

#define MODEL(fields) "return rota.attention { head_dim = 64, " fields " }"

static void test_digest_sees_what_matters(void **state) {
  (void)state;
  Digest base = digest_of_chunk(MODEL("heads = 8, mask = window(128, 0)"), false);
  static const char *const same[] = {
      MODEL("heads = 8, mask = window(4096, 0)"),                /* a parameter's value */
      MODEL("heads = 16, kv_heads = 16, mask = window(128, 0)"), /* the number of heads */
      "\n\n\n" MODEL("heads = 8, mask = window(128, 0)"),        /* lines moved */
      MODEL("scale = 0.5, heads = 8, mask = window(128, 0)"),
  };
  static const char *const other[] = {
      MODEL("heads = 8, kv_heads = 4, mask = window(128, 0)"),
      MODEL("heads = 8, mask = window(128, 0) & causal"),
      MODEL("heads = 8, mask = window(rota.const(128), 0)"),
      MODEL("heads = 8, mask = window(128, 0), dtype = 'fp16'"),
      MODEL("heads = 8, mask = window(128, 0), sink_logit = true"),
      MODEL("heads = 8, mask = window(128, 0), score = 's * 2.0'"),
  };
  for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
    assert_string_equal(digest_of_chunk(same[i], false).hex, base.hex);
  for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
    assert_string_not_equal(digest_of_chunk(other[i], false).hex, base.hex);
}

static void test_user_lines_count_only_with_lineinfo(void **state) {
  (void)state;
  const char *here = MODEL("mask = where 'k <= q'"), *below = "\n\n" MODEL("mask = where 'k <= q'");
  assert_string_equal(digest_of_chunk(here, false).hex, digest_of_chunk(below, false).hex);
  assert_string_not_equal(digest_of_chunk(here, true).hex, digest_of_chunk(below, true).hex);
}

static void test_locale_changes_nothing(void **state) {
  (void)state;
  const char *chunk = MODEL("score = 's * 0.125 + 1.5'");
  Digest base = digest_of_chunk(chunk, true);
  const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "da_DK.UTF-8"};
  int tried = 0;
  for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
    if (!setlocale(LC_ALL, locales[i]))
      continue;
    tried++;
    assert_string_equal(digest_of_chunk(chunk, true).hex, base.hex);
  }
  setlocale(LC_ALL, "C");
  if (!tried) {
    print_message("SKIPPED: no comma-decimal locale is installed\n");
    skip();
  }
}

static void test_flattened_source_has_each_header_once(void **state) {
  (void)state;
  ModelLine line = {"flat", ROTA_BACKWARD, ROTA_LAYOUT_ALIGNED, "sm_80", MODEL("mask = causal")};
  Program *program;
  build(&line, &program);
  char *source;
  assert_int_equal(program_flatten(program, &source), ROTA_OK);
  assert_null(strstr(source, "#include"));
  for (int i = 0; i < program->count; i++) {
    char mark[160];
    snprintf(mark, sizeof mark, "// ---- %s ----\n", program->files[i].name);
    char *first = strstr(source, mark);
    assert_non_null(first);
    assert_null(strstr(first + 1, mark));
  }
  free(source);
  program_destroy(program);
}

static int open_script(void **state) {
  (void)state;
  if (store_create(NULL, &store) != ROTA_OK || script_create(store, &script) != ROTA_OK) {
    print_error("%s\n", status_message());
    return -1;
  }
  return 0;
}

static int close_script(void **state) {
  (void)state;
  script_destroy(script);
  store_destroy(store);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden_sources),
      cmocka_unit_test(test_digest_sees_what_matters),
      cmocka_unit_test(test_user_lines_count_only_with_lineinfo),
      cmocka_unit_test(test_locale_changes_nothing),
      cmocka_unit_test(test_flattened_source_has_each_header_once),
  };
  return cmocka_run_group_tests(tests, open_script, close_script);
}
