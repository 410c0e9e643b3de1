/* Level 4. Parameter values and tensors of a plan request. */
#include "generator/plan_values.h"

#include <math.h>
#include <string.h>

/* Elements per tensor: keeps every byte offset far from the end of 64 bits. */
#define TENSOR_ELEMENTS_MAX ((int64_t)1 << 40)
#define TENSOR_STRIDE_MAX   ((int64_t)1 << 40)

/* Lists are short: at most 24 and 8 entries. Returns the index, -1 if there is none. */
static int find_parameter(const Symbols *symbols, const char *name) {
  for (int i = 0; i < symbols->parameter_count; i++)
    if (strcmp(symbols->parameters[i].name, name) == 0)
      return i;
  return -1;
}

static int find_tensor(const Symbols *symbols, const char *name) {
  for (int i = 0; i < symbols->tensor_count; i++)
    if (strcmp(symbols->tensors[i].name, name) == 0)
      return i;
  return -1;
}

/* ---- Parameters ---- */

/* Narrows a double to the parameter's type; the generated code assumes its range. */
static rota_status bind_value(const Parameter *parameter, double value, Scalar *to) {
  if (parameter->constant)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "parameter '%s' is constant: its value is part of the program; declare it "
                       "without const to set it per plan",
                       parameter->name);
  if (parameter->type == VALUE_FLOAT) {
    float narrow = (float)value;
    if (!isfinite(narrow))
      return status_fail(ROTA_INVALID_ARGUMENT, "parameter '%s': the value is not a finite float",
                         parameter->name);
    to->f = narrow;
    return ROTA_OK;
  }
  if (!(fabs(value) <= (double)LIMIT_PARAMETER)) /* NaN too */
    return status_fail(ROTA_INVALID_ARGUMENT, "parameter '%s': the value is outside -2^30 .. 2^30",
                       parameter->name);
  if (value != floor(value))
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "parameter '%s' is an int, but its value is not integral", parameter->name);
  to->i = (int32_t)value;
  return ROTA_OK;
}

/* The script's values first, then the request's over them. */
static rota_status bind_parameters(const Symbols *symbols, const rota_plan_request *request,
                                   Bindings *bindings) {
  bool given[PARAMETERS_MAX] = {false};
  for (int i = 0; i < symbols->parameter_count; i++)
    bindings->parameters[i] = symbols->parameters[i].value;
  if (request->value_count < 0 || (request->value_count > 0 && !request->values))
    return status_fail(ROTA_INVALID_ARGUMENT, "value_count is %d, but values is missing",
                       request->value_count);
  for (int i = 0; i < request->value_count; i++) {
    const char *name = request->values[i].name;
    if (!name)
      return status_fail(ROTA_INVALID_ARGUMENT, "values[%d] has no name", i);
    int at = find_parameter(symbols, name);
    if (at < 0)
      return status_fail(ROTA_INVALID_ARGUMENT, "the spec has no parameter '%s'%s", name,
                         symbols->parameter_count ? "" : "; it has none at all");
    if (given[at])
      return status_fail(ROTA_INVALID_ARGUMENT, "parameter '%s' is given twice", name);
    given[at] = true;
    ROTA_TRY(
        bind_value(&symbols->parameters[at], request->values[i].value, &bindings->parameters[at]));
  }
  return ROTA_OK;
}

/* ---- Tensors ---- */

/* Sizes and strides. Bounds keep every later product of them within 64 bits. */
static rota_status bind_shape(const rota_named_tensor *given, TensorBinding *to) {
  int64_t elements = 1;
  for (int d = 0; d < given->rank; d++) {
    int64_t size = given->size[d], stride = given->stride[d];
    if (size < 0 || size > INT32_MAX)
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "tensor '%s': size[%d] = %lld is not in 0 .. 2^31-1", given->name, d,
                         (long long)size);
    if (stride > TENSOR_STRIDE_MAX || stride < -TENSOR_STRIDE_MAX)
      return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s': stride[%d] = %lld is beyond 2^40",
                         given->name, d, (long long)stride);
    if (size > 0 && elements > TENSOR_ELEMENTS_MAX / size)
      return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s' has more than 2^40 elements",
                         given->name);
    elements *= size;
    to->size[d] = size;
    to->stride[d] = stride;
  }
  for (int d = given->rank; d < TENSOR_RANK_MAX; d++) { /* a scalar's worth of further dimensions */
    to->size[d] = 1;
    to->stride[d] = 0;
  }
  to->data = given->data;
  return ROTA_OK;
}

