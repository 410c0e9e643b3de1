/* Level 3. Tile maps by subdivision. A box of tiles that the interval analysis proves wholly
 * allowed or wholly forbidden is finished at once, whatever its size; the others are halved along
 * their longer side, down to single tiles. So the work follows the mask's boundary:
 *
 *     +-------+---+---+      halves are visited top before bottom and left before right; seen from
 * one row of | full  |   |   |      tiles, boxes therefore arrive from left to right, and each
 * row's list of runs grows |       +---+---+      at its end only.
 *     +-------+---+---+
 */
#include "generator/tile_map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
  SEARCH_INTERVALS = 256,  /* interval evaluations within one undecided tile */
  SEARCH_SMALL_AREA = 64,  /* positions: below this, evaluating beats halving */
  SEARCH_BUDGET = 1 << 23, /* positions evaluated by searches in a whole map: some 0.1 s */
  INTERVAL_COST = 16,      /* positions that take as long as an interval */
  SEARCH_STACK = 64,       /* halvings of a 2^26 x 2^26 box, and some */
  ROW_CHUNK = 256,         /* positions per evaluation call */
};

/* Runs of a row, linked, because rows grow in turns. */
typedef struct Piece {
  TileRun run;
  int32_t next; /* index, -1 at the end */
} Piece;

typedef struct Builder {
  const Expression *mask;
  const Expression *rest; /* NULL: no tile is BOUNDED */
  const Bindings *bindings;
  TileMapRequest request;
  int32_t q_tiles, kv_tiles;
  Piece *pieces;
  int64_t piece_count, piece_capacity;
  int32_t *first, *last; /* q_tiles each: a row's pieces, -1 without */
  int64_t budget; /* of SEARCH_BUDGET; spent in a fixed order, so that maps are reproducible */
} Builder;

/* A box of tiles, ends exclusive. */
typedef struct TileBox {
  int32_t q_begin, q_end, k_begin, k_end;
} TileBox;

static int32_t smaller(int64_t a, int64_t b) {
  return (int32_t)(a < b ? a : b);
}

/* The positions of a box of tiles that exist: tiles at the edges may reach past n_q and n_k. */
static Box box_positions(const Builder *builder, TileBox tiles) {
  const TileMapRequest *request = &builder->request;
  return (Box){
      .q_min = tiles.q_begin * request->tile_q,
      .q_max = smaller((int64_t)tiles.q_end * request->tile_q, request->n_q) - 1,
      .k_min = tiles.k_begin * request->tile_kv,
      .k_max = smaller((int64_t)tiles.k_end * request->tile_kv, request->n_k) - 1,
      .h_min = request->h,
      .h_max = request->h,
      .b = request->b,
      .n_q = request->n_q,
      .n_k = request->n_k,
  };
}

/* ---- Runs ---- */

static rota_status append_piece(Builder *builder, int32_t row, TileRun run) {
  if (builder->piece_count == builder->piece_capacity) {
    int64_t capacity = builder->piece_capacity ? 2 * builder->piece_capacity : 256;
    if (capacity > INT32_MAX)
      return status_fail(ROTA_OUT_OF_MEMORY, "tile map: more than 2^30 runs; use larger tiles");
    Piece *pieces = memory_resize(builder->pieces, (size_t)capacity, sizeof(Piece));
    if (!pieces)
      return ROTA_OUT_OF_MEMORY;
    builder->pieces = pieces;
    builder->piece_capacity = capacity;
  }
  int32_t index = (int32_t)builder->piece_count++;
  builder->pieces[index] = (Piece){run, -1};
  if (builder->last[row] < 0)
    builder->first[row] = index;
  else
    builder->pieces[builder->last[row]].next = index;
  builder->last[row] = index;
  return ROTA_OK;
}

