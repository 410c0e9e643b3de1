/* Attention with gradients from C: script, spec, kernels, plans, forward, backward.
 *
 *     cc embed.c $(pkg-config --cflags --libs rota) -lm -o embed && ./embed
 *
 * It runs on the CPU device, so that it works everywhere. On a GPU three things change, marked
 * (CUDA) below: the device in the request, where the tensors and the workspace live, and the
 * stream. */
#include <math.h>
#include <rota/rota.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, LENGTH = 200, HEADS = 4, KV_HEADS = 2, DIM = 64 };

/* What is computed. Another window is no new kernel: it is a named parameter of the mask. */
static const char script[] = "return rota.attention {\n"
                             "  head_dim = 64, heads = 4, kv_heads = 2, dtype = 'fp32',\n"
                             "  mask = causal & window(128, 0),\n"
                             "  score = softcap(30),\n"
                             "}\n";

/* Every call that can fail returns a status; the message says what, where, and what to do. */
static void check(rota_status status) {
  if (status == ROTA_OK)
    return;
  fprintf(stderr, "%s: %s\n", rota_status_name(status), rota_error_message());
  exit(1);
}

static void *reserve(size_t bytes, size_t alignment) {
  void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory)
    abort();
  memset(memory, 0, bytes);
  return memory;
}

/* A [batch, row, head, dim] tensor: strides are in elements, and any order of the first three
 * dimensions will do. (CUDA) cudaMalloc or your framework's tensor instead; only `data` changes. */
static rota_tensor make_tensor(int heads, int dim) {
  rota_tensor tensor = {.stride_batch = (int64_t)LENGTH * heads * dim,
                        .stride_row = (int64_t)heads * dim,
                        .stride_head = dim};
  tensor.data = reserve(sizeof(float) * (size_t)(BATCH * LENGTH * heads * dim), 64);
  return tensor;
}

static void fill(rota_tensor tensor, int heads, uint32_t seed) {
  float *values = tensor.data;
  for (int i = 0; i < BATCH * LENGTH * heads * DIM; i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f; /* -1 .. 1 */
  }
}

/* A kernel serves all lengths, a plan one shape. A plan keeps what it needs of its kernel. */
static rota_plan *make_plan(rota_context *context, const rota_spec *spec,
                            rota_direction direction) {
  /* (CUDA) .device = ROTA_DEVICE_CUDA, or ROTA_DEVICE_AUTO for whatever is there. */
  rota_kernel_request request = {.direction = direction, .device = ROTA_DEVICE_CPU};
  rota_kernel *kernel;
  check(rota_kernel_prepare(context, spec, &request, &kernel));

  rota_plan_request shape = {.lengths = {.batch = BATCH, .n_q = LENGTH, .n_k = LENGTH}};
  rota_plan *plan;
  check(rota_plan_create(kernel, &shape, &plan));
  rota_kernel_destroy(kernel);
  return plan;
}

static void run(const rota_plan *plan, const rota_arguments *arguments) {
  /* (CUDA) device memory, kept from call to call; and your CUstream or cudaStream_t in place of
   * NULL. The call is asynchronous there, allocates nothing, and may be captured in a graph. */
  size_t bytes = rota_plan_workspace_size(plan);
  void *workspace = bytes ? reserve(bytes, 256) : NULL;
  check(rota_run(plan, arguments, workspace, bytes, NULL));
  free(workspace);
}

int main(void) {
  rota_context *context;
  rota_spec *spec;
  check(rota_context_create(NULL, &context));
  check(rota_spec_create_from_script(context, script, "embed.lua", &spec));
  rota_plan *forward = make_plan(context, spec, ROTA_FORWARD);
  rota_plan *backward = make_plan(context, spec, ROTA_BACKWARD);
  rota_spec_destroy(spec);

  rota_arguments arguments = {.q = make_tensor(HEADS, DIM),
                              .k = make_tensor(KV_HEADS, DIM),
                              .v = make_tensor(KV_HEADS, DIM),
                              .o = make_tensor(HEADS, DIM),
                              .lse = make_tensor(HEADS, 1), /* fp32, one per row and head */
                              .d_o = make_tensor(HEADS, DIM),
                              .d_q = make_tensor(HEADS, DIM),
                              .d_k = make_tensor(KV_HEADS, DIM),
                              .d_v = make_tensor(KV_HEADS, DIM)};
  fill(arguments.q, HEADS, 1);
  fill(arguments.k, KV_HEADS, 2);
  fill(arguments.v, KV_HEADS, 3);
  fill(arguments.d_o, HEADS, 4);

  run(forward, &arguments);
  run(backward, &arguments);

  /* Gradients are bit for bit reproducible: the same digest and inputs give the same bits. */
  size_t bytes = sizeof(float) * BATCH * LENGTH * HEADS * DIM;
  float *first = reserve(bytes, 64);
  memcpy(first, arguments.d_q.data, bytes);
  run(backward, &arguments);
  double norm = 0;
  for (size_t i = 0; i < bytes / sizeof(float); i++)
    norm += (double)first[i] * first[i];
  char digest[ROTA_DIGEST_SIZE];
  rota_plan_digest(backward, digest);
  printf("rota %s\n|dQ| = %.6f\ndigest of the backward: %s\nsame bits again: %s\n", rota_version(),
         sqrt(norm), digest, memcmp(first, arguments.d_q.data, bytes) == 0 ? "yes" : "NO");

  free(first);
  rota_tensor *tensors[] = {&arguments.q,   &arguments.k,   &arguments.v,
                            &arguments.o,   &arguments.lse, &arguments.d_o,
                            &arguments.d_q, &arguments.d_k, &arguments.d_v};
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
    free(tensors[i]->data);
  rota_plan_destroy(backward);
  rota_plan_destroy(forward);
  rota_context_destroy(context);
  return 0;
}
