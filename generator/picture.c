/* Level 6. The frame of a picture, and the tile map in it.
 *
 *     title
 *     figures of the map          | figures of the schedule
 *     keys ->                     | time ->
 *   q +-----------------+ colours +------------------------+
 *   u | full  partial   | of    w | visits   stalls        |
 *   e +-----------------+ tiles o +------------------------+
 *     legend                      legend
 */
#include "generator/picture.h"

#include "generator/picture_order.h"

#include <stdlib.h>
#include <string.h>

enum {
  MAP_SIDE = 440,    /* pixels of the longer side */
  MAP_SIDE_MIN = 40, /* and at least of the shorter */
  LEFT = 76,
  TOP = 108,   /* of the plots */
  GAP = 96,    /* between the plots */
  LEGEND = 56, /* below them */
  RIGHT = 28,
  RUNS_EXACT_MAX = 16384, /* beyond this a map is drawn in cells */
  CELLS_MAX = 256,        /* per side, then */
  TITLE_CHARACTER = 10,   /* pixels, about */
  WORDS_WIDTH = 500,      /* the legend's, below narrow maps */
  NUMBERED_MAX = 16,      /* tiles per side that carry their numbers */
  GRID_MAX = 64,          /* tiles per side that are separated by lines */
};

/* ---- Rectangles of a map, joined downwards where rows repeat ---- */

/* Shapes in units of tiles, drawn from a map of cells of cell x cell tiles. */
typedef struct Paths {
  int32_t cell;
  Text full, partial;
} Paths;

/* A run that continues from row `top` to the row being read. */
typedef struct OpenRun {
  TileRun run;
  int32_t top;
} OpenRun;

static void close_run(const OpenRun *open, int32_t row, Paths *paths) {
  int64_t cell = paths->cell;
  rectangle_append(open->run.kind == TILE_FULL ? &paths->full : &paths->partial,
                   cell * open->run.begin, cell * open->top,
                   cell * (open->run.end - open->run.begin), cell * (row - open->top));
}

static bool same_run(const TileRun *a, const TileRun *b) {
  return a->begin == b->begin && a->end == b->end && a->kind == b->kind;
}

/* Both lists ascend: walks them together. `now` receives the runs of `row`. */
static int64_t join_row(const TileMap *map, int32_t row, const OpenRun *before, int64_t count,
                        OpenRun *now, Paths *paths) {
  int64_t at = 0, opened = 0;
  for (int64_t r = map->row_begin[row]; r < map->row_begin[row + 1]; r++) {
    while (at < count && before[at].run.begin < map->runs[r].begin)
      close_run(&before[at++], row, paths);
    now[opened] = (OpenRun){map->runs[r], row};
    if (at < count && same_run(&before[at].run, &map->runs[r]))
      now[opened].top = before[at++].top;
    opened++;
  }
  while (at < count)
    close_run(&before[at++], row, paths);
  return opened;
}

static rota_status map_paths(const TileMap *map, Paths *paths) {
  int64_t widest = 0;
  for (int32_t row = 0; row < map->q_tiles; row++) {
    int64_t runs = map->row_begin[row + 1] - map->row_begin[row];
    if (runs > widest)
      widest = runs;
  }
  OpenRun *before = memory_allocate((size_t)widest + 1, sizeof(OpenRun));
  OpenRun *now = memory_allocate((size_t)widest + 1, sizeof(OpenRun));
  if (before && now) {
    int64_t count = 0;
    for (int32_t row = 0; row < map->q_tiles; row++) {
      count = join_row(map, row, before, count, now, paths);
      OpenRun *swap = before;
      before = now;
      now = swap;
    }
    for (int64_t i = 0; i < count; i++)
      close_run(&before[i], map->q_tiles, paths);
  }
  rota_status status = before && now ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  free(before);
  free(now);
  return status;
}

/* ---- Coarse maps ---- */

/* Tiles of a row of cells: how many are full, how many not empty. */
typedef struct CellCount {
  int64_t full, some;
} CellCount;

