/* Load from another stream. */
#include "tests/support/load.h"

#include <stdio.h>
#include <stdlib.h>

static void must(rota_status status) {
  if (status == ROTA_OK)
    return;
  fprintf(stderr, "load: %s\n", rota_error_message());
  exit(1);
}

Load load_start(rota_context *context, const Gpu *gpu) {
  Load load = {0};
  if (!gpu)
    return load;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 64,
                      .heads = 8,
                      .batch = 2,
                      .n_q = 2048,
                      .n_k = 2048,
                      .forward_only = true};
  load.trial = trial_create(&shape);
  must(trial_prepare(load.trial, context, gpu));
  load.stream = gpu_stream_create(gpu);
  load.trial->stream = load.stream;
  trial_upload(load.trial);
  return load;
}

void load_push(const Load *load, int launches) {
  for (int i = 0; load->trial && i < launches; i++)
    must(trial_launch(load->trial, ROTA_FORWARD));
}

void load_stop(Load *load) {
  if (!load->trial)
    return;
  const Gpu *gpu = load->trial->gpu;
  gpu_synchronize(gpu, load->stream);
  trial_destroy(load->trial);
  gpu_stream_destroy(gpu, load->stream);
  *load = (Load){0};
}
