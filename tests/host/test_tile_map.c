/* Tile maps against brute force: every position of every tile, for shipped masks (predicates
 * written in C here) and for random ones (evaluated position by position). */
#include "generator/tile_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Masks ---- */

typedef struct Mask {
  Symbols symbols;
  Bindings bindings;
  Expression *expression;
} Mask;

static void mask_parse(Mask *mask, const char *text) {
  rota_status status = expression_parse(text, (SourcePlace){"test", 1}, EXPRESSION_MASK,
                                        &mask->symbols, NULL, 0, &mask->expression);
  if (status != ROTA_OK)
    fail_msg("%s: %s", text, status_message());
  for (int i = 0; i < mask->symbols.parameter_count; i++)
    mask->bindings.parameters[i] = mask->symbols.parameters[i].value;
}

static void mask_int(Mask *mask, const char *name, int value) {
  Parameter *parameter = &mask->symbols.parameters[mask->symbols.parameter_count++];
  snprintf(parameter->name, sizeof parameter->name, "%s", name);
  parameter->type = VALUE_INT;
  parameter->value.i = value;
}

/* Row-major data for the tensor that the text uses first. */
static void mask_tensor(Mask *mask, const int32_t *data, int64_t rows, int64_t columns) {
  assert_int_equal(mask->symbols.tensor_count, 1);
  TensorBinding *tensor = &mask->bindings.tensors[0];
  *tensor = (TensorBinding){data, {rows, columns, 1, 1}, {columns, 1, 0, 0}};
  assert_int_equal(expression_prepare_ranges(&mask->symbols, &mask->bindings), ROTA_OK);
}

static void mask_free(Mask *mask) {
  expression_release_ranges(&mask->bindings);
  expression_release(mask->expression);
}

/* ---- Brute force ---- */

typedef bool (*Predicate)(int q, int k, const TileMapRequest *at);

static bool allowed(const Mask *mask, Predicate predicate, int q, int k, const TileMapRequest *at) {
  if (predicate)
    return predicate(q, k, at);
  RowPosition row = {q, at->h, at->b, at->n_q, at->n_k};
  bool value;
  expression_evaluate_mask(mask->expression, &mask->bindings, &row, k, 1, &value);
  return value;
}

static TileKind brute_kind(const Mask *mask, Predicate predicate, int i, int j,
                           const TileMapRequest *at) {
  bool any = false, all = (j + 1) * at->tile_kv <= at->n_k;
  for (int q = i * at->tile_q; q < (i + 1) * at->tile_q && q < at->n_q; q++)
    for (int k = j * at->tile_kv; k < (j + 1) * at->tile_kv && k < at->n_k; k++) {
      bool value = allowed(mask, predicate, q, k, at);
      any |= value;
      all &= value;
    }
  return !any ? TILE_EMPTY : all ? TILE_FULL : TILE_PARTIAL;
}

/* Runs ascend, are disjoint, and neighbours differ; counts add up. */
static void check_form(const TileMap *map) {
  int64_t full = 0, partial = 0;
  assert_int_equal(map->row_begin[0], 0);
  for (int i = 0; i < map->q_tiles; i++)
    for (int64_t r = map->row_begin[i]; r < map->row_begin[i + 1]; r++) {
      const TileRun *run = &map->runs[r];
      assert_true(run->begin >= 0 && run->begin < run->end && run->end <= map->kv_tiles);
      assert_true(run->kind == TILE_FULL || run->kind == TILE_PARTIAL);
      if (r > map->row_begin[i]) {
        assert_true(run[-1].end <= run->begin);
        assert_false(run[-1].end == run->begin && run[-1].kind == run->kind);
      }
      *(run->kind == TILE_FULL ? &full : &partial) += run->end - run->begin;
    }
  assert_int_equal(map->full_tiles, full);
  assert_int_equal(map->partial_tiles, partial);
}

