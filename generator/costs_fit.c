/* Level 4. A pattern search: makespans are piecewise linear in the costs, with kinks wherever the
 * critical path changes, so that derivatives say little. Each round tries every cost a step up and
 * down, in ratios; a round without success halves the step. */
#include "generator/costs_fit.h"

#include <math.h>

enum { COSTS_FITTED = 5 };
static const double first_step = 0.5, last_step = 0.004; /* of the logarithm */

static double clamp(double ticks) {
  return ticks < 1 ? 1 : ticks > 1e9 ? 1e9 : ticks;
}

rota_status costs_fit_time(const DagProblem *problem, const Fit *fit, double *ticks) {
  DagFigures figures;
  ROTA_TRY(dag_simulate(problem, &fit->costs, &figures, NULL));
  *ticks = fit->base + (double)figures.makespan;
  return ROTA_OK;
}

static rota_status judge(const FitSample *samples, int count, Fit *fit) {
  double sum = 0;
  for (int i = 0; i < count; i++) {
    double modelled;
    ROTA_TRY(costs_fit_time(samples[i].problem, fit, &modelled));
    double error = log(modelled / samples[i].ticks);
    sum += error * error;
  }
  fit->error = sqrt(sum / count);
  return ROTA_OK;
}

/* Scales one of the costs. */
static void move(Fit *fit, int which, double factor) {
  int64_t *const times[] = {&fit->costs.visit, &fit->costs.partial, &fit->costs.start,
                            &fit->costs.handoff};
  if (which < COSTS_FITTED - 1)
    *times[which] = llround(clamp((double)*times[which] * factor));
  else
    fit->base = clamp(fit->base * factor);
}

/* Tries a factor and its inverse; whether one of them was better. */
static rota_status try_moves(const FitSample *samples, int count, int which, double step, Fit *fit,
                             bool *better) {
  for (int sign = 1; sign >= -1; sign -= 2) {
    Fit trial = *fit;
    move(&trial, which, exp(sign * step));
    ROTA_TRY(judge(samples, count, &trial));
    if (trial.error < fit->error) {
      *fit = trial;
      *better = true;
      return ROTA_OK;
    }
  }
  return ROTA_OK;
}

rota_status costs_fit(const FitSample *samples, int count, FitStep *step, Fit *fit) {
  if (count < COSTS_FITTED)
    return status_fail(ROTA_INVALID_ARGUMENT, "%d measured times: %d are needed", count,
                       COSTS_FITTED);
  for (int i = 0; i < count; i++)
    if (!(samples[i].ticks > 0 && samples[i].ticks < 1e15))
      return status_fail(ROTA_INVALID_ARGUMENT, "measured time %d is not positive", i + 1);
  for (int which = 0; which < COSTS_FITTED; which++)
    move(fit, which, 1); /* nothing is 0: it could not grow */
  ROTA_TRY(judge(samples, count, fit));
  double size = first_step;
  for (int round = 0; round < FIT_ROUNDS && size > last_step; round++) {
    bool better = false;
    if (step)
      step(round);
    for (int which = 0; which < COSTS_FITTED; which++)
      ROTA_TRY(try_moves(samples, count, which, size, fit, &better));
    if (!better)
      size /= 2;
  }
  return ROTA_OK;
}
