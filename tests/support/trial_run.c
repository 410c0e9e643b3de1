/* Trials on a device: spec, kernels, plans, memory there and back. */
#include "tests/support/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition, const char *what) {
  if (condition)
    return;
  fprintf(stderr, "test trial: %s: %s\n", what, rota_error_message());
  abort();
}

/* Releases what trial_prepare made. */
static void unprepare(Trial *trial) {
  for (int i = 0; i < 2; i++) {
    rota_plan_destroy(trial->plans[i]);
    rota_kernel_destroy(trial->kernels[i]);
    trial->plans[i] = NULL;
    trial->kernels[i] = NULL;
  }
  rota_spec_destroy(trial->spec);
  trial->spec = NULL;
  for (int i = 0; i < trial->shape.tensor_count && trial->late && trial->gpu; i++)
    gpu_free(trial->gpu, (void *)trial->late[i].data);
  free(trial->late);
  trial->late = NULL;
  for (int i = 0; i < TRIAL_ROLES; i++) {
    if (trial->buffers[i].device)
      gpu_free(trial->gpu, trial->buffers[i].device);
    trial->buffers[i].device = NULL;
  }
  if (trial->gpu)
    gpu_free(trial->gpu, trial->workspace);
  else
    free(trial->workspace);
  trial->workspace = NULL;
}

void trial_destroy(Trial *trial) {
  if (!trial)
    return;
  unprepare(trial);
  for (int i = 0; i < TRIAL_ROLES; i++)
    free(trial->buffers[i].memory);
  lengths_destroy(trial->lengths);
  free(trial);
}

static rota_status make_spec(Trial *trial, rota_context *context) {
  const TrialShape *shape = &trial->shape;
  rota_spec_fields fields = {.dtype = shape->dtype,
                             .head_dim = shape->head_dim,
                             .head_dim_v = shape->head_dim_v,
                             .heads = shape->heads,
                             .kv_heads = shape->kv_heads,
                             .mask = shape->mask,
                             .score = shape->score,
                             .scale = shape->scale,
                             .sink_logit = shape->sink,
                             .allow_nondeterministic = shape->nondeterministic,
                             .backward = shape->backward,
                             .bound = shape->bound,
                             .schedule = shape->schedule};
  return rota_spec_create(context, &fields, &trial->spec);
}

/* Bytes that a named tensor reaches over. */
static size_t tensor_bytes(const rota_named_tensor *tensor) {
  int64_t last = 0;
  for (int i = 0; i < tensor->rank; i++)
    last += (tensor->size[i] - 1) * tensor->stride[i];
  return (size_t)(last + 1) * 4;
}

/* The tensors that each run passes, on the device where there is one. */
static void make_late_tensors(Trial *trial) {
  const TrialShape *shape = &trial->shape;
  if (!shape->late_tensors)
    return;
  trial->late = calloc((size_t)shape->tensor_count, sizeof *trial->late);
  require(trial->late, "out of memory");
  for (int i = 0; i < shape->tensor_count; i++) {
    trial->late[i] = shape->tensors[i];
    if (!trial->gpu)
      continue;
    size_t bytes = tensor_bytes(&shape->tensors[i]);
    void *copy = gpu_allocate(trial->gpu, bytes);
    gpu_write(trial->gpu, copy, shape->tensors[i].data, bytes);
    trial->late[i].data = copy;
  }
}

static rota_status make_plan(Trial *trial, rota_direction direction) {
  const TrialShape *shape = &trial->shape;
  rota_named_tensor tensors[TENSORS_MAX];
  for (int i = 0; i < shape->tensor_count; i++) {
    tensors[i] = shape->tensors[i];
    if (shape->late_tensors)
      tensors[i].data = NULL;
  }
  rota_plan_request request = {.lengths = {.batch = shape->batch,
                                           .n_q = shape->n_q,
                                           .n_k = shape->n_k,
                                           .cu_seqlens_q = shape->cu_q,
                                           .cu_seqlens_k = shape->cu_k,
                                           .seqused_q = shape->used_q,
                                           .seqused_k = shape->used_k},
                               .tensors = tensors,
                               .tensor_count = shape->tensor_count,
                               .values = shape->values,
                               .value_count = shape->value_count,
                               .workspace_limit = shape->workspace_limit};
  return rota_plan_create(trial->kernels[direction], &request, &trial->plans[direction]);
}