static rota_status add_run(Builder *builder, int32_t row, int32_t begin, int32_t end,
                           TileKind kind) {
  if (begin >= end)
    return ROTA_OK;
  if (builder->last[row] >= 0) {
    assert(builder->pieces); /* an index points into it */
    TileRun *tail = &builder->pieces[builder->last[row]].run;
    if (tail->end == begin && tail->kind == kind) {
      tail->end = end;
      return ROTA_OK;
    }
  }
  return append_piece(builder, row, (TileRun){begin, end, kind});
}

/* A partial tile's kind. */
static TileKind partial_kind(const Builder *builder, const Box *positions) {
  const Expression *rest = builder->rest;
  bool holds = rest && expression_interval(rest, builder->bindings, positions) == TERNARY_TRUE;
  return holds ? TILE_BOUNDED : TILE_PARTIAL;
}

/* Every existing position of the box is allowed: full, but for the column of tiles that n_k cuts.
 */
static rota_status add_allowed(Builder *builder, TileBox box) {
  int32_t whole = builder->request.n_k / builder->request.tile_kv;
  int32_t full_end = smaller(box.k_end, whole);
  int32_t cut_begin = box.k_begin > whole ? box.k_begin : whole;
  TileKind cut = builder->rest ? TILE_BOUNDED : TILE_PARTIAL;
  for (int32_t row = box.q_begin; row < box.q_end; row++) {
    ROTA_TRY(add_run(builder, row, box.k_begin, full_end, TILE_FULL));
    ROTA_TRY(add_run(builder, row, cut_begin, box.k_end, cut));
  }
  return ROTA_OK;
}

/* ---- Within one tile: is there an allowed position, is there a forbidden one? ---- */

typedef struct Witnesses {
  bool allowed, forbidden;
} Witnesses;

static bool both(const Witnesses *found) {
  return found->allowed && found->forbidden;
}

/* Evaluates row by row until both are found. */
static void evaluate_box(const Builder *builder, const Box *box, Witnesses *found) {
  bool values[ROW_CHUNK];
  for (int32_t q = box->q_min; q <= box->q_max; q++) {
    RowPosition row = {q, box->h_min, box->b, box->n_q, box->n_k};
    for (int32_t k = box->k_min; k <= box->k_max; k += ROW_CHUNK) {
      int32_t count = smaller(box->k_max - k + 1, ROW_CHUNK);
      expression_evaluate_mask(builder->mask, builder->bindings, &row, k, count, values);
      for (int32_t i = 0; i < count; i++)
        if (values[i])
          found->allowed = true;
        else
          found->forbidden = true;
      if (both(found))
        return;
    }
  }
}

/* Corners first: they settle every mask whose edge crosses the tile; then edge midpoints and the
 * centre. */
static void probe(const Builder *builder, const Box *tile, Witnesses *found) {
  const int32_t q[3] = {tile->q_min, tile->q_max, tile->q_min + (tile->q_max - tile->q_min) / 2};
  const int32_t k[3] = {tile->k_min, tile->k_max, tile->k_min + (tile->k_max - tile->k_min) / 2};
  static const unsigned char order[9][2] = {{0, 0}, {1, 1}, {1, 0}, {0, 1}, {2, 2},
                                            {0, 2}, {1, 2}, {2, 0}, {2, 1}};
  for (int i = 0; i < 9 && !both(found); i++) {
    Box point = *tile;
    point.q_min = point.q_max = q[order[i][0]];
    point.k_min = point.k_max = k[order[i][1]];
    evaluate_box(builder, &point, found);
  }
}

/* Halves the longer side. `before` gets the upper or left half. */
static void halve(const Box *box, Box *before, Box *after) {
  *before = *after = *box;
  int32_t rows = box->q_max - box->q_min, columns = box->k_max - box->k_min;
  if (rows > columns) {
    before->q_max = box->q_min + rows / 2;
    after->q_min = before->q_max + 1;
  } else {
    before->k_max = box->k_min + columns / 2;
    after->k_min = before->k_max + 1;
  }
}

/* Decides a tile that intervals alone leave open. TERNARY_UNKNOWN: both kinds of positions, or the
 * budget ran out. */
