/* Masks as intervals of keys: which ones are known to be, and that the two bounds allow the very
 * same keys as the mask, over tables and thousands of random masks; as intervals of queries, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "tests/support/random_expression.h"

enum { MASKS = 4000, ROWS = 6, KEYS = 60 };

static World world;
static RandomExpression drawn;
static int rows_known; /* of the masks whose columns are */

static Expression *parse(const char *text) {
  Expression *mask = NULL;
  if (expression_parse(text, (SourcePlace){"columns", 1}, EXPRESSION_MASK, &world.symbols, NULL, 0,
                       &mask) != ROTA_OK)
    fail_msg("%s", status_message());
  return mask;
}

/* first <= x and x < end, from the bounds' printed text; x: "k" or "q". */
static Expression *mask_of_bounds(const Expression *first, const Expression *end, const char *x) {
  Text text = {0};
  expression_print(first, &world.symbols, &text);
  text_format(&text, " <= %s and %s < ", x, x);
  expression_print(end, &world.symbols, &text);
  Expression *mask = parse(text.data);
  text_free(&text);
  return mask;
}

static void check_same(const char *text, const Expression *mask, const Expression *columns,
                       uint64_t *state) {
  for (int i = 0; i < ROWS; i++) {
    RowPosition row = {random_below(state, WORLD_SIZE), random_below(state, 4),
                       random_below(state, 3), random_below(state, WORLD_SIZE + 1),
                       random_below(state, WORLD_SIZE + 1)};
    bool expected[KEYS], found[KEYS];
    expression_evaluate_mask(mask, &world.bindings, &row, 0, KEYS, expected);
    expression_evaluate_mask(columns, &world.bindings, &row, 0, KEYS, found);
    for (int k = 0; k < KEYS; k++)
      if (expected[k] != found[k])
        fail_msg("%s at q %d k %d h %d n %d %d is %d", text, row.q, k, row.h, row.n_q, row.n_k,
                 expected[k]);
  }
}

/* Whether bounds of queries are known; if so they must be right, too. `rest` may be NULL. */
static bool check_rows(const char *text, const Expression *mask, const Expression *rest,
                       uint64_t seed) {
  Expression *first, *end;
  if (!expression_rows(mask, &first, &end)) {
    assert_null(first);
    assert_null(end);
    return false;
  }
  assert_false(expression_use(first).q || expression_use(end).q);
  Expression *rows = mask_of_bounds(first, end, "q");
  Expression *both = rest ? expression_and(rows, rest) : expression_retain(rows);
  uint64_t state = seed;
  check_same(text, mask, both, &state);
  expression_release(both);
  expression_release(rows);
  expression_release(first);
  expression_release(end);
  return true;
}

/* Whether the mask's columns are known; if so they must be right. */
static bool check_columns(const char *text, const Expression *mask, uint64_t seed) {
  Expression *first, *end;
  if (!expression_columns(mask, &first, &end)) {
    assert_null(first);
    assert_null(end);
    return false;
  }
  assert_false(expression_use(first).k || expression_use(end).k);
  Expression *columns = mask_of_bounds(first, end, "k");
  uint64_t state = seed;
  check_same(text, mask, columns, &state);
  rows_known += check_rows(text, mask, NULL, seed);
  expression_release(columns);
  expression_release(first);
  expression_release(end);
  return true;
}

static const struct {
  const char *text;
  bool known;
} masks[] = {
    {"k <= q + n_k - n_q", true},
    {"q + n_k - n_q - k <= window and k - (q + n_k - n_q) <= zero", true},
    {"k <= q or k < window", true}, /* prefix */
    {"not (k > q)", true},
    {"not (k > q or q - k >= window)", true},
    {"h == 1 or k <= q", true},
    {"h == 1 and k <= q", true},
    {"k == q", true},
    {"q - k < 4294967296", true}, /* 64-bit bounds */
    {"-k >= -q - big", true},
    {"n_q > 5", true},
    {"true", true},
    {"false", true},
    {"k < doc[q]", true},
    {"k <= q and q - k < window or k < 4", false}, /* two pieces */
    {"k ~= q", false},
    {"(q - k) % 3 == 0", false},
    {"2 * k < q", false},
    {"doc[q] == doc[k]", false},
    {"k < q and k < doc[q - 1]", false}, /* the index is guarded by a condition on k */
};

static void test_known_masks(void **state) {
  (void)state;
  world_create(&world, 3);
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
    Expression *mask = parse(masks[i].text);
    if (check_columns(masks[i].text, mask, i) != masks[i].known)
      fail_msg("%s: expected to be %s", masks[i].text, masks[i].known ? "known" : "unknown");
    expression_release(mask);
  }
  world_free(&world);
}

