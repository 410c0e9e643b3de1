/* Level 6. What `rota tune` tries and `rota calibrate` writes: lua/tuning.lua, lua/costs.lua. */
#ifndef ROTA_GENERATOR_SCRIPT_TUNING_H
#define ROTA_GENERATOR_SCRIPT_TUNING_H

#include "generator/script.h"

typedef struct Candidate {
  Backward backward;
  char schedule[SYMBOL_NAME_MAX]; /* with its options */
} Candidate;

/* The candidates for a spec; some may turn out to be unsupported. The caller frees the array. */
rota_status script_candidates(Script *script, const Spec *spec, Candidate **candidates, int *count);

/* A cost file's text from costs in microseconds that were fitted for a tiling; the caller frees. */
rota_status script_cost_file(Script *script, const Spec *spec, const Tiling *tiling,
                             const Costs *costs, const char *device, const char *date, char **text);

#endif
