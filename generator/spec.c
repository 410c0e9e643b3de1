/* Level 3. What is computed: names of its choices, checks of its ranges and combinations. */
#include "generator/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  bool deterministic;
} backward_table[] = {
#define X(name, text, deterministic) {text, deterministic},
    BACKWARD_LIST(X)
#undef X
};
enum { BACKWARD_COUNT = sizeof backward_table / sizeof backward_table[0] };

static const struct {
  const char *name;
  int size; /* bytes */
} dtype_table[] = {
    [ROTA_BF16] = {"bf16", 2},
    [ROTA_FP16] = {"fp16", 2},
    [ROTA_FP32] = {"fp32", 4},
    [ROTA_INT32] = {"int32", 4},
};
enum { DTYPE_COUNT = sizeof dtype_table / sizeof dtype_table[0] };

const char *backward_name(Backward backward) {
  return (unsigned)backward < BACKWARD_COUNT ? backward_table[backward].name : "unknown";
}

bool backward_from_name(const char *name, Backward *backward) {
  for (int i = 0; i < BACKWARD_COUNT; i++) {
    if (strcmp(backward_table[i].name, name) != 0)
      continue;
    *backward = (Backward)i;
    return true;
  }
  return false;
}

bool backward_is_deterministic(Backward backward) {
  return (unsigned)backward < BACKWARD_COUNT && backward_table[backward].deterministic;
}

const char *bound_name(bool spread) {
  return spread ? "spread" : "norm";
}

const char *dtype_name(rota_dtype dtype) {
  return (unsigned)dtype < DTYPE_COUNT ? dtype_table[dtype].name : "unknown";
}

bool dtype_from_name(const char *name, rota_dtype *dtype) {
  for (int i = 0; i < DTYPE_COUNT; i++) {
    if (strcmp(dtype_table[i].name, name) != 0)
      continue;
    *dtype = (rota_dtype)i;
    return true;
  }
  return false;
}

int dtype_size(rota_dtype dtype) {
  return (unsigned)dtype < DTYPE_COUNT ? dtype_table[dtype].size : 0;
}

int spec_group(const Spec *spec) {
  return spec->heads / spec->kv_heads;
}

static rota_status check_head_dim(const char *field, int value) {
  if (value < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s %d: it must be from 1 to %d", field, value,
                       HEAD_DIM_MAX);
  if (value > HEAD_DIM_MAX)
    return status_fail(ROTA_UNSUPPORTED, "%s %d: kernels serve head dims from 1 to %d", field,
                       value, HEAD_DIM_MAX);
  return ROTA_OK;
}

static rota_status check_heads(const Spec *spec) {
  if (spec->heads < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "heads %d: there must be at least one", spec->heads);
  if (spec->kv_heads < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "kv_heads %d: there must be at least one",
                       spec->kv_heads);
  if (spec->heads % spec->kv_heads != 0)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "heads %d is not a multiple of kv_heads %d: each kv head must serve the "
                       "same number of query heads",
                       spec->heads, spec->kv_heads);
  if (spec_group(spec) > GROUP_MAX)
    return status_fail(ROTA_UNSUPPORTED,
                       "heads %d with kv_heads %d: at most %d query heads may share a kv head",
                       spec->heads, spec->kv_heads, GROUP_MAX);
  return ROTA_OK;
}

/* How it is computed must not break what was asked for. */
static rota_status check_choices(const Spec *spec) {
  if ((unsigned)spec->backward >= BACKWARD_COUNT)
    return status_fail(ROTA_INVALID_ARGUMENT, "backward %d: no such algorithm",
                       (int)spec->backward);
  if (spec->spread && spec->backward != BACKWARD_EXACT)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "bound = \"spread\" is what `exact` scales by, and backward is \"%s\": say "
                       "backward = \"exact\", or leave bound out",
                       backward_name(spec->backward));
  if (spec->deterministic && !backward_is_deterministic(spec->backward))
    return status_fail(ROTA_NONDETERMINISTIC,
                       "backward = \"%s\" adds in arrival order, so its bits change from run to "
                       "run; say deterministic = false, or use \"ordered\" or \"two_pass\"",
                       backward_name(spec->backward));
  return ROTA_OK;
}

static void release_script(SpecScript *script) {
  if (!script || __atomic_sub_fetch(&script->references, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  free(script->text);
  free(script->name);
  free(script);
}

rota_status spec_finish(Spec *spec) {
  if (spec->dtype != ROTA_BF16 && spec->dtype != ROTA_FP16 && spec->dtype != ROTA_FP32)
    return status_fail(ROTA_UNSUPPORTED, "dtype %s: kernels serve bf16, fp16 and fp32",
                       dtype_name(spec->dtype));
  ROTA_TRY(check_head_dim("head_dim", spec->head_dim));
  if (spec->head_dim_v == 0)
    spec->head_dim_v = spec->head_dim;
  ROTA_TRY(check_head_dim("head_dim_v", spec->head_dim_v));
  if (spec->kv_heads == 0)
    spec->kv_heads = spec->heads;
  ROTA_TRY(check_heads(spec));
  if (spec->scale == 0)
    spec->scale = (float)(1 / sqrt(spec->head_dim));
  if (!isfinite(spec->scale))
    return status_fail(ROTA_INVALID_ARGUMENT, "scale: it must be finite; leave it out for "
                                              "1/sqrt(head_dim)");
  ROTA_TRY(check_choices(spec));
  if (!spec->schedule[0])
    snprintf(spec->schedule, sizeof spec->schedule, "auto");
  for (int direction = 0; direction < 2; direction++)
    if (!spec->tiling[direction][0])
      snprintf(spec->tiling[direction], TILING_CHOICE_MAX, "auto");
  if (spec->score && !spec->score_derivative)
    ROTA_TRY(expression_derivative(spec->score, &spec->score_derivative));
  return ROTA_OK;
}

rota_status spec_script_create(const char *text, const char *name, SpecScript **script) {
  SpecScript *made = *script = memory_allocate(1, sizeof *made);
  if (!made)
    return ROTA_OUT_OF_MEMORY;
  made->references = 1;
  made->text = memory_copy_string(text);
  made->name = memory_copy_string(name);
  if (made->text && made->name)
    return ROTA_OK;
  release_script(made);
  *script = NULL;
  return ROTA_OUT_OF_MEMORY;
}

void spec_copy(Spec *to, const Spec *from) {
  *to = *from;
  if (to->mask)
    expression_retain(to->mask);
  if (to->score)
    expression_retain(to->score);
  if (to->score_derivative)
    expression_retain(to->score_derivative);
  if (to->script)
    __atomic_add_fetch(&to->script->references, 1, __ATOMIC_RELAXED);
}

void spec_free(Spec *spec) {
  expression_release(spec->mask);
  expression_release(spec->score);
  expression_release(spec->score_derivative);
  release_script(spec->script);
  spec->mask = spec->score = spec->score_derivative = NULL;
  spec->script = NULL;
}
