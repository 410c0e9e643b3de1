/* Large head dims on the GPU against fp64: what passes matrices through memory there, and what
 * serves where that cannot. Masks, scores, sinks, groups, packed and used lengths; the same bits
 * again, and with a workspace too small for the plane at once. Prints a line each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/trial.h"

enum { REPEATS = 20 };

static const int32_t packed_q[] = {0, 0, 108, 348, 348, 476};
static const int32_t packed_k[] = {0, 138, 280, 520, 692, 692};
static const int32_t used_q[] = {200, 77}, used_k[] = {251, 0};

#define WINDOW "where \"k <= q - 15 and k > q - 143\"" /* rows 0 .. 14 are empty */
#define FREE   "where \"(q >= k and q - k <= 100) or (q >= 4 and k <= 4)\""

/* For scores: a slope per head; a bias per head and distance -700 .. 699. */
enum { HEADS = 4, SPAN = 1400 };
static float slopes[HEADS], biases[HEADS * SPAN];
static const rota_named_tensor slope = {"slope", ROTA_FP32, 1, {HEADS}, {1}, slopes};
static const rota_named_tensor bias = {"bias", ROTA_FP32, 2, {HEADS, SPAN}, {SPAN, 1}, biases};
#define BIAS "relative_bias(700)"

static const TrialShape shapes[] = {
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 4,
     .kv_heads = 2,
     .n_q = 500,
     .n_k = 500,
     .mask = "causal"},
    {.dtype = ROTA_BF16, .head_dim = 512, .heads = 1, .n_q = 233, .n_k = 600},
    {.dtype = ROTA_FP16,
     .head_dim = 512,
     .heads = 4,
     .n_q = 300,
     .n_k = 300,
     .mask = "causal",
     .score = "softcap(10)",
     .sink = true},
    {.dtype = ROTA_BF16,
     .head_dim = 576,
     .head_dim_v = 512,
     .heads = 4,
     .kv_heads = 1,
     .n_q = 200,
     .n_k = 300,
     .mask = "causal",
     .sink = true,
     .d_lse = true},
    {.dtype = ROTA_BF16,
     .head_dim = 320,
     .head_dim_v = 256,
     .heads = 2,
     .n_q = 477,
     .n_k = 477,
     .mask = "window(100, 0)"},
    {.dtype = ROTA_BF16, .head_dim = 384, .heads = 2, .n_q = 440, .n_k = 336, .mask = WINDOW},
    {.dtype = ROTA_FP16, .head_dim = 768, .heads = 1, .n_q = 350, .n_k = 350, .mask = FREE},
    {.dtype = ROTA_BF16,
     .head_dim = 1024,
     .heads = 2,
     .kv_heads = 1,
     .n_q = 200,
     .n_k = 317,
     .mask = "causal"},
    {.dtype = ROTA_BF16, .head_dim = 264, .head_dim_v = 520, .heads = 1, .n_q = 130, .n_k = 400},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal"},
    {.dtype = ROTA_BF16,
     .head_dim = 256,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal",
     .backward = "materialised"},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 2,
     .batch = 2,
     .n_q = 220,
     .n_k = 300,
     .used_q = used_q,
     .used_k = used_k,
     .mask = "causal"},
    {.dtype = ROTA_BF16,
     .head_dim = 40,
     .heads = 2,
     .n_q = 300,
     .n_k = 300,
     .mask = "causal",
     .backward = "materialised"},
    /* dK and dV made with the scores. */
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 4,
     .kv_heads = 2,
     .n_q = 500,
     .n_k = 500,
     .mask = "causal"},
    {.dtype = ROTA_FP16, .head_dim = 192, .head_dim_v = 128, .heads = 1, .n_q = 233, .n_k = 600},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal",
     .sink = true,
     .d_lse = true},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .heads = 4,
     .kv_heads = 2,
     .n_q = 500,
     .n_k = 600,
     .mask = "causal"},
    {.dtype = ROTA_FP16,
     .head_dim = 256,
     .head_dim_v = 128,
     .heads = 2,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal"},
    {.dtype = ROTA_BF16, .head_dim = 160, .heads = 1, .n_q = 333, .n_k = 555},
    {.dtype = ROTA_BF16,
     .head_dim = 136,
     .head_dim_v = 96,
     .heads = 2,
     .n_q = 440,
     .n_k = 336,
     .mask = WINDOW},
    {.dtype = ROTA_FP16,
     .head_dim = 152,
     .head_dim_v = 72,
     .heads = 2,
     .n_q = 350,
     .n_k = 350,
     .mask = FREE},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 2,
     .batch = 2,
     .n_q = 220,
     .n_k = 300,
     .used_q = used_q,
     .used_k = used_k,
     .mask = "causal"},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 2,
     .n_q = 1200,
     .n_k = 1500,
     .mask = "window(300, 0)"},
    {.dtype = ROTA_BF16, .head_dim = 128, .head_dim_v = 192, .heads = 1, .n_q = 300, .n_k = 700},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 2,
     .n_q = 300,
     .n_k = 300,
     .mask = "causal",
     .score = "softcap(10)"},
    /* Scores, whose kernels have registers of their own. */
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .heads = 2,
     .n_q = 477,
     .n_k = 600,
     .score = "softcap(10)"},
    {.dtype = ROTA_BF16,
     .head_dim = 256,
     .heads = 4,
     .kv_heads = 2,
     .n_q = 500,
     .n_k = 500,
     .mask = "causal",
     .score = "softcap(10)",
     .sink = true,
     .d_lse = true},
    {.dtype = ROTA_FP16,
     .head_dim = 256,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal",
     .score = "softcap(10)",
     .sink = true},
    {.dtype = ROTA_FP16,
     .head_dim = 192,
     .heads = 2,
     .n_q = 440,
     .n_k = 336,
     .mask = WINDOW,
     .score = "softcap(10)"},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal",
     .score = "softcap(10)",
     .sink = true},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 2,
     .n_q = 1200,
     .n_k = 1500,
     .mask = "window(300, 0)",
     .score = "score \"s - 0.001 * (h + 1) * abs(q - k)\" >> softcap(10)"},
    {.dtype = ROTA_BF16,
     .head_dim = 320,
     .head_dim_v = 256,
     .heads = 1,
     .n_q = 350,
     .n_k = 350,
     .mask = FREE,
     .score = "softcap(10)"},
    {.dtype = ROTA_FP16,
     .head_dim = 512,
     .heads = 4,
     .n_q = 300,
     .n_k = 400,
     .mask = "causal",
     .score = "alibi",
     .tensors = &slope,
     .tensor_count = 1},
    {.dtype = ROTA_BF16,
     .head_dim = 256,
     .heads = 4,
     .n_q = 500,
     .n_k = 600,
     .mask = FREE,
     .score = BIAS,
     .tensors = &bias,
     .tensor_count = 1},
    /* dV made with the scores: the slope is kept beside P. */
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .heads = 4,
     .kv_heads = 2,
     .n_q = 500,
     .n_k = 600,
     .mask = "causal",
     .score = BIAS " >> softcap(10)",
     .tensors = &bias,
     .tensor_count = 1,
     .sink = true,
     .d_lse = true},
    {.dtype = ROTA_FP16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 4,
     .kv_heads = 1,
     .batch = 5,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .mask = "causal",
     .score = "alibi >> softcap(10)",
     .tensors = &slope,
     .tensor_count = 1,
     .sink = true},
    {.dtype = ROTA_BF16,
     .head_dim = 256,
     .head_dim_v = 128,
     .heads = 2,
     .n_q = 440,
     .n_k = 336,
     .mask = WINDOW,
     .score = "softcap(10)",
     .scale = 1.0f}, /* so that scores reach the cap */
    {.dtype = ROTA_FP16,
     .head_dim = 160,
     .heads = 2,
     .n_q = 350,
     .n_k = 350,
     .mask = FREE,
     .score = "score \"0.5 * s * sigmoid(s) - 0.01 * abs(s)\""},
    {.dtype = ROTA_BF16,
     .head_dim = 136,
     .head_dim_v = 96,
     .heads = 2,
     .batch = 2,
     .n_q = 220,
     .n_k = 300,
     .used_q = used_q,
     .used_k = used_k,
     .score = "alibi",
     .tensors = &slope,
     .tensor_count = 1},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .heads = 2,
     .n_q = 1200,
     .n_k = 1500,
     .mask = "window(300, 0)",
     .score = "softcap(50)"},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 2,
     .n_q = 100,
     .n_k = 150,
     .mask = "causal",
     .backward = "two_pass"},
    {.dtype = ROTA_BF16,
     .head_dim = 512,
     .heads = 2,
     .n_q = 100,
     .n_k = 150,
     .mask = "causal",
     .layout = ROTA_LAYOUT_ANY},
    {.dtype = ROTA_FP32, .head_dim = 512, .heads = 1, .n_q = 100, .n_k = 130},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static Trial *prepare(rota_context *context, const Gpu *gpu, const TrialShape *shape) {
  TrialShape one = *shape;
  one.batch = shape->batch ? shape->batch : 1;
  one.seed = (uint64_t)shape->head_dim;
  Trial *trial = trial_create(&one);
  rota_status status = trial_prepare(trial, context, gpu);
  if (status == ROTA_OK)
    status = trial_run(trial);
  if (status == ROTA_OK)
    return trial;
  printf("FAILED: %s\n", rota_error_message());
  trial_destroy(trial);
  return NULL;
}

