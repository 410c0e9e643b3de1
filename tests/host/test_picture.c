/* Pictures: well-formed SVG whose shapes cover exactly the map's tiles, small for large maps, with
 * right figures. */
#include "generator/picture.h"
#include "generator/picture_roster.h"

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

static Pattern *pattern_of(const TileMap *map, ChainOrder chains, int group) {
  const TileMap *maps[4] = {map, map, map, map};
  ScheduleRule rule = {"test", chains, VISITS_ASCENDING};
  Pattern *pattern;
  assert_int_equal(pattern_build(&rule, maps, group, &pattern), ROTA_OK);
  return pattern;
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
      Pattern *pattern = pattern_of(map, CHAINS_DESCENDING, 2);
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
  Pattern *pattern = pattern_of(map, CHAINS_DESCENDING, 1);
  char *svg = draw(map, pattern, "a < b && c > d");
  assert_non_null(strstr(svg, "a &lt; b &amp;&amp; c &gt; d"));
  assert_non_null(strstr(svg, "256 x 256 tokens in tiles of 64 x 64"));
  assert_non_null(strstr(svg, "full 6 (37.5 %)"));
  assert_non_null(strstr(svg, "partial 4 (25.0 %)"));
  assert_non_null(strstr(svg, "empty 6 (37.5 %)"));
  assert_non_null(strstr(svg, "4 chains, 10 visits; length 4 visits"));
  assert_non_null(strstr(svg, "waiting 0 (0.0 %)"));
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

/* Against the model worked out by hand. Causal, 4 x 4 tiles of one size. */
static void test_roster_figures(void **state) {
  (void)state;
  TileMap *map = map_of("k <= q", (TileMapRequest){256, 256, 64, 64, 0, 0});
  RosterFigures figures;
  Pattern *pattern = pattern_of(map, CHAINS_DESCENDING, 1);
  assert_int_equal(roster_figures(pattern, &figures), ROTA_OK);
  /* Chains 3, 2, 1, 0 with 1 .. 4 visits; each adds first on its diagonal and finds every other
   * turn just passed. */
  assert_int_equal(figures.busy, 10 * VISIT_TICKS);
  assert_int_equal(figures.span, 4 * VISIT_TICKS);
  assert_int_equal(figures.waiting, 0);
  pattern_destroy(pattern);
  pattern = pattern_of(map, CHAINS_ASCENDING, 1);
  assert_int_equal(roster_figures(pattern, &figures), ROTA_OK);
  /* Chain 0 ends its visits of rows 0 .. 3 at 4, 8, 12, 16. Chain 1 adds to row 1 at 9 (ready at
   * 4), then 13, 17; chain 2 to row 2 at 14, then 18; chain 3 to row 3 at 19. Waits: 5 + 10 + 15.
   */
  assert_int_equal(figures.span, 19);
  assert_int_equal(figures.waiting, 5 + 10 + 15);
  pattern_destroy(pattern);
  tile_map_destroy(map);
  map = map_of("k <= q", (TileMapRequest){0, 0, 64, 64, 0, 0});
  pattern = pattern_of(map, CHAINS_ASCENDING, 1);
  assert_int_equal(roster_figures(pattern, &figures), ROTA_OK);
  assert_int_equal(figures.span + figures.busy + figures.waiting, 0);
  pattern_destroy(pattern);
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
    Pattern *pattern = pattern_of(map, CHAINS_ASCENDING, 1);
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
  Pattern *pattern = pattern_of(map, CHAINS_DESCENDING, 1);
  rota_status status = ROTA_OUT_OF_MEMORY;
  for (long n = 1; status != ROTA_OK; n++) {
    Text svg = {0};
    memory_fail_at(n);
    status = picture_draw(&(Picture){.map = map, .pattern = pattern}, &svg);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    assert_true(n < 1000);
    text_free(&svg);
  }
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes_are_the_tiles), cmocka_unit_test(test_words_and_figures),
      cmocka_unit_test(test_roster_figures),       cmocka_unit_test(test_large_maps_stay_small),
      cmocka_unit_test(test_coarse_cells),         cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
