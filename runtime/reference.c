/* Attention as its formula says, in fp64. One (sequence, kv head) at a time:
 *
 *   rows   for 16 queries against all keys: S, P, O, LSE; backward also delta, dP, dS, dQ
 *   keys   for 64 keys against all queries of the group: P and dS again, dK, dV */
#include "runtime/reference.h"

#include "runtime/cpu_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BLOCK = 16, KEY_BLOCK = 64 };

/* One (sequence, kv head): inputs as doubles, contiguous. */
typedef struct Plane {
  const ReferenceProblem *problem;
  ReferenceResult *result;
  int b, kv_head, group, n_q, n_k;
  int64_t row_q, row_k; /* first row of the slot in the results */
  double *k, *k_t;      /* [n_k][d], [d][n_k] */
  double *v, *v_t;      /* [n_k][dv], [dv][n_k] */
  double *q, *d_o;      /* [group][n_q][d], [group][n_q][dv] */
  double *lse, *delta;  /* [group][n_q] */
  double *square;       /* [n_k]: |V|^2 */
} Plane;

/* c[m][n] += a[m][depth] b[depth][n]. A zero of `a` takes no part: 0 * NaN from a position that
 * is masked would. */
static void multiply_add(int m, int n, int depth, const double *a, int64_t a_row, int64_t a_column,
                         const double *restrict b, int64_t b_row, double *restrict c,
                         int64_t c_row) {
  for (int i = 0; i < m; i++)
    for (int l = 0; l < depth; l++) {
      double factor = a[i * a_row + l * a_column];
      if (factor == 0.0)
        continue;
      const double *restrict from = b + l * b_row;
      double *restrict to = c + i * c_row;
#pragma omp simd
      for (int j = 0; j < n; j++)
        to[j] += factor * from[j];
    }
}

static double rounded(const ReferenceProblem *problem, double value) {
  return problem->rounded ? (double)number_round(problem->dtype, (float)value) : value;
}

static int64_t element(const rota_tensor *tensor, const Lengths *lengths, int b, int64_t begin,
                       int64_t row, int head) {
  int64_t slot = lengths->packed ? 0 : b;
  return slot * tensor->stride_batch + (begin + row) * tensor->stride_row +
         head * tensor->stride_head;
}

/* Rows of one head as doubles, and transposed where `across` is given. */
static void load(const ReferenceProblem *problem, const rota_tensor *tensor, int b, int64_t begin,
                 int rows, int head, int dim, double *along, double *across) {
  float line[HEAD_DIM_MAX];
  for (int r = 0; r < rows; r++) {
    int64_t offset =
        element(tensor, problem->lengths, b, begin, r, head) * dtype_size(problem->dtype);
    numbers_load(problem->dtype, (const char *)tensor->data + offset, dim, line);
    for (int i = 0; i < dim; i++) {
      along[(int64_t)r * dim + i] = (double)line[i];
      if (across)
        across[(int64_t)i * rows + r] = (double)line[i];
    }
  }
}

static RowPosition position(const Plane *plane, int head, int q) {
  return (RowPosition){.q = q, .h = head, .b = plane->b, .n_q = plane->n_q, .n_k = plane->n_k};
}

/* The final scores of one query against keys [k_begin, k_begin + count), from raw products in
 * `s`; -inf where masked. `allowed` is scratch. */
static void finish_scores(const Plane *plane, int head, int q, int k_begin, int count, double *s,
                          double *slope, bool *allowed) {
  const ReferenceProblem *problem = plane->problem;
  RowPosition row = position(plane, head, q);
  for (int j = 0; j < count; j++) {
    s[j] *= problem->scale;
    if (slope)
      slope[j] = 1.0;
  }
  if (problem->score)
    problem->score(problem->context, &row, k_begin, count, s, slope);
  if (!problem->mask)
    return;
  problem->mask(problem->context, &row, k_begin, count, allowed);
  for (int j = 0; j < count; j++)
    if (!allowed[j])
      s[j] = -INFINITY;
}

/* P in place of the scores; LSE. `sink`: -inf without. */
static double soften(double *s, int count, double sink) {
  double top = sink, sum = 0.0;
  for (int j = 0; j < count; j++)
    if (s[j] > top || isnan(s[j]))
      top = s[j];
  if (top == -INFINITY) {
    memset(s, 0, (size_t)count * sizeof *s);
    return -INFINITY;
  }
  for (int j = 0; j < count; j++)
    sum += exp(s[j] - top);
  sum += exp(sink - top);
  double lse = top + log(sum);
  for (int j = 0; j < count; j++)
    s[j] = exp(s[j] - lse);
  return lse;
}

