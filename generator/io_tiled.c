/* Level 5. The small-cache algorithm (Algorithm 6 of arXiv 2410.09397) and, with tiles of one
 * element and nothing fused, the naive one: the n x n matrices lie in slow memory, every product is
 * done by square tiles of t x t, t about sqrt(M). Tiles of the n x n matrices that the mask leaves
 * empty are never written nor read.
 *
 *     S = scale Q K^T --> P = exp(S - lse) --> dS = P (dO V^T - delta) --> dQ = dS K, dK = dS^T Q
 *                          \--> O = P V, dV = P^T dO
 */
#include "generator/io_programs.h"

typedef struct Tiled {
  const IoJob *job;
  IoMachine *machine;
  IoMatrix *const *t;
  IoPlane plane;
  int64_t side;      /* t: t^2 + 3 t elements fit */
  IoMatrix *p, *d_s; /* n x n: S, then P; dP, then dS */
} Tiled;

/* What happens to a tile of a product before it is written. */
typedef void TileStep(const Tiled *tiled, IoBlock tile, IoRange q, IoRange k);

static IoRange row_range(const Tiled *tiled, int32_t row) {
  int64_t at = row * tiled->side, left = tiled->plane.n - at;
  return (IoRange){at, left < tiled->side ? left : tiled->side};
}

/* ---- Passes over the tiles of an n x n matrix ---- */

/* out = step(a b^T), tile by tile. */
static void write_products(const Tiled *tiled, IoMatrix *a, IoMatrix *b, TileStep *step,
                           IoMatrix *out) {
  IoMachine *machine = tiled->machine;
  const IoLines *lines = &tiled->plane.rows;
  for (int32_t row = 0; row < lines->count && !io_refused(machine); row++) {
    IoRange q = row_range(tiled, row);
    for (int64_t run = lines->first[row]; run < lines->first[row + 1]; run++) {
      IoLoop j = io_loop(machine, lines->runs[run].begin, lines->runs[run].end, tiled->side);
      while (io_next(machine, &j)) {
        IoRange k = {j.at, j.size};
        IoBlock tile = io_zeros(machine, q.size, k.size);
        io_accumulate(tiled->job, tile, (IoFactor){a, false}, q, (IoFactor){b, false}, k, 0,
                      a ? a->columns : 0);
        if (step)
          step(tiled, tile, q, k);
        io_put(machine, tile, out, q.at, k.at);
      }
    }
  }
}

/* A pass over columns of one row of tiles: what it does to one column (q.size x 1) of P and of dS,
 * with two vectors of the row. Operands: p, ds, first, second; ds only where `with_ds`. */
typedef struct ColumnPass {
  IoOperation *operation;
  IoBlock first, second;
  bool with_ds;
  IoMatrix *written; /* where the first operand goes; NULL: nowhere */
} ColumnPass;

static void pass_columns(const Tiled *tiled, int32_t row, const ColumnPass *pass) {
  IoMachine *machine = tiled->machine;
  const IoLines *lines = &tiled->plane.rows;
  IoRange q = row_range(tiled, row);
  for (int64_t run = lines->first[row]; run < lines->first[row + 1]; run++) {
    IoLoop k = io_loop(machine, lines->runs[run].begin, lines->runs[run].end, 1);
    while (io_next(machine, &k)) {
      IoBlock p = io_load(machine, tiled->p, q.at, k.at, q.size, 1);
      if (pass->with_ds) {
        IoBlock ds = io_load(machine, tiled->d_s, q.at, k.at, q.size, 1);
        bool writes = pass->written != NULL;
        IoBlock operands[] = {writes ? ds : p, writes ? p : pass->first, writes ? pass->first : ds};
        io_compute(machine, pass->operation, NULL, operands, 3);
        if (writes)
          io_store(machine, ds, pass->written, q.at, k.at);
        io_evict(machine, ds);
      } else {
        io_compute(machine, pass->operation, NULL, (IoBlock[]){p, pass->first, pass->second}, 3);
        if (pass->written)
          io_store(machine, p, pass->written, q.at, k.at);
      }
      io_evict(machine, p);
    }
  }
}

/* ---- Steps ---- */

static void step_score(const Tiled *tiled, IoBlock tile, IoRange q, IoRange k) {
  io_score(tiled->job, tile, q.at, k.at);
}

