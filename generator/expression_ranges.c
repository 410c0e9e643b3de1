/* Level 2. Smallest and largest element of a block of a tensor, quickly.
 *
 * A pyramid of cells with radix 4 over the last two dimensions, each having its own level:
 *
 *     plane (0, 0)    the tensor itself            plane (0, 1)    1 x 4 elements per cell
 *     plane (1, 0)    4 x 1 elements per cell      plane (1, 1)    4 x 4 elements per cell ...
 *
 * All planes but the first together have about 0.8 cells per element. A range of one dimension is a
 * few aligned pieces of several levels; a block is read piece by piece. Where that would be more
 * than PIECES_MAX cells, larger cells that reach beyond the block are read instead: sound, and
 * exact again once the caller's boxes are small. Further dimensions are walked one index at a time.
 */
#include <math.h>
#include <stdlib.h>

#include "generator/expression_ast.h"

enum {
  RADIX_BITS = 2,
  ROW_PIECES_MAX = 224, /* of one dimension: at most 7 on each of 32 levels */
  PIECES_MAX = 256,     /* cells read for one block */
  SLICES_MAX = 16,      /* indices of the leading dimensions walked for one block */
};
/* Larger tensors (which can only be views with stride 0) stay unknown to intervals. */
#define ELEMENTS_MAX ((int64_t)1 << 34)

typedef struct Cell {
  Scalar low, high;
} Cell;

typedef struct TensorRanges {
  TensorBinding tensor;
  int rank;
  bool real;       /* float elements */
  bool has_nan;    /* then every range may hold one */
  int64_t size[2]; /* of the last two dimensions, 1 where there is none */
  int64_t stride[2];
  int64_t slices;      /* product of the leading sizes */
  int64_t slice_cells; /* cells of one slice, all planes */
  int levels[2];
  int64_t *plane; /* offset of plane (i, j) within a slice: plane[i * levels[1] + j] */
  Cell *cells;
} TensorRanges;

/* Cells of one dimension at a level. */
static int64_t extent(int64_t size, int level) {
  return ((size - 1) >> (RADIX_BITS * level)) + 1;
}

static int levels_of(int64_t size) {
  int levels = 1;
  while (extent(size, levels - 1) > 1)
    levels++;
  return levels;
}

static Cell hull(const TensorRanges *ranges, Cell a, Cell b) {
  if (ranges->real) {
    a.low.f = b.low.f < a.low.f ? b.low.f : a.low.f;
    a.high.f = b.high.f > a.high.f ? b.high.f : a.high.f;
  } else {
    a.low.i = b.low.i < a.low.i ? b.low.i : a.low.i;
    a.high.i = b.high.i > a.high.i ? b.high.i : a.high.i;
  }
  return a;
}

/* The range of nothing: neutral for hull. */
static Cell empty_cell(const TensorRanges *ranges) {
  Cell cell;
  if (ranges->real) {
    cell.low.f = INFINITY;
    cell.high.f = -INFINITY;
  } else {
    cell.low.i = INT32_MAX;
    cell.high.i = INT32_MIN;
  }
  return cell;
}

/* First element of a slice, in elements from the tensor's data. */
static int64_t slice_offset(const TensorRanges *ranges, int64_t slice) {
  int64_t offset = 0;
  for (int d = ranges->rank - 3; d >= 0; d--) {
    offset += slice % ranges->tensor.size[d] * ranges->tensor.stride[d];
    slice /= ranges->tensor.size[d];
  }
  return offset;
}

static Cell read_cell(const TensorRanges *ranges, int64_t slice, const int level[2],
                      const int64_t at[2]) {
  if (level[0] == 0 && level[1] == 0) {
    int64_t offset =
        slice_offset(ranges, slice) + at[0] * ranges->stride[0] + at[1] * ranges->stride[1];
    Cell cell;
    if (ranges->real)
      cell.low.f = cell.high.f = ((const float *)ranges->tensor.data)[offset];
    else
      cell.low.i = cell.high.i = ((const int32_t *)ranges->tensor.data)[offset];
    return ranges->real && cell.low.f != cell.low.f ? empty_cell(ranges) : cell;
  }
  int64_t plane = ranges->plane[level[0] * ranges->levels[1] + level[1]];
  return ranges->cells[slice * ranges->slice_cells + plane +
                       at[0] * extent(ranges->size[1], level[1]) + at[1]];
}