static void compare(const Mask *mask, Predicate predicate, const TileMapRequest *at,
                    const char *name) {
  TileMap *map;
  assert_int_equal(tile_map_build(mask->expression, &mask->bindings, at, &map), ROTA_OK);
  check_form(map);
  assert_int_equal(map->q_tiles, (at->n_q + at->tile_q - 1) / at->tile_q);
  assert_int_equal(map->kv_tiles, (at->n_k + at->tile_kv - 1) / at->tile_kv);
  for (int i = 0; i < map->q_tiles; i++)
    for (int j = 0; j < map->kv_tiles; j++) {
      TileKind want = brute_kind(mask, predicate, i, j, at), got = tile_map_kind(map, i, j);
      if (want != got)
        fail_msg("%s, %d x %d, tiles %d x %d: tile (%d, %d) is %d, must be %d", name, at->n_q,
                 at->n_k, at->tile_q, at->tile_kv, i, j, (int)got, (int)want);
    }
  tile_map_destroy(map);
}

/* ---- Shipped masks ---- */

enum { DOCUMENT_TOKENS = 700, BLOCK = 32, BLOCKS = 24 };
static int32_t documents[DOCUMENT_TOKENS], blocks[BLOCKS * BLOCKS];

static bool is_causal(int q, int k, const TileMapRequest *at) {
  return k <= q + at->n_k - at->n_q;
}
static bool is_causal_top(int q, int k, const TileMapRequest *at) {
  return (void)at, k <= q;
}
static bool is_window(int q, int k, const TileMapRequest *at) {
  int centre = q + at->n_k - at->n_q;
  return k >= centre - 37 && k <= centre + 5;
}
static bool is_window_sinks(int q, int k, const TileMapRequest *at) {
  return is_causal(q, k, at) && (is_window(q, k, at) || k < 4);
}
static bool is_prefix(int q, int k, const TileMapRequest *at) {
  return k < 70 || is_causal(q, k, at);
}
static bool is_chunk(int q, int k, const TileMapRequest *at) {
  return (void)at, q / 50 == k / 50;
}
static bool is_dilated(int q, int k, const TileMapRequest *at) {
  return (void)at, (q - k) % 90 == 0;
}
static bool is_document(int q, int k, const TileMapRequest *at) {
  return (void)at, documents[q] == documents[k];
}
static bool is_block(int q, int k, const TileMapRequest *at) {
  return (void)at, blocks[q / BLOCK * BLOCKS + k / BLOCK] != 0;
}
static bool is_b1(int q, int k, const TileMapRequest *at) {
  return (void)at, k <= q - 15 && k > q - 15 - 128;
}
static bool is_b4(int q, int k, const TileMapRequest *at) {
  return (void)at, (q >= k && q - k <= 256) || (q >= 4 && k <= 4);
}
static bool is_odd_tiles(int q, int k, const TileMapRequest *at) {
  return (void)at, (void)q, k / 16 % 2 == 1;
}
static bool is_nothing(int q, int k, const TileMapRequest *at) {
  return (void)q, (void)k, (void)at, false;
}

static const struct {
  const char *name, *text;
  Predicate predicate;
  const int32_t *tensor;
  int rows, columns;
} shipped[] = {
    {"causal", "k <= q + n_k - n_q", is_causal, NULL, 0, 0},
    {"causal, top left", "k <= q", is_causal_top, NULL, 0, 0},
    {"window", "k >= q + n_k - n_q - 37 and k <= q + n_k - n_q + 5", is_window, NULL, 0, 0},
    {"window and sinks",
     "k <= q + n_k - n_q and (k >= q + n_k - n_q - 37 and k <= q + n_k - n_q + 5 or k < 4)",
     is_window_sinks, NULL, 0, 0},
    {"prefix", "k < 70 or k <= q + n_k - n_q", is_prefix, NULL, 0, 0},
    {"chunk", "q // 50 == k // 50", is_chunk, NULL, 0, 0},
    {"dilated", "(q - k) % 90 == 0", is_dilated, NULL, 0, 0},
    {"document", "document[q] == document[k]", is_document, documents, 1, DOCUMENT_TOKENS},
    {"block list", "blocks[q // 32, k // 32] ~= 0", is_block, blocks, BLOCKS, BLOCKS},
    {"case B1", "k <= q - 15 and k > q - 15 - 128", is_b1, NULL, 0, 0},
    {"case B4", "(q >= k and q - k <= 256) or (q >= 4 and k <= 4)", is_b4, NULL, 0, 0},
    {"odd tiles", "k // 16 % 2 == 1", is_odd_tiles, NULL, 0, 0},
    {"nothing", "q < 0", is_nothing, NULL, 0, 0},
};

