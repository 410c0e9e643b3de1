/* What kernels of sm_90 alone ask of a launch: tensor maps, overlap with the kernel before, blocks
 * that share row items. Seen by the stand-in for the driver, with an architecture file of the
 * test's own. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/plan.h"
#include "runtime/driver.h"
#include "tests/host/fake_driver.h"
#include "tests/support/calls.h"
#include "tests/support/workbench.h"

/* Serves sm_90, head dims up to 128: one launch of every kind. At head dim 32 a tile of the forward
 * pass holds two heads of a group. */
static const char architecture[] =
    "local function map(tensor, rows) return { tensor = tensor, rows = rows } end\n"
    "return {\n"
    "  name = 'hopper', priority = 10, code = 'sm_90a',\n"
    "  serves = function(request)\n"
    "    if request.target.sm ~= 90 then return false, 'for sm_90 alone' end\n"
    "    if not request.target.tensor_maps then return false, 'an old driver' end\n"
    "    if not request.aligned then return false, 'aligned layouts only' end\n"
    "    return true\n"
    "  end,\n"
    "  tilings = function(request, algorithm)\n"
    "    if request.spec.head_dim > 128 then return nil, 'head dims above 128' end\n"
    "    local tiling = { template = 'templates/test.cuh', tile_q = 128, tile_kv = 64,\n"
    "      workers = 132, wgmma = { 64, 128 },\n"
    "      tensor_maps = { map('q', 128), map('k', 64), map('v', 64) }, launches = {\n"
    "      { entry = 'rota_forward', grid = 'row_workers', threads = 384, shared_bytes = 0,\n"
    "        overlaps = true } } }\n"
    "    if request.spec.head_dim == 32 then\n"
    "      tiling.tile_q, tiling.packed = 60, 2\n"
    "      tiling.tensor_maps[1] = { tensor = 'q', rows = 60, heads = 2 }\n"
    "    end\n"
    "    if algorithm ~= 'forward' then\n"
    "      tiling.tensor_maps = { map('d_o', 128), map('q', 64), map('d_v', 64), map('k', 64),\n"
    "        map('v', 64), map('o', 128), map('d_q', 128), map('d_k', 64) }\n"
    "      tiling.launches = {\n"
    "        { entry = 'rota_delta', grid = 'row_items', threads = 128, shared_bytes = 0 },\n"
    "        { entry = 'rota_backward', grid = 'workers', threads = 384, shared_bytes = 0,\n"
    "          overlaps = true },\n"
    "        { entry = 'rota_finish', grid = 'row_items', threads = 128, shared_bytes = 0,\n"
    "          overlaps = true } }\n"
    "    end\n"
    "    return { tiling }\n"
    "  end,\n"
    "}\n";
static const char device_code[] = "// Nothing: the stand-in for NVRTC does not look.\n";

static const char script[] = "return rota.attention{head_dim = 64, head_dim_v = 96, heads = 4, "
                             "kv_heads = 2, mask = causal, backward = 'ordered', "
                             "schedule = 'shortest_first'}";
static FakeDriver *fake;
static const char *fake_nvrtc; /* path, from the first run */
static Problem problem = {.dtype = ROTA_BF16,
                          .batch = 2,
                          .n_q = 300,
                          .n_k = 500,
                          .heads = 4,
                          .kv_heads = 2,
                          .dim = 64,
                          .dim_v = 96};

static rota_context *make_context(void) {
  rota_context *context;
  rota_context_options options = {.cache_dir = "", .nvrtc_path = fake_nvrtc, .debug = 0};
  must(rota_context_create(&options, &context));
  return context;
}

static rota_status run_with(const rota_plan *plan, const rota_arguments *arguments) {
  size_t bytes = rota_plan_workspace_size(plan);
  void *workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  rota_status status = rota_run(plan, arguments, workspace, bytes, NULL);
  free(workspace);
  return status;
}

static int begin(void **state) {
  (void)state;
  fake->errors = fake->launches = fake->overlapping_launches = fake->cooperative_launches = 0;
  fake->capability = 90;
  fake->maps = 0;
  return 0;
}

static int end(void **state) {
  (void)state;
  bool clean = !fake->errors && !fake->modules && !fake->memory_blocks && !fake->retained &&
               !fake->depth && !fake->capture_mode;
  return clean ? 0 : -1;
}

/* One map as the driver was asked for it. Strides in bytes; 0: any, the dimension has one element.
 */