static void step_probabilities(const Tiled *tiled, IoBlock tile, IoRange q, IoRange k) {
  io_score(tiled->job, tile, q.at, k.at);
  IoBlock lse = io_load(tiled->machine, tiled->t[IO_LSE], q.at, 0, q.size, 1);
  io_compute(tiled->machine, io_probabilities, NULL, (IoBlock[]){tile, lse}, 2);
  io_evict(tiled->machine, lse);
}

/* dP becomes dS, column by column of P. */
static void step_gradients(const Tiled *tiled, IoBlock tile, IoRange q, IoRange k) {
  IoMachine *machine = tiled->machine;
  IoBlock delta = io_load(machine, tiled->t[IO_DELTA], q.at, 0, q.size, 1);
  for (IoLoop j = io_loop(machine, k.at, k.at + k.size, 1); io_next(machine, &j);) {
    int64_t column = j.at - k.at;
    IoBlock p = io_load(machine, tiled->p, q.at, j.at, q.size, 1);
    io_compute(machine, io_gradient_column, &column, (IoBlock[]){tile, p, delta}, 3);
    io_evict(machine, p);
  }
  io_evict(machine, delta);
}

/* Log-sum-exp of a row of tiles of S, also written. */
static IoBlock row_statistics(const Tiled *tiled, int32_t row, IoRange q) {
  IoMachine *machine = tiled->machine;
  IoBlock m = io_zeros(machine, q.size, 1), l = io_zeros(machine, q.size, 1);
  io_compute(machine, io_begin_statistics, NULL, (IoBlock[]){m, l}, 2);
  pass_columns(tiled, row, &(ColumnPass){io_add_statistics, m, l, false, NULL});
  io_compute(machine, io_end_statistics, NULL, (IoBlock[]){m, l}, 2);
  io_store(machine, l, tiled->t[IO_LSE], q.at, 0);
  io_evict(machine, m);
  return l;
}

/* S is in slow memory and becomes P. */
static void softmax(const Tiled *tiled, bool finds_statistics) {
  IoMachine *machine = tiled->machine;
  for (int32_t row = 0; row < tiled->plane.rows.count && !io_refused(machine); row++) {
    IoRange q = row_range(tiled, row);
    IoBlock lse = finds_statistics ? row_statistics(tiled, row, q)
                                   : io_load(machine, tiled->t[IO_LSE], q.at, 0, q.size, 1);
    pass_columns(tiled, row, &(ColumnPass){io_probabilities, lse, lse, false, tiled->p});
    io_evict(machine, lse);
  }
}

/* dP is in slow memory and becomes dS; delta, where the forward pass left no O: row sums of P dP.
 */
static void gradients(const Tiled *tiled, bool finds_delta) {
  IoMachine *machine = tiled->machine;
  for (int32_t row = 0; row < tiled->plane.rows.count && !io_refused(machine); row++) {
    IoRange q = row_range(tiled, row);
    IoBlock delta = finds_delta ? io_zeros(machine, q.size, 1)
                                : io_load(machine, tiled->t[IO_DELTA], q.at, 0, q.size, 1);
    if (finds_delta)
      pass_columns(tiled, row, &(ColumnPass){io_add_delta, delta, delta, true, NULL});
    pass_columns(tiled, row, &(ColumnPass){io_gradients, delta, delta, true, tiled->d_s});
    io_evict(machine, delta);
  }
}

/* out = factor * W b, or W^T b with `lines` the columns: W is n x n, its tiles along a line are
 * read as vectors. */
static void reduce(const Tiled *tiled, const IoMatrix *w, bool transposed, const IoMatrix *b,
                   double factor, IoMatrix *out) {
  IoMachine *machine = tiled->machine;
  const IoProblem *problem = tiled->job->problem;
  const IoLines *lines = transposed ? &tiled->plane.columns : &tiled->plane.rows;
  for (int32_t line = 0; line < lines->count && !io_refused(machine); line++) {
    IoRange rows = row_range(tiled, line);
    int64_t columns = tiled->job->naive ? 1 : io_tile_columns(problem->m, rows.size, problem->d);
    for (IoLoop j = io_loop(machine, 0, problem->d, columns); io_next(machine, &j);) {
      IoBlock tile = io_zeros(machine, rows.size, j.size);
      for (int64_t run = lines->first[line]; run < lines->first[line + 1]; run++)
        io_accumulate(tiled->job, tile, (IoFactor){w, transposed}, rows, (IoFactor){b, true},
                      (IoRange){j.at, j.size}, lines->runs[run].begin, lines->runs[run].end);
      io_compute(machine, io_scale, &factor, &tile, 1);
      io_put(machine, tile, out, rows.at, j.at);
    }
  }
}

