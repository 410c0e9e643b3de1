/* Level 1. See plan_cut.h.
 *
 * A unit of R rows and C kv tiles keeps the processors busy for R C steps / processors, but not
 * less than its longest sum: 2 R steps of a dV or dK, 2 C of a dQ. It moves, besides P and dS, the
 * sums of its R rows where a row has several units, and those of its C kv tiles where these have
 * several. Of the loop order: the outer side's sums live only while its units pass by. */
#include "generator/plan_cut.h"

#define STEP_BYTES   24576.0 /* of sums that a processor moves in a step's time */
#define UNIT_STEPS   24.0    /* that each unit costs besides */
#define LONGEST_LOAD 1.15    /* room for the longest sum to start late */

static int64_t divide_up(int64_t a, int64_t b) {
  return b > 0 ? (a + b - 1) / b : 0;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

/* A candidate, with the steps that it takes in all. */
static Cut candidate(const CutRequest *request, int64_t rows, int64_t kv_tiles, bool rows_outer,
                     double *time) {
  int64_t panels = divide_up(request->kv_tiles, kv_tiles);
  int64_t parts = divide_up(request->rows, rows);
  Cut cut = {.rows = rows, .kv_tiles = kv_tiles, .rows_outer = rows_outer};
  cut.sum_rows = panels > 1 ? (rows_outer ? rows : request->rows) : 0;
  cut.sum_kv_tiles = parts > 1 ? (rows_outer ? request->kv_tiles : kv_tiles) : 0;
  int64_t sums = cut.sum_rows * request->sum_q + cut.sum_kv_tiles * request->sum_k;
  cut.bytes = sums + request->places * rows * kv_tiles * 2 * request->block_bytes;
  double moved = (double)(panels - 1) * (double)request->rows * (double)request->sum_q +
                 (double)(parts - 1) * (double)request->kv_tiles * (double)request->sum_k;
  double unit = (double)rows * (double)kv_tiles * request->steps / request->processors;
  double longest = LONGEST_LOAD * 2 * larger((double)kv_tiles, request->forward ? 0 : (double)rows);
  *time = (double)(parts * panels) * (larger(unit, longest) + UNIT_STEPS) +
          2 * moved / STEP_BYTES / request->processors;
  return cut;
}

/* For given rows of a unit: kv tiles halved until they fit, and once more. */
static void try_rows(const CutRequest *request, int64_t rows, bool rows_outer, Cut *best,
                     double *least) {
  for (int64_t kv_tiles = request->kv_tiles;;) {
    double time;
    Cut cut = candidate(request, rows, kv_tiles, rows_outer, &time);
    bool fits = cut.bytes <= request->limit, fitted = best->bytes <= request->limit;
    bool better = fits ? !fitted || time < *least : !fitted && cut.bytes < best->bytes;
    if (best->rows == 0 || better) {
      *best = cut;
      *least = time;
    }
    if (kv_tiles <= 2)
      return;
    kv_tiles = divide_up(kv_tiles * 3 / 4, 2) * 2 < kv_tiles ? divide_up(kv_tiles * 3 / 4, 2) * 2
                                                             : kv_tiles - 2;
  }
}

Cut works_cut(const CutRequest *request) {
  Cut best = {0};
  double least = 0;
  int64_t rows = request->rows > 0 ? request->rows : 1;
  for (;; rows = rows > 4 ? rows * 3 / 4 : rows - 1) {
    try_rows(request, rows, false, &best, &least);
    try_rows(request, rows, true, &best, &least);
    if (rows == 1)
      return best;
  }
}
