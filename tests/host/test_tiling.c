/* What an architecture file may say, and what is said of its mistakes; and what becomes of tensor
 * maps and wgmma in the generated source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "generator/program.h"
#include "generator/script.h"
#include "tests/support/workbench.h"

/* An architecture that answers every request with the tiling in place of %s. */
static const char file[] = "return { name = 'hopper', priority = 10, code = 'sm_90a',\n"
                           "  serves = function() return true end,\n"
                           "  tilings = function() return { { template = 'templates/test.cuh',\n"
                           "    tile_q = 128, tile_kv = 64, workers = 132, %s } } end }\n";
#define LAUNCH   "entry = 'rota_forward', grid = 'row_workers', threads = 384, shared_bytes = 1024"
#define LAUNCHES "launches = { { " LAUNCH ", overlaps = true } }, "

static rota_status build(const Workbench *bench, const char *fields, Tiling *tiling,
                         Program **program) {
  char text[1024];
  int length = snprintf(text, sizeof text, file, fields);
  workbench_write(workbench_path(bench, "own/lua/architectures/hopper.lua"), text, (size_t)length);
  static const char device_code[] = "// Nothing.\n";
  workbench_write(workbench_path(bench, "own/templates/test.cuh"), device_code,
                  sizeof device_code - 1);
  Store *store;
  Script *script;
  Spec spec;
  Target target;
  assert_int_equal(store_create(workbench_path(bench, "own"), &store), ROTA_OK);
  assert_int_equal(script_create(store, &script), ROTA_OK);
  assert_int_equal(script_target(script, "sm_90", &target), ROTA_OK);
  assert_int_equal(script_spec(script, "return rota.attention { head_dim = 64 }", "test", &spec),
                   ROTA_OK);
  rota_status status =
      script_tiling(script, &spec, ROTA_FORWARD, ROTA_LAYOUT_ALIGNED, &target, tiling);
  if (status == ROTA_OK && program)
    status = program_build(&spec, ROTA_FORWARD, ROTA_LAYOUT_ALIGNED, tiling, store, program);
  spec_free(&spec);
  script_destroy(script);
  store_destroy(store);
  return status;
}

static const char *text_of(const Program *program, const char *name) {
  for (int i = 0; program && i < program->count; i++)
    if (strcmp(program->files[i].name, name) == 0)
      return program->files[i].text;
  fail_msg("no %s", name);
  return "";
}

static void test_maps_and_products(void **state) {
  Tiling tiling;
  Program *program = NULL;
  assert_int_equal(build(*state,
                         LAUNCHES "wgmma = { 64, 128 }, tensor_maps = { { tensor = 'q', rows = 128 "
                                  "}, { tensor = 'd_o', rows = 64 } }",
                         &tiling, &program),
                   ROTA_OK);
  assert_string_equal(tiling.architecture, "hopper");
  assert_string_equal(tiling.code, "sm_90a");
  assert_string_equal(tiling.passed_over, "");
  assert_int_equal(tiling.launches[0].grid, GRID_ROW_WORKERS);
  assert_true(tiling.launches[0].overlaps);
  assert_int_equal(tiling.map_count, 2);
  assert_int_equal(tiling.maps[1].tensor, MAPPED_d_o);
  assert_int_equal(tiling.maps[1].rows, 64);
  const char *constants = text_of(program, "tiling.cuh");
  assert_non_null(strstr(constants, "constexpr int kMapQ = 0;"));
  assert_non_null(strstr(constants, "constexpr int kMapDO = 1;"));
  const char *main_text = text_of(program, "main.cu");
  assert_non_null(strstr(main_text,
                         "__launch_bounds__(384, 1)\n"
                         "rota_forward(const __grid_constant__ RotaArguments arguments,\n"
                         "    const __grid_constant__ RotaTensorMaps maps) {\n"
                         "  rota::forward(arguments, maps);\n}\n"));
  const char *products = text_of(program, "instructions.cuh");
  assert_non_null(strstr(products, "struct Wgmma<64> {"));
  assert_non_null(strstr(products, "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"));
  assert_null(strstr(products, "mma.sync"));
  program_destroy(program);
}

/* Without maps and wgmma the program is as it always was. */
static void test_neither(void **state) {
  Tiling tiling;
  Program *program = NULL;
  assert_int_equal(build(*state, "launches = { { " LAUNCH " } }", &tiling, &program), ROTA_OK);
  assert_false(tiling.launches[0].overlaps);
  assert_null(strstr(text_of(program, "tiling.cuh"), "kMap"));
  assert_non_null(strstr(text_of(program, "main.cu"),
                         "rota_forward(const __grid_constant__ RotaArguments arguments) {\n"));
  assert_non_null(strstr(text_of(program, "instructions.cuh"), "mma.sync"));
  program_destroy(program);
}

static void test_mistakes(void **state) {
#define MAPS(entries) LAUNCHES "tensor_maps = { " entries " }"
  static const struct {
    const char *fields, *words;
  } cases[] = {
      {LAUNCHES "wgmma = 64", "wgmma must be a list"},
      {LAUNCHES "wgmma = { 8, 16, 24, 32, 40, 48, 56, 64, 72 }", "wgmma must be a list of at most"},
      {LAUNCHES "wgmma = { 60 }", "N is a multiple of 8, from 8 to 256"},
      {LAUNCHES "wgmma = { 264 }", "N is a multiple of 8, from 8 to 256"},
      {LAUNCHES "wgmma = { 128, 64 }", "values of N must ascend"},
      {LAUNCHES "wgmma = { n = 64 }", "wgmma must be a list"},
      {LAUNCHES "tensor_maps = 'q'", "tensor_maps must be a list"},
      {MAPS("{ rows = 64 }"), "needs a tensor such as \"q\""},
      {MAPS("{ tensor = 'w', rows = 64 }"), "none of tiling.h's MAPPED_LIST"},
      {MAPS("{ tensor = 'lse', rows = 64 }"), "none of tiling.h's MAPPED_LIST"},
      {MAPS("{ tensor = 'q' }"), "must be a multiple of 8, up to 256"},
      {MAPS("{ tensor = 'q', rows = 60 }"), "must be a multiple of 8, up to 256"},
      {MAPS("{ tensor = 'q', rows = 512 }"), "must be a multiple of 8, up to 256"},
      {MAPS("{ tensor = 'q', rows = 64 }, { tensor = 'q', rows = 128 }"), "a tensor twice"},
      {"launches = { { " LAUNCH ", overlaps = 1 } }", "overlaps must be true or false"},
      {LAUNCHES "workers = 0", "row_workers needs the field workers"},
      {"launches = { { entry = 'rota_x', grid = 'rows', threads = 32, shared_bytes = 0 } }",
       "none of tiling.h's GRID_LIST"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Tiling tiling;
    assert_int_equal(build(*state, cases[i].fields, &tiling, NULL), ROTA_INTERNAL);
    if (!strstr(status_message(), cases[i].words))
      fail_msg("%s: %s", cases[i].words, status_message());
    assert_non_null(strstr(status_message(), "lua/architectures/hopper.lua, algorithm forward: "));
  }
}

static int open_bench(void **state) {
  static Workbench bench;
  workbench_open(&bench);
  *state = &bench;
  return 0;
}

static int close_bench(void **state) {
  workbench_close(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_maps_and_products),
      cmocka_unit_test(test_neither),
      cmocka_unit_test(test_mistakes),
  };
  return cmocka_run_group_tests(tests, open_bench, close_bench);
}