static void count_row(const TileMap *map, int32_t row, int32_t cell, CellCount *counts) {
  for (int64_t r = map->row_begin[row]; r < map->row_begin[row + 1]; r++) {
    const TileRun *run = &map->runs[r];
    for (int32_t at = run->begin; at < run->end;) {
      int32_t next = (at / cell + 1) * cell;
      if (next > run->end)
        next = run->end;
      counts[at / cell].some += next - at;
      if (run->kind == TILE_FULL)
        counts[at / cell].full += next - at;
      at = next;
    }
  }
}

/* Appends the runs of one row of cells, each `rows` tiles high. */
static void append_cells(const TileMap *map, int32_t cell, int32_t rows, const CellCount *counts,
                         TileMap *coarse, int64_t *count) {
  int64_t first = *count;
  for (int32_t c = 0; c < coarse->kv_tiles; c++) {
    if (counts[c].some == 0)
      continue;
    int32_t columns = map->kv_tiles - c * cell < cell ? map->kv_tiles - c * cell : cell;
    TileKind kind = counts[c].full == (int64_t)rows * columns ? TILE_FULL : TILE_PARTIAL;
    TileRun *last = *count > first ? &coarse->runs[*count - 1] : NULL;
    if (last && last->end == c && last->kind == kind)
      last->end = c + 1;
    else
      coarse->runs[(*count)++] = (TileRun){c, c + 1, kind};
  }
}

/* The map in cells of cell x cell tiles. A cell that is not all empty or all full is partial. */
static rota_status coarsen(const TileMap *map, int32_t cell, TileMap **result) {
  *result = NULL;
  TileMap *coarse = memory_allocate(1, sizeof(TileMap));
  if (!coarse)
    return ROTA_OUT_OF_MEMORY;
  coarse->q_tiles = tiles_covering(map->q_tiles, cell);
  coarse->kv_tiles = tiles_covering(map->kv_tiles, cell);
  size_t columns = (size_t)coarse->kv_tiles, rows = (size_t)coarse->q_tiles;
  coarse->row_begin = memory_allocate(rows + 1, sizeof(int64_t));
  coarse->runs = memory_allocate(rows * columns + 1, sizeof(TileRun));
  CellCount *counts = memory_allocate(columns + 1, sizeof(CellCount));
  if (!coarse->row_begin || !coarse->runs || !counts) {
    free(counts);
    tile_map_destroy(coarse);
    return ROTA_OUT_OF_MEMORY;
  }
  int64_t count = 0;
  for (int32_t row = 0; row < coarse->q_tiles; row++) {
    int32_t begin = row * cell;
    int32_t end = begin + cell < map->q_tiles ? begin + cell : map->q_tiles;
    memset(counts, 0, columns * sizeof(CellCount));
    for (int32_t q = begin; q < end; q++)
      count_row(map, q, cell, counts);
    append_cells(map, cell, end - begin, counts, coarse, &count);
    coarse->row_begin[row + 1] = count;
  }
  free(counts);
  *result = coarse;
  return ROTA_OK;
}

/* ---- The map's plot ---- */

typedef struct Plot {
  int width, height; /* pixels */
} Plot;

/* In proportion to the tokens, but never too thin to see. */
static Plot map_plot(const TileMap *map) {
  int64_t width = (int64_t)map->kv_tiles * map->request.tile_kv;
  int64_t height = (int64_t)map->q_tiles * map->request.tile_q;
  int64_t longer = width > height ? width : height;
  if (longer == 0)
    longer = 1;
  int64_t x = width * MAP_SIDE / longer, y = height * MAP_SIDE / longer;
  return (Plot){(int)(x < MAP_SIDE_MIN ? MAP_SIDE_MIN : x),
                (int)(y < MAP_SIDE_MIN ? MAP_SIDE_MIN : y)};
}

