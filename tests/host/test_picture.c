/* Pictures: well-formed SVG whose shapes cover exactly the map's tiles, whose shades follow the
 * visits and whose chart shows each tick of the simulation as what it is; small for large maps. */
#include "generator/picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Expression *mask_of(const char *text, Symbols *symbols) {
  Expression *mask;
  if (expression_parse(text, (SourcePlace){"test", 1}, EXPRESSION_MASK, symbols, NULL, 0, &mask) !=
      ROTA_OK)
    fail_msg("%s", status_message());
  return mask;
}

static TileMap *map_of(const char *text, TileMapRequest request) {
  Symbols symbols = {.parameter_count = 0};
  Bindings bindings = {.ranges = {0}};
  Expression *mask = mask_of(text, &symbols);
  TileMap *map;
  assert_int_equal(tile_map_build(mask, &bindings, &request, &map), ROTA_OK);
  expression_release(mask);
  return map;
}

/* Chains visit upwards; a query tile's partials are added by kv tile, ascending or descending. */
static Pattern *pattern_of(const TileMap *map, bool ascending, int group) {
  Pattern *pattern = calloc(1, sizeof *pattern);
  int64_t tiles = (map->full_tiles + map->partial_tiles) * group, count = 0;
  *pattern = (Pattern){.chains = map->kv_tiles,
                       .group = group,
                       .q_tiles = map->q_tiles,
                       .chain_begin = calloc((size_t)map->kv_tiles + 1, sizeof(int64_t)),
                       .visits = calloc((size_t)tiles + 1, sizeof(PatternVisit)),
                       .start_order = calloc((size_t)map->kv_tiles + 1, sizeof(int32_t))};
  int32_t *total = calloc((size_t)map->q_tiles + 1, sizeof(int32_t));
  for (int32_t q = 0; q < map->q_tiles; q++)
    for (int64_t r = map->row_begin[q]; r < map->row_begin[q + 1]; r++)
      total[q] += map->runs[r].end - map->runs[r].begin;
  int32_t *seen = calloc((size_t)map->q_tiles + 1, sizeof(int32_t));
  for (int32_t chain = 0; chain < map->kv_tiles; chain++) {
    pattern->start_order[chain] = ascending ? chain : map->kv_tiles - 1 - chain;
    for (int head = 0; head < group; head++)
      for (int32_t q = 0; q < map->q_tiles; q++)
        if (tile_map_kind(map, q, chain) != TILE_EMPTY)
          pattern->visits[count++] =
              (PatternVisit){.q_tile = q,
                             .group_head = head,
                             .rank = ascending ? seen[q] : total[q] - 1 - seen[q],
                             .partial = tile_map_kind(map, q, chain) == TILE_PARTIAL};
    for (int32_t q = 0; q < map->q_tiles; q++)
      seen[q] += tile_map_kind(map, q, chain) != TILE_EMPTY;
    pattern->chain_begin[chain + 1] = count;
  }
  free(total);
  free(seen);
  return pattern;
}

/* A pattern on workers, simulated: worker w has the chains w, w + workers, ... of `heads` heads. */
typedef struct Scene {
  DagPlane plane;
  DagVisit *visits;
  DagProblem problem;
  DagFigures figures;
  DagTrace trace;
  DagItem *items;
  int64_t *queue_begin;
  int32_t *plane_of, q_tiles;
  Gantt gantt;
} Scene;

