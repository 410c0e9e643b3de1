/* Exported kernels: the same kernel from a file, and every kind of damage noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/text.h"
#include "runtime/export_meta.h"
#include "tests/support/calls.h"

/* Parameters of equal names, constants, tensors, a float that decimals do not hold: what a file
 * must carry. */
static const char *const models[] = {
    "head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal, scale = 1/3",
    "head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', sink_logit = true, "
    "mask = causal & (window(30, 0) | window(3, 5) | sinks(2))",
    "head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = ~(causal & chunk(16)), "
    "score = alibi >> softcap(30)",
    "head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', "
    "mask = where('k <= q + reach and (q - k) % 3 ~= 1', {reach = 7}), "
    "score = score('s * 0.1 + select(q > k, 1e-3, -2.5) * w', {w = 0.7})",
    "head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal, schedule = { "
    "name = 'mine', pattern = function(map) return {"
    "visits = function(chain) return {{map.q_tiles - 1, 0, -1}} end} end }",
};
enum { MODELS = sizeof models / sizeof models[0] };

static Problem make_problem(bool sink) {
  Problem problem = {.dtype = ROTA_FP32,
                     .batch = 2,
                     .n_q = 130,
                     .n_k = 150,
                     .heads = 4,
                     .kv_heads = 2,
                     .dim = 16,
                     .dim_v = 16,
                     .sink = sink};
  problem_create(&problem, 11);
  return problem;
}

static void scratch_path(char name[64]) {
  snprintf(name, 64, "/tmp/rota_test_XXXXXX");
  int file = mkstemp(name);
  assert_true(file >= 0);
  close(file);
}

static void run_kernel(const rota_kernel *kernel, bool alibi, const Problem *problem,
                       char digest[ROTA_DIGEST_SIZE]) {
  float slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f};
  rota_named_tensor slope = {"slope", ROTA_FP32, 1, {4}, {1}, slopes};
  rota_plan *plan = calls_plan(kernel, problem, &slope, alibi);
  rota_arguments arguments = problem_arguments(problem, NULL);
  must(calls_run_host(plan, &arguments));
  rota_plan_digest(plan, digest);
  rota_plan_destroy(plan);
}

static void test_round_trip(void **state) {
  (void)state;
  char path[64];
  scratch_path(path);
  for (int i = 0; i < MODELS * 2; i++) {
    char script[512], digests[2][ROTA_DIGEST_SIZE];
    snprintf(script, sizeof script, "return rota.attention{%s}", models[i / 2]);
    bool alibi = strstr(script, "alibi"), sink = strstr(script, "sink_logit");
    rota_direction direction = i % 2 ? ROTA_BACKWARD : ROTA_FORWARD;
    rota_context *context = calls_context(), *other = calls_context();
    rota_kernel *kernel =
        calls_kernel(context, script, direction, ROTA_DEVICE_CPU, ROTA_LAYOUT_ANY);
    rota_kernel *imported;
    Problem problem = make_problem(sink);
    memset(problem.block + problem.offset[PROBLEM_o], 0,
           problem.bytes - problem.offset[PROBLEM_o]); /* O, LSE and the gradients */
    run_kernel(kernel, alibi, &problem, digests[0]);
    unsigned char *copy = malloc(problem.bytes);
    assert_non_null(copy);
    memcpy(copy, problem.block, problem.bytes);
    must(rota_kernel_export(kernel, path));
    must(rota_kernel_import(other, path, 0, &imported));
    run_kernel(imported, alibi, &problem, digests[1]);
    assert_string_equal(digests[0], digests[1]);
    assert_memory_equal(copy, problem.block, problem.bytes);
    assert_string_equal(rota_kernel_source(kernel), rota_kernel_source(imported));
    rota_kernel_info infos[2];
    rota_kernel_get_info(kernel, &infos[0]);
    rota_kernel_get_info(imported, &infos[1]);
    assert_string_equal(infos[0].algorithm, infos[1].algorithm);
    assert_string_equal(infos[0].architecture, infos[1].architecture);
    free(copy);
    rota_kernel_destroy(imported);
    rota_kernel_destroy(kernel);
    rota_context_destroy(other);
    rota_context_destroy(context);
    problem_free(&problem);
  }
  unlink(path);
}

/* What only kernels for a GPU have: told by one for the CPU, with whose program it does not go. */
static void test_tensor_maps_are_told(void **state) {
  (void)state;
  char script[512], *meta;
  snprintf(script, sizeof script, "return rota.attention{%s}", models[0]);
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ANY);
  kernel->tiling.map_count = 2;
  kernel->tiling.maps[0] = (TilingMap){MAPPED_q, 16, 8};
  kernel->tiling.maps[1] = (TilingMap){MAPPED_k, 128, 0};
  must(export_meta_write(kernel, &meta));
  assert_non_null(strstr(meta, "\"tensor_maps\":[[0,16,8],[1,128,0]]"));
  free(meta);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

static void write_bytes(const char *path, const char *data, size_t length) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, length, file), length);
  fclose(file);
}

static void test_damage(void **state) {
  (void)state;
  char path[64], *data;
  size_t length;
  scratch_path(path);
  char script[512];
  snprintf(script, sizeof script, "return rota.attention{%s}", models[1]);
  rota_context *context = calls_context();
  rota_kernel *kernel =
                  calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ANY),
              *imported;
  must(rota_kernel_export(kernel, path));
  must(text_read_file(path, &data, &length));
  /* One byte flipped, all over the file: the first line and the rest. */
  for (size_t i = 0; i < length; i += i < 120 ? 1 : length / 50) {
    data[i] ^= 1;
    write_bytes(path, data, length);
    must_fail(rota_kernel_import(context, path, 0, &imported), ROTA_FILE, path);
    assert_null(imported);
    data[i] ^= 1;
  }
  for (size_t cut = 0; cut < length; cut += 1 + length / 20) {
    write_bytes(path, data, cut);
    must_fail(rota_kernel_import(context, path, 0, &imported), ROTA_FILE, path);
  }
  char *newer = memory_copy_string(data);
  memcpy(strstr(newer, "0.1.0"), "9.1.0", 5);
  memcpy(data, newer, strlen("rota-kernel 1 9.1.0"));
  free(newer);
  write_bytes(path, data, length);
  must_fail(rota_kernel_import(context, path, 0, &imported), ROTA_FILE,
            "Rota 9.1.0|export the kernel again");
  must_fail(rota_kernel_import(context, "/nonexistent/kernel", 0, &imported), ROTA_FILE,
            "/nonexistent/kernel");
  must_fail(rota_kernel_export(kernel, "/nonexistent/kernel"), ROTA_FILE, "/nonexistent/kernel");
  free(data);
  unlink(path);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_tensor_maps_are_told),
      cmocka_unit_test(test_damage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
