/* Level 5. The large-cache algorithm, FlashAttention: as many whole rows as fit stay in fast
 * memory, the other side streams past one row at a time; scores are computed again instead of kept.
 *
 *     kernel's backward   kept: B rows of K, V, dK, dV      streamed: q, dO, dQ (read and written)
 *     all others          kept: B rows of Q, dO, dQ or O    streamed: k, v
 *
 * Streaming single rows leaves the most room for the kept side, which alone decides how often the
 * other is read. */
#include "generator/io_programs.h"

/* Elements of fast memory: `per_row` for each kept row, `fixed` besides. */
typedef struct Need {
  int64_t per_row, fixed;
} Need;

static Need need(const IoProblem *problem) {
  int64_t d = problem->d;
  if (problem->direction == ROTA_FORWARD)
    return (Need){2 * d + 3, 2 * d}; /* Q, O, m, l, s; k, v */
  if (problem->form == IO_PAPER)
    return (Need){3 * d + 5, 2 * d};   /* Q, dO, dQ, m, l, delta, s, dp; k, v */
  return (Need){4 * d + 2, 3 * d + 2}; /* K, V, dK, dV, s, dp; q, dO, dQ, lse, delta */
}

int64_t io_large_cache_minimum(const IoProblem *problem) {
  return need(problem).per_row + need(problem).fixed;
}

static int64_t kept_rows(const IoProblem *problem) {
  int64_t rows = (problem->m - need(problem).fixed) / need(problem).per_row;
  return rows < 1 ? 1 : rows < problem->n ? rows : problem->n;
}

/* s = mask(scale a b^T) for rows a against rows b. */
static IoBlock scores(const IoJob *job, IoBlock a, IoBlock b, IoRange q, IoRange k) {
  IoBlock s = io_zeros(job->machine, q.size, k.size);
  io_compute(job->machine, io_add_rows_by_rows, NULL, (IoBlock[]){s, a, b}, 3);
  io_score(job, s, q.at, k.at);
  return s;
}

/* ---- The kernel's backward: a block of keys stays, queries stream ---- */

typedef struct KeyBlock {
  IoRange range;
  IoBlock k, v, d_k, d_v;
} KeyBlock;

/* One query against a block of keys. */
static void visit_query(const IoJob *job, const KeyBlock *keys, int64_t at) {
  IoMachine *machine = job->machine;
  IoMatrix *const *t = job->tensors;
  int64_t d = job->problem->d;
  IoBlock q = io_load(machine, t[IO_Q], at, 0, 1, d);
  IoBlock d_o = io_load(machine, t[IO_D_O], at, 0, 1, d);
  IoBlock d_q = io_load(machine, t[IO_D_Q], at, 0, 1, d);
  IoBlock lse = io_load(machine, t[IO_LSE], at, 0, 1, 1);
  IoBlock delta = io_load(machine, t[IO_DELTA], at, 0, 1, 1);
  IoBlock p = scores(job, q, keys->k, (IoRange){at, 1}, keys->range);
  io_compute(machine, io_probabilities, NULL, (IoBlock[]){p, lse}, 2);
  IoBlock d_s = io_zeros(machine, 1, keys->range.size);
  io_compute(machine, io_add_rows_by_rows, NULL, (IoBlock[]){d_s, d_o, keys->v}, 3);
  io_compute(machine, io_add_outer, NULL, (IoBlock[]){keys->d_v, p, d_o}, 3);
  io_compute(machine, io_gradients, NULL, (IoBlock[]){d_s, p, delta}, 3);
  io_compute(machine, io_scale, &job->problem->scale, &d_s, 1);
  io_compute(machine, io_add_outer, NULL, (IoBlock[]){keys->d_k, d_s, q}, 3);
  io_compute(machine, io_add_product, NULL, (IoBlock[]){d_q, d_s, keys->k}, 3);
  io_put(machine, d_q, t[IO_D_Q], at, 0);
  IoBlock done[] = {q, d_o, lse, delta, p, d_s};
  for (size_t i = 0; i < sizeof done / sizeof done[0]; i++)
    io_evict(machine, done[i]);
}

