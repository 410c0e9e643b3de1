/* Level 3. Arithmetic on blocks: see io_arithmetic.h. */
#include "generator/io_arithmetic.h"

#include <math.h>

static int64_t elements(const IoView *view) {
  return view->rows * view->columns;
}

void io_add_outer(const void *context, const IoView *views) {
  (void)context;
  const IoView *c = &views[0];
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t j = 0; j < c->columns; j++)
      c->data[i * c->columns + j] += views[1].data[i] * views[2].data[j];
}

void io_add_rows_by_rows(const void *context, const IoView *views) {
  (void)context;
  const IoView *c = &views[0], *a = &views[1], *b = &views[2];
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t j = 0; j < c->columns; j++)
      for (int64_t k = 0; k < a->columns; k++)
        c->data[i * c->columns + j] += a->data[i * a->columns + k] * b->data[j * b->columns + k];
}

void io_add_product(const void *context, const IoView *views) {
  (void)context;
  const IoView *c = &views[0], *a = &views[1], *b = &views[2];
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t j = 0; j < c->columns; j++)
      for (int64_t k = 0; k < a->columns; k++)
        c->data[i * c->columns + j] += a->data[i * a->columns + k] * b->data[k * b->columns + j];
}

void io_add_dot(const void *context, const IoView *views) {
  (void)context;
  for (int64_t i = 0; i < elements(&views[1]); i++)
    views[0].data[0] += views[1].data[i] * views[2].data[i];
}

void io_scale(const void *context, const IoView *views) {
  const double *factor = context;
  for (int64_t i = 0; i < elements(&views[0]); i++)
    views[0].data[i] *= *factor;
}

void io_mask_scores(const void *context, const IoView *views) {
  const IoScores *scores = context;
  const IoView *s = &views[0];
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->columns; j++) {
      RowPosition row = {(int32_t)(scores->q + i), 0, 0, (int32_t)scores->n, (int32_t)scores->n};
      bool allowed = true;
      if (scores->mask)
        expression_evaluate_mask(scores->mask, scores->bindings, &row, (int32_t)(scores->k + j), 1,
                                 &allowed);
      double *value = &s->data[i * s->columns + j];
      *value = allowed ? scores->scale * *value : -INFINITY;
    }
}

void io_begin_statistics(const void *context, const IoView *views) {
  (void)context;
  for (int64_t i = 0; i < elements(&views[0]); i++)
    views[0].data[i] = -INFINITY;
}

/* Raises the maximum to s if s is larger; returns what earlier sums are to be multiplied with. */
static double raise_maximum(double *m, double s) {
  if (!(s > *m))
    return 1;
  double factor = exp(*m - s);
  *m = s;
  return factor;
}

/* exp(s - m); 0 where s is -inf, also if m is. */
static double exponential(double s, double m) {
  return isinf(s) ? 0 : exp(s - m);
}

void io_add_statistics(const void *context, const IoView *views) {
  (void)context;
  const IoView *s = &views[0];
  double *m = views[1].data, *l = views[2].data;
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->columns; j++) {
      double value = s->data[i * s->columns + j];
      l[i] *= raise_maximum(&m[i], value);
      l[i] += exponential(value, m[i]);
    }
}

void io_end_statistics(const void *context, const IoView *views) {
  (void)context;
  for (int64_t i = 0; i < elements(&views[0]); i++)
    views[1].data[i] = views[0].data[i] + log(views[1].data[i]);
}

void io_probabilities(const void *context, const IoView *views) {
  (void)context;
  const IoView *s = &views[0];
  for (int64_t i = 0; i < s->rows; i++)
    for (int64_t j = 0; j < s->columns; j++)
      s->data[i * s->columns + j] = exponential(s->data[i * s->columns + j], views[1].data[i]);
}

void io_add_delta(const void *context, const IoView *views) {
  (void)context;
  const IoView *p = &views[0];
  for (int64_t i = 0; i < p->rows; i++)
    for (int64_t j = 0; j < p->columns; j++)
      views[1].data[i] += p->data[i * p->columns + j] * views[2].data[i * p->columns + j];
}

void io_gradients(const void *context, const IoView *views) {
  (void)context;
  const IoView *d_p = &views[0];
  for (int64_t i = 0; i < d_p->rows; i++)
    for (int64_t j = 0; j < d_p->columns; j++) {
      double *value = &d_p->data[i * d_p->columns + j];
      *value = views[1].data[i * d_p->columns + j] * (*value - views[2].data[i]);
    }
}

void io_gradient_column(const void *context, const IoView *views) {
  const int64_t *column = context;
  const IoView *tile = &views[0];
  for (int64_t i = 0; i < tile->rows; i++) {
    double *value = &tile->data[i * tile->columns + *column];
    *value = views[1].data[i] * (*value - views[2].data[i]);
  }
}

void io_add_value(const void *context, const IoView *views) {
  (void)context;
  const IoView *o = &views[0];
  double *m = views[1].data, *l = views[2].data, *s = views[3].data, *v = views[4].data;
  for (int64_t i = 0; i < o->rows; i++) {
    double factor = raise_maximum(&m[i], s[i]), p = exponential(s[i], m[i]);
    l[i] = l[i] * factor + p;
    for (int64_t j = 0; j < o->columns; j++)
      o->data[i * o->columns + j] = o->data[i * o->columns + j] * factor + p * v[j];
  }
}

void io_end_values(const void *context, const IoView *views) {
  (void)context;
  const IoView *o = &views[0];
  for (int64_t i = 0; i < o->rows; i++)
    for (int64_t j = 0; j < o->columns; j++)
      o->data[i * o->columns + j] /= views[2].data[i] > 0 ? views[2].data[i] : 1;
}

void io_add_online_delta(const void *context, const IoView *views) {
  (void)context;
  double *delta = views[0].data, *m = views[1].data, *l = views[2].data;
  for (int64_t i = 0; i < elements(&views[0]); i++) {
    double factor = raise_maximum(&m[i], views[3].data[i]);
    double p = exponential(views[3].data[i], m[i]);
    l[i] = l[i] * factor + p;
    delta[i] = delta[i] * factor + p * views[4].data[i];
  }
}

void io_end_online_delta(const void *context, const IoView *views) {
  (void)context;
  for (int64_t i = 0; i < elements(&views[0]); i++)
    views[0].data[i] /= views[2].data[i] > 0 ? views[2].data[i] : 1;
}