static const TileMapRequest shapes[] = {
    {640, 640, 64, 128, 0, 0}, {513, 511, 64, 128, 0, 0}, {130, 690, 16, 32, 0, 0},
    {690, 130, 128, 64, 0, 0}, {1, 700, 64, 64, 0, 0},    {700, 1, 64, 64, 0, 0},
    {97, 97, 1, 1, 0, 0},      {64, 300, 7, 13, 0, 0},    {2, 5, 64, 128, 0, 0},
    {5, 2, 64, 128, 0, 0},     {0, 10, 64, 128, 0, 0},    {10, 0, 64, 128, 0, 0},
};

static void fill_tensors(unsigned seed) {
  srand(seed);
  for (int i = 0, id = 0; i < DOCUMENT_TOKENS; i++) {
    if (rand() % 60 == 0)
      id++;
    documents[i] = seed % 2 ? id : i % 2 * 2 + id / 4; /* sorted, or interleaved */
  }
  for (int i = 0; i < BLOCKS * BLOCKS; i++)
    blocks[i] = rand() % 3 == 0;
}

static void test_shipped_masks_are_exact(void **state) {
  (void)state;
  for (unsigned seed = 1; seed <= 2; seed++) {
    fill_tensors(seed);
    for (size_t m = 0; m < sizeof shipped / sizeof *shipped; m++) {
      Mask mask = {.expression = NULL};
      mask_parse(&mask, shipped[m].text);
      if (shipped[m].rows == 1) {
        mask_tensor(&mask, shipped[m].tensor, shipped[m].columns, 1);
      } else if (shipped[m].tensor) {
        mask_tensor(&mask, shipped[m].tensor, shipped[m].rows, shipped[m].columns);
      }
      for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        compare(&mask, shipped[m].predicate, &shapes[s], shipped[m].name);
      mask_free(&mask);
    }
  }
}

static void test_no_mask_is_full(void **state) {
  (void)state;
  TileMapRequest at = {130, 300, 64, 128, 0, 0};
  TileMap *map;
  assert_int_equal(tile_map_build(NULL, NULL, &at, &map), ROTA_OK);
  assert_int_equal(map->full_tiles, 3 * 2);
  assert_int_equal(map->partial_tiles, 3); /* 300 keys reach 44 into the third tile */
  assert_int_equal(map->row_begin[3], 6);
  assert_int_equal(tile_map_kind(map, 0, 1), TILE_FULL);
  assert_int_equal(tile_map_kind(map, 2, 2), TILE_PARTIAL);
  assert_int_equal(tile_map_kind(map, 3, 0), TILE_EMPTY);
  tile_map_destroy(map);
}

/* Causal documents: on the diagonal bounds of keys suffice within a document. */
static void test_bounded_tiles(void **state) {
  (void)state;
  for (int i = 0; i < DOCUMENT_TOKENS; i++)
    documents[i] = i / 128;
  Mask mask = {.expression = NULL}, rest = {.expression = NULL};
  mask_parse(&mask, "k <= q and document[q] == document[k]");
  mask_tensor(&mask, documents, DOCUMENT_TOKENS, 1);
  mask_parse(&rest, "document[q] == document[k]");
  TileMapRequest at = {300, 300, 64, 64, 0, 0};
  TileMap *map;
  assert_int_equal(
      tile_map_build_bounded(mask.expression, rest.expression, &mask.bindings, &at, &map), ROTA_OK);
  assert_int_equal(tile_map_kind(map, 0, 0), TILE_BOUNDED);
  assert_int_equal(tile_map_kind(map, 1, 0), TILE_FULL);
  assert_int_equal(tile_map_kind(map, 2, 1), TILE_EMPTY);
  assert_int_equal(tile_map_kind(map, 4, 4), TILE_BOUNDED); /* cut by n_k, too */
  tile_map_destroy(map);
  for (int i = 0; i < DOCUMENT_TOKENS; i++)
    documents[i] = i / 100;
  expression_release_ranges(&mask.bindings);
  mask_tensor(&mask, documents, DOCUMENT_TOKENS, 1);
  assert_int_equal(
      tile_map_build_bounded(mask.expression, rest.expression, &mask.bindings, &at, &map), ROTA_OK);
  assert_int_equal(tile_map_kind(map, 0, 0), TILE_BOUNDED);
  assert_int_equal(tile_map_kind(map, 1, 1), TILE_PARTIAL); /* a document ends within */
  tile_map_destroy(map);
  mask_free(&mask);
  mask_free(&rest);
}