static void kernel_backward(const IoJob *job, const IoPlane *plane) {
  IoMachine *machine = job->machine;
  IoMatrix *const *t = job->tensors;
  int64_t n = job->problem->n, d = job->problem->d;
  io_row_delta(job);
  /* dQ collects its sum in slow memory, from zero on. */
  for (IoLoop i = io_loop(machine, 0, n, 1); io_next(machine, &i);)
    io_put(machine, io_zeros(machine, 1, d), t[IO_D_Q], i.at, 0);
  for (int32_t tile = 0; tile < plane->columns.count && !io_refused(machine); tile++) {
    int64_t at = (int64_t)tile * plane->tile_kv;
    int64_t size = n - at < plane->tile_kv ? n - at : plane->tile_kv;
    KeyBlock keys = {.range = {at, size},
                     .k = io_load(machine, t[IO_K], at, 0, size, d),
                     .v = io_load(machine, t[IO_V], at, 0, size, d),
                     .d_k = io_zeros(machine, size, d),
                     .d_v = io_zeros(machine, size, d)};
    for (int64_t run = plane->columns.first[tile]; run < plane->columns.first[tile + 1]; run++) {
      const IoRun *queries = &plane->columns.runs[run];
      IoLoop i = io_loop(machine, queries->begin, queries->end, 1);
      while (io_next(machine, &i))
        visit_query(job, &keys, i.at);
    }
    io_put(machine, keys.d_k, t[IO_D_K], at, 0);
    io_put(machine, keys.d_v, t[IO_D_V], at, 0);
    io_evict(machine, keys.k);
    io_evict(machine, keys.v);
  }
}

/* ---- The others: a block of queries stays, keys stream ---- */

typedef struct QueryBlock {
  IoRange range;
  IoBlock q, d_o, sum; /* sum: O, or dQ */
  IoBlock m, l, delta;
} QueryBlock;

/* One key against a block of queries. */
typedef void KeyVisit(const IoJob *job, const QueryBlock *queries, IoBlock s, IoBlock k, IoBlock v);

static void each_key(const IoJob *job, const IoPlane *plane, int32_t row, const QueryBlock *queries,
                     KeyVisit *visit) {
  IoMachine *machine = job->machine;
  int64_t d = job->problem->d;
  const IoMatrix *keys = job->tensors[IO_K], *values = job->tensors[IO_V];
  for (int64_t run = plane->rows.first[row]; run < plane->rows.first[row + 1]; run++) {
    IoLoop j = io_loop(machine, plane->rows.runs[run].begin, plane->rows.runs[run].end, 1);
    while (io_next(machine, &j)) {
      IoBlock k = io_load(machine, keys, j.at, 0, 1, d);
      IoBlock v = io_load(machine, values, j.at, 0, 1, d);
      IoBlock s = scores(job, queries->q, k, queries->range, (IoRange){j.at, 1});
      visit(job, queries, s, k, v);
      io_evict(machine, s);
      io_evict(machine, k);
      io_evict(machine, v);
    }
  }
}

static void visit_value(const IoJob *job, const QueryBlock *queries, IoBlock s, IoBlock k,
                        IoBlock v) {
  (void)k;
  io_compute(job->machine, io_add_value, NULL,
             (IoBlock[]){queries->sum, queries->m, queries->l, s, v}, 5);
}

static IoBlock value_gradient(const IoJob *job, const QueryBlock *queries, IoBlock v) {
  IoBlock dp = io_zeros(job->machine, queries->range.size, 1);
  io_compute(job->machine, io_add_rows_by_rows, NULL, (IoBlock[]){dp, queries->d_o, v}, 3);
  return dp;
}

static void visit_delta(const IoJob *job, const QueryBlock *queries, IoBlock s, IoBlock k,
                        IoBlock v) {
  (void)k;
  IoBlock dp = value_gradient(job, queries, v);
  io_compute(job->machine, io_add_online_delta, NULL,
             (IoBlock[]){queries->delta, queries->m, queries->l, s, dp}, 5);
  io_evict(job->machine, dp);
}