/* symbol->rank is 0 for a tensor that is declared but never indexed: any rank will do. */
static rota_status bind_tensor(const TensorSymbol *symbol, const rota_named_tensor *given,
                               TensorBinding *to) {
  if (given->rank < 1 || given->rank > TENSOR_RANK_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s': rank %d is not in 1 .. 4", symbol->name,
                       given->rank);
  if (symbol->rank > 0 && given->rank != symbol->rank)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "tensor '%s' has rank %d, but the spec indexes it with %d", symbol->name,
                       given->rank, symbol->rank);
  if (given->dtype != symbol->element)
    return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s' is %s, but the spec declares %s",
                       symbol->name, dtype_name(given->dtype), dtype_name(symbol->element));
  if (symbol->in_mask && !given->data)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "tensor '%s' belongs to the mask: planning needs its data, in host memory",
                       symbol->name);
  return bind_shape(given, to);
}

/* Each given tensor has a symbol, and each symbol in use a tensor. */
static rota_status bind_tensors(const Symbols *symbols, const rota_plan_request *request,
                                Bindings *bindings) {
  bool given[TENSORS_MAX] = {false};
  if (request->tensor_count < 0 || (request->tensor_count > 0 && !request->tensors))
    return status_fail(ROTA_INVALID_ARGUMENT, "tensor_count is %d, but tensors is missing",
                       request->tensor_count);
  for (int i = 0; i < request->tensor_count; i++) {
    const rota_named_tensor *tensor = &request->tensors[i];
    if (!tensor->name)
      return status_fail(ROTA_INVALID_ARGUMENT, "tensors[%d] has no name", i);
    int at = find_tensor(symbols, tensor->name);
    if (at < 0)
      return status_fail(ROTA_INVALID_ARGUMENT, "the spec has no tensor '%s'%s", tensor->name,
                         symbols->tensor_count ? "" : "; it has none at all");
    if (given[at])
      return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s' is given twice", tensor->name);
    given[at] = true;
    ROTA_TRY(bind_tensor(&symbols->tensors[at], tensor, &bindings->tensors[at]));
  }
  for (int i = 0; i < symbols->tensor_count; i++)
    if (!given[i] && symbols->tensors[i].rank > 0)
      return status_fail(
          ROTA_INVALID_ARGUMENT,
          symbols->tensors[i].in_mask
              ? "tensor '%s' of the mask is missing: the plan needs its shape and data"
              : "tensor '%s' of the score is missing: the plan needs its shape (data "
                "may follow with each run)",
          symbols->tensors[i].name);
  return ROTA_OK;
}

rota_status plan_bind_values(const Symbols *symbols, const rota_plan_request *request,
                             Bindings *bindings) {
  ROTA_TRY(bind_parameters(symbols, request, bindings));
  return bind_tensors(symbols, request, bindings);
}

/* ---- Copies ---- */

int64_t tensor_elements(const TensorBinding *tensor) {
  int64_t elements = 1;
  for (int d = 0; d < TENSOR_RANK_MAX; d++)
    elements *= tensor->size[d];
  return elements;
}

void tensor_compact_strides(TensorBinding *tensor) {
  int64_t stride = 1;
  for (int d = TENSOR_RANK_MAX - 1; d >= 0; d--) {
    tensor->stride[d] = stride;
    stride *= tensor->size[d];
  }
}

void tensor_copy_compact(const TensorBinding *tensor, void *to) {
  const int64_t *size = tensor->size, *stride = tensor->stride;
  const char *from = tensor->data;
  char *at = to;
  for (int64_t i0 = 0; i0 < size[0]; i0++)
    for (int64_t i1 = 0; i1 < size[1]; i1++)
      for (int64_t i2 = 0; i2 < size[2]; i2++)
        for (int64_t i3 = 0; i3 < size[3]; i3++, at += 4) {
          int64_t offset = i0 * stride[0] + i1 * stride[1] + i2 * stride[2] + i3 * stride[3];
          memcpy(at, from + 4 * offset, 4);
        }
}