static Ternary search_tile(Builder *builder, const Box *tile) {
  Witnesses found = {false, false};
  probe(builder, tile, &found);
  Box stack[SEARCH_STACK];
  int depth = 0, intervals = 0;
  stack[depth++] = *tile;
  while (depth > 0 && !both(&found)) {
    Box box = stack[--depth];
    int64_t area = (int64_t)(box.q_max - box.q_min + 1) * (box.k_max - box.k_min + 1);
    if (intervals < SEARCH_INTERVALS && builder->budget > INTERVAL_COST) {
      intervals++;
      builder->budget -= INTERVAL_COST;
      Ternary value = expression_interval(builder->mask, builder->bindings, &box);
      found.allowed |= value == TERNARY_TRUE;
      found.forbidden |= value == TERNARY_FALSE;
      if (value != TERNARY_UNKNOWN)
        continue;
      if (area > SEARCH_SMALL_AREA && depth + 2 <= SEARCH_STACK) {
        halve(&box, &stack[depth + 1], &stack[depth]);
        depth += 2;
        continue;
      }
    }
    if (area > builder->budget)
      return TERNARY_UNKNOWN;
    builder->budget -= area;
    evaluate_box(builder, &box, &found);
  }
  if (both(&found))
    return TERNARY_UNKNOWN;
  return found.allowed ? TERNARY_TRUE : TERNARY_FALSE;
}

/* ---- Subdivision ---- */

static rota_status subdivide(Builder *builder, TileBox box) {
  Box positions = box_positions(builder, box);
  Ternary value = builder->mask ? expression_interval(builder->mask, builder->bindings, &positions)
                                : TERNARY_TRUE;
  int32_t rows = box.q_end - box.q_begin, columns = box.k_end - box.k_begin;
  bool single = rows == 1 && columns == 1;
  if (value == TERNARY_UNKNOWN && single) {
    value = search_tile(builder, &positions);
    if (value == TERNARY_UNKNOWN)
      return add_run(builder, box.q_begin, box.k_begin, box.k_end,
                     partial_kind(builder, &positions));
  }
  if (value == TERNARY_FALSE)
    return ROTA_OK;
  if (value == TERNARY_TRUE)
    return add_allowed(builder, box);
  /* Longer in positions, not in tiles: boxes stay about square, which suits diagonal edges. */
  int64_t height = (int64_t)rows * builder->request.tile_q;
  int64_t width = (int64_t)columns * builder->request.tile_kv;
  TileBox before = box, after = box;
  if (columns == 1 || (rows > 1 && height > width))
    before.q_end = after.q_begin = box.q_begin + rows / 2;
  else
    before.k_end = after.k_begin = box.k_begin + columns / 2;
  ROTA_TRY(subdivide(builder, before)); /* depth: at most log2 of all tiles, below 53 */
  return subdivide(builder, after);
}

/* Copies the rows' linked pieces into one array, in order. */
static rota_status gather(const Builder *builder, TileMap *map) {
  map->row_begin = memory_allocate((size_t)builder->q_tiles + 1, sizeof(int64_t));
  map->runs = memory_allocate((size_t)builder->piece_count + 1, sizeof(TileRun));
  if (!map->row_begin || !map->runs)
    return ROTA_OUT_OF_MEMORY;
  int64_t count = 0;
  for (int32_t row = 0; row < builder->q_tiles; row++) {
    map->row_begin[row] = count;
    for (int32_t at = builder->first[row]; at >= 0; at = builder->pieces[at].next) {
      assert(builder->pieces);
      TileRun run = builder->pieces[at].run;
      map->runs[count++] = run;
      int64_t *tiles = run.kind == TILE_FULL ? &map->full_tiles : &map->partial_tiles;
      *tiles += run.end - run.begin;
    }
  }
  map->row_begin[builder->q_tiles] = count;
  return ROTA_OK;
}

