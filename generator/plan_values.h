/* Level 4. A plan request's parameter values and tensors, matched by name to the spec's symbols. */
#ifndef ROTA_GENERATOR_PLAN_VALUES_H
#define ROTA_GENERATOR_PLAN_VALUES_H

#include "generator/spec.h"

/* Fills parameters and tensors of `bindings`; tensor data and strides stay the caller's.
 * INVALID_ARGUMENT: an unknown name or one given twice, a constant parameter, a value out of range,
 * a tensor of the wrong rank or dtype, one that is missing, or a mask's tensor without data. */
rota_status plan_bind_values(const Symbols *symbols, const rota_plan_request *request,
                             Bindings *bindings);

/* Elements of a bound tensor. */
int64_t tensor_elements(const TensorBinding *tensor);
/* Copies the elements in row-major order to `to`. Both element types have four bytes. */
void tensor_copy_compact(const TensorBinding *tensor, void *to);
/* Row-major strides for its size. */
void tensor_compact_strides(TensorBinding *tensor);

#endif