/* Fills one plane from the one below it along the axis whose level is not 0. */
static void fill_plane(TensorRanges *ranges, int64_t slice, const int level[2]) {
  int axis = level[1] > 0 ? 1 : 0;
  int below[2] = {level[0], level[1]};
  below[axis]--;
  int64_t rows = extent(ranges->size[0], level[0]), columns = extent(ranges->size[1], level[1]);
  int64_t children = extent(ranges->size[axis], below[axis]);
  Cell *out = ranges->cells + slice * ranges->slice_cells +
              ranges->plane[level[0] * ranges->levels[1] + level[1]];
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t column = 0; column < columns; column++) {
      int64_t at[2] = {row, column};
      int64_t first = at[axis] << RADIX_BITS;
      Cell cell = empty_cell(ranges);
      for (int64_t child = first; child < first + (1 << RADIX_BITS) && child < children; child++) {
        at[axis] = child;
        cell = hull(ranges, cell, read_cell(ranges, slice, below, at));
      }
      out[row * columns + column] = cell;
    }
  }
}

static bool slice_has_nan(const TensorRanges *ranges, int64_t slice) {
  const float *data = (const float *)ranges->tensor.data + slice_offset(ranges, slice);
  for (int64_t i = 0; i < ranges->size[0]; i++)
    for (int64_t j = 0; j < ranges->size[1]; j++)
      if (isnan(data[i * ranges->stride[0] + j * ranges->stride[1]]))
        return true;
  return false;
}

static void ranges_destroy(TensorRanges *ranges) {
  if (!ranges)
    return;
  free(ranges->plane);
  free(ranges->cells);
  free(ranges);
}

/* Places the planes of a slice and allocates all slices' cells. */
static bool allocate_planes(TensorRanges *ranges) {
  int count = ranges->levels[0] * ranges->levels[1];
  ranges->plane = memory_allocate((size_t)count, sizeof *ranges->plane);
  if (!ranges->plane)
    return false;
  for (int i = 0; i < count; i++) {
    ranges->plane[i] = ranges->slice_cells;
    if (i > 0)
      ranges->slice_cells += extent(ranges->size[0], i / ranges->levels[1]) *
                             extent(ranges->size[1], i % ranges->levels[1]);
  }
  ranges->cells = memory_allocate((size_t)(ranges->slices * ranges->slice_cells), sizeof(Cell));
  return ranges->cells != NULL;
}

static rota_status ranges_create(const TensorSymbol *symbol, const TensorBinding *tensor,
                                 TensorRanges **result) {
  TensorRanges *ranges = memory_allocate(1, sizeof *ranges);
  if (!ranges)
    return ROTA_OUT_OF_MEMORY;
  *ranges = (TensorRanges){.tensor = *tensor,
                           .rank = symbol->rank,
                           .real = symbol->element == ROTA_FP32,
                           .size = {1, 1},
                           .slices = 1};
  for (int d = 0; d < symbol->rank; d++) {
    int axis = d - (symbol->rank - 2); /* a tensor of rank 1 lies along the second axis */
    if (axis < 0)
      ranges->slices *= tensor->size[d];
    else
      ranges->size[axis] = tensor->size[d], ranges->stride[axis] = tensor->stride[d];
  }
  for (int axis = 0; axis < 2; axis++)
    ranges->levels[axis] = levels_of(ranges->size[axis]);
  if (!allocate_planes(ranges)) {
    ranges_destroy(ranges);
    return ROTA_OUT_OF_MEMORY;
  }
  for (int64_t slice = 0; slice < ranges->slices; slice++) {
    int level[2];
    for (level[0] = 0; level[0] < ranges->levels[0]; level[0]++)
      for (level[1] = 0; level[1] < ranges->levels[1]; level[1]++)
        if (level[0] || level[1])
          fill_plane(ranges, slice, level);
    ranges->has_nan = ranges->has_nan || (ranges->real && slice_has_nan(ranges, slice));
  }
  *result = ranges;
  return ROTA_OK;
}

/* Has elements, and not more than a pyramid should be built over. */
static bool is_served(const TensorSymbol *symbol, const TensorBinding *tensor) {
  int64_t elements = 1;
  for (int d = 0; d < symbol->rank; d++)
    if (tensor->size[d] <= 0 || __builtin_mul_overflow(elements, tensor->size[d], &elements) ||
        elements > ELEMENTS_MAX)
      return false;
  return symbol->rank > 0 && tensor->data;
}

rota_status expression_prepare_ranges(const Symbols *symbols, Bindings *bindings) {
  for (int i = 0; i < symbols->tensor_count; i++) {
    const TensorSymbol *symbol = &symbols->tensors[i];
    if (!symbol->in_mask || bindings->ranges[i] || !is_served(symbol, &bindings->tensors[i]))
      continue;
    rota_status status = ranges_create(symbol, &bindings->tensors[i], &bindings->ranges[i]);
    if (status != ROTA_OK) {
      expression_release_ranges(bindings);
      return status;
    }
  }
  return ROTA_OK;
}