/* The head and the batch entry belong to the request. */
static void test_heads_and_batch(void **state) {
  (void)state;
  Mask mask = {.expression = NULL};
  mask_parse(&mask, "k <= q - 32 * h + 16 * b");
  TileMap *maps[3];
  const int32_t places[3][2] = {{0, 0}, {2, 1}, {0, 1}}; /* b, h: the first two are one diagonal */
  for (int i = 0; i < 3; i++) {
    TileMapRequest at = {256, 256, 16, 16, places[i][0], places[i][1]};
    compare(&mask, NULL, &at, "per head");
    assert_int_equal(tile_map_build(mask.expression, &mask.bindings, &at, &maps[i]), ROTA_OK);
  }
  assert_true(tile_map_equal(maps[0], maps[1]));
  assert_false(tile_map_equal(maps[0], maps[2]));
  for (int i = 0; i < 3; i++)
    tile_map_destroy(maps[i]);
  mask_free(&mask);
}

/* ---- Random masks ---- */

static uint64_t random_state;

static int pick(int count) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (int)((random_state >> 33) % (uint64_t)count);
}

/* Appends to a text; the buffers are far larger than what depth 3 can produce. */
typedef struct Writer {
  char text[4000];
  size_t length;
} Writer;

static void put(Writer *writer, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t room = sizeof writer->text - writer->length;
  int count = vsnprintf(writer->text + writer->length, room, format, arguments);
  va_end(arguments);
  assert_true(count >= 0 && (size_t)count < room);
  writer->length += (size_t)count;
}

static void put_int(Writer *writer, int depth) {
  static const char *const leaves[] = {"q", "k", "n_q", "n_k", "w", "q", "k"};
  static const char *const binary[] = {" + ", " - ", " + ", " - "};
  if (depth == 0 || pick(4) == 0) {
    int leaf = pick(9);
    if (leaf < 7)
      put(writer, "%s", leaves[leaf]);
    else
      put(writer, "%d", pick(40));
    return;
  }
  int form = pick(8);
  put(writer, form == 4 ? "min(" : form == 5 ? "max(" : form == 6 ? "abs(" : "(");
  put_int(writer, depth - 1);
  if (form < 4)
    put(writer, "%s", binary[form]);
  if (form == 4 || form == 5)
    put(writer, ", ");
  if (form < 6)
    put_int(writer, depth - 1);
  if (form == 7)
    put(writer, pick(2) ? " // %d" : " %% %d", 1 + pick(30));
  put(writer, ")");
}

static void put_bool(Writer *writer, int depth) {
  static const char *const comparisons[] = {" < ", " <= ", " > ", " >= ", " == ", " ~= "};
  if (depth == 0 || pick(3) == 0) {
    put_int(writer, 2);
    put(writer, "%s", comparisons[pick(6)]);
    put_int(writer, 2);
    return;
  }
  put(writer, pick(5) == 0 ? "not (" : "(");
  put_bool(writer, depth - 1);
  put(writer, pick(2) ? " and " : " or ");
  put_bool(writer, depth - 1);
  put(writer, ")");
}

static void test_random_masks(void **state) {
  (void)state;
  random_state = 20240611;
  for (int round = 0; round < 600; round++) {
    Writer writer = {.length = 0};
    put_bool(&writer, pick(3));
    Mask mask = {.expression = NULL};
    mask_int(&mask, "w", pick(50) - 10);
    mask_parse(&mask, writer.text);
    TileMapRequest at = {1 + pick(150), 1 + pick(150), 1 + pick(24), 1 + pick(24), 0, 0};
    compare(&mask, NULL, &at, writer.text);
    mask_free(&mask);
  }
}

