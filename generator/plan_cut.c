/* Level 1. See plan_cut.h.
 *
 * A unit of R rows and C kv tiles keeps the processors busy for R C steps / processors, but not
 * less than its longest sum: row_steps R of a dV or dK, 2 C of a dQ. It moves, besides P and dS,
 * the sums of its R rows where a row has several units, and those of its C kv tiles where these
 * have several. Where two planes take turns, a unit need not wait for the longest sum of the one
 * just before it. Of the loop order: the outer side's sums live only while its units pass by. */
#include "generator/plan_cut.h"

#define STEP_BYTES   24576.0 /* of sums that a processor moves in a step's time */
#define UNIT_STEPS   24.0    /* that each unit costs besides */
#define LONGEST_LOAD 1.15    /* room for the longest sum to start late */
#define TURN_UNITS   1.5     /* units that pass before one of the same lane comes again */

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
  cut.bytes = request->lanes * sums + request->places * rows * kv_tiles * 2 * request->block_bytes;
  cut.units = panels * parts;
  cut.moved = (panels - 1) * request->rows * request->sum_q +
              (parts - 1) * request->kv_tiles * request->sum_k;
  double unit = (double)rows * (double)kv_tiles * request->steps / request->processors;
  double longest =
      larger(2 * (double)kv_tiles, request->forward ? 0 : request->row_steps * (double)rows);
  longest *= request->lanes > 1 ? LONGEST_LOAD / TURN_UNITS : LONGEST_LOAD;
  *time = (double)(parts * panels) * (larger(unit, longest) + UNIT_STEPS) +
          2 * (double)cut.moved / STEP_BYTES / request->processors;
  return cut;
}

/* The next smaller size of equal parts; 0 after the smallest, `least`. */
static int64_t next_size(int64_t total, int64_t size, int64_t least) {
  if (size <= least)
    return 0;
  int64_t parts = divide_up(total, size) + 1, next = divide_up(total, parts);
  if (next >= size)
    next = size - 1;
  return next < least ? least : next;
}

static bool fits(const CutRequest *request, const Cut *cut) {
  const Cut *within = request->within;
  if (within && (cut->sum_rows > within->sum_rows || cut->sum_kv_tiles > within->sum_kv_tiles ||
                 cut->rows * cut->kv_tiles > within->rows * within->kv_tiles))
    return false;
  return cut->bytes <= request->limit;
}

static void consider(const CutRequest *request, int64_t rows, int64_t kv_tiles, Cut *best,
                     double *least) {
  for (int outer = 0; outer < 2; outer++) {
    double time;
    Cut cut = candidate(request, rows, kv_tiles, outer != 0, &time);
    bool fitted = best->rows != 0 && fits(request, best);
    bool better =
        fits(request, &cut) ? !fitted || time < *least : !fitted && cut.bytes < best->bytes;
    if (best->rows != 0 && !better)
      continue;
    *best = cut;
    *least = time;
  }
}

Cut works_cut(const CutRequest *request) {
  Cut best = {0};
  double least = 0;
  int64_t all = request->rows > 0 ? request->rows : 1, pairs = request->kv_tiles / 2;
  int64_t panel = request->panel / 2;
  for (int64_t rows = all; rows > 0; rows = next_size(all, rows, 1)) {
    int64_t width = panel > 0 && panel < pairs ? panel : pairs;
    do {
      consider(request, rows, 2 * width, &best, &least);
      width = panel > 0 ? 0 : next_size(pairs, width, 1);
    } while (width > 0);
  }
  return best;
}
