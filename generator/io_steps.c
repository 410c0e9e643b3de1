/* Level 5. Steps that the programs share: see io_programs.h. */
#include "generator/io_programs.h"

/* The vector of inner index k. */
static IoBlock load_vector(const IoJob *job, IoFactor factor, IoRange range, int64_t k) {
  return factor.by_rows ? io_load(job->machine, factor.matrix, k, range.at, 1, range.size)
                        : io_load(job->machine, factor.matrix, range.at, k, range.size, 1);
}

void io_accumulate(const IoJob *job, IoBlock tile, IoFactor a, IoRange rows, IoFactor b,
                   IoRange columns, int64_t begin, int64_t end) {
  IoMachine *machine = job->machine;
  for (IoLoop k = io_loop(machine, begin, end, 1); io_next(machine, &k);) {
    IoBlock left = load_vector(job, a, rows, k.at), right = load_vector(job, b, columns, k.at);
    io_compute(machine, io_add_outer, NULL, (IoBlock[]){tile, left, right}, 3);
    io_evict(machine, left);
    io_evict(machine, right);
  }
}

/* r c + r + c <= m. */
int64_t io_tile_columns(int64_t m, int64_t rows, int64_t most) {
  int64_t columns = (m - rows) / (rows + 1);
  return columns < 1 ? 1 : columns < most ? columns : most;
}

/* The largest square tile, stretched along one axis where the matrix ends on the other. */
static void tile_shape(int64_t m, const IoMatrix *out, int64_t *rows, int64_t *columns) {
  int64_t side = 1;
  while ((side + 1) * (side + 1) + 2 * (side + 1) <= m && side < out->rows)
    side++;
  *columns = io_tile_columns(m, side, out->columns);
  *rows = io_tile_columns(m, *columns, out->rows);
}

void io_multiply(const IoJob *job, IoFactor a, IoFactor b, int64_t depth, double factor,
                 IoMatrix *out) {
  IoMachine *machine = job->machine;
  if (io_refused(machine))
    return;
  int64_t rows = 1, columns = 1;
  if (!job->naive)
    tile_shape(job->problem->m, out, &rows, &columns);
  for (IoLoop i = io_loop(machine, 0, out->rows, rows); io_next(machine, &i);)
    for (IoLoop j = io_loop(machine, 0, out->columns, columns); io_next(machine, &j);) {
      IoBlock tile = io_zeros(machine, i.size, j.size);
      io_accumulate(job, tile, a, (IoRange){i.at, i.size}, b, (IoRange){j.at, j.size}, 0, depth);
      io_compute(machine, io_scale, &factor, &tile, 1);
      io_put(machine, tile, out, i.at, j.at);
    }
}

void io_project(const IoJob *job) {
  IoMatrix *const *t = job->tensors;
  int64_t d = job->problem->d;
  io_multiply(job, (IoFactor){t[IO_A1], false}, (IoFactor){t[IO_X], true}, d, 1, t[IO_Q]);
  io_multiply(job, (IoFactor){t[IO_A3], false}, (IoFactor){t[IO_Y], true}, d, 1, t[IO_V]);
}

void io_project_gradient(const IoJob *job) {
  IoMatrix *const *t = job->tensors;
  io_multiply(job, (IoFactor){t[IO_A1], true}, (IoFactor){t[IO_D_Q], true}, job->problem->n, 1,
              t[IO_D_X]);
}

void io_row_delta(const IoJob *job) {
  IoMachine *machine = job->machine;
  IoMatrix *const *t = job->tensors;
  int64_t piece = job->naive ? 1 : (job->problem->m - 1) / 2;
  for (IoLoop i = io_loop(machine, 0, job->problem->n, 1); io_next(machine, &i);) {
    IoBlock delta = io_zeros(machine, 1, 1);
    for (IoLoop k = io_loop(machine, 0, job->problem->d, piece); io_next(machine, &k);) {
      IoBlock o = io_load(machine, t[IO_O], i.at, k.at, 1, k.size);
      IoBlock d_o = io_load(machine, t[IO_D_O], i.at, k.at, 1, k.size);
      io_compute(machine, io_add_dot, NULL, (IoBlock[]){delta, o, d_o}, 3);
      io_evict(machine, o);
      io_evict(machine, d_o);
    }
    io_put(machine, delta, t[IO_DELTA], i.at, 0);
  }
}

void io_score(const IoJob *job, IoBlock block, int64_t q, int64_t k) {
  const IoProblem *problem = job->problem;
  IoScores scores = {problem->mask, problem->bindings, problem->scale, problem->n, q, k};
  io_compute(job->machine, io_mask_scores, &scores, &block, 1);
}