/* dS in place of dP, from P and delta; then both P and dS as the precision under test holds
 * them. */
static void differentiate(const Plane *plane, int count, double delta, double *p, double *dp,
                          const double *slope) {
  for (int j = 0; j < count; j++) {
    dp[j] = p[j] == 0.0 ? 0.0 : rounded(plane->problem, p[j] * (dp[j] - delta) * slope[j]);
    p[j] = rounded(plane->problem, p[j]);
  }
}

/* Scratch of one thread: [ROW_BLOCK][n_k] each. */
typedef struct RowScratch {
  double *s, *dp, *slope, *o;
  bool *allowed;
} RowScratch;

/* Delta of each row, and dQ. `s` holds P. */
static void row_gradients(const Plane *plane, const RowScratch *scratch, int g, int q_begin,
                          int rows) {
  const ReferenceProblem *problem = plane->problem;
  int d = problem->head_dim, dv = problem->head_dim_v, n_k = plane->n_k,
      head = plane->kv_head * plane->group + g;
  const double *d_o = plane->d_o + ((int64_t)g * plane->n_q + q_begin) * dv;
  memset(scratch->dp, 0, (size_t)rows * (size_t)n_k * sizeof(double));
  multiply_add(rows, n_k, dv, d_o, dv, 1, plane->v_t, n_k, scratch->dp, n_k);
  for (int r = 0; r < rows; r++) {
    double delta = 0.0;
    for (int i = 0; i < dv; i++)
      delta += d_o[r * dv + i] * scratch->o[r * dv + i];
    const rota_tensor *d_lse = &problem->arguments->d_lse;
    if (d_lse->data) {
      int64_t begin = problem->lengths->begin_q[plane->b];
      int64_t at = element(d_lse, problem->lengths, plane->b, begin, q_begin + r, head);
      delta -= (double)((const float *)d_lse->data)[at];
    }
    plane->delta[(int64_t)g * plane->n_q + q_begin + r] = delta;
    int64_t at = (int64_t)r * n_k;
    differentiate(plane, n_k, delta, scratch->s + at, scratch->dp + at, scratch->slope + at);
  }
  double *d_q = plane->result->d_q + ((plane->row_q + q_begin) * problem->heads + head) * d;
  int64_t pitch = (int64_t)problem->heads * d;
  multiply_add(rows, d, n_k, scratch->dp, n_k, 1, plane->k, d, d_q, pitch);
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < d; i++)
      d_q[r * pitch + i] = rounded(problem, problem->scale * d_q[r * pitch + i]);
}

static void row_block(const Plane *plane, const RowScratch *scratch, int g, int q_begin) {
  const ReferenceProblem *problem = plane->problem;
  int d = problem->head_dim, dv = problem->head_dim_v, n_k = plane->n_k,
      head = plane->kv_head * plane->group + g;
  int rows = plane->n_q - q_begin < ROW_BLOCK ? plane->n_q - q_begin : ROW_BLOCK;
  bool backward = problem->direction == ROTA_BACKWARD;
  const double *q = plane->q + ((int64_t)g * plane->n_q + q_begin) * d;
  double sink = problem->arguments->sink ? (double)problem->arguments->sink[head] : -INFINITY;
  memset(scratch->s, 0, (size_t)rows * (size_t)n_k * sizeof(double));
  multiply_add(rows, n_k, d, q, d, 1, plane->k_t, n_k, scratch->s, n_k);
  for (int r = 0; r < rows; r++) {
    int64_t at = (int64_t)r * n_k;
    finish_scores(plane, head, q_begin + r, 0, n_k, scratch->s + at,
                  backward ? scratch->slope + at : NULL, scratch->allowed);
    double lse = soften(scratch->s + at, n_k, sink);
    plane->lse[(int64_t)g * plane->n_q + q_begin + r] = lse;
    plane->result->lse[(plane->row_q + q_begin + r) * problem->heads + head] = lse;
  }
  memset(scratch->o, 0, (size_t)rows * (size_t)dv * sizeof(double));
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < n_k; j++) { /* the backward pass starts from P before it was rounded */
      double exact = scratch->s[(int64_t)r * n_k + j], p = rounded(problem, exact);
      plane->result->mean_square[(plane->row_q + q_begin + r) * problem->heads + head] +=
          exact == 0.0 ? 0.0 : exact * plane->square[j];
      multiply_add(1, dv, 1, &p, 0, 0, plane->v + (int64_t)j * dv, 0, scratch->o + (int64_t)r * dv,
                   0);
    }
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < dv; i++) {
      double *o = &scratch->o[r * dv + i];
      *o = rounded(problem, *o);
      plane->result->o[((plane->row_q + q_begin + r) * problem->heads + head) * dv + i] = *o;
    }
  if (backward)
    row_gradients(plane, scratch, g, q_begin, rows);
}

