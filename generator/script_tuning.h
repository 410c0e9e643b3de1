/* Level 6. What `rota tune` tries and `rota calibrate` writes: lua/tuning.lua, lua/costs.lua. */
#ifndef ROTA_GENERATOR_SCRIPT_TUNING_H
#define ROTA_GENERATOR_SCRIPT_TUNING_H

#include "generator/script.h"

typedef struct Candidate {
  rota_direction direction;
  Backward backward;
  char tiling[TILING_CHOICE_MAX]; /* "128x64"; "auto" where none is served */
  char schedule[SYMBOL_NAME_MAX]; /* with its options */
  int rank; /* of the tiling by the estimate for the lengths; 1: the preferred one */
} Candidate;

/* What candidates are for: a spec, on a target, for lengths. */
typedef struct CandidateRequest {
  const Spec *spec;
  const Target *target;
  rota_layout layout;
  int32_t n_q, n_k;
} CandidateRequest;

/* The candidates, those of the forward pass first, tilings that the ranking prefers first; some may
 * turn out to be unsupported. The caller frees the array. */
rota_status script_candidates(Script *script, const CandidateRequest *request,
                              Candidate **candidates, int *count);

/* A cost file's text from costs in microseconds that were fitted for a tiling; the caller frees. */
rota_status script_cost_file(Script *script, const Spec *spec, const Tiling *tiling,
                             const Costs *costs, const char *device, const char *date, char **text);

#endif
