/* Level 5. What policy in lua/ is asked, where it is neither a spec nor a tiling alone. */
#ifndef ROTA_GENERATOR_RECORDS_H
#define ROTA_GENERATOR_RECORDS_H

#include "generator/spec_value.h"
#include "generator/tiling.h"

/* The request that lua/policy.lua chooses a tiling for. */
rota_status tiling_request_to_value(const Spec *spec, rota_direction direction, rota_layout layout,
                                    const Target *target, Value *request);

/* What policy may know of the mask: "full"; "prefix": a query attends the keys from the first to
 * one that depends on the query, as under a causal mask; "interval": other keys that follow one
 * another, as in a window; "other": kernels evaluate it for every element of a partial tile. */
const char *mask_shape(const Spec *spec);

#endif