/* P and dS of `rows` queries against one block of keys, added to that block's dK and dV. */
static void key_block_rows(const Plane *plane, int g, int q_begin, int rows, int k_begin, int keys,
                           double *d_k, double *d_v) {
  const ReferenceProblem *problem = plane->problem;
  int d = problem->head_dim, dv = problem->head_dim_v, head = plane->kv_head * plane->group + g;
  int64_t row = (int64_t)g * plane->n_q + q_begin, pitch_k = (int64_t)problem->kv_heads * d,
          pitch_v = (int64_t)problem->kv_heads * dv;
  double s[ROW_BLOCK * KEY_BLOCK] = {0}, dp[ROW_BLOCK * KEY_BLOCK] = {0}, slope[KEY_BLOCK];
  bool allowed[KEY_BLOCK];
  multiply_add(rows, keys, d, plane->q + row * d, d, 1, plane->k_t + k_begin, plane->n_k, s,
               KEY_BLOCK);
  multiply_add(rows, keys, dv, plane->d_o + row * dv, dv, 1, plane->v_t + k_begin, plane->n_k, dp,
               KEY_BLOCK);
  for (int r = 0; r < rows; r++) {
    double *p = s + r * KEY_BLOCK, lse = plane->lse[row + r];
    finish_scores(plane, head, q_begin + r, k_begin, keys, p, slope, allowed);
    for (int j = 0; j < keys; j++)
      p[j] = p[j] == -INFINITY ? 0.0 : exp(p[j] - lse);
    differentiate(plane, keys, plane->delta[row + r], p, dp + r * KEY_BLOCK, slope);
  }
  multiply_add(keys, dv, rows, s, 1, KEY_BLOCK, plane->d_o + row * dv, dv, d_v, pitch_v);
  multiply_add(keys, d, rows, dp, 1, KEY_BLOCK, plane->q + row * d, d, d_k, pitch_k);
}

static void key_block(const Plane *plane, int k_begin) {
  const ReferenceProblem *problem = plane->problem;
  int d = problem->head_dim, dv = problem->head_dim_v;
  int keys = plane->n_k - k_begin < KEY_BLOCK ? plane->n_k - k_begin : KEY_BLOCK;
  int64_t row = (plane->row_k + k_begin) * problem->kv_heads + plane->kv_head;
  double *d_k = plane->result->d_k + row * d, *d_v = plane->result->d_v + row * dv;
  for (int g = 0; g < plane->group; g++)
    for (int q = 0; q < plane->n_q; q += ROW_BLOCK) {
      int rows = plane->n_q - q < ROW_BLOCK ? plane->n_q - q : ROW_BLOCK;
      key_block_rows(plane, g, q, rows, k_begin, keys, d_k, d_v);
    }
  for (int j = 0; j < keys; j++) {
    double *line_k = d_k + (int64_t)j * problem->kv_heads * d,
           *line_v = d_v + (int64_t)j * problem->kv_heads * dv;
    for (int i = 0; i < d; i++)
      line_k[i] = rounded(problem, problem->scale * line_k[i]);
    for (int i = 0; i < dv; i++)
      line_v[i] = rounded(problem, line_v[i]);
  }
}

static void add_sink_gradients(const Plane *plane) {
  const ReferenceProblem *problem = plane->problem;
  for (int g = 0; g < plane->group; g++) {
    int head = plane->kv_head * plane->group + g;
    for (int q = 0; q < plane->n_q; q++) {
      int64_t at = (int64_t)g * plane->n_q + q;
      if (plane->lse[at] == -INFINITY)
        continue;
      plane->result->d_sink[head] -=
          exp((double)problem->arguments->sink[head] - plane->lse[at]) * plane->delta[at];
    }
  }
}