/* The visits of the drawn head, numbered down each chain in the order in which it makes them. */
static void number_tiles(const Picture *picture, Plot plot, Text *svg) {
  const Pattern *pattern = picture->pattern;
  if (pattern->chains > NUMBERED_MAX || pattern->q_tiles > NUMBERED_MAX)
    return;
  text_append(svg, "<g class=\"number\">\n");
  for (int32_t chain = 0; chain < pattern->chains; chain++) {
    int number = 0;
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
      const PatternVisit *visit = &pattern->visits[v];
      if (visit->group_head != picture->group_head)
        continue;
      int x = LEFT + (2 * chain + 1) * plot.width / (2 * pattern->chains);
      int y = TOP + (2 * visit->q_tile + 1) * plot.height / (2 * pattern->q_tiles);
      text_format(svg, "<text x=\"%d\" y=\"%d\">%d</text>\n", x, y + 4, ++number);
    }
  }
  text_append(svg, "</g>\n");
}

/* In pixels: a scaled line would be as thick as its tile. */
static void draw_grid(const TileMap *map, Plot plot, Text *svg) {
  if (map->q_tiles > GRID_MAX || map->kv_tiles > GRID_MAX)
    return;
  text_append(svg, "<path class=\"grid\" d=\"");
  for (int32_t k = 1; k < map->kv_tiles; k++)
    text_format(svg, "M%d %dv%d", LEFT + k * plot.width / map->kv_tiles, TOP, plot.height);
  for (int32_t q = 1; q < map->q_tiles; q++)
    text_format(svg, "M%d %dh%d", LEFT, TOP + q * plot.height / map->q_tiles, plot.width);
  text_append(svg, "\"/>\n");
}

/* Which colour the visits of a query tile have in the chart. */
static void draw_colours(const TileMap *map, Plot plot, Text *svg) {
  int top = 0;
  for (int32_t q = 0; q < map->q_tiles;) {
    int shade = shade_of(q, map->q_tiles);
    while (q < map->q_tiles && shade_of(q, map->q_tiles) == shade)
      q++;
    int end = (int)((int64_t)q * plot.height / map->q_tiles);
    text_format(svg, "<rect class=\"s%d\" x=\"%d\" y=\"%d\" width=\"8\" height=\"%d\"/>\n", shade,
                LEFT + plot.width + 4, TOP + top, end - top);
    top = end;
  }
}

/* Axes count tokens; the last tiles may reach past them, so the axis ends at the tiles' end. */
static void map_axes(const TileMap *map, Plot plot, Text *svg) {
  int64_t columns = (int64_t)map->kv_tiles * map->request.tile_kv;
  int64_t rows = (int64_t)map->q_tiles * map->request.tile_q;
  axis_append(svg, (Axis){LEFT, TOP, plot.width, columns, map->request.n_k, 1, false});
  axis_append(svg, (Axis){LEFT, TOP, plot.height, rows, map->request.n_q, 1, true});
  text_format(svg, "<text class=\"label\" x=\"%d\" y=\"%d\">keys</text>\n", LEFT + plot.width / 2,
              TOP - 26);
  text_format(svg,
              "<text class=\"label\" transform=\"translate(%d %d) rotate(-90)\">queries</text>\n",
              LEFT - 56, TOP + plot.height / 2);
}

static rota_status draw_map(const Picture *picture, Plot plot, int32_t *cell, Text *svg) {
  const TileMap *map = picture->map;
  TileMap *coarse = NULL;
  int32_t longer = map->q_tiles > map->kv_tiles ? map->q_tiles : map->kv_tiles;
  *cell = 1;
  if (map->row_begin[map->q_tiles] > RUNS_EXACT_MAX && longer > CELLS_MAX) {
    *cell = tiles_covering(longer, CELLS_MAX);
    ROTA_TRY(coarsen(map, *cell, &coarse));
  }
  Paths paths = {.cell = *cell};
  rota_status status = map_paths(coarse ? coarse : map, &paths);
  tile_map_destroy(coarse);
  if (status == ROTA_OK)
    status = text_status(&paths.full);
  if (status == ROTA_OK)
    status = text_status(&paths.partial);
  if (status == ROTA_OK) {
    view_begin(svg, (Frame){LEFT, TOP, plot.width, plot.height}, map->kv_tiles, map->q_tiles);
    text_append(svg, "<rect class=\"empty\" width=\"100%\" height=\"100%\"/>\n");
    path_append(svg, "full", &paths.full);
    path_append(svg, "partial", &paths.partial);
    if (picture->pattern)
      status = order_draw(picture->pattern, picture->group_head, svg);
    text_append(svg, "</svg>\n");
    draw_grid(map, plot, svg);
    if (picture->pattern)
      number_tiles(picture, plot, svg);
    if (picture->gantt)
      draw_colours(map, plot, svg);
    map_axes(map, plot, svg);
  }
  text_free(&paths.full);
  text_free(&paths.partial);
  return status;
}

