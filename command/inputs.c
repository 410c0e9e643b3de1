/* Tensors for a command: see inputs.h. */
#include "command/inputs.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu_numbers.h"

/* The file's tensor `name` as [batch, n, heads, dim]. */
static rota_status find_matrix(const Inputs *inputs, const Options *options, const Spec *spec,
                               const char *name, int dim, const SafetensorsEntry **entry) {
  *entry = safetensors_find(inputs->file, name);
  if (!*entry)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s has no tensor '%s'", options->input, name);
  if (!(*entry)->supported || (*entry)->dtype != spec->dtype)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s: '%s' is %s, the model's dtype is %s",
                       options->input, name, (*entry)->type, dtype_name(spec->dtype));
  if ((*entry)->rank != 4 || (*entry)->size[3] != dim)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "%s: '%s' is not [batch, length, heads, %d], as the model's head dim asks",
                       options->input, name, dim);
  for (int i = 0; i < 3; i++)
    if ((*entry)->size[i] >= INT32_MAX)
      return status_fail(ROTA_INVALID_ARGUMENT, "%s: '%s' is too large", options->input, name);
  return ROTA_OK;
}

static rota_status read_lengths(const Options *options, const Spec *spec, Inputs *inputs) {
  const SafetensorsEntry *q, *k, *v;
  ROTA_TRY(find_matrix(inputs, options, spec, "q", spec->head_dim, &q));
  ROTA_TRY(find_matrix(inputs, options, spec, "k", spec->head_dim, &k));
  ROTA_TRY(find_matrix(inputs, options, spec, "v", spec->head_dim_v, &v));
  assert(q && k && v); /* or find_matrix would have failed */
  if (q->size[0] != k->size[0] || memcmp(k->size, v->size, 3 * sizeof k->size[0]) != 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s: batch, length or heads of q, k, v disagree",
                       options->input);
  inputs->lengths = (rota_lengths){
      .batch = (int32_t)q->size[0], .n_q = (int32_t)q->size[1], .n_k = (int32_t)k->size[1]};
  inputs->heads = (int32_t)q->size[2];
  inputs->kv_heads = (int32_t)k->size[2];
  if ((int64_t)inputs->heads * spec->kv_heads != (int64_t)inputs->kv_heads * spec->heads)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "%s has %d query and %d key heads; the model has %d and %d", options->input,
                       inputs->heads, inputs->kv_heads, spec->heads, spec->kv_heads);
  return ROTA_OK;
}

static void add_named(Inputs *inputs, const Spec *spec) {
  for (int i = 0; i < spec->symbols.tensor_count && inputs->named_count < NAMED_MAX; i++) {
    const SafetensorsEntry *entry = safetensors_find(inputs->file, spec->symbols.tensors[i].name);
    if (!entry || !entry->supported || entry->rank < 1 || entry->rank > 4)
      continue;
    rota_named_tensor *named = &inputs->named[inputs->named_count++];
    *named = (rota_named_tensor){
        .name = entry->name, .dtype = entry->dtype, .rank = entry->rank, .data = entry->data};
    int64_t stride = 1;
    for (int d = entry->rank - 1; d >= 0; d--) {
      named->size[d] = entry->size[d];
      named->stride[d] = stride;
      stride *= entry->size[d];
    }
  }
}

rota_status inputs_open(const Options *options, const Spec *spec, Inputs *inputs) {
  *inputs = (Inputs){0};
  if (!options->input) {
    inputs->lengths =
        (rota_lengths){.batch = options->batch, .n_q = options->n_q, .n_k = options->n_k};
    inputs->heads = spec->heads;
    inputs->kv_heads = spec->kv_heads;
    return ROTA_OK;
  }
  ROTA_TRY(safetensors_read(options->input, &inputs->file));
  add_named(inputs, spec);
  return read_lengths(options, spec, inputs);
}

void inputs_close(Inputs *inputs) {
  safetensors_destroy(inputs->file);
}

rota_plan_request inputs_plan_request(const Options *options, const Inputs *inputs) {
  return (rota_plan_request){.lengths = inputs->lengths,
                             .heads = inputs->heads,
                             .kv_heads = inputs->kv_heads,
                             .tensors = inputs->named,
                             .tensor_count = inputs->named_count,
                             .values = options->values,
                             .value_count = options->value_count,
                             .workspace_limit = options->workspace_limit};
}

/* xorshift64*: uniform in (0, 1]. */
static double next_uniform(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (double)((*state * 0x2545f4914f6cdd1dULL >> 11) + 1) * 0x1p-53;
}

/* Box and Muller's transform. */
static void fill_normal(rota_dtype dtype, uint64_t seed, size_t count, char *data) {
  uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15ULL | 1;
  size_t size = (size_t)dtype_size(dtype);
  for (size_t i = 0; i < count; i++) {
    double radius = sqrt(-2.0 * log(next_uniform(&state)));
    float value = (float)(radius * cos(2.0 * 3.14159265358979323846 * next_uniform(&state)));
    numbers_store(dtype, &value, 1, data + i * size);
  }
}

rota_status inputs_tensor(const Inputs *inputs, const Spec *spec, const char *name, size_t count,
                          uint64_t seed, void **data) {
  size_t size = (size_t)dtype_size(spec->dtype);
  *data = memory_allocate(count ? count : 1, size);
  if (!*data)
    return ROTA_OUT_OF_MEMORY;
  const SafetensorsEntry *entry = inputs->file ? safetensors_find(inputs->file, name) : NULL;
  if (!entry) {
    fill_normal(spec->dtype, seed, count, *data);
    return ROTA_OK;
  }
  if (entry->bytes != count * size || entry->dtype != spec->dtype) {
    free(*data);
    return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s' of the input has %zu bytes, not %zu",
                       name, entry->bytes, count * size);
  }
  memcpy(*data, entry->data, entry->bytes);
  return ROTA_OK;
}
