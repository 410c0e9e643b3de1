/* Tensor maps, wgmma and overlapping launches end to end on sm_90, by a kernel of the test's own: O
 * = Q K^T against the first 64 keys, with all tiles brought by the copy engine. Sums of products of
 * -1, 0 and 1 are exact, so results must be equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/calls.h"
#include "tests/support/gpu.h"
#include "tests/support/workbench.h"

enum { DIM = 128, COLUMNS = 64, GROUP = 2 };

static const char architecture[] =
    "return { name = 'hopper', priority = 10, code = 'sm_90a',\n"
    "  serves = function() return true end,\n"
    "  tilings = function() return { { template = 'templates/test.cuh', tile_q = 64,\n"
    "    tile_kv = 64, workers = 132,\n"
    "    wgmma = { 64 }, tensor_maps = { { tensor = 'q', rows = 64 }, { tensor = 'k', rows = 64 } "
    "},\n"
    "    launches = { { entry = 'rota_forward', grid = 'row_workers', threads = 128,\n"
    "      shared_bytes = 33 * 1024, overlaps = true } } } } end }\n";

static const char device_code[] =
    "#include \"templates/lib/barrier.cuh\"\n"
    "#include \"templates/lib/tables.cuh\"\n"
    "#include \"templates/lib/warpgroup.cuh\"\n"
    "namespace rota {\n"
    "ROTA_DEVICE void forward(const RotaArguments &arguments, const RotaTensorMaps &maps) {\n"
    "  extern __shared__ unsigned char dynamic[];\n"
    "  __shared__ unsigned long long word;\n"
    "  const unsigned barrier = (unsigned)__cvta_generic_to_shared(&word);\n"
    "  const unsigned q = ((unsigned)__cvta_generic_to_shared(dynamic) + 1023) & ~1023u;\n"
    "  const unsigned k = q + kTileQ * kHeadDim * 2;\n"
    "  if (threadIdx.x == 0) { barrier_init(barrier, 1); barrier_init_fence(); }\n"
    "  __syncthreads();\n"
    "  wait_for_predecessor();\n"
    "  int parity = 0;\n"
    "  const int end = arguments.queue[blockIdx.x + 1];\n"
    "  for (int i = arguments.queue[blockIdx.x]; i < end; i++, parity ^= 1) {\n"
    "    const RotaItem item = arguments.row_items[i];\n"
    "    const RotaRow row = arguments.rows[item.index];\n"
    "    const RotaSequence &sequence = arguments.sequences[row.sequence];\n"
    "    const int begin = row.q_tile * kTileQ;\n"
    "    if (threadIdx.x == 0) {\n"
    "      barrier_expect(barrier, (kTileQ + kTileKv) * kHeadDim * 2);\n"
    "      copy_boxes<kHeadDim, kTileQ>(q, &maps.map[kMapQ], (int)sequence.begin_q + begin,\n"
    "                                   item.head, sequence.slot, barrier);\n"
    "      copy_boxes<kHeadDim, kTileKv>(k, &maps.map[kMapK], (int)sequence.begin_k,\n"
    "                                    item.head / kGroup, sequence.slot, barrier);\n"
    "    }\n"
    "    barrier_wait_phase(barrier, parity);\n"
    "    float d[kTileKv / 2];\n"
    "    wgmma_fence();\n"
    "#pragma unroll\n"
    "    for (int step = 0; step < kHeadDim / 16; step++) {\n"
    "      const Descriptor a = advance(describe_along(q), step_along(kTileQ, step));\n"
    "      const Descriptor b = advance(describe_along(k), step_along(kTileKv, step));\n"
    "      if (step == 0) Wgmma<kTileKv>::multiply<0, 0>(d, a, b);\n"
    "      else Wgmma<kTileKv>::accumulate<0, 0>(d, a, b);\n"
    "    }\n"
    "    wgmma_commit();\n"
    "    wgmma_wait<0>();\n"
    "    wgmma_touch(d);\n"
    "#pragma unroll\n"
    "    for (int j = 0; j < kTileKv / 2; j++) {\n"
    "      const int r = begin + 16 * warp_index() + j % 4 / 2 * 8 + lane_index() / 4;\n"
    "      const int column = j / 4 * 8 + lane_index() % 4 * 2 + j % 2;\n"
    "      if (r < sequence.n_q)\n"
    "        row_q<Element>(arguments.o, sequence, r, item.head)[column] =\n"
    "            from_float(d[j], Element());\n"
    "    }\n"
    "    __syncthreads();\n"
    "  }\n"
    "}\n"
    "}\n";

static Gpu gpu;
static Workbench bench;

/* A shape, as strides of Q (K's are alike, with fewer heads), and how it is launched. */
typedef struct Case {
  const char *name;
  int batch, n_q, n_k, kv_heads;
  bool heads_first; /* [batch, head, row, dim]; else [batch, row, head, dim] */
  bool expanded;    /* one kv head and one slot of K that all share */
  bool packed;      /* as the second and third of three sequences */
  bool graph;
} Case;