/* Whether the rest compares a number of the query with one of the key; if so it must be that. */
static bool check_match(const char *text, const Expression *mask, const Expression *rest,
                        uint64_t seed) {
  Expression *of_query, *of_key;
  if (!expression_match(mask, &of_query, &of_key)) {
    assert_null(of_query);
    assert_null(of_key);
    return false;
  }
  assert_false(expression_use(of_query).k || expression_use(of_key).q);
  Text both = {0};
  expression_print(of_query, &world.symbols, &both);
  text_append(&both, " == ");
  expression_print(of_key, &world.symbols, &both);
  Expression *match = parse(both.data);
  uint64_t state = seed;
  check_same(text, rest, match, &state);
  text_free(&both);
  expression_release(match);
  expression_release(of_query);
  expression_release(of_key);
  return true;
}

/* Columns of some conditions: with the rest they must be the mask. */
static bool check_part(const char *text, const Expression *mask, uint64_t seed) {
  Expression *first, *end, *rest;
  if (!expression_columns_part(mask, &first, &end, &rest)) {
    assert_null(first);
    assert_null(end);
    assert_null(rest);
    return false;
  }
  assert_false(expression_use(first).k || expression_use(end).k);
  Expression *columns = mask_of_bounds(first, end, "k"), *both = expression_and(columns, rest);
  uint64_t state = seed;
  check_rows(text, mask, rest, seed);
  check_match(text, mask, rest, seed);
  check_same(text, mask, both, &state);
  expression_release(both);
  expression_release(columns);
  expression_release(first);
  expression_release(end);
  expression_release(rest);
  return true;
}

static void test_parts(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool known;
  } parts[] = {
      {"k <= q and doc[q] == doc[k]", true},
      {"doc[q] == doc[k] and (k <= q + n_k - n_q and q - k < window)", true},
      {"k <= q and (q - k) % 3 == 0 and k > 2", true},
      {"k <= q and k > 2", false}, /* nothing rests */
      {"doc[q] == doc[k]", false},
      {"k <= q or doc[q] == doc[k]", false},
      {"k < doc[q] and k % 2 == 0", false}, /* tensors stay with their conditions */
  };
  world_create(&world, 3);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    Expression *mask = parse(parts[i].text);
    if (check_part(parts[i].text, mask, i) != parts[i].known)
      fail_msg("%s: expected to be %s", parts[i].text, parts[i].known ? "known" : "unknown");
    expression_release(mask);
  }
  world_free(&world);
}

static void test_rows(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool known;
  } rows[] = {
      {"k <= q + n_k - n_q", true},
      {"q + n_k - n_q - k <= window and k <= q + n_k - n_q", true},
      {"k <= q or k < window", true},
      {"n_q > 5", true},
      {"k <= q and doc[q] == doc[k]", true}, /* of what is solved for k */
      {"k < doc[q]", false},
      {"k >= q // 2", false},
      {"k <= q + q", false},
  };
  world_create(&world, 3);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    Expression *mask = parse(rows[i].text), *first, *end;
    if (expression_rows(mask, &first, &end) != rows[i].known)
      fail_msg("%s: expected to be %s", rows[i].text, rows[i].known ? "known" : "unknown");
    expression_release(first);
    expression_release(end);
    expression_release(mask);
  }
  world_free(&world);
}

static void test_matches(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool known;
  } matches[] = {
      {"doc[q] == doc[k]", true},
      {"doc[k + n_q] == doc[q]", true},
      {"k // 4 == q // 8", true},
      {"doc[q] ~= doc[k]", false},
      {"doc[q] == doc[k] and q % 3 == k % 2", false}, /* two */
      {"doc[q + k] == doc[k]", false},
      {"doc[q] == doc[k] or h == 0", false},
      {"doc[k] == doc[q] + h", false}, /* may leave 32 bits */
  };
  world_create(&world, 3);
  for (size_t i = 0; i < sizeof matches / sizeof matches[0]; i++) {
    Expression *mask = parse(matches[i].text);
    if (check_match(matches[i].text, mask, mask, i) != matches[i].known)
      fail_msg("%s: expected to be %s", matches[i].text, matches[i].known ? "known" : "unknown");
    expression_release(mask);
  }
  world_free(&world);
}

static void test_random_masks(void **state) {
  (void)state;
  int known = 0;
  for (uint64_t seed = 0; seed < MASKS; seed++) {
    world_create(&world, seed);
    random_expression(&drawn, seed, EXPRESSION_MASK, false, 1 + (int)(seed % 5));
    Expression *mask = NULL;
    if (expression_parse(drawn.text, (SourcePlace){"random", 1}, drawn.kind, &world.symbols, NULL,
                         0, &mask) == ROTA_OK)
      known += expression_use(mask).k && check_columns(drawn.text, mask, seed);
    expression_release(mask);
    world_free(&world);
  }
  assert_true(known > MASKS / 50);
  assert_true(rows_known > MASKS / 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_masks),  cmocka_unit_test(test_parts),
      cmocka_unit_test(test_rows),         cmocka_unit_test(test_matches),
      cmocka_unit_test(test_random_masks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