static void stage(const Pattern *pattern, int heads, int workers, const Costs *costs,
                  Scene *scene) {
  int64_t visits = pattern->chain_begin[pattern->chains], count = 0;
  int64_t items = (int64_t)heads * pattern->chains;
  *scene = (Scene){.visits = calloc((size_t)visits + 1, sizeof(DagVisit)),
                   .items = calloc((size_t)items + 1, sizeof(DagItem)),
                   .queue_begin = calloc((size_t)workers + 1, sizeof(int64_t)),
                   .plane_of = calloc((size_t)heads + 1, sizeof(int32_t)),
                   .q_tiles = pattern->q_tiles};
  for (int64_t v = 0; v < visits; v++) {
    const PatternVisit *visit = &pattern->visits[v];
    scene->visits[v] = (DagVisit){visit->group_head * pattern->q_tiles + visit->q_tile, visit->rank,
                                  visit->partial};
  }
  for (int w = 0; w < workers; w++) {
    for (int64_t i = 0; i < items; i++)
      if (i % workers == w)
        scene->items[count++] =
            (DagItem){(int32_t)(i / pattern->chains), pattern->start_order[i % pattern->chains]};
    scene->queue_begin[w + 1] = count;
  }
  scene->plane = (DagPlane){pattern->chains, pattern->group * pattern->q_tiles,
                            pattern->chain_begin, scene->visits};
  scene->problem = (DagProblem){.planes = &scene->plane,
                                .plane_count = 1,
                                .plane_of = scene->plane_of,
                                .instances = heads,
                                .workers = workers,
                                .queues = workers,
                                .queue_begin = scene->queue_begin,
                                .items = scene->items};
  if (dag_simulate(&scene->problem, costs, &scene->figures, &scene->trace) != ROTA_OK)
    fail_msg("%s", status_message());
  scene->gantt = (Gantt){
      &scene->problem, &scene->figures, &scene->trace, &scene->q_tiles, costs->start, "us", "test"};
}

static void clear(Scene *scene) {
  dag_trace_free(&scene->trace);
  free(scene->visits);
  free(scene->items);
  free(scene->queue_begin);
  free(scene->plane_of);
}

static char *draw(const TileMap *map, const Pattern *pattern, const char *title) {
  Text svg = {0};
  Picture picture = {.title = title, .map = map, .pattern = pattern};
  assert_int_equal(picture_draw(&picture, &svg), ROTA_OK);
  return text_release(&svg);
}

/* ---- A little XML reader: every tag is closed, attributes are quoted, no stray < or & ---- */

enum { DEPTH_MAX = 16, NAME_MAX = 16 };

static const char *read_tag(const char *at, char stack[][NAME_MAX], int *depth) {
  bool closing = at[1] == '/';
  char name[NAME_MAX] = "";
  int length = 0;
  for (at += closing ? 2 : 1; *at && !strchr(" />", *at); at++)
    if (length < NAME_MAX - 1)
      name[length++] = *at;
  assert_true(length > 0);
  char quote = 0;
  for (; *at && (quote || *at != '>'); at++) {
    assert_int_not_equal(*at, '<');
    if (*at == '"')
      quote = quote ? 0 : '"';
  }
  assert_int_equal(*at, '>');
  if (closing) {
    assert_true(*depth > 0);
    assert_string_equal(stack[--*depth], name);
  } else if (at[-1] != '/') {
    assert_true(*depth < DEPTH_MAX);
    strcpy(stack[(*depth)++], name);
  }
  return at + 1;
}