static const Case cases[] = {
    {.name = "dense", .batch = 2, .n_q = 200, .n_k = 100, .kv_heads = 2},
    {.name = "heads first", .batch = 2, .n_q = 200, .n_k = 100, .kv_heads = 2, .heads_first = true},
    {.name = "few keys", .batch = 3, .n_q = 70, .n_k = 5, .kv_heads = 1},
    {.name = "one of each", .batch = 1, .n_q = 1, .n_k = 1, .kv_heads = 1},
    {.name = "expanded", .batch = 2, .n_q = 130, .n_k = 80, .kv_heads = 3, .expanded = true},
    {.name = "packed", .batch = 3, .n_q = 100, .n_k = 90, .kv_heads = 2, .packed = true},
    {.name = "graph", .batch = 2, .n_q = 9000, .n_k = 64, .kv_heads = 2, .graph = true},
};

typedef struct Tensor {
  rota_tensor place; /* data in the GPU's memory */
  uint16_t *host;
  size_t count;
} Tensor;

static Tensor make_tensor(const Case *one, int slots, int rows, int heads, int dim, bool shared) {
  Tensor tensor = {.count = (size_t)slots * (size_t)rows * (size_t)heads * (size_t)dim};
  tensor.host = malloc(tensor.count * sizeof *tensor.host);
  assert_non_null(tensor.host);
  for (size_t i = 0; i < tensor.count; i++) {
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    tensor.host[i] = (const uint16_t[]){0, 0x3f80, 0xbf80}[(seed >> 16) % 3];
  }
  tensor.place.data = gpu_allocate(&gpu, tensor.count * sizeof *tensor.host);
  tensor.place.stride_row = one->heads_first ? dim : heads * dim;
  tensor.place.stride_head = one->heads_first ? rows * dim : dim;
  tensor.place.stride_batch = (int64_t)rows * heads * dim;
  if (shared)
    tensor.place.stride_head = tensor.place.stride_batch = 0;
  gpu_write(&gpu, tensor.place.data, tensor.host, tensor.count * sizeof *tensor.host);
  return tensor;
}

static void free_tensor(Tensor *tensor) {
  gpu_free(&gpu, tensor->place.data);
  free(tensor->host);
}