/* Returns false when memory ran out. */
static bool plane_rows(const Plane *plane) {
  const ReferenceProblem *problem = plane->problem;
  int blocks = (plane->n_q + ROW_BLOCK - 1) / ROW_BLOCK, items = blocks * plane->group;
  size_t cells = (size_t)ROW_BLOCK * (size_t)(plane->n_k + 1);
  bool complete = true;
#pragma omp parallel
  {
    RowScratch scratch = {
        .s = memory_allocate(cells, sizeof(double)),
        .dp = memory_allocate(cells, sizeof(double)),
        .slope = memory_allocate(cells, sizeof(double)),
        .o = memory_allocate((size_t)ROW_BLOCK * (size_t)problem->head_dim_v, sizeof(double)),
        .allowed = memory_allocate(cells, sizeof(bool))};
    bool fine = scratch.s && scratch.dp && scratch.slope && scratch.o && scratch.allowed;
    if (!fine) {
#pragma omp atomic write
      complete = false;
    }
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < items; i++)
      if (fine)
        row_block(plane, &scratch, i / blocks, i % blocks * ROW_BLOCK);
    free(scratch.s);
    free(scratch.dp);
    free(scratch.slope);
    free(scratch.o);
    free(scratch.allowed);
  }
  return complete;
}

static void find_squares(const Plane *plane) {
  int dv = plane->problem->head_dim_v;
  for (int j = 0; j < plane->n_k; j++) {
    plane->square[j] = 0.0;
    for (int i = 0; i < dv; i++)
      plane->square[j] += plane->v[(int64_t)j * dv + i] * plane->v[(int64_t)j * dv + i];
  }
}

static void plane_load(Plane *plane) {
  const ReferenceProblem *problem = plane->problem;
  const rota_arguments *arguments = problem->arguments;
  int d = problem->head_dim, dv = problem->head_dim_v, b = plane->b;
  int64_t begin_q = problem->lengths->begin_q[b], begin_k = problem->lengths->begin_k[b];
  load(problem, &arguments->k, b, begin_k, plane->n_k, plane->kv_head, d, plane->k, plane->k_t);
  load(problem, &arguments->v, b, begin_k, plane->n_k, plane->kv_head, dv, plane->v, plane->v_t);
  find_squares(plane);
  for (int g = 0; g < plane->group; g++) {
    int head = plane->kv_head * plane->group + g;
    int64_t row = (int64_t)g * plane->n_q;
    load(problem, &arguments->q, b, begin_q, plane->n_q, head, d, plane->q + row * d, NULL);
    if (problem->direction == ROTA_BACKWARD)
      load(problem, &arguments->d_o, b, begin_q, plane->n_q, head, dv, plane->d_o + row * dv, NULL);
  }
}

static rota_status plane_run(Plane *plane) {
  const ReferenceProblem *problem = plane->problem;
  size_t d = (size_t)problem->head_dim, dv = (size_t)problem->head_dim_v, n_k = (size_t)plane->n_k,
         rows = (size_t)plane->n_q * (size_t)plane->group;
  /* One block for all of the plane's doubles. */
  size_t total = 2 * n_k * (d + dv) + rows * (d + dv + 2) + n_k;
  double *memory = memory_allocate(total + 1, sizeof *memory);
  if (!memory)
    return ROTA_OUT_OF_MEMORY;
  plane->k = memory;
  plane->k_t = plane->k + n_k * d;
  plane->v = plane->k_t + n_k * d;
  plane->v_t = plane->v + n_k * dv;
  plane->q = plane->v_t + n_k * dv;
  plane->d_o = plane->q + rows * d;
  plane->lse = plane->d_o + rows * dv;
  plane->delta = plane->lse + rows;
  plane->square = plane->delta + rows;
  plane_load(plane);
  bool complete = plane_rows(plane);
  if (complete && problem->direction == ROTA_BACKWARD) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int k = 0; k < plane->n_k; k += KEY_BLOCK)
      key_block(plane, k);
    if (problem->arguments->sink)
      add_sink_gradients(plane);
  }
  free(memory);
  if (complete)
    return ROTA_OK;
  /* The message of memory_allocate may be another thread's. */
  return status_fail(ROTA_OUT_OF_MEMORY, "out of memory for the fp64 reference of %d x %d",
                     plane->n_q, plane->n_k);
}