static int directions(const Trial *trial) {
  return trial->shape.forward_only ? 1 : 2;
}

static void make_memory(Trial *trial) {
  trial->workspace_bytes = 0;
  for (int i = 0; i < directions(trial); i++) {
    size_t bytes = rota_plan_workspace_size(trial->plans[i]);
    if (bytes > trial->workspace_bytes)
      trial->workspace_bytes = bytes;
  }
  if (!trial->gpu) {
    trial->workspace = aligned_alloc(256, (trial->workspace_bytes + 256) / 256 * 256);
    require(trial->workspace, "out of memory");
    return;
  }
  trial->workspace = gpu_allocate(trial->gpu, trial->workspace_bytes);
  for (int i = 0; i < TRIAL_ROLES; i++)
    if (trial->buffers[i].memory)
      trial->buffers[i].device = gpu_allocate(trial->gpu, trial->buffers[i].bytes);
}

rota_status trial_prepare(Trial *trial, rota_context *context, const Gpu *gpu) {
  unprepare(trial);
  trial->gpu = gpu;
  ROTA_TRY(make_spec(trial, context));
  for (int i = 0; i < directions(trial); i++) {
    rota_kernel_request request = {.direction = (rota_direction)i,
                                   .device = gpu ? ROTA_DEVICE_CUDA : ROTA_DEVICE_CPU,
                                   .architecture = trial->shape.architecture,
                                   .layout = trial->shape.layout};
    ROTA_TRY(rota_kernel_prepare(context, trial->spec, &request, &trial->kernels[i]));
    ROTA_TRY(make_plan(trial, (rota_direction)i));
  }
  make_memory(trial);
  make_late_tensors(trial);
  return ROTA_OK;
}

void trial_upload(Trial *trial) {
  for (int i = 0; i < TRIAL_ROLES; i++) {
    TrialBuffer *buffer = &trial->buffers[i];
    if (!buffer->memory)
      continue;
    if (buffer->output)
      memset(buffer->memory, 0xff, buffer->bytes);
    if (trial->gpu && buffer->output)
      gpu_fill(trial->gpu, buffer->device, 0xff, buffer->bytes);
    if (trial->gpu && !buffer->output)
      gpu_write(trial->gpu, buffer->device, buffer->memory, buffer->bytes);
  }
}

void trial_download(Trial *trial) {
  if (!trial->gpu)
    return;
  gpu_synchronize(trial->gpu, trial->stream);
  for (int i = 0; i < TRIAL_ROLES; i++) {
    TrialBuffer *buffer = &trial->buffers[i];
    if (buffer->memory && buffer->output)
      gpu_read(trial->gpu, buffer->memory, buffer->device, buffer->bytes);
  }
}

static rota_tensor tensor_on_device(const Trial *trial, TrialRole role) {
  const TrialBuffer *buffer = &trial->buffers[role];
  rota_tensor tensor = buffer->view;
  if (tensor.data && trial->gpu)
    tensor.data = (char *)buffer->device + buffer->base;
  return tensor;
}

rota_status trial_launch(Trial *trial, rota_direction direction) {
  rota_arguments arguments = {0};
#define X(role, field, keys, dim, writer) arguments.field = tensor_on_device(trial, TRIAL_##role);
  TRIAL_TENSOR_LIST(X)
#undef X
  arguments.sink = tensor_on_device(trial, TRIAL_SINK).data;
  arguments.d_sink = tensor_on_device(trial, TRIAL_D_SINK).data;
  if (trial->late) {
    arguments.tensors = trial->late;
    arguments.tensor_count = trial->shape.tensor_count;
  }
  size_t bytes = rota_plan_workspace_size(trial->plans[direction]);
  return rota_run(trial->plans[direction], &arguments, trial->workspace, bytes, trial->stream);
}

rota_status trial_run(Trial *trial) {
  trial_upload(trial);
  for (int i = 0; i < directions(trial); i++) {
    if (trial->gpu) /* on the legacy stream's terms: complete before the run starts */
      gpu_fill(trial->gpu, trial->workspace, 0xff, trial->workspace_bytes);
    else
      memset(trial->workspace, 0xff, trial->workspace_bytes);
    ROTA_TRY(trial_launch(trial, (rota_direction)i));
    if (trial->gpu)
      gpu_synchronize(trial->gpu, trial->stream);
  }
  trial_download(trial);
  return ROTA_OK;
}