void expression_release_ranges(Bindings *bindings) {
  for (int i = 0; i < TENSORS_MAX; i++) {
    ranges_destroy(bindings->ranges[i]);
    bindings->ranges[i] = NULL;
  }
}

/* ---- Queries ---- */

/* Aligned pieces that cover an index range of one dimension. */
typedef struct Pieces {
  int count;
  int8_t level[ROW_PIECES_MAX];
  int64_t at[ROW_PIECES_MAX];
} Pieces;

/* Exact: from both ends inwards, stepping up a level when what is left is aligned. */
static void split_exactly(int64_t low, int64_t high, Pieces *pieces) {
  const int64_t radix = 1 << RADIX_BITS;
  pieces->count = 0;
  for (int level = 0; low <= high; level++) {
    bool last = high - low < radix; /* few enough to read one by one */
    for (; low <= high && (last || low % radix != 0); low++)
      pieces->level[pieces->count] = (int8_t)level, pieces->at[pieces->count++] = low;
    for (; low <= high && (high + 1) % radix != 0; high--)
      pieces->level[pieces->count] = (int8_t)level, pieces->at[pieces->count++] = high;
    if (low > high)
      return;
    low >>= RADIX_BITS;
    high >>= RADIX_BITS;
  }
}

/* At most radix + 1 cells of one level, which may reach beyond the range. */
static void split_coarsely(int64_t low, int64_t high, Pieces *pieces) {
  int level = 0;
  for (; high - low >= 1 << RADIX_BITS; level++) {
    low >>= RADIX_BITS;
    high >>= RADIX_BITS;
  }
  pieces->count = 0;
  for (; low <= high; low++)
    pieces->level[pieces->count] = (int8_t)level, pieces->at[pieces->count++] = low;
}

static Cell query_slice(const TensorRanges *ranges, int64_t slice, const Pieces *rows,
                        const Pieces *columns) {
  Cell cell = empty_cell(ranges);
  for (int i = 0; i < rows->count; i++) {
    for (int j = 0; j < columns->count; j++) {
      int level[2] = {rows->level[i], columns->level[j]};
      int64_t at[2] = {rows->at[i], columns->at[j]};
      cell = hull(ranges, cell, read_cell(ranges, slice, level, at));
    }
  }
  return cell;
}

static void set_result(const TensorRanges *ranges, Cell cell, Interval *result) {
  *result = (Interval){0};
  if (!ranges->real) {
    result->range = (IntegerRange){cell.low.i, cell.high.i};
    result->affine = cell.low.i == cell.high.i;
    result->constant = cell.low.i;
  } else if (cell.low.f > cell.high.f) { /* nothing but NaN */
    result->real = (FloatRange){0, 0, true};
  } else {
    result->real = (FloatRange){cell.low.f, cell.high.f, ranges->has_nan};
  }
}

bool tensor_ranges_query(const TensorRanges *ranges, const int64_t low[TENSOR_RANK_MAX],
                         const int64_t high[TENSOR_RANK_MAX], Interval *result) {
  if (!ranges)
    return false;
  const int leading = ranges->rank > 2 ? ranges->rank - 2 : 0;
  int64_t slices = 1;
  for (int d = 0; d < leading; d++) {
    slices *= high[d] - low[d] + 1;
    if (slices > SLICES_MAX)
      return false;
  }
  Pieces pieces[2];
  const int first_axis = ranges->rank == 1 ? 1 : 0;
  if (first_axis == 1)
    split_exactly(0, 0, &pieces[0]);
  for (int axis = first_axis; axis < 2; axis++)
    split_exactly(low[leading + axis - first_axis], high[leading + axis - first_axis],
                  &pieces[axis]);
  if (pieces[0].count * pieces[1].count > PIECES_MAX)
    for (int axis = 0; axis < 2; axis++)
      split_coarsely(low[leading + axis], high[leading + axis], &pieces[axis]);
  Cell cell = empty_cell(ranges);
  for (int64_t i = 0; i < slices; i++) {
    int64_t slice = 0, rest = i;
    /* Mixed radix: the last leading dimension runs fastest, as in slice_offset. */
    int64_t index[TENSOR_RANK_MAX];
    for (int d = leading - 1; d >= 0; d--) {
      int64_t width = high[d] - low[d] + 1;
      index[d] = low[d] + rest % width;
      rest /= width;
    }
    for (int d = 0; d < leading; d++)
      slice = slice * ranges->tensor.size[d] + index[d];
    cell = hull(ranges, cell, query_slice(ranges, slice, &pieces[0], &pieces[1]));
  }
  set_result(ranges, cell, result);
  return true;
}
