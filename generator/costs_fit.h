/* Level 4. Costs from measured times: the simulation turned round. */
#ifndef ROTA_GENERATOR_COSTS_FIT_H
#define ROTA_GENERATOR_COSTS_FIT_H

#include "generator/dag.h"

typedef struct FitSample {
  const DagProblem *problem;
  double ticks; /* measured, of the whole pass */
} FitSample;

typedef struct Fit {
  Costs costs;
  double base;  /* ticks of a pass outside the simulated kernel: launches and smaller kernels */
  double error; /* root mean square of ln(modelled / measured) */
} Fit;

/* Least squares on the logarithms of times. Fits visit, partial, start, hand-off and base;
 * `reduce` and `staging` stay as they are in `fit`, where the search begins: times of whole passes
 * only tell visit + reduce and reduce + hand-off, so one of the three has to be known. `step` is
 * called before each of the at most FIT_ROUNDS rounds; may be NULL. */
enum { FIT_ROUNDS = 40 };
typedef void FitStep(int round);
rota_status costs_fit(const FitSample *samples, int count, FitStep *step, Fit *fit);
/* What a fit says of a problem: base and makespan, in ticks. */
rota_status costs_fit_time(const DagProblem *problem, const Fit *fit, double *ticks);

#endif