/* The same bits `count` times, and in three quarters of the workspace, where that can be; the
 * number of failures. */
static int repeat(rota_context *context, const Gpu *gpu, Trial *trial, int count) {
  Digest first = trial_all_bits(trial);
  int different = 0;
  for (int i = 0; i < count; i++)
    different += trial_run(trial) != ROTA_OK || strcmp(trial_all_bits(trial).hex, first.hex) != 0;
  printf("  bits: %d of %d runs differ", different, count);
  TrialShape shape = trial->shape;
  shape.workspace_limit = trial->workspace_bytes / 4 * 3;
  Trial *small = trial_create(&shape);
  rota_status status = trial_prepare(small, context, gpu);
  bool same = status == ROTA_WORKSPACE;
  if (status == ROTA_OK)
    same = trial_run(small) == ROTA_OK && strcmp(trial_all_bits(small).hex, first.hex) == 0;
  printf(", %s with %zu instead of %zu bytes\n", same ? "the same" : "OTHERS",
         status == ROTA_OK ? small->workspace_bytes : 0, trial->workspace_bytes);
  trial_destroy(small);
  return different + !same;
}

static int run(rota_context *context, const Gpu *gpu, const TrialShape *shape, int repeats) {
  printf("%s d %d/%d %s %s %s\n", shape->dtype == ROTA_BF16 ? "bf16" : "16/32", shape->head_dim,
         shape->head_dim_v ? shape->head_dim_v : shape->head_dim,
         shape->mask ? shape->mask : "full", shape->backward ? shape->backward : "auto",
         shape->score ? shape->score : "");
  Trial *trial = prepare(context, gpu, shape);
  if (!trial)
    return 1;
  TrialReport report = trial_check(trial);
  trial_print_report(&report);
  int failures = !report.good + repeat(context, gpu, trial, repeats);
  failures += !trial_margins_intact(trial);
  trial_destroy(trial);
  return failures;
}

/* Arguments: the first shape and a step, for several processes. */
int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  Gpu gpu;
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  int first = argc > 1 ? atoi(argv[1]) : 0, step = argc > 2 ? atoi(argv[2]) : 1;
  rota_context *context;
  rota_context_options options = {.cache_dir = getenv("ROTA_CACHE_DIR") ? NULL : "", .debug = -1};
  if (rota_context_create(&options, &context) != ROTA_OK)
    return 1;
  for (int i = 0; i < HEADS; i++)
    slopes[i] = 0.02f * (float)(i + 1);
  for (int i = 0; i < HEADS * SPAN; i++)
    biases[i] = sinf((float)i);
  int failures = 0;
  for (int i = first; i < SHAPES; i += step)
    failures += run(context, &gpu, &shapes[i], REPEATS);
  printf("head dims: %d failures\n", failures);
  rota_context_destroy(context);
  gpu_close(&gpu);
  return failures != 0;
}
