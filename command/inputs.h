/* Tensors for a command: from a .safetensors file, or random ones of the lengths asked for. */
#ifndef ROTA_COMMAND_INPUTS_H
#define ROTA_COMMAND_INPUTS_H

#include "command/options.h"
#include "generator/spec.h"
#include "runtime/safetensors.h"

enum { NAMED_MAX = 8 };

typedef struct Inputs {
  Safetensors *file; /* NULL: random */
  rota_lengths lengths;
  int32_t heads, kv_heads;
  rota_named_tensor named[NAMED_MAX]; /* of the spec's mask and score, found in the file */
  int32_t named_count;
} Inputs;

/* Lengths from the file's q and k, [batch, n, heads, head_dim], else from the options; checks that
 * they fit the spec. */
rota_status inputs_open(const Options *options, const Spec *spec, Inputs *inputs);
void inputs_close(Inputs *inputs);
/* What rota_plan_create takes. */
rota_plan_request inputs_plan_request(const Options *options, const Inputs *inputs);

/* `count` elements of the spec's dtype: the file's tensor `name` (which must have that many), else
 * standard normal numbers from the seed. The caller frees. */
rota_status inputs_tensor(const Inputs *inputs, const Spec *spec, const char *name, size_t count,
                          uint64_t seed, void **data);

#endif
