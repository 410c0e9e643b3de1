/* Level 4. Runs along both axes of a tile map: see io_plane.h. */
#include "generator/io_plane.h"

#include <stdlib.h>

/* A run of query tiles of one kv tile. */
typedef struct ColumnRun {
  int32_t column;
  IoRun run;
} ColumnRun;

/* Turning a map over, row by row. open[column] is the row in which the column's present run began;
 * only columns at the ends of a row's runs, where it differs from the row before, are looked at. */
typedef struct Turner {
  int32_t *open;
  ColumnRun *closed;
  int64_t count, capacity;
} Turner;

static int32_t least(int64_t a, int64_t b) {
  return (int32_t)(a < b ? a : b);
}

void io_plane_free(IoPlane *plane) {
  IoLines *lines[] = {&plane->rows, &plane->columns};
  for (int i = 0; i < 2; i++) {
    free(lines[i]->first);
    free(lines[i]->runs);
    *lines[i] = (IoLines){.count = 0};
  }
}

static rota_status allocate_lines(IoLines *lines, int32_t count, int64_t runs) {
  lines->count = count;
  lines->first = memory_allocate((size_t)count + 1, sizeof(int64_t));
  lines->runs = memory_allocate((size_t)runs + 1, sizeof(IoRun));
  return lines->first && lines->runs ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* In tiles; runs that differ only in kind are joined. */
static rota_status take_rows(const TileMap *map, IoLines *rows) {
  ROTA_TRY(allocate_lines(rows, map->q_tiles, map->row_begin[map->q_tiles]));
  int64_t count = 0;
  for (int32_t row = 0; row < map->q_tiles; row++) {
    rows->first[row] = count;
    for (int64_t i = map->row_begin[row]; i < map->row_begin[row + 1]; i++) {
      const TileRun *run = &map->runs[i];
      if (count > rows->first[row] && rows->runs[count - 1].end == run->begin)
        rows->runs[count - 1].end = run->end;
      else
        rows->runs[count++] = (IoRun){run->begin, run->end};
    }
  }
  rows->first[map->q_tiles] = count;
  return ROTA_OK;
}

static rota_status close_run(Turner *turner, int32_t column, int32_t row) {
  if (turner->count == turner->capacity) {
    int64_t capacity = turner->capacity ? 2 * turner->capacity : 256;
    ColumnRun *closed = memory_resize(turner->closed, (size_t)capacity, sizeof(ColumnRun));
    if (!closed)
      return ROTA_OUT_OF_MEMORY;
    turner->closed = closed;
    turner->capacity = capacity;
  }
  turner->closed[turner->count++] = (ColumnRun){column, {turner->open[column], row}};
  return ROTA_OK;
}

/* Columns [begin, end) start or end a run at `row`. */
static rota_status change(Turner *turner, int32_t begin, int32_t end, int32_t row, bool starts) {
  for (int32_t column = begin; column < end; column++)
    if (starts)
      turner->open[column] = row;
    else
      ROTA_TRY(close_run(turner, column, row));
  return ROTA_OK;
}

/* Calls `change` for what is in a's runs and not in b's. */
static rota_status change_difference(Turner *turner, const IoRun *a, int64_t a_count,
                                     const IoRun *b, int64_t b_count, int32_t row, bool starts) {
  int64_t first = 0;
  for (int64_t i = 0; i < a_count; i++) {
    int32_t at = a[i].begin;
    while (first < b_count && b[first].end <= at)
      first++;
    for (int64_t j = first; j < b_count && b[j].begin < a[i].end; j++) {
      if (b[j].begin > at)
        ROTA_TRY(change(turner, at, b[j].begin, row, starts));
      at = b[j].end;
    }
    if (at < a[i].end)
      ROTA_TRY(change(turner, at, a[i].end, row, starts));
  }
  return ROTA_OK;
}

/* A row of no runs stands before the first row and after the last. */
static rota_status turn_rows(const IoLines *rows, Turner *turner) {
  const IoRun *before = NULL;
  int64_t before_count = 0;
  for (int32_t row = 0; row <= rows->count; row++) {
    const IoRun *runs = rows->runs;
    int64_t count = 0;
    if (row < rows->count) {
      runs = rows->runs + rows->first[row];
      count = rows->first[row + 1] - rows->first[row];
    }
    ROTA_TRY(change_difference(turner, before, before_count, runs, count, row, false));
    ROTA_TRY(change_difference(turner, runs, count, before, before_count, row, true));
    before = runs;
    before_count = count;
  }
  return ROTA_OK;
}

/* Sorts by column; runs of a column were closed in ascending order, which counting keeps. */
static rota_status gather_columns(const Turner *turner, int32_t columns, IoLines *lines) {
  ROTA_TRY(allocate_lines(lines, columns, turner->count));
  for (int64_t i = 0; i < turner->count; i++)
    lines->first[turner->closed[i].column + 1]++;
  for (int32_t column = 0; column < columns; column++)
    lines->first[column + 1] += lines->first[column];
  for (int32_t column = 0; column < columns; column++)
    turner->open[column] = 0; /* now: how many of the column's runs are placed */
  for (int64_t i = 0; i < turner->count; i++) {
    int32_t column = turner->closed[i].column;
    lines->runs[lines->first[column] + turner->open[column]++] = turner->closed[i].run;
  }
  return ROTA_OK;
}

static rota_status take_columns(const IoLines *rows, int32_t columns, IoLines *lines) {
  Turner turner = {.open = memory_allocate((size_t)columns + 1, sizeof(int32_t))};
  rota_status status = turner.open ? turn_rows(rows, &turner) : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK)
    status = gather_columns(&turner, columns, lines);
  free(turner.open);
  free(turner.closed);
  return status;
}

/* From tiles to positions. */
static void scale_runs(IoLines *lines, int32_t tile, int32_t n) {
  for (int64_t i = 0; i < lines->first[lines->count]; i++) {
    lines->runs[i].begin = least((int64_t)lines->runs[i].begin * tile, n);
    lines->runs[i].end = least((int64_t)lines->runs[i].end * tile, n);
  }
}

static int64_t count_pairs(const IoPlane *plane) {
  int64_t pairs = 0;
  for (int32_t row = 0; row < plane->rows.count; row++) {
    int64_t rows = least(plane->tile_q, plane->n - (int64_t)row * plane->tile_q);
    for (int64_t i = plane->rows.first[row]; i < plane->rows.first[row + 1]; i++)
      pairs += rows * (plane->rows.runs[i].end - plane->rows.runs[i].begin);
  }
  return pairs;
}

rota_status io_plane_build(const Expression *mask, const Bindings *bindings, int32_t n,
                           int32_t tile_q, int32_t tile_kv, IoPlane *plane) {
  *plane = (IoPlane){.n = n, .tile_q = tile_q, .tile_kv = tile_kv};
  TileMapRequest request = {.n_q = n, .n_k = n, .tile_q = tile_q, .tile_kv = tile_kv};
  TileMap *map;
  ROTA_TRY(tile_map_build(mask, bindings, &request, &map));
  rota_status status = take_rows(map, &plane->rows);
  if (status == ROTA_OK)
    status = take_columns(&plane->rows, map->kv_tiles, &plane->columns);
  tile_map_destroy(map);
  if (status != ROTA_OK) {
    io_plane_free(plane);
    return status;
  }
  scale_runs(&plane->rows, tile_kv, n);
  scale_runs(&plane->columns, tile_q, n);
  plane->pairs = count_pairs(plane);
  return ROTA_OK;
}