/* ---- Words ---- */

static void map_figures(const Picture *picture, int32_t cell, Text *svg) {
  const TileMap *map = picture->map;
  int64_t all = (int64_t)map->q_tiles * map->kv_tiles;
  int64_t empty = all - map->full_tiles - map->partial_tiles;
  text_format(svg, "<text class=\"figures\" x=\"%d\" y=\"56\">%d x %d tokens in tiles of %d x %d",
              LEFT, map->request.n_q, map->request.n_k, map->request.tile_q, map->request.tile_kv);
  if (cell > 1)
    text_format(svg, ", drawn in cells of %d x %d tiles", cell, cell);
  text_append(svg, "</text>\n");
  int x = LEFT, y = TOP;
  y += map_plot(map).height + 24;
  x = legend_append(svg, x, y, "full", "full", map->full_tiles, all);
  x = legend_append(svg, x, y, "partial", "partial", map->partial_tiles, all);
  legend_append(svg, x, y, "empty", "empty", empty, all);
  if (picture->pattern)
    text_format(svg,
                "<text x=\"%d\" y=\"%d\">the later its chain visits it, the darker a tile</text>\n",
                LEFT, y + 22);
}

static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600}"
    ".label,.number text,.tick-x{text-anchor:middle}.tick-y{text-anchor:end}"
    ".number text{font-size:11px;fill:#fff}.full{fill:#2b6a99}.partial{fill:#d98b2b}"
    ".empty{fill:#ecebe6}"
    ".grid{fill:none;stroke:#fff;stroke-width:1}"
    ".axis{fill:none;stroke:#888}";

rota_status picture_draw(const Picture *picture, Text *svg) {
  Plot plot = map_plot(picture->map);
  int height = plot.height;
  if (picture->gantt && gantt_height(picture->gantt) > height)
    height = gantt_height(picture->gantt);
  int map_width = plot.width > WORDS_WIDTH ? plot.width : WORDS_WIDTH;
  int width = LEFT + map_width + RIGHT;
  if (picture->gantt)
    width += GAP + GANTT_WIDTH;
  int total = TOP + height + LEGEND;
  text_format(svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
              "viewBox=\"0 0 %d %d\">\n",
              width, total, width, total);
  if (picture->title) {
    text_append(svg, "<title>");
    escaped_append(svg, picture->title, INT32_MAX);
    text_append(svg, "</title>\n");
  }
  text_append(svg, style);
  order_style(svg);
  gantt_style(svg);
  text_append(svg, "</style>\n");
  text_format(svg, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, total);
  if (picture->title) {
    text_format(svg, "<text class=\"title\" x=\"%d\" y=\"30\">", LEFT);
    escaped_append(svg, picture->title, (width - LEFT - RIGHT) / TITLE_CHARACTER);
    text_append(svg, "</text>\n");
  }
  int32_t cell;
  ROTA_TRY(draw_map(picture, plot, &cell, svg));
  map_figures(picture, cell, svg);
  if (picture->gantt)
    gantt_draw(picture->gantt, LEFT + map_width + GAP, TOP, svg);
  text_append(svg, "</svg>\n");
  return text_status(svg);
}