static void check_map(int index, const void *address, int columns, int rows, int heads, int slots,
                      int64_t row, int64_t head, int64_t slot, int box_rows) {
  const FakeMap *map = &fake->last_maps[index];
  const int sizes[] = {columns, rows, heads, slots};
  const int64_t strides[] = {row, head, slot};
  assert_ptr_equal(map->address, address);
  for (int i = 0; i < 4; i++)
    assert_int_equal(map->size[i], sizes[i]);
  for (int i = 0; i < 3; i++)
    if (strides[i])
      assert_int_equal(map->stride[i], strides[i]);
  assert_int_equal(map->box[0], 64);
  assert_int_equal(map->box[1], box_rows);
  assert_int_equal(map->box[2], 1);
  assert_int_equal(map->box[3], 1);
  assert_int_equal(map->swizzle, 3);
  assert_int_equal(map->promotion, 3);
  assert_int_equal(map->fill, 0);
}

static void test_dense(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_string_equal(info.architecture, "sm_90a");
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  fake->maps = 3;
  must(run_with(plan, &arguments)); /* [batch, row, head, dim] */
  assert_int_equal(fake->launches, 1);
  check_map(0, arguments.q.data, 64, 300, 4, 2, 512, 128, 300 * 512, 128);
  check_map(1, arguments.k.data, 64, 500, 2, 2, 256, 128, 500 * 256, 64);
  check_map(2, arguments.v.data, 96, 500, 2, 2, 384, 192, 500 * 384, 64);
  assert_int_equal(fake->last_maps[0].type, 9); /* bf16 */

  arguments.k.stride_row = 64; /* [batch, head, row, dim] */
  arguments.k.stride_head = 500 * 64;
  arguments.k.stride_batch = 2 * 500 * 64;
  must(run_with(plan, &arguments));
  check_map(1, arguments.k.data, 64, 500, 2, 2, 128, 500 * 128, 2 * 500 * 128, 64);

  arguments.k.stride_head = 0; /* expanded: one head that all share */
  must(run_with(plan, &arguments));
  assert_int_equal(fake->last_maps[1].stride[1], 0);
  arguments.k.stride_head = -64;
  must_fail(run_with(plan, &arguments), ROTA_INVALID_ARGUMENT,
            "k.stride_head is -64|copy engine|ROTA_LAYOUT_ANY");
  arguments.k.stride_head = (int64_t)1 << 39;
  must_fail(run_with(plan, &arguments), ROTA_INVALID_ARGUMENT, "k.stride_head|2^40");
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* One head, one sequence: whatever their strides are, the driver is asked for legal ones. */
static void test_single(void **state) {
  (void)state;
  rota_context *context = make_context();
  Problem one = problem;
  one.batch = one.heads = one.kv_heads = 1;
  rota_kernel *kernel =
      calls_kernel(context, "return rota.attention{head_dim = 64, head_dim_v = 96, dtype = 'fp16'}",
                   ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &one, NULL, 0);
  rota_arguments arguments = problem_arguments(&one, NULL);
  arguments.q.stride_head = 3;
  arguments.q.stride_batch = -1;
  arguments.k.stride_batch = (int64_t)1 << 60;
  fake->maps = 3;
  must(run_with(plan, &arguments));
  check_map(0, arguments.q.data, 64, 300, 1, 1, 128, 0, 0, 128);
  check_map(1, arguments.k.data, 64, 500, 1, 1, 128, 0, 0, 64);
  assert_int_equal(fake->last_maps[0].type, 6); /* fp16 */
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Heads side by side: they come before the rows, in the map and in its box. */
static void test_heads_of_a_group(void **state) {
  (void)state;
  rota_context *context = make_context();
  Problem narrow = problem;
  narrow.dim = narrow.dim_v = 32;
  rota_kernel *kernel = calls_kernel(
      context, "return rota.attention{head_dim = 32, heads = 4, kv_heads = 2, mask = causal}",
      ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &narrow, NULL, 0);
  rota_arguments arguments = problem_arguments(&narrow, NULL);
  fake->maps = 3;
  must(run_with(plan, &arguments)); /* [batch, row, head, dim] */
  const FakeMap *map = &fake->last_maps[0];
  const int sizes[] = {32, 4, 300, 2}, box[] = {64, 2, 60, 1};
  const int64_t strides[] = {64, 256, 300 * 256};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(map->size[i], sizes[i]);
    assert_int_equal(map->box[i], box[i]);
    if (i < 3)
      assert_int_equal(map->stride[i], strides[i]);
  }
  check_map(1, arguments.k.data, 32, 500, 2, 2, 128, 64, 500 * 128, 64);
  assert_int_equal(fake->last_grid, 5 * 2 * 2); /* tiles, pairs of heads, sequences */
  arguments.q.stride_head = -32;
  must_fail(run_with(plan, &arguments), ROTA_INVALID_ARGUMENT, "q.stride_head is -32");
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Sequences one after another: rows of them all, and no slots. */
static void test_packed(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  static const int32_t cu_q[] = {0, 100, 250, 600}, cu_k[] = {0, 100, 900, 1000};
  rota_plan_request request = {.lengths = {.batch = 3, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}};
  rota_plan *plan;
  must(rota_plan_create(kernel, &request, &plan));
  rota_arguments arguments = problem_arguments(&problem, NULL);
  fake->maps = 3;
  must(run_with(plan, &arguments));
  check_map(0, arguments.q.data, 64, 600, 4, 1, 512, 128, 0, 128);
  check_map(1, arguments.k.data, 64, 1000, 2, 1, 256, 128, 0, 64);
  check_map(2, arguments.v.data, 96, 1000, 2, 1, 384, 192, 0, 64);
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Queries without a single key: K and V may be NULL, their maps are maps nevertheless. */
static void test_empty(void **state) {
  (void)state;
  rota_context *context = make_context();
  Problem empty = problem;
  empty.n_k = 0;
  rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &empty);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  arguments.k.data = arguments.v.data = NULL;
  fake->maps = 3;
  must(run_with(plan, &arguments));
  assert_int_equal(fake->launches, 1);
  check_map(1, fake->last_maps[2].address, 8, 1, 1, 1, 0, 0, 0, 64);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

static void test_backward(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_plan *plan = calls_prepare(context, script, ROTA_BACKWARD, ROTA_DEVICE_CUDA, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  fake->maps = 8;
  must(run_with(plan, &arguments));
  assert_int_equal(fake->launches, 3);
  assert_int_equal(fake->overlapping_launches, 2);
  check_map(0, arguments.d_o.data, 96, 300, 4, 2, 768, 192, 300 * 768, 128);
  check_map(2, arguments.d_v.data, 96, 500, 2, 2, 384, 192, 500 * 384, 64);
  check_map(6, arguments.d_q.data, 64, 300, 4, 2, 512, 128, 300 * 512, 128);
  check_map(7, arguments.d_k.data, 64, 500, 2, 2, 256, 128, 500 * 256, 64);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* A driver before 11.8: each kernel waits for the one before it. */
/* The spread bound goes by what its own forward pass wrote, and by nothing else. */
static void test_spread(void **state) {
  (void)state;
  static const char spread[] = "return rota.attention{head_dim = 64, head_dim_v = 96, heads = 4, "
                               "kv_heads = 2, mask = causal, backward = 'exact', bound = 'spread'}";
  static const char *const words[] = {"mean_square.data is NULL|forward writes it",
                                      "mean_square.data is NULL|forward pass|bound = \"norm\""};
  rota_context *context = make_context();
  for (int direction = 0; direction < 2; direction++) {
    rota_plan *plan =
        calls_prepare(context, spread, (rota_direction)direction, ROTA_DEVICE_CUDA, &problem);
    rota_arguments arguments = problem_arguments(&problem, NULL);
    must_fail(run_with(plan, &arguments), ROTA_INVALID_ARGUMENT, words[direction]);
    arguments.mean_square = arguments.lse;
    must(run_with(plan, &arguments));
    rota_plan_destroy(plan);
  }
  rota_context_destroy(context);
}

static void test_overlap_is_optional(void **state) {
  (void)state;
  const Driver *driver;
  must(driver_get(&driver));
  CUresult (*kept)(const LaunchConfig *, CUfunction, void **, void **) = driver->launch_extended;
  ((Driver *)driver)->launch_extended = NULL;
  rota_context *context = make_context();
  rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  must(run_with(plan, &arguments));
  assert_int_equal(fake->launches, 1);
  assert_int_equal(fake->overlapping_launches, 0);
  ((Driver *)driver)->launch_extended = kept;
  must(run_with(plan, &arguments));
  assert_int_equal(fake->overlapping_launches, 1);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* A driver before 12.0: other kernels are chosen; one made elsewhere is refused when run. */
static void test_maps_are_optional(void **state) {
  (void)state;
  const Driver *driver;
  must(driver_get(&driver));
  Driver *changed = (Driver *)driver;
  const Driver before = *driver;
  rota_context *context = make_context();
  rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  changed->tensor_map_encode = NULL;
  must_fail(run_with(plan, &arguments), ROTA_UNSUPPORTED, "tensor maps|device 0|CUDA 12.0");
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  context = make_context(); /* its device is looked at anew */
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_string_equal(info.architecture, "sm_90");
  plan = calls_plan(kernel, &problem, NULL, 0);
  must(run_with(plan, &arguments));
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  *changed = before;
}

/* NVRTC before 12.0 knows no sm_90a: what it knows serves, and that is said. */
static void test_old_compiler(void **state) {
  (void)state;
  Workbench bench;
  workbench_open(&bench);
  rota_context_options options = {.cache_dir = "", .debug = 0};
  options.nvrtc_path = workbench_fake_nvrtc(&bench, "old/libnvrtc.so.11", "-DFAKE_VERSION=11080");
  rota_context *context;
  must(rota_context_create(&options, &context));
  workbench_capture(&bench);
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  assert_int_equal(workbench_release(&bench), 1);
  assert_non_null(strstr(workbench_captured(), "slower kernels"));
  assert_non_null(strstr(workbench_captured(), "does not know the architecture sm_90a"));
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_string_equal(info.architecture, "sm_90");
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  workbench_close(&bench);
}

/* As many blocks as run at once, or as there are items. */
static void test_row_workers(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  must(run_with(plan, &arguments));
  assert_int_equal(fake->last_grid, 3 * 4 * 2);
  rota_plan_destroy(plan);
  static const int32_t cu[] = {0, 128 * 40};
  rota_plan_request request = {.lengths = {.batch = 1, .cu_seqlens_q = cu, .cu_seqlens_k = cu}};
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  must(rota_plan_create(kernel, &request, &plan));
  must(run_with(plan, &arguments));
  assert_int_equal(fake->last_grid, 132); /* of 160 */
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Workers that wait for one another are launched together, without overlap. */
static void test_cooperative(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_plan *plan =
      calls_prepare(context,
                    "return rota.attention{head_dim = 64, head_dim_v = 96, heads = 4, kv_heads = "
                    "2, backward = 'ordered', schedule = 'shift'}",
                    ROTA_BACKWARD, ROTA_DEVICE_CUDA, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  must(run_with(plan, &arguments));
  assert_int_equal(fake->launches, 3);
  assert_int_equal(fake->cooperative_launches, 1);
  assert_int_equal(fake->overlapping_launches, 1);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* Maps and overlaps travel with an exported kernel and its saved plan. */
static void test_export(void **state) {
  (void)state;
  char path[] = "/tmp/rota_test_XXXXXX", saved[] = "/tmp/rota_test_XXXXXX";
  close(mkstemp(path));
  close(mkstemp(saved));
  rota_context *context = make_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_BACKWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0);
  must(rota_kernel_export(kernel, path));
  must(rota_plan_save(plan, saved));
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);

  context = make_context();
  must(rota_kernel_import(context, path, 0, &kernel));
  must(rota_plan_load(kernel, saved, &plan));
  rota_arguments arguments = problem_arguments(&problem, NULL);
  fake->maps = 8;
  must(run_with(plan, &arguments));
  assert_int_equal(fake->overlapping_launches, 2);
  check_map(0, arguments.d_o.data, 96, 300, 4, 2, 768, 192, 300 * 768, 128);
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  unlink(path);
  unlink(saved);
}

static int second_run(const char *nvrtc) {
  fake_nvrtc = nvrtc;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  fake = library ? dlsym(library, "fake_driver") : NULL;
  if (!fake) {
    fprintf(stderr, "the stand-in for libcuda.so.1 was not found\n");
    return 1;
  }
  problem_create(&problem, 1);
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_dense),
      TEST(test_single),
      TEST(test_heads_of_a_group),
      TEST(test_packed),
      TEST(test_empty),
      TEST(test_backward),
      TEST(test_spread),
      TEST(test_overlap_is_optional),
      TEST(test_maps_are_optional),
      TEST(test_old_compiler),
      TEST(test_row_workers),
      TEST(test_cooperative),
      TEST(test_export),
  };
  int failures = cmocka_run_group_tests(tests, NULL, NULL);
  problem_free(&problem);
  dlclose(library);
  return failures;
}

int main(int count, char **words) {
  if (count == 2)
    return second_run(words[1]);
  Workbench bench;
  workbench_open(&bench);
  workbench_clean_environment();
  workbench_write(workbench_path(&bench, "own/lua/architectures/hopper.lua"), architecture,
                  sizeof architecture - 1);
  workbench_write(workbench_path(&bench, "own/templates/test.cuh"), device_code,
                  sizeof device_code - 1);
  setenv("ROTA_OVERRIDE_DIR", workbench_path(&bench, "own"), 1);
  int result = workbench_fake_driver(&bench);
  workbench_close(&bench);
  return result;
}
