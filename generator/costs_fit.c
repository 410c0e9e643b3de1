/* Level 4. Levenberg and Marquardt's method on the logarithms of costs and times: makespans are
 * piecewise linear in the costs, so within a piece a Gauss-Newton step is nearly exact, and the
 * damping carries the search over the kinks. Derivatives are differences. */
#include "generator/costs_fit.h"

#include <math.h>
#include <stdlib.h>

enum { FITTED = 5 }; /* visit, partial, start, handoff, base */
static const double difference = 0.01, longest_step = 0.7; /* of a logarithm */

static double clamp(double ticks) {
  return ticks < 1 ? 1 : ticks > 1e9 ? 1e9 : ticks;
}

rota_status costs_fit_time(const DagProblem *problem, const Fit *fit, double *ticks) {
  DagFigures figures;
  ROTA_TRY(dag_simulate(problem, &fit->costs, &figures, NULL));
  *ticks = fit->base + (double)figures.makespan;
  return ROTA_OK;
}

/* ln(modelled / measured) of each sample; the mean square goes into fit->error. */
static rota_status residuals(const FitSample *samples, int count, Fit *fit, double *errors) {
  double sum = 0;
  for (int i = 0; i < count; i++) {
    double modelled;
    ROTA_TRY(costs_fit_time(samples[i].problem, fit, &modelled));
    errors[i] = log(modelled / samples[i].ticks);
    sum += errors[i] * errors[i];
  }
  fit->error = sqrt(sum / count);
  return ROTA_OK;
}

/* Scales one of the costs. */
static void scale(Fit *fit, int which, double factor) {
  int64_t *const times[] = {&fit->costs.visit, &fit->costs.partial, &fit->costs.start,
                            &fit->costs.handoff};
  if (which < FITTED - 1)
    *times[which] = llround(clamp((double)*times[which] * factor));
  else
    fit->base = clamp(fit->base * factor);
}

/* Normal equations: matrix step = -gradient. */
typedef struct Normal {
  double matrix[FITTED][FITTED], gradient[FITTED];
} Normal;

/* slopes: [FITTED][count] scratch. */
static rota_status linearise(const FitSample *samples, int count, const Fit *fit,
                             const double *errors, double *slopes, Normal *normal) {
  for (int p = 0; p < FITTED; p++) {
    Fit moved = *fit;
    double *slope = slopes + (size_t)p * (size_t)count;
    scale(&moved, p, exp(difference));
    ROTA_TRY(residuals(samples, count, &moved, slope));
    for (int i = 0; i < count; i++)
      slope[i] = (slope[i] - errors[i]) / difference;
  }
  for (int p = 0; p < FITTED; p++) {
    const double *a = slopes + (size_t)p * (size_t)count;
    normal->gradient[p] = 0;
    for (int i = 0; i < count; i++)
      normal->gradient[p] += a[i] * errors[i];
    for (int q = 0; q < FITTED; q++) {
      const double *b = slopes + (size_t)q * (size_t)count;
      normal->matrix[p][q] = 0;
      for (int i = 0; i < count; i++)
        normal->matrix[p][q] += a[i] * b[i];
    }
  }
  return ROTA_OK;
}

/* Gaussian elimination of the damped equations; positive definite, so no pivoting. */
static void solve(const Normal *normal, double damping, double *step) {
  double m[FITTED][FITTED + 1];
  for (int p = 0; p < FITTED; p++) {
    for (int q = 0; q < FITTED; q++)
      m[p][q] = normal->matrix[p][q];
    m[p][p] += damping * (normal->matrix[p][p] + 1e-6);
    m[p][FITTED] = -normal->gradient[p];
  }
  for (int p = 0; p < FITTED; p++)
    for (int row = p + 1; row < FITTED; row++)
      for (int q = FITTED; q >= p; q--)
        m[row][q] -= m[row][p] / m[p][p] * m[p][q];
  for (int p = FITTED - 1; p >= 0; p--) {
    step[p] = m[p][FITTED];
    for (int q = p + 1; q < FITTED; q++)
      step[p] -= m[p][q] * step[q];
    step[p] /= m[p][p];
    if (!(fabs(step[p]) <= longest_step))
      step[p] = step[p] > 0 ? longest_step : -longest_step;
  }
}

/* One round: the equations at `fit`, then steps of growing damping until one is better. */
static rota_status improve(const FitSample *samples, int count, double *errors, double *scratch,
                           Fit *fit, double *damping, bool *better) {
  Normal normal;
  double step[FITTED];
  *better = false;
  ROTA_TRY(linearise(samples, count, fit, errors, scratch, &normal));
  for (int attempt = 0; attempt < 10 && !*better; attempt++) {
    Fit trial = *fit;
    solve(&normal, *damping, step);
    for (int p = 0; p < FITTED; p++)
      scale(&trial, p, exp(step[p]));
    ROTA_TRY(residuals(samples, count, &trial, scratch));
    *better = trial.error < fit->error;
    *damping = *better ? *damping / 5 : *damping * 4;
    if (*better)
      *fit = trial;
  }
  return residuals(samples, count, fit, errors);
}

static rota_status check(const FitSample *samples, int count) {
  if (count < FITTED)
    return status_fail(ROTA_INVALID_ARGUMENT, "%d measured times: %d are needed", count, FITTED);
  for (int i = 0; i < count; i++)
    if (!(samples[i].ticks > 0 && samples[i].ticks < 1e15))
      return status_fail(ROTA_INVALID_ARGUMENT, "measured time %d is not positive", i + 1);
  return ROTA_OK;
}

rota_status costs_fit(const FitSample *samples, int count, FitStep *step, Fit *fit) {
  ROTA_TRY(check(samples, count));
  double *errors = memory_allocate((size_t)count, sizeof(double));
  double *scratch = memory_allocate((size_t)count * FITTED, sizeof(double));
  rota_status status = errors && scratch ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (int which = 0; which < FITTED; which++)
    scale(fit, which, 1); /* nothing is 0: it could not grow */
  if (status == ROTA_OK)
    status = residuals(samples, count, fit, errors);
  double damping = 0.01;
  bool better = true;
  for (int round = 0; round < FIT_ROUNDS && better && status == ROTA_OK; round++) {
    if (step)
      step(round);
    status = improve(samples, count, errors, scratch, fit, &damping, &better);
  }
  free(errors);
  free(scratch);
  return status;
}