static float value_at(const Tensor *tensor, int slot, int row, int head, int i) {
  int64_t index = slot * tensor->place.stride_batch + row * tensor->place.stride_row +
                  head * tensor->place.stride_head + i;
  uint32_t bits = (uint32_t)tensor->host[index] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Where rows of all sequences lie one after another the first keys are the sequence's own, and what
 * follows them is its neighbour's; beyond the tensor all is zero. */
static float expected(const Case *one, const Tensor *q, const Tensor *k, int b, int row, int head,
                      int column) {
  int slot = one->packed ? 0 : b;
  int first_q = one->packed ? b * one->n_q : 0, first_k = one->packed ? b * one->n_k : 0;
  int rows_k = one->packed ? one->batch * one->n_k : one->n_k;
  if (first_k + column >= rows_k)
    return 0;
  float sum = 0;
  for (int i = 0; i < DIM; i++)
    sum += value_at(q, slot, first_q + row, head, i) *
           value_at(k, slot, first_k + column, head / GROUP, i);
  return sum;
}

static void check_results(const Case *one, const Tensor *q, const Tensor *k, Tensor *o) {
  gpu_read(&gpu, o->host, o->place.data, o->count * sizeof *o->host);
  for (int b = 0; b < one->batch; b++)
    for (int row = 0; row<one->n_q; row += one->n_q> 1000 ? 37 : 1)
      for (int head = 0; head < GROUP * one->kv_heads; head++)
        for (int column = 0; column < COLUMNS; column++) {
          float want = expected(one, q, k, b, row, head, column);
          float got = value_at(o, one->packed ? 0 : b, (one->packed ? b * one->n_q : 0) + row, head,
                               column);
          if (got != want)
            fail_msg("%s: sequence %d, row %d, head %d, column %d: %g, not %g", one->name, b, row,
                     head, column, (double)got, (double)want);
        }
}

static rota_plan *make_plan(rota_context *context, const Case *one) {
  char script[128];
  snprintf(script, sizeof script,
           "return rota.attention{head_dim = %d, head_dim_v = %d, heads = %d, kv_heads = %d}", DIM,
           COLUMNS, GROUP * one->kv_heads, one->kv_heads);
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  int32_t cu_q[4] = {0}, cu_k[4] = {0};
  for (int b = 0; b < one->batch; b++) {
    cu_q[b + 1] = (b + 1) * one->n_q;
    cu_k[b + 1] = (b + 1) * one->n_k;
  }
  rota_plan_request request = {.lengths = {.batch = one->batch, .n_q = one->n_q, .n_k = one->n_k}};
  if (one->packed)
    request.lengths =
        (rota_lengths){.batch = one->batch, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k};
  rota_plan *plan;
  must(rota_plan_create(kernel, &request, &plan));
  rota_kernel_destroy(kernel);
  return plan;
}

/* A second run overlaps the first, or both are parts of a graph. */
static void run_twice(const Case *one, const rota_plan *plan, const rota_arguments *arguments) {
  if (!one->graph) {
    for (int i = 0; i < 2; i++)
      must(rota_run(plan, arguments, NULL, 0, gpu.stream));
    gpu_synchronize(&gpu, gpu.stream);
    return;
  }
  gpu_capture_begin(&gpu, gpu.stream, CAPTURE_GLOBAL);
  for (int i = 0; i < 2; i++)
    must(rota_run(plan, arguments, NULL, 0, gpu.stream));
  CUgraphExec graph = gpu_capture_end(&gpu, gpu.stream);
  gpu_graph_launch(&gpu, graph, gpu.stream);
  gpu_synchronize(&gpu, gpu.stream);
  gpu_graph_destroy(&gpu, graph);
}

static void test_products(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const Case *one = &cases[i];
    rota_context *context = calls_context();
    rota_plan *plan = make_plan(context, one);
    int slots = one->packed ? 1 : one->batch, times = one->packed ? one->batch : 1;
    int heads = GROUP * one->kv_heads;
    Tensor q = make_tensor(one, slots, times * one->n_q, heads, DIM, false);
    Tensor k = make_tensor(one, slots, times * one->n_k, one->kv_heads, DIM, one->expanded);
    Tensor o = make_tensor(one, slots, times * one->n_q, heads, COLUMNS, false);
    float *lse = gpu_allocate(&gpu, q.count * sizeof *lse);
    rota_arguments arguments = {.q = q.place, .k = k.place, .v = k.place, .o = o.place};
    arguments.lse = (rota_tensor){lse, (int64_t)one->n_q * heads, heads, 1};
    run_twice(one, plan, &arguments);
    check_results(one, &q, &k, &o);
    printf("%s: right\n", one->name);
    gpu_free(&gpu, lse);
    free_tensor(&q);
    free_tensor(&k);
    free_tensor(&o);
    rota_plan_destroy(plan);
    rota_context_destroy(context);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_products)};
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  if (gpu.device->target.sm != 90 || !gpu.device->target.tensor_maps) {
    printf("SKIPPED: for sm_90 and a driver for CUDA 12.0\n");
    return TEST_SKIP;
  }
  workbench_open(&bench);
  workbench_write(workbench_path(&bench, "lua/architectures/hopper.lua"), architecture,
                  sizeof architecture - 1);
  workbench_write(workbench_path(&bench, "templates/test.cuh"), device_code,
                  sizeof device_code - 1);
  setenv("ROTA_OVERRIDE_DIR", bench.root, 1);
  int failures = cmocka_run_group_tests(tests, NULL, NULL);
  workbench_close(&bench);
  gpu_close(&gpu);
  return failures;
}