static void check_xml(const char *svg) {
  char stack[DEPTH_MAX][NAME_MAX];
  int depth = 0;
  assert_int_equal(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
  for (const char *at = svg; *at;) {
    if (*at == '<') {
      at = read_tag(at, stack, &depth);
    } else {
      if (*at == '&')
        assert_true(!strncmp(at, "&amp;", 5) || !strncmp(at, "&lt;", 4) || !strncmp(at, "&gt;", 4));
      assert_true(*at == '\n' || depth > 0);
      at++;
    }
  }
  assert_int_equal(depth, 0);
}

/* ---- Shapes against tiles ---- */

/* Adds the rectangles of <path class="name" d="M x y h w v h h -w z ..."/> to a grid of counts;
 * returns how many there were. */
static int paint(const char *svg, const char *name, int *grid, int rows, int columns) {
  char start[64];
  snprintf(start, sizeof start, "<path class=\"%s\" d=\"", name);
  const char *at = strstr(svg, start);
  if (!at)
    return 0;
  int count = 0, x, y, width, height, back, used;
  for (at += strlen(start); *at == 'M'; at += used, count++) {
    assert_int_equal(sscanf(at, "M%d %dh%dv%dh-%dz%n", &x, &y, &width, &height, &back, &used), 5);
    assert_int_equal(width, back);
    for (int i = y; i < y + height && i < rows; i++)
      for (int j = x; j < x + width && j < columns; j++)
        grid[i * columns + j]++;
  }
  assert_int_equal(*at, '"');
  return count;
}

static void check_shapes(const TileMap *map, const char *svg) {
  size_t tiles = (size_t)map->q_tiles * (size_t)map->kv_tiles;
  int *full = calloc(tiles + 1, sizeof(int)), *partial = calloc(tiles + 1, sizeof(int));
  paint(svg, "full", full, map->q_tiles, map->kv_tiles);
  paint(svg, "partial", partial, map->q_tiles, map->kv_tiles);
  for (int i = 0; i < map->q_tiles; i++)
    for (int j = 0; j < map->kv_tiles; j++) {
      TileKind kind = tile_map_kind(map, i, j);
      assert_int_equal(full[i * map->kv_tiles + j], kind == TILE_FULL);
      assert_int_equal(partial[i * map->kv_tiles + j], kind == TILE_PARTIAL);
    }
  free(full);
  free(partial);
}

static const char *const masks[] = {"k <= q + n_k - n_q", "q < 0", "k >= 0", "(q + k) % 96 < 40",
                                    "k <= q and q - k < 100 or k < 4"};

static void test_shapes_are_the_tiles(void **state) {
  (void)state;
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
    for (int n = 0; n <= 1200; n += 400) {
      TileMap *map = map_of(masks[m], (TileMapRequest){n, 700, 64, 32, 0, 0});
      Pattern *pattern = pattern_of(map, false, 2);
      for (int with = 0; with < 2; with++) {
        char *svg = draw(map, with ? pattern : NULL, masks[m]);
        check_xml(svg);
        check_shapes(map, svg);
        free(svg);
      }
      pattern_destroy(pattern);
      tile_map_destroy(map);
    }
}

static void test_words_and_figures(void **state) {
  (void)state;
  TileMap *map = map_of("k <= q", (TileMapRequest){256, 256, 64, 64, 0, 0});
  Pattern *pattern = pattern_of(map, false, 1);
  char *svg = draw(map, pattern, "a < b && c > d");
  assert_non_null(strstr(svg, "a &lt; b &amp;&amp; c &gt; d"));
  assert_non_null(strstr(svg, "256 x 256 tokens in tiles of 64 x 64"));
  assert_non_null(strstr(svg, "full 6 (37.5 %)"));
  assert_non_null(strstr(svg, "partial 4 (25.0 %)"));
  assert_non_null(strstr(svg, "empty 6 (37.5 %)"));
  free(svg);
  char title[] =
      "no room: ................................................................................"
      "................................................ end";
  svg = draw(map, NULL, title);
  check_xml(svg);
  char *first = strstr(svg, "no room"), *second = first ? strstr(first + 1, "no room") : NULL;
  assert_non_null(first);
  assert_non_null(second);
  assert_true(strchr(second, '<') - second < 60); /* cut where it would leave the picture */
  assert_int_equal(strncmp(first, title, strlen(title)), 0); /* whole in the <title> */
  free(svg);
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

/* The darkest tiles of a chain are those that it visits last. */
static void test_shades(void **state) {
  (void)state;
  TileMap *map = map_of("k <= q", (TileMapRequest){1024, 1024, 64, 64, 0, 0});
  Pattern *pattern = pattern_of(map, true, 2);
  char *svg = draw(map, pattern, NULL);
  int grid[16 * 16] = {0};
  for (int shade = 1; shade <= 7; shade++) {
    char class[] = {'l', 'a', 't', 'e', (char)('0' + shade), 0};
    int painted[16 * 16] = {0};
    assert_true(paint(svg, class, painted, 16, 16) > 0);
    for (int i = 0; i < 16 * 16; i++) {
      assert_true(painted[i] == 0 || (painted[i] == 1 && grid[i] == 0));
      grid[i] += painted[i] * shade;
    }
  }
  for (int q = 0; q < 16; q++)
    for (int k = 0; k < 16; k++) /* chain k visits 16 - k tiles from its diagonal on */
      assert_int_equal(grid[16 * q + k], q < k ? 0 : (q - k) * 8 / (16 - k));
  free(svg);
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

/* ---- The chart ---- */

enum { COLUMNS = 2 * GANTT_WIDTH, UNITS = 20 };

/* A grid of columns x lanes, each lane at one height; class by class. */
static void paint_lane(const char *svg, const char *class, int height, int lanes, int *line) {
  int *grid = calloc((size_t)lanes * UNITS * COLUMNS, sizeof(int));
  paint(svg, class, grid, lanes * UNITS, COLUMNS);
  for (int lane = 0; lane < lanes; lane++)
    for (int x = 0; x < COLUMNS; x++)
      line[lane * COLUMNS + x] = grid[(lane * UNITS + height) * COLUMNS + x];
  free(grid);
}

/* Makespan 1560 ticks: a tick is a column. With staging, reductions lie below the visits. */
static void check_chart(const Scene *scene, const char *svg) {
  int lanes = scene->problem.workers;
  int *shade[SHADES], *adds = calloc((size_t)lanes * COLUMNS, sizeof(int));
  int *starts = calloc((size_t)lanes * COLUMNS, sizeof(int));
  paint_lane(svg, "add", 16, lanes, adds);
  paint_lane(svg, "start", 5, lanes, starts);
  for (int i = 0; i < SHADES; i++) {
    char class[8];
    snprintf(class, sizeof class, "s%d", i);
    shade[i] = calloc((size_t)lanes * COLUMNS, sizeof(int));
    paint_lane(svg, class, 5, lanes, shade[i]);
  }
  for (int64_t item = 0; item < scene->problem.queue_begin[lanes]; item++) {
    const DagItem *entry = &scene->items[item];
    const DagVisit *visits = scene->visits + scene->plane.chain_begin[entry->chain];
    int lane = scene->trace.worker[item];
    for (int64_t i = scene->trace.item_begin[item]; i < scene->trace.item_begin[item + 1]; i++) {
      const DagSpan *span = &scene->trace.spans[i];
      int32_t tile = visits[i - scene->trace.item_begin[item]].tile % scene->q_tiles;
      int *line = shade[shade_of(tile, scene->q_tiles)];
      for (int64_t x = span->begin; x < span->computed; x++)
        line[lane * COLUMNS + x] -= 1;
      for (int64_t x = span->begin - scene->gantt.start; x < span->begin; x++)
        starts[lane * COLUMNS + x] -= i == scene->trace.item_begin[item];
      for (int64_t x = span->turn; x < span->end; x++)
        adds[lane * COLUMNS + x] -= 1;
    }
  }
  for (int i = 0; i < lanes * COLUMNS; i++) {
    assert_int_equal(adds[i], 0);
    assert_int_equal(starts[i], 0);
    for (int k = 0; k < SHADES; k++)
      assert_int_equal(shade[k][i], 0);
  }
  free(adds);
  free(starts);
  for (int i = 0; i < SHADES; i++)
    free(shade[i]);
}

static void test_chart(void **state) {
  (void)state;
  TileMap *map = map_of("k <= q", (TileMapRequest){512, 512, 64, 64, 0, 0});
  Pattern *pattern = pattern_of(map, true, 1);
  Costs costs = {.visit = 7, .partial = 9, .reduce = 3, .handoff = 2, .start = 4, .staging = 1};
  Scene scene;
  stage(pattern, 2, 3, &costs, &scene);
  scene.figures.makespan = COLUMNS; /* the scale alone */
  Text svg = {0};
  Picture picture = {.map = map, .pattern = pattern, .gantt = &scene.gantt};
  assert_int_equal(picture_draw(&picture, &svg), ROTA_OK);
  check_xml(svg.data);
  check_shapes(map, svg.data);
  check_chart(&scene, svg.data);
  assert_non_null(strstr(svg.data, "test on 3 workers: 1.56 us"));
  assert_non_null(strstr(svg.data, ">stalled<"));
  text_free(&svg);
  clear(&scene);
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

/* 132 workers, 16k tokens, 16 heads: a file that a browser opens at once, whatever the order. */
static void test_chart_size(void **state) {
  (void)state;
  TileMap *map = map_of("k <= q", (TileMapRequest){16384, 16384, 64, 128, 0, 0});
  for (int ascending = 0; ascending < 2; ascending++) {
    Pattern *pattern = pattern_of(map, ascending, 1);
    Costs costs;
    assert_int_equal(costs_parse("c=2.3,r=1.1,h=0.7,staging=1", &costs), ROTA_OK);
    Scene scene;
    stage(pattern, 16, 132, &costs, &scene);
    Text svg = {0};
    Picture picture = {.map = map, .pattern = pattern, .gantt = &scene.gantt};
    assert_int_equal(picture_draw(&picture, &svg), ROTA_OK);
    check_xml(svg.data);
    print_message("132 workers, 264,192 visits: %zu bytes of SVG\n", svg.length);
    assert_true(svg.length < 4000000);
    text_free(&svg);
    clear(&scene);
    pattern_destroy(pattern);
  }
  tile_map_destroy(map);
}

static void test_large_maps_stay_small(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    int n;
  } cases[] = {{"k <= q", 131072},
               {"k <= q and (q - k) % 2048 < 64", 131072},
               {"k <= q and q - k < 4096", 65536}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    TileMap *map = map_of(cases[i].mask, (TileMapRequest){cases[i].n, cases[i].n, 64, 128, 0, 0});
    Pattern *pattern = pattern_of(map, true, 1);
    char *svg = draw(map, pattern, "large");
    check_xml(svg);
    print_message("%-32s %6d: %7lld runs, %7zu bytes of SVG\n", cases[i].mask, cases[i].n,
                  (long long)map->row_begin[map->q_tiles], strlen(svg));
    assert_true(strlen(svg) < 2000000);
    free(svg);
    pattern_destroy(pattern);
    tile_map_destroy(map);
  }
}

/* Too many runs for one shape each: cells say what their tiles are. */
static void test_coarse_cells(void **state) {
  (void)state;
  TileMap *map =
      map_of("k // 64 % 2 == 0 or q >= 8192", (TileMapRequest){16384, 24576, 32, 64, 0, 0});
  assert_true(map->row_begin[map->q_tiles] > 16384);
  char *svg = draw(map, NULL, "cells");
  check_xml(svg);
  assert_non_null(strstr(svg, "drawn in cells of 2 x 2 tiles"));
  size_t tiles = (size_t)map->q_tiles * (size_t)map->kv_tiles;
  int *full = calloc(tiles, sizeof(int)), *partial = calloc(tiles, sizeof(int));
  assert_int_equal(paint(svg, "full", full, map->q_tiles, map->kv_tiles), 1);
  assert_int_equal(paint(svg, "partial", partial, map->q_tiles, map->kv_tiles), 1);
  for (size_t t = 0; t < tiles; t++) { /* upper half: one of two columns; lower half: all */
    assert_int_equal(full[t], t >= tiles / 2);
    assert_int_equal(partial[t], t < tiles / 2);
  }
  free(full);
  free(partial);
  free(svg);
  tile_map_destroy(map);
}

static void test_memory_failures(void **state) {
  (void)state;
  TileMap *map = map_of("k // 64 % 2 == 0", (TileMapRequest){16384, 24576, 32, 64, 0, 0});
  Pattern *pattern = pattern_of(map, false, 1);
  Costs costs = costs_paper(2, 1);
  Scene scene;
  stage(pattern, 1, 5, &costs, &scene);
  rota_status status = ROTA_OUT_OF_MEMORY;
  for (long n = 1; status != ROTA_OK; n++) {
    Text svg = {0};
    memory_fail_at(n);
    status = picture_draw(&(Picture){.map = map, .pattern = pattern, .gantt = &scene.gantt}, &svg);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    assert_true(n < 1000);
    text_free(&svg);
  }
  clear(&scene);
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes_are_the_tiles),
      cmocka_unit_test(test_words_and_figures),
      cmocka_unit_test(test_shades),
      cmocka_unit_test(test_chart),
      cmocka_unit_test(test_chart_size),
      cmocka_unit_test(test_large_maps_stay_small),
      cmocka_unit_test(test_coarse_cells),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