static rota_status result_allocate(const ReferenceProblem *problem, ReferenceResult *result) {
  size_t heads = (size_t)problem->heads, kv_heads = (size_t)problem->kv_heads,
         d = (size_t)problem->head_dim, dv = (size_t)problem->head_dim_v,
         rows_q = (size_t)result->rows_q, rows_k = (size_t)result->rows_k;
  bool backward = problem->direction == ROTA_BACKWARD;
  result->o = memory_allocate(rows_q * heads * dv + 1, sizeof(double));
  result->lse = memory_allocate(rows_q * heads + 1, sizeof(double));
  result->mean_square = memory_allocate(rows_q * heads + 1, sizeof(double));
  if (backward) {
    result->d_q = memory_allocate(rows_q * heads * d + 1, sizeof(double));
    result->d_k = memory_allocate(rows_k * kv_heads * d + 1, sizeof(double));
    result->d_v = memory_allocate(rows_k * kv_heads * dv + 1, sizeof(double));
    result->d_sink = memory_allocate(heads, sizeof(double));
  }
  bool complete = result->o && result->lse && result->mean_square;
  if (backward)
    complete = complete && result->d_q && result->d_k && result->d_v && result->d_sink;
  if (!complete)
    return ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < rows_q * heads; i++)
    result->lse[i] = -INFINITY; /* rows past the used length */
  return ROTA_OK;
}

rota_status reference_run(const ReferenceProblem *problem, ReferenceResult *result) {
  const Lengths *lengths = problem->lengths;
  *result = (ReferenceResult){0};
  for (int b = 0; b < lengths->batch; b++) {
    result->rows_q += lengths->rows_q[b];
    result->rows_k += lengths->rows_k[b];
  }
  rota_status status = result_allocate(problem, result);
  int64_t row_q = 0, row_k = 0;
  for (int b = 0; b < lengths->batch && status == ROTA_OK; b++) {
    for (int head = 0; head < problem->kv_heads && status == ROTA_OK; head++) {
      Plane plane = {.problem = problem,
                     .result = result,
                     .b = b,
                     .kv_head = head,
                     .group = problem->heads / problem->kv_heads,
                     .n_q = lengths->n_q[b],
                     .n_k = lengths->n_k[b],
                     .row_q = row_q,
                     .row_k = row_k};
      status = plane_run(&plane);
    }
    row_q += lengths->rows_q[b];
    row_k += lengths->rows_k[b];
  }
  if (status != ROTA_OK)
    reference_free(result);
  return status;
}

void reference_free(ReferenceResult *result) {
  free(result->o);
  free(result->lse);
  free(result->mean_square);
  free(result->d_q);
  free(result->d_k);
  free(result->d_v);
  free(result->d_sink);
  *result = (ReferenceResult){0};
}

static void mask_of_spec(const void *context, const RowPosition *row, int32_t k_begin,
                         int32_t count, bool *out) {
  const ReferenceExpressions *expressions = context;
  expression_evaluate_mask(expressions->spec->mask, expressions->bindings, row, k_begin, count,
                           out);
}

static void score_of_spec(const void *context, const RowPosition *row, int32_t k_begin,
                          int32_t count, double *s, double *slope) {
  const ReferenceExpressions *expressions = context;
  const Spec *spec = expressions->spec;
  float in[KEY_BLOCK], out[KEY_BLOCK];
  for (int32_t j = 0; j < count; j += KEY_BLOCK) {
    int32_t n = count - j < KEY_BLOCK ? count - j : KEY_BLOCK;
    for (int i = 0; i < n; i++)
      in[i] = (float)s[j + i];
    expression_evaluate_score(spec->score, expressions->bindings, row, k_begin + j, n, in, out);
    for (int i = 0; i < n; i++)
      s[j + i] = (double)out[i];
    if (!slope)
      continue;
    expression_evaluate_score(spec->score_derivative, expressions->bindings, row, k_begin + j, n,
                              in, out);
    for (int i = 0; i < n; i++)
      slope[j + i] = (double)out[i];
  }
}

void reference_use_expressions(ReferenceProblem *problem, const ReferenceExpressions *expressions) {
  problem->mask = expressions->spec->mask ? mask_of_spec : NULL;
  problem->score = expressions->spec->score ? score_of_spec : NULL;
  problem->context = expressions;
}

void reference_error_add(ReferenceError *error, double got, double want) {
  if (got == want) {
    if (isfinite(want))
      error->norm += want * want;
    return;
  }
  if (!isfinite(got) || !isfinite(want))
    error->difference = INFINITY;
  error->difference += (got - want) * (got - want);
  error->norm += isfinite(want) ? want * want : 0.0;
}

double reference_error(const ReferenceError *error) {
  if (isnan(error->difference))
    return INFINITY;
  if (error->difference == 0.0)
    return 0.0;
  return sqrt(error->difference) / sqrt(error->norm);
}
