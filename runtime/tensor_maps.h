/* Level 12. Tensor maps: the tensors of a run as the copy engine of sm_90 reads them, made by the
 * driver. They travel by value with the launch: nothing is allocated, and a captured graph keeps
 * its own. */
#ifndef ROTA_RUNTIME_TENSOR_MAPS_H
#define ROTA_RUNTIME_TENSOR_MAPS_H

#include "runtime/arguments.h"

/* The maps of the kernel's tiling for the tensors of an argument block (arguments_fill).
 * UNSUPPORTED where the driver is too old for them, INVALID_ARGUMENT where a tensor cannot be
 * described: the message says which and what to do. */
rota_status tensor_maps_fill(const rota_plan *plan, const RotaArguments *block,
                             RotaTensorMaps *maps);

#endif