/* ---- Cost, limits, memory ---- */

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void test_large_causal_map_is_quick(void **state) {
  (void)state;
  Mask mask = {.expression = NULL};
  mask_parse(&mask, "k <= q + n_k - n_q");
  TileMapRequest at = {131072, 131072, 64, 128, 0, 0};
  double best = 1e9;
  for (int i = 0; i < 3; i++) {
    TileMap *map;
    double begin = milliseconds();
    assert_int_equal(tile_map_build(mask.expression, &mask.bindings, &at, &map), ROTA_OK);
    double took = milliseconds() - begin;
    if (took < best)
      best = took;
    /* Two query tiles per kv tile: rows 2j and 2j + 1 have j full tiles and a partial one. */
    assert_int_equal(map->full_tiles, 1024 * 1023);
    assert_int_equal(map->partial_tiles, 2048);
    assert_int_equal(map->row_begin[2048], 4094);
    tile_map_destroy(map);
  }
  print_message("causal, 131072 x 131072 at 64 x 128: %.2f ms\n", best);
  assert_true(best < 200); /* 50 ms is the aim; a busy machine gets some air */
  mask_free(&mask);
}

/* A mask without any structure that intervals see: the budget bounds the work, and the answer stays
 * on the safe side. */
static void test_budget_is_bounded(void **state) {
  (void)state;
  Mask mask = {.expression = NULL};
  mask_parse(&mask, "noise[q % 64] == noise[64 + k % 64]");
  int32_t noise[128]; /* even values against odd ones, in disorder: no position is allowed */
  for (int i = 0; i < 128; i++)
    noise[i] = i * 37 % 64 * 2 + i / 64;
  mask_tensor(&mask, noise, 128, 1);
  TileMapRequest at = {32768, 32768, 64, 128, 0, 0};
  TileMap *map;
  double begin = milliseconds();
  assert_int_equal(tile_map_build(mask.expression, &mask.bindings, &at, &map), ROTA_OK);
  print_message("no structure, 32768 x 32768: %.0f ms, %lld of %d tiles left partial\n",
                milliseconds() - begin, (long long)map->partial_tiles, 512 * 256);
  assert_int_equal(map->full_tiles, 0);
  assert_int_equal(tile_map_kind(map, 0, 0), TILE_EMPTY); /* within the budget: exact */
  tile_map_destroy(map);
  mask_free(&mask);
}

static void test_bad_requests(void **state) {
  (void)state;
  const TileMapRequest bad[] = {{10, 10, 0, 16, 0, 0},
                                {10, 10, 16, -1, 0, 0},
                                {-1, 10, 16, 16, 0, 0},
                                {10, INT32_MAX, 16, 16, 0, 0}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    TileMap *map;
    assert_int_equal(tile_map_build(NULL, NULL, &bad[i], &map), ROTA_INVALID_ARGUMENT);
    assert_null(map);
  }
}

static void test_memory_failures(void **state) {
  (void)state;
  Mask mask = {.expression = NULL};
  mask_parse(&mask, "(q + k) % 32 < 16"); /* many runs, so that their array grows */
  TileMapRequest at = {512, 512, 8, 8, 0, 0};
  for (long n = 1;; n++) {
    TileMap *map;
    memory_fail_at(n);
    rota_status status = tile_map_build(mask.expression, &mask.bindings, &at, &map);
    memory_fail_at(0);
    if (status == ROTA_OK) {
      assert_true(n > 5);
      tile_map_destroy(map);
      break;
    }
    assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    assert_null(map);
  }
  mask_free(&mask);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shipped_masks_are_exact),
      cmocka_unit_test(test_bounded_tiles),
      cmocka_unit_test(test_no_mask_is_full),
      cmocka_unit_test(test_heads_and_batch),
      cmocka_unit_test(test_random_masks),
      cmocka_unit_test(test_large_causal_map_is_quick),
      cmocka_unit_test(test_budget_is_bounded),
      cmocka_unit_test(test_bad_requests),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