static rota_status check_request(const TileMapRequest *request) {
  if (request->tile_q < 1 || request->tile_kv < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "tile map: tile %d x %d is not positive",
                       request->tile_q, request->tile_kv);
  if (request->n_q < 0 || request->n_k < 0 || request->n_q > LIMIT_LENGTH ||
      request->n_k > LIMIT_LENGTH)
    return status_fail(ROTA_INVALID_ARGUMENT, "tile map: lengths %d x %d are not in 0 .. 2^26",
                       request->n_q, request->n_k);
  return ROTA_OK;
}

static rota_status build_rows(Builder *builder) {
  size_t rows = (size_t)builder->q_tiles + 1; /* never an allocation of nothing */
  builder->first = memory_allocate(rows, sizeof(int32_t));
  builder->last = memory_allocate(rows, sizeof(int32_t));
  if (!builder->first || !builder->last)
    return ROTA_OUT_OF_MEMORY;
  memset(builder->first, 0xff, rows * sizeof(int32_t)); /* all -1 */
  memset(builder->last, 0xff, rows * sizeof(int32_t));
  if (builder->q_tiles == 0 || builder->kv_tiles == 0)
    return ROTA_OK;
  return subdivide(builder, (TileBox){0, builder->q_tiles, 0, builder->kv_tiles});
}

rota_status tile_map_build(const Expression *mask, const Bindings *bindings,
                           const TileMapRequest *request, TileMap **map) {
  return tile_map_build_bounded(mask, NULL, bindings, request, map);
}

rota_status tile_map_build_bounded(const Expression *mask, const Expression *rest,
                                   const Bindings *bindings, const TileMapRequest *request,
                                   TileMap **map) {
  *map = NULL;
  ROTA_TRY(check_request(request));
  Builder builder = {.mask = mask, .rest = rest, .bindings = bindings, .request = *request};
  builder.q_tiles = tiles_covering(request->n_q, request->tile_q);
  builder.kv_tiles = tiles_covering(request->n_k, request->tile_kv);
  builder.budget = SEARCH_BUDGET;
  TileMap *result = memory_allocate(1, sizeof(TileMap));
  rota_status status = result ? build_rows(&builder) : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK) {
    result->request = *request;
    result->q_tiles = builder.q_tiles;
    result->kv_tiles = builder.kv_tiles;
    status = gather(&builder, result);
  }
  free(builder.pieces);
  free(builder.first);
  free(builder.last);
  if (status == ROTA_OK)
    *map = result;
  else
    tile_map_destroy(result);
  return status;
}

void tile_map_destroy(TileMap *map) {
  if (!map)
    return;
  free(map->row_begin);
  free(map->runs);
  free(map);
}

TileKind tile_map_kind(const TileMap *map, int32_t q_tile, int32_t kv_tile) {
  if (q_tile < 0 || q_tile >= map->q_tiles)
    return TILE_EMPTY;
  int64_t low = map->row_begin[q_tile], high = map->row_begin[q_tile + 1];
  while (low < high) { /* the first run that ends beyond kv_tile */
    int64_t middle = low + (high - low) / 2;
    if (map->runs[middle].end <= kv_tile)
      low = middle + 1;
    else
      high = middle;
  }
  bool inside = low < map->row_begin[q_tile + 1] && map->runs[low].begin <= kv_tile;
  return inside ? map->runs[low].kind : TILE_EMPTY;
}

bool tile_map_equal(const TileMap *a, const TileMap *b) {
  if (a->q_tiles != b->q_tiles || a->kv_tiles != b->kv_tiles)
    return false;
  if (memcmp(a->row_begin, b->row_begin, ((size_t)a->q_tiles + 1) * sizeof(int64_t)) != 0)
    return false;
  int64_t count = a->row_begin[a->q_tiles];
  for (int64_t i = 0; i < count; i++) {
    const TileRun *x = &a->runs[i], *y = &b->runs[i];
    if (x->begin != y->begin || x->end != y->end || x->kind != y->kind)
      return false;
  }
  return true;
}