/* ---- The programs ---- */

static void forward(const Tiled *tiled) {
  IoMatrix *const *t = tiled->t;
  write_products(tiled, t[IO_Q], t[IO_K], step_score, tiled->p);
  softmax(tiled, true);
  reduce(tiled, tiled->p, false, t[IO_V], 1, t[IO_O]);
}

/* The kernel's form has LSE and O; the paper's finds statistics and delta itself. */
static void backward(const Tiled *tiled) {
  IoMatrix *const *t = tiled->t;
  bool paper = tiled->job->problem->form == IO_PAPER, naive = tiled->job->naive;
  double scale = tiled->job->problem->scale;
  if (!paper)
    io_row_delta(tiled->job);
  bool separate = paper || naive;
  write_products(tiled, t[IO_Q], t[IO_K], separate ? step_score : step_probabilities, tiled->p);
  if (separate)
    softmax(tiled, paper);
  write_products(tiled, t[IO_D_O], t[IO_V], separate ? NULL : step_gradients, tiled->d_s);
  if (separate)
    gradients(tiled, paper);
  reduce(tiled, tiled->d_s, false, t[IO_K], scale, t[IO_D_Q]);
  if (paper)
    return;
  reduce(tiled, tiled->p, true, t[IO_D_O], 1, t[IO_D_V]);
  reduce(tiled, tiled->d_s, true, t[IO_Q], scale, t[IO_D_K]);
}

static int64_t tile_side(const IoJob *job) {
  int64_t side = 1;
  while (!job->naive && (side + 1) * (side + 1) + 3 * (side + 1) <= job->problem->m &&
         side < job->problem->n)
    side++;
  return side;
}

/* The part of the cost that depends on the tiles: the touched pairs move through about five
 * products and a few passes. */
static double tile_cost(const IoJob *job, const IoPlane *plane) {
  enum { PRODUCT_READS = 10, PASSES = 4 };
  return (double)plane->pairs * (PRODUCT_READS * (double)job->problem->d / plane->tile_q + PASSES);
}

/* The largest tiles that fit, or smaller ones where they fit the mask so much better. */
static rota_status choose_plane(const IoJob *job, IoPlane *plane) {
  const IoProblem *problem = job->problem;
  const Expression *mask = job->naive ? NULL : problem->mask;
  int32_t n = (int32_t)problem->n, side = (int32_t)tile_side(job);
  ROTA_TRY(io_plane_build(mask, problem->bindings, n, side, side, plane));
  while (mask && side > 1) {
    IoPlane finer;
    side /= 2;
    rota_status status = io_plane_build(mask, problem->bindings, n, side, side, &finer);
    if (status != ROTA_OK) {
      io_plane_free(plane);
      return status;
    }
    if (tile_cost(job, &finer) >= tile_cost(job, plane)) {
      io_plane_free(&finer);
      break;
    }
    io_plane_free(plane);
    *plane = finer;
  }
  return ROTA_OK;
}

rota_status io_tiled_run(IoJob *job) {
  const IoProblem *problem = job->problem;
  IoMachine *machine = job->machine;
  Tiled tiled = {.job = job, .machine = machine, .t = job->tensors};
  ROTA_TRY(choose_plane(job, &tiled.plane));
  tiled.side = tiled.plane.tile_q;
  tiled.p = io_matrix_create(machine, problem->n, problem->n);
  if (problem->direction == ROTA_BACKWARD)
    tiled.d_s = io_matrix_create(machine, problem->n, problem->n);
  if (problem->form == IO_PAPER)
    io_project(job);
  if (problem->direction == ROTA_FORWARD)
    forward(&tiled);
  else
    backward(&tiled);
  if (problem->form == IO_PAPER && problem->direction == ROTA_BACKWARD)
    io_project_gradient(job);
  io_plane_free(&tiled.plane);
  return ROTA_OK;
}
