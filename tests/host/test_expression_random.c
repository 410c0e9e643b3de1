/* The expression language against plain recursive evaluation, over thousands of random masks and
 * scores: values, intervals, printed text, derivatives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/random_expression.h"

enum { MASKS = 4000, SCORES = 2000, BOXES = 12 };

static RandomExpression drawn;
static World world;

/* Parses what was drawn; NULL where the type check rightly refuses (and nothing else may). */
static Expression *parse_drawn(void) {
  Expression *expression = NULL;
  Symbols before = world.symbols;
  rota_status status = expression_parse(drawn.text, (SourcePlace){"random", 1}, drawn.kind,
                                        &world.symbols, NULL, 0, &expression);
  assert_memory_equal(&before, &world.symbols, sizeof before);
  if (status == ROTA_OK)
    return expression;
  bool refused =
      strstr(status_message(), "can leave 64 bits") || strstr(status_message(), "divides by zero");
  if (!refused)
    print_error("%s\n", status_message());
  assert_true(refused);
  return NULL;
}

static WorldPosition draw_position(uint64_t *state) {
  WorldPosition at;
  at.q = random_below(state, WORLD_SIZE);
  at.k = random_below(state, WORLD_SIZE);
  at.h = random_below(state, 4);
  at.b = random_below(state, 3);
  at.n_q = random_below(state, WORLD_SIZE + 1);
  at.n_k = random_below(state, WORLD_SIZE + 1);
  at.s = (float)random_below(state, 4001) / 1000.0f - 2.0f;
  return at;
}

/* Rows longer than a block, and rows of one position. */
static void check_row(const Expression *mask, uint64_t *state) {
  enum { LONGEST = 150 };
  bool out[LONGEST + 1];
  WorldPosition at = draw_position(state);
  RowPosition row = {at.q, at.h, at.b, at.n_q, at.n_k};
  int count = 1 + random_below(state, LONGEST), begin = random_below(state, 3) * 5;
  out[count] = true; /* must stay */
  memset(out, 0, (size_t)count);
  expression_evaluate_mask(mask, &world.bindings, &row, begin, count, out);
  assert_true(out[count]);
  for (int i = 0; i < count; i++) {
    at.k = begin + i;
    if (out[i] != random_expression_truth(&drawn, &world, &at))
      fail_msg("%s at q %d k %d h %d b %d n %d %d gives %d", drawn.text, at.q, at.k, at.h, at.b,
               at.n_q, at.n_k, out[i]);
  }
}

static void test_masks_evaluate(void **state) {
  (void)state;
  int refused = 0;
  for (uint64_t seed = 0; seed < MASKS; seed++) {
    world_create(&world, seed);
    random_expression(&drawn, seed, EXPRESSION_MASK, false, 1 + (int)(seed % 6));
    Expression *mask = parse_drawn();
    refused += mask == NULL;
    uint64_t rows = seed * 77;
    for (int i = 0; mask && i < 4; i++)
      check_row(mask, &rows);
    expression_release(mask);
    world_free(&world);
  }
  assert_true(refused < MASKS / 5); /* most are worth something */
}

static bool same_float(float a, float b) {
  return a == b || (isnan(a) && isnan(b));
}

static void test_scores_evaluate(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SCORES; seed++) {
    world_create(&world, seed);
    random_expression(&drawn, seed, EXPRESSION_SCORE, false, 1 + (int)(seed % 6));
    Expression *score = parse_drawn();
    uint64_t rows = seed;
    WorldPosition at = draw_position(&rows);
    RowPosition row = {at.q, at.h, at.b, at.n_q, at.n_k};
    float s[100], out[100];
    int count = 1 + random_below(&rows, 100);
    for (int i = 0; i < count; i++)
      out[i] = s[i] = (float)random_below(&rows, 1000) / 125.0f - 4.0f;
    if (score)
      expression_evaluate_score(score, &world.bindings, &row, 3, count, out, out); /* in place */
    for (int i = 0; score && i < count; i++) {
      at.k = 3 + i;
      at.s = s[i];
      float expected = random_expression_score(&drawn, &world, &at);
      if (!same_float(out[i], expected))
        fail_msg("%s gives %a, not %a", drawn.text, (double)out[i], (double)expected);
    }
    expression_release(score);
    world_free(&world);
  }
}

static Box draw_box(uint64_t *state) {
  WorldPosition a = draw_position(state), b = draw_position(state);
  int q_extent = random_below(state, 10), k_extent = random_below(state, 10);
  Box box = {a.q, a.q + q_extent, a.k, a.k + k_extent, a.h, a.h + (b.h > 2), a.b, a.n_q, a.n_k};
  if (random_below(state, 6) == 0) { /* one position */
    box.q_max = box.q_min;
    box.k_max = box.k_min;
    box.h_max = box.h_min;
  }
  return box;
}

/* Counts positions of the box where the mask is true. */
static int count_true(const Box *box, int *positions) {
  int count = 0;
  *positions = 0;
  WorldPosition at = {.b = box->b, .n_q = box->n_q, .n_k = box->n_k};
  for (at.q = box->q_min; at.q <= box->q_max; at.q++)
    for (at.k = box->k_min; at.k <= box->k_max; at.k++)
      for (at.h = box->h_min; at.h <= box->h_max; at.h++, ++*positions)
        count += random_expression_truth(&drawn, &world, &at);
  return count;
}

