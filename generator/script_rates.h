/* Level 6. Rates of the traffic model, from lua/rates.lua. */
#ifndef ROTA_GENERATOR_SCRIPT_RATES_H
#define ROTA_GENERATOR_SCRIPT_RATES_H

#include "generator/script.h"
#include "generator/traffic.h"

/* Of the GPU that lua/rates.lua lists for the target's compute capability. */
rota_status script_rates(Script *script, const Target *target, Rates *rates);

#endif