static void visit_gradient(const IoJob *job, const QueryBlock *queries, IoBlock s, IoBlock k,
                           IoBlock v) {
  IoMachine *machine = job->machine;
  IoBlock ds = value_gradient(job, queries, v);
  io_compute(machine, io_probabilities, NULL, (IoBlock[]){s, queries->l}, 2);
  io_compute(machine, io_gradients, NULL, (IoBlock[]){ds, s, queries->delta}, 3);
  io_compute(machine, io_scale, &job->problem->scale, &ds, 1);
  io_compute(machine, io_add_outer, NULL, (IoBlock[]){queries->sum, ds, k}, 3);
  io_evict(machine, ds);
}

/* Softmax on the fly; O and LSE are written. */
static void forward_block(const IoJob *job, const IoPlane *plane, int32_t row,
                          const QueryBlock *queries) {
  IoMachine *machine = job->machine;
  each_key(job, plane, row, queries, visit_value);
  io_compute(machine, io_end_values, NULL, (IoBlock[]){queries->sum, queries->m, queries->l}, 3);
  io_compute(machine, io_end_statistics, NULL, (IoBlock[]){queries->m, queries->l}, 2);
  io_store(machine, queries->sum, job->tensors[IO_O], queries->range.at, 0);
  io_store(machine, queries->l, job->tensors[IO_LSE], queries->range.at, 0);
}

/* Two passes over the keys: statistics and delta, then dQ. */
static void backward_block(const IoJob *job, const IoPlane *plane, int32_t row,
                           const QueryBlock *queries) {
  IoMachine *machine = job->machine;
  each_key(job, plane, row, queries, visit_delta);
  io_compute(machine, io_end_online_delta, NULL,
             (IoBlock[]){queries->delta, queries->m, queries->l}, 3);
  io_compute(machine, io_end_statistics, NULL, (IoBlock[]){queries->m, queries->l}, 2);
  each_key(job, plane, row, queries, visit_gradient);
  io_store(machine, queries->sum, job->tensors[IO_D_Q], queries->range.at, 0);
}

static void by_query_blocks(const IoJob *job, const IoPlane *plane) {
  IoMachine *machine = job->machine;
  IoMatrix *const *t = job->tensors;
  int64_t n = job->problem->n, d = job->problem->d;
  bool backward = job->problem->direction == ROTA_BACKWARD;
  for (int32_t row = 0; row < plane->rows.count && !io_refused(machine); row++) {
    int64_t at = (int64_t)row * plane->tile_q;
    int64_t size = n - at < plane->tile_q ? n - at : plane->tile_q;
    QueryBlock queries = {.range = {at, size},
                          .q = io_load(machine, t[IO_Q], at, 0, size, d),
                          .sum = io_zeros(machine, size, d),
                          .m = io_zeros(machine, size, 1),
                          .l = io_zeros(machine, size, 1)};
    io_compute(machine, io_begin_statistics, NULL, &queries.m, 1);
    if (backward) {
      queries.d_o = io_load(machine, t[IO_D_O], at, 0, size, d);
      queries.delta = io_zeros(machine, size, 1);
      backward_block(job, plane, row, &queries);
      io_evict(machine, queries.d_o);
      io_evict(machine, queries.delta);
    } else {
      forward_block(job, plane, row, &queries);
    }
    IoBlock done[] = {queries.q, queries.sum, queries.m, queries.l};
    for (size_t i = 0; i < sizeof done / sizeof done[0]; i++)
      io_evict(machine, done[i]);
  }
}

rota_status io_large_cache_run(IoJob *job) {
  const IoProblem *problem = job->problem;
  bool paper = problem->form == IO_PAPER, backward = problem->direction == ROTA_BACKWARD;
  bool by_keys = backward && !paper;
  int32_t kept = (int32_t)kept_rows(problem);
  IoPlane plane;
  ROTA_TRY(io_plane_build(problem->mask, problem->bindings, (int32_t)problem->n, by_keys ? 1 : kept,
                          by_keys ? kept : 1, &plane));
  if (paper)
    io_project(job);
  if (by_keys)
    kernel_backward(job, &plane);
  else
    by_query_blocks(job, &plane);
  if (paper && backward)
    io_project_gradient(job);
  io_plane_free(&plane);
  return ROTA_OK;
}
