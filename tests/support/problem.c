/* Attention problems for tests of the public interface. */
#include "tests/support/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu_numbers.h"

static int element_size(const Problem *problem, ProblemTensor tensor) {
  static const bool element[] = {
#define X(name, rows, heads, dim, is_element) is_element,
      PROBLEM_TENSORS(X)
#undef X
  };
  return element[tensor] && problem->dtype != ROTA_FP32 ? 2 : 4;
}

const char *problem_tensor_name(ProblemTensor tensor) {
  static const char *const names[] = {
#define X(name, rows, heads, dim, element) #name,
      PROBLEM_TENSORS(X)
#undef X
  };
  return names[tensor];
}

/* Each part starts at a multiple of 256 bytes. */
static size_t reserve(Problem *problem, size_t bytes) {
  size_t offset = problem->bytes;
  problem->bytes += (bytes + 255) / 256 * 256;
  return offset;
}

static void lay_out(Problem *problem) {
  problem->one = 1;
  problem->bytes = 0;
#define X(name, rows, head_count, width, element)                                                  \
  problem->count[PROBLEM_##name] = (size_t)problem->batch * (size_t)problem->rows *                \
                                   (size_t)problem->head_count * (size_t)problem->width;           \
  problem->offset[PROBLEM_##name] = reserve(                                                       \
      problem, problem->count[PROBLEM_##name] * (size_t)element_size(problem, PROBLEM_##name));
  PROBLEM_TENSORS(X)
#undef X
  problem->sink_offset = reserve(problem, sizeof(float) * (size_t)problem->heads);
  problem->d_sink_offset = reserve(problem, sizeof(float) * (size_t)problem->heads);
}

/* About normal (a sum of uniforms), from a 64-bit linear congruential generator. */
static float draw(uint64_t *state) {
  float sum = 0;
  for (int i = 0; i < 4; i++) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    sum += (float)(*state >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7f;
}

static void fill(Problem *problem, ProblemTensor tensor, uint64_t *state) {
  unsigned char *to = problem->block + problem->offset[tensor];
  int size = element_size(problem, tensor);
  rota_dtype dtype = size == 4 ? ROTA_FP32 : problem->dtype;
  for (size_t i = 0; i < problem->count[tensor]; i++) {
    float value = draw(state);
    numbers_store(dtype, &value, 1, to + i * (size_t)size);
  }
}

void problem_create(Problem *problem, unsigned seed) {
  static const ProblemTensor inputs[] = {PROBLEM_q, PROBLEM_k, PROBLEM_v, PROBLEM_d_o,
                                         PROBLEM_d_lse};
  uint64_t state = seed + 1;
  lay_out(problem);
  problem->block = aligned_alloc(256, problem->bytes);
  if (!problem->block)
    abort();
  memset(problem->block, 0xff, problem->bytes); /* NaN in every format */
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
    fill(problem, inputs[i], &state);
  for (int head = 0; head < problem->heads; head++) {
    float logit = draw(&state);
    memcpy(problem->block + problem->sink_offset + sizeof logit * (size_t)head, &logit,
           sizeof logit);
  }
}

void problem_free(Problem *problem) {
  free(problem->block);
  problem->block = NULL;
}

rota_arguments problem_arguments(const Problem *problem, void *base) {
  char *block = base ? base : (char *)problem->block;
  rota_arguments arguments = {0};
#define X(name, rows, head_count, width, element)                                                  \
  arguments.name =                                                                                 \
      (rota_tensor){.data = block + problem->offset[PROBLEM_##name],                               \
                    .stride_batch = (int64_t)problem->rows * problem->head_count * problem->width, \
                    .stride_row = (int64_t)problem->head_count * problem->width,                   \
                    .stride_head = problem->width};
  PROBLEM_TENSORS(X)
#undef X
  if (problem->sink) {
    arguments.sink = (const float *)(void *)(block + problem->sink_offset);
    arguments.d_sink = (float *)(void *)(block + problem->d_sink_offset);
  }
  return arguments;
}

double problem_value(const Problem *problem, const void *base, ProblemTensor tensor, size_t i) {
  int size = element_size(problem, tensor);
  float value;
  numbers_load(size == 4 ? ROTA_FP32 : problem->dtype,
               (const char *)base + problem->offset[tensor] + i * (size_t)size, 1, &value);
  return (double)value;
}

double problem_difference(const Problem *problem, const void *a, const void *b,
                          ProblemTensor tensor) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < problem->count[tensor]; i++) {
    double x = problem_value(problem, a, tensor, i), y = problem_value(problem, b, tensor, i);
    if (isfinite(y))
      largest = fmax(largest, fabs(y));
    if (x == y)
      continue; /* equal infinities among them */
    double difference = fabs(x - y);
    if (!isfinite(difference))
      return INFINITY;
    worst = fmax(worst, difference);
  }
  return largest > 0 ? worst / largest : worst;
}

bool problem_same_bits(const Problem *problem, const void *a, const void *b, ProblemTensor tensor) {
  return memcmp((const char *)a + problem->offset[tensor],
                (const char *)b + problem->offset[tensor],
                problem->count[tensor] * (size_t)element_size(problem, tensor)) == 0;
}