static void test_intervals(void **state) {
  (void)state;
  int uniform = 0, decided = 0;
  for (uint64_t seed = 0; seed < MASKS; seed++) {
    world_create(&world, seed);
    random_expression(&drawn, seed, EXPRESSION_MASK, false, 1 + (int)(seed % 6));
    Expression *mask = parse_drawn();
    uint64_t boxes = seed * 131;
    for (int i = 0; mask && i < BOXES; i++) {
      Box box = draw_box(&boxes);
      int positions, count = count_true(&box, &positions);
      Ternary answer = expression_interval(mask, &world.bindings, &box);
      bool right = answer == TERNARY_TRUE    ? count == positions
                   : answer == TERNARY_FALSE ? count == 0
                                             : positions > 1;
      if (!right)
        fail_msg("%s on q %d..%d k %d..%d h %d..%d b %d n %d %d: %d, but %d of %d hold", drawn.text,
                 box.q_min, box.q_max, box.k_min, box.k_max, box.h_min, box.h_max, box.b, box.n_q,
                 box.n_k, answer, count, positions);
      uniform += positions > 1 && (count == 0 || count == positions);
      decided += positions > 1 && answer != TERNARY_UNKNOWN;
    }
    expression_release(mask);
    world_free(&world);
  }
  /* Sound is not enough: most of what is uniform must be seen to be. */
  print_message("%d of %d uniform boxes decided\n", decided, uniform);
  assert_true(decided * 10 > uniform * 7);
}

/* Without the range structures tensors are unknown, and answers must still be right. */
static void test_intervals_without_ranges(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < MASKS / 4; seed++) {
    world_create(&world, seed);
    expression_release_ranges(&world.bindings);
    random_expression(&drawn, seed, EXPRESSION_MASK, false, 3);
    Expression *mask = parse_drawn();
    uint64_t boxes = seed;
    for (int i = 0; mask && i < BOXES; i++) {
      Box box = draw_box(&boxes);
      int positions, count = count_true(&box, &positions);
      Ternary answer = expression_interval(mask, &world.bindings, &box);
      assert_true(answer != TERNARY_TRUE || count == positions);
      assert_true(answer != TERNARY_FALSE || count == 0);
      assert_true(answer != TERNARY_UNKNOWN || positions > 1);
    }
    expression_release(mask);
  }
}

/* print, parse, print: the same text, and the same types and ranges, so the same CUDA text. */
static void test_print(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SCORES; seed++) {
    world_create(&world, seed);
    ExpressionKind kind = seed % 2 ? EXPRESSION_SCORE : EXPRESSION_MASK;
    random_expression(&drawn, seed, kind, false, 1 + (int)(seed % 7));
    Expression *first = parse_drawn(), *second = NULL;
    if (first) {
      Text once = {0}, twice = {0};
      expression_print(first, &world.symbols, &once);
      assert_int_equal(expression_parse(once.data, (SourcePlace){"printed", 1}, kind,
                                        &world.symbols, NULL, 0, &second),
                       ROTA_OK);
      expression_print(second, &world.symbols, &twice);
      assert_string_equal(once.data, twice.data);
      expression_emit(first, &world.symbols, kind == EXPRESSION_MASK, &once);
      expression_emit(second, &world.symbols, kind == EXPRESSION_MASK, &twice);
      assert_string_equal(once.data, twice.data);
      text_free(&once);
      text_free(&twice);
    }
    expression_release(first);
    expression_release(second);
    world_free(&world);
  }
}

/* Slope by central differences in double; false where the function is wild or undefined there. */
static bool measured_slope(const WorldPosition *at, double *slope) {
  double by_step[2];
  for (int i = 0; i < 2; i++) {
    double step = i == 0 ? 1e-5 : 1e-4;
    double above = random_expression_real(&drawn, &world, at, (double)at->s + step);
    double below = random_expression_real(&drawn, &world, at, (double)at->s - step);
    by_step[i] = (above - below) / (2 * step);
  }
  *slope = by_step[0];
  return isfinite(by_step[0]) && isfinite(by_step[1]) && fabs(*slope) < 1e6 &&
         fabs(by_step[0] - by_step[1]) <= 1e-5 * (1 + fabs(*slope));
}

static void test_derivatives(void **state) {
  (void)state;
  int checked = 0, wrong = 0;
  for (uint64_t seed = 0; seed < SCORES; seed++) {
    world_create(&world, 1);
    random_expression(&drawn, seed, EXPRESSION_SCORE, true, 1 + (int)(seed % 5));
    Expression *score = parse_drawn(), *slope = NULL;
    if (score)
      assert_int_equal(expression_derivative(score, &slope), ROTA_OK);
    uint64_t places = seed;
    for (int i = 0; score && i < 8; i++) {
      WorldPosition at = draw_position(&places);
      RowPosition row = {at.q, at.h, at.b, at.n_q, at.n_k};
      double expected;
      float got;
      if (!measured_slope(&at, &expected))
        continue;
      expression_evaluate_score(slope, &world.bindings, &row, at.k, 1, &at.s, &got);
      checked++;
      /* fp32 may lose digits by cancellation in a few of them, but not by formula. */
      wrong += !(fabs((double)got - expected) <= 2e-3 * (0.1 + fabs(expected)));
    }
    expression_release(score);
    expression_release(slope);
    world_free(&world);
  }
  print_message("%d slopes checked, %d differ\n", checked, wrong);
  assert_true(checked > 4 * SCORES);
  assert_true(wrong * 500 < checked);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_masks_evaluate),
      cmocka_unit_test(test_scores_evaluate),
      cmocka_unit_test(test_intervals),
      cmocka_unit_test(test_print),
      cmocka_unit_test(test_intervals_without_ranges),
      cmocka_unit_test(test_derivatives),
  };
  return cmocka_run_group_tests_name("random expressions", tests, NULL, NULL);
}
