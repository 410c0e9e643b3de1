/* The expression language: messages, precedence, types, combinations, running out of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/expression.h"

/* Parameters window (int), cap (float), eight (constant 8), unbounded (constant, infinite). */
static Symbols symbols_of_test(void) {
  Symbols symbols = {0};
  const Parameter parameters[] = {{"window", VALUE_INT, false, {.i = 16}},
                                  {"cap", VALUE_FLOAT, false, {.f = 30}},
                                  {"eight", VALUE_INT, true, {.i = 8}},
                                  {"unbounded", VALUE_FLOAT, true, {.f = INFINITY}}};
  memcpy(symbols.parameters, parameters, sizeof parameters);
  symbols.parameter_count = 4;
  return symbols;
}

static Bindings bindings_of(const Symbols *symbols) {
  Bindings bindings = {0};
  for (int i = 0; i < symbols->parameter_count; i++)
    bindings.parameters[i] = symbols->parameters[i].value;
  return bindings;
}

static Expression *parse(const char *text, ExpressionKind kind, Symbols *symbols) {
  Expression *expression = NULL;
  rota_status status =
      expression_parse(text, (SourcePlace){"model.lua", 1}, kind, symbols, NULL, 0, &expression);
  if (status != ROTA_OK)
    fail_msg("%s", status_message());
  return expression;
}

/* ---- Messages: tests/errors/expression.txt ---- */

/* "\n", "\t" and "\xNN" in a case's text. */
static void unescape(char *text) {
  char *out = text;
  for (const char *in = text; *in; in++) {
    if (in[0] != '\\') {
      *out++ = *in;
    } else if (in[1] == 'x') {
      char digits[3] = {in[2], in[3], 0};
      *out++ = (char)strtol(digits, NULL, 16);
      in += 3;
    } else {
      *out++ = in[1] == 'n' ? '\n' : '\t';
      in++;
    }
  }
  *out = '\0';
}

static void check_message(char *text, const char *expected) {
  Symbols symbols = symbols_of_test();
  ExpressionKind kind = strncmp(text, "mask:", 5) == 0 ? EXPRESSION_MASK : EXPRESSION_SCORE;
  bool slope = strncmp(text, "slope:", 6) == 0;
  unescape(text);
  const char *source = strchr(text, ':') + 1;
  Expression *expression = NULL, *derivative = NULL;
  rota_status status = expression_parse(source + (*source == ' '), (SourcePlace){"model.lua", 1},
                                        kind, &symbols, NULL, 0, &expression);
  if (slope) {
    assert_int_equal(status, ROTA_OK);
    status = expression_derivative(expression, &derivative);
    assert_null(derivative);
  } else {
    assert_null(expression);
  }
  assert_int_equal(status, ROTA_SCRIPT);
  assert_string_equal(status_message(), expected);
  expression_release(expression);
}

static void test_messages(void **state) {
  (void)state;
  const char *root = getenv("ROTA_TEST_SOURCE");
  char path[1024];
  snprintf(path, sizeof path, "%s/tests/errors/expression.txt", root ? root : ".");
  char *data;
  size_t length;
  if (text_read_file(path, &data, &length) != ROTA_OK)
    fail_msg("%s", status_message());
  int cases = 0;
  /* Cases are separated by blank lines; lines with # at the start of the file are its comment. */
  char *next = strstr(data, "\n\n");
  while (next) {
    char *text = next + 2;
    next = strstr(text, "\n\n");
    if (next)
      *next = '\0';
    char *message = strchr(text, '\n');
    if (!message)
      break;
    *message++ = '\0';
    if (!next && message[strlen(message) - 1] == '\n')
      message[strlen(message) - 1] = '\0';
    check_message(text, message);
    cases++;
  }
  free(data);
  assert_true(cases > 60);
}

/* ---- Precedence and types, by the parenthesised text ---- */

static void check_print(ExpressionKind kind, const char *text, const char *expected) {
  Symbols symbols = symbols_of_test();
  Expression *expression = parse(text, kind, &symbols);
  Text out = {0};
  expression_print(expression, &symbols, &out);
  assert_string_equal(out.data, expected);
  text_free(&out);
  expression_release(expression);
}

static void test_precedence(void **state) {
  (void)state;
  const char *const masks[][2] = {
      {"k < 1 or k < 2 and q < 3", "((k < 1) or ((k < 2) and (q < 3)))"},
      {"k < 1 and k < 2 or q < 3", "(((k < 1) and (k < 2)) or (q < 3))"},
      {"not (k < q) == false", "((not (k < q)) == false)"},
      {"k < q == true", "((k < q) == true)"},
      {"k >= q", "(q <= k)"},
      {"k > q", "(q < k)"},
      {"k ~= q + 1", "(k ~= (q + 1))"},
      {"q - k - 1 < 2", "(((q - k) - 1) < 2)"},
      {"q - (k - 1) < 2", "((q - (k - 1)) < 2)"},
      {"q + k * 2 // 3 % 4 < 2", "((q + (((k * 2) // 3) % 4)) < 2)"},
      {"-q * 2 < -3", "(((-q) * 2) < (-3))"},
      {"- - q < 3", "((-(-q)) < 3)"},
      {"k*2<q+1", "((k * 2) < (q + 1))"},
      {"0x10 < k", "(16 < k)"},
      {"eight < k", "(8 < k)"}, /* a constant is baked in */
      {"k <= q -- causal\n and k < window", "((k <= q) and (k < window))"},
      {"min(k, q, 3) < 2", "(min(min(k, q), 3) < 2)"},
      {"k / 2 < .5", "((float(k) / 2.0) < 0.5)"},
      {"int(k / 2) == int(q)", "(int((float(k) / 2.0)) == q)"},
      {"floor(q) < ceil(q * 0.5)", "(float(q) < ceil((float(q) * 0.5)))"},
      {"k ^ 2 < 1e3", "((float(k) ^ 2) < 1000.0)"},
      {"-k ^ 2 < 3", "((-(float(k) ^ 2)) < 3.0)"},
      {"select(k < q, k, 0.5) < 1", "(select((k < q), float(k), 0.5) < 1.0)"},
      {"document[q] == document[k]", "(document[q] == document[k])"},
  };
  const char *const scores[][2] = {
      {"2 ^ 3 ^ 2", "(2.0 ^ (3.0 ^ 2))"}, /* right associative */
      {"2 ^ -3 * s", "((2.0 ^ (-3.0)) * s)"},
      {"2 ^ - s ^ 2", "(2.0 ^ (-(s ^ 2)))"},
      {"-s ^ 2", "(-(s ^ 2))"},
      {"s / cap / 2", "((s / cap) / 2.0)"},
      {"cap * tanh(s / cap)", "(cap * tanh((s / cap)))"},
      {"k", "float(k)"},
      {"s + bias[h, q - k + n_k]", "(s + bias[h, ((q - k) + n_k)])"},
      {"1e-7 * s", "(1e-07 * s)"},
  };
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++)
    check_print(EXPRESSION_MASK, masks[i][0], masks[i][1]);
  for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++)
    check_print(EXPRESSION_SCORE, scores[i][0], scores[i][1]);
}

static void test_names(void **state) {
  (void)state;
  assert_true(expression_name_valid("window"));
  assert_true(expression_name_valid("_x9"));
  assert_true(expression_name_valid("float4")); /* emitted with a prefix */
  const char *const bad[] = {
      "",   "q",   "n_k",  "s",   "and", "min", "int",
      "9x", "a-b", "true", "a b", "erf", "h",   "abcdefghijklmnopqrstuvwxyz012345"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_false(expression_name_valid(bad[i]));
  /* A scope renames parameters, and hides those that it does not name. */
  Symbols symbols = symbols_of_test();
  const ScopeEntry scope[] = {{"w", 0}};
  Expression *mask;
  assert_int_equal(
      expression_parse("q - k < w", (SourcePlace){0}, EXPRESSION_MASK, &symbols, scope, 1, &mask),
      ROTA_OK);
  assert_true(expression_use(mask).parameter[0]);
  expression_release(mask);
  assert_int_equal(expression_parse("q - k < window", (SourcePlace){0}, EXPRESSION_MASK, &symbols,
                                    scope, 1, &mask),
                   ROTA_SCRIPT);
}

static void test_symbols(void **state) {
  (void)state;
  Symbols symbols = symbols_of_test();
  Expression *mask =
      parse("doc[q] == doc[k] and blocks[q // 64, k // 64] ~= 0", EXPRESSION_MASK, &symbols);
  Expression *score = parse("s + bias[h] + doc[q]", EXPRESSION_SCORE, &symbols);
  assert_int_equal(symbols.tensor_count, 3);
  assert_string_equal(symbols.tensors[0].name, "doc");
  assert_int_equal(symbols.tensors[0].element, ROTA_INT32);
  assert_true(symbols.tensors[0].in_mask);
  assert_int_equal(symbols.tensors[1].rank, 2);
  assert_int_equal(symbols.tensors[2].element, ROTA_FP32);
  assert_false(symbols.tensors[2].in_mask);
  ExpressionUse use = expression_use(mask);
  assert_true(use.q && use.k && !use.h && !use.b && !use.n_q && !use.n_k && !use.s);
  assert_true(use.tensor[0] && use.tensor[1] && !use.tensor[2]);
  use = expression_use(score);
  assert_true(use.s && use.h && use.tensor[0] && !use.tensor[1] && use.tensor[2]);
  /* What fails leaves the symbols alone. */
  Expression *wrong;
  assert_int_equal(expression_parse("other[q] == 1 and", (SourcePlace){0}, EXPRESSION_MASK,
                                    &symbols, NULL, 0, &wrong),
                   ROTA_SCRIPT);
  assert_int_equal(symbols.tensor_count, 3);
  expression_release(mask);
  expression_release(score);
  /* A tensor may bear the name of a parameter that its own text does not see. */
  assert_int_equal(expression_parse("cap[q] == 1", (SourcePlace){0}, EXPRESSION_MASK, &symbols,
                                    (const ScopeEntry[]){{"w", 0}}, 1, &mask),
                   ROTA_OK);
  score = parse("s + cap[q] * cap", EXPRESSION_SCORE, &symbols);
  Text text = {0};
  expression_emit(score, &symbols, false, &text);
  assert_string_equal(text.data, "(s + ((float)tensor_cap(at.q) * p_cap))");
  text_free(&text);
  expression_release(mask);
  expression_release(score);
}

/* ---- Limits ---- */

static void test_limits(void **state) {
  (void)state;
  enum { MANY = 1 << 21 };
  char *text = malloc(MANY);
  assert_non_null(text);
  Symbols symbols = symbols_of_test();
  Expression *expression;
  const struct {
    const char *piece, *last;
    int count;
    const char *message;
  } cases[] = {
      {"(", "k", 100000, "nested more than"},  {"not ", "k<1", 5000, "nested more than"},
      {"k+", "k<1", 5000, "too large"},        {"k<1 or ", "k<1", 390, NULL},
      {"2^", "k<1", 3000, "nested more than"}, {" ", "k<1", MANY - 10, "longer than"},
      {"min(k,", "k)<1", 900, "nested"},       {"k ", "", 5, "an operator expected"},
      {"(", "", 10, "the text ends here"},     {"- ", "k<1", 390, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t length = strlen(cases[i].piece), at = 0;
    for (int j = 0; j < cases[i].count; j++, at += length)
      memcpy(text + at, cases[i].piece, length);
    strcpy(text + at, cases[i].last);
    rota_status status = expression_parse(text, (SourcePlace){"m.lua", 1}, EXPRESSION_MASK,
                                          &symbols, NULL, 0, &expression);
    assert_int_equal(status, cases[i].message ? ROTA_SCRIPT : ROTA_OK);
    if (cases[i].message)
      assert_non_null(strstr(status_message(), cases[i].message));
    expression_release(expression);
  }
  free(text);
}

/* Composition doubles the tree each time: refused in good time, not computed. */
static void test_growth(void **state) {
  (void)state;
  Symbols symbols = symbols_of_test();
  Expression *square = parse("s * s", EXPRESSION_SCORE, &symbols);
  Expression *power = expression_retain(square);
  int steps = 0;
  for (; steps < 100; steps++) {
    Expression *next = expression_substitute_score(square, power);
    if (!next)
      break;
    expression_release(power);
    power = next;
  }
  assert_in_range(steps, 5, 20);
  assert_non_null(strstr(status_message(), "too large"));
  Expression *derivative = NULL;
  rota_status status = expression_derivative(power, &derivative);
  assert_true(status == ROTA_OK || status == ROTA_SCRIPT);
  expression_release(derivative);
  expression_release(power);
  expression_release(square);
}

/* ---- Combinations ---- */

static bool truth_at(const Expression *mask, int32_t q, int32_t k) {
  Symbols symbols = symbols_of_test();
  Bindings bindings = bindings_of(&symbols);
  RowPosition row = {.q = q, .n_q = 100, .n_k = 100};
  bool out;
  expression_evaluate_mask(mask, &bindings, &row, k, 1, &out);
  return out;
}

static void test_combinations(void **state) {
  (void)state;
  Symbols symbols = symbols_of_test();
  Expression *causal = parse("k <= q", EXPRESSION_MASK, &symbols);
  Expression *window = parse("q - k < window", EXPRESSION_MASK, &symbols);
  Expression *both = expression_and(causal, window), *either = expression_or(causal, window);
  Expression *neither = expression_not(either);
  expression_release(causal); /* the combinations hold what they need */
  expression_release(window);
  expression_release(either);
  Text text = {0};
  expression_print(both, &symbols, &text);
  text_append(&text, " ");
  expression_print(neither, &symbols, &text);
  assert_string_equal(text.data, "((k <= q) and ((q - k) < window)) "
                                 "(not ((k <= q) or ((q - k) < window)))");
  text_free(&text);
  assert_true(truth_at(both, 50, 50) && truth_at(both, 50, 35));
  assert_false(truth_at(both, 50, 34) || truth_at(both, 50, 51) || truth_at(neither, 1, 1));
  assert_string_equal(expression_place(both).file, "model.lua");
  assert_null(expression_and(both, NULL));
  expression_release(both);
  expression_release(neither);
}

/* |cap| and x of a score cap * tanh(x / cap); "" where it is none. */
static void check_cap(const char *score, const char *expected) {
  Symbols symbols = symbols_of_test();
  Expression *expression = parse(score, EXPRESSION_SCORE, &symbols), *size, *inner;
  Text text = {0};
  text_append(&text, "");
  if (expression_cap(expression, &size, &inner)) {
    expression_print(size, &symbols, &text);
    text_append(&text, " ");
    expression_print(inner, &symbols, &text);
  } else {
    assert_null(size);
    assert_null(inner);
  }
  assert_string_equal(text.data ? text.data : "", expected);
  text_free(&text);
  expression_release(size);
  expression_release(inner);
  expression_release(expression);
}

static void test_cap(void **state) {
  (void)state;
  check_cap("cap * tanh(s / cap)", "abs(cap) s");
  check_cap("tanh((s + 0.5 * (k - q)) / cap) * cap", "abs(cap) (s + (0.5 * float((k - q))))");
  check_cap("30 * tanh(s / 30)", "abs(30.0) s");
  check_cap("(-30) * tanh(s / (-30))", "abs((-30.0)) s");
  check_cap("30 * tanh(s / 20)", "");
  check_cap("cap * tanh(2 * s / cap)", "abs(cap) (2.0 * s)");
  check_cap("cap * tanh(s * s / cap)", "abs(cap) (s * s)");
  check_cap("cap * tanh(s * cap)", "");
  check_cap("cap * tanh(s / cap) + 1", "");
  check_cap("s * tanh(s / s)", "");
  check_cap("s / cap", "");
}

static void test_composition(void **state) {
  (void)state;
  Symbols symbols = symbols_of_test();
  Expression *cap = parse("cap * tanh(s / cap)", EXPRESSION_SCORE, &symbols);
  Expression *bias = parse("s + 0.5 * (k - q)", EXPRESSION_SCORE, &symbols);
  Expression *plain = parse("s", EXPRESSION_SCORE, &symbols);
  Expression *composed = expression_substitute_score(cap, bias);
  Expression *same = expression_substitute_score(plain, bias);
  Text text = {0};
  expression_print(composed, &symbols, &text);
  text_append(&text, " ");
  expression_print(same, &symbols, &text);
  assert_string_equal(text.data, "(cap * tanh(((s + (0.5 * float((k - q)))) / cap))) "
                                 "(s + (0.5 * float((k - q))))");
  text_free(&text);
  Bindings bindings = bindings_of(&symbols);
  RowPosition row = {.q = 7};
  float s = 3, out;
  expression_evaluate_score(composed, &bindings, &row, 1, 1, &s, &out);
  assert_float_equal(out, 0, 0); /* 3 + 0.5 * (1 - 7) is 0 */
  expression_release(cap);
  expression_release(bias);
  expression_release(plain);
  expression_release(composed);
  expression_release(same);
}

static void check_derivative(const char *text, const char *expected) {
  Symbols symbols = symbols_of_test();
  Expression *score = parse(text, EXPRESSION_SCORE, &symbols), *derivative;
  assert_int_equal(expression_derivative(score, &derivative), ROTA_OK);
  Text out = {0};
  expression_print(derivative, &symbols, &out);
  assert_string_equal(out.data, expected);
  text_free(&out);
  expression_release(score);
  expression_release(derivative);
}

static void test_derivatives(void **state) {
  (void)state;
  check_derivative("s", "1.0");
  check_derivative("0.5 * (k - q)", "0.0");
  check_derivative("s + slope[h] * (k - q)", "1.0");
  check_derivative("3 * s - s", "(3.0 - 1.0)");
  check_derivative("s / cap", "(1.0 / cap)");
  check_derivative("s ^ 2", "(2.0 * s)");
  check_derivative("s ^ 3", "(3.0 * (s ^ 2))");
  check_derivative("exp(-s)", "(-exp((-s)))");
  check_derivative("tanh(s)", "(1.0 - (tanh(s) * tanh(s)))");
  check_derivative("max(s, 0)", "select((0.0 < s), 1.0, 0.0)");
  check_derivative("select(k < q, s, 2 * s)", "select((k < q), 1.0, 2.0)");
  check_derivative("select(s > 0, 1, 2)", "0.0"); /* a step: its slope is 0 where it has one */
  check_derivative("abs(s)", "select((s < 0.0), (-1.0), 1.0)");
}

/* ---- Single values that a random test would rarely meet ---- */

static void test_values(void **state) {
  (void)state;
  const struct {
    const char *text;
    bool expected; /* at q 5, k 3 */
  } cases[] = {
      {"(0 - 7) // 2 == -4 and 7 // -2 == -4 and -7 // -2 == 3", true},
      {"-7 % 3 == 2 and 7 % -3 == -2 and -7 % -3 == -1", true},
      {"q // (k - 3) == 0 and q % (k - 3) == 0 and q / (k - 3) == 0", true},
      {"7.5 // 2 == 3 and -7.5 // 2 == -4 and -7.5 % 2 == 0.5", true},
      {"int(-2.7) == -2 and int(2.7) == 2 and floor(-2.7) == -3 and ceil(2.1) == 3", true},
      {"int(1e20) == 2147483647 and int(-1e20) == -2147483648", true},
      {"int(sqrt(k - 4)) == 0", true}, /* of a NaN */
      {"sqrt(k - 4) == sqrt(k - 4)", false},
      {"sqrt(k - 4) ~= 1", true},
      {"min(sqrt(k - 4), 1) == 1 and not (min(1, sqrt(k - 4)) == 1)", true},
      {"max(sqrt(k - 4), 1) == 1 and not (max(1, sqrt(k - 4)) == 1)", true},
      {"4611686018427387904 + q > q and -9223372036854775807 < k", true},
      {"(q + 2147483647) // 2 == 1073741826", true},
      {"-(q - 2147483653) == 2147483648 and abs(q - 2147483653) == 2147483648", true},
      {"q ^ 0 == 1 and q ^ 1 == 5 and q ^ 3 == 125", true},
      {"0.1 + 0.2 == 0.3", true}, /* in fp32 */
      {"16777217 == 16777216.0", true},
      {"true ~= false and (k < q) == true", true},
      {"select(k < q, q, 1 // (k - 3)) == 5", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Symbols symbols = symbols_of_test();
    Expression *mask = parse(cases[i].text, EXPRESSION_MASK, &symbols);
    if (truth_at(mask, 5, 3) != cases[i].expected)
      fail_msg("%s", cases[i].text);
    expression_release(mask);
  }
}

/* ---- Running out of memory, at every allocation ---- */

static rota_status use_memory(void) {
  Symbols symbols = symbols_of_test();
  Expression *mask = NULL, *other = NULL, *both = NULL, *score = NULL, *slope = NULL;
  const int32_t data[40] = {0};
  Bindings bindings = {0};
  rota_status status = expression_parse("doc[q] == doc[k] and k <= q", (SourcePlace){"m.lua", 1},
                                        EXPRESSION_MASK, &symbols, NULL, 0, &mask);
  if (status == ROTA_OK) {
    other = expression_not(mask);
    both = other ? expression_or(mask, other) : NULL;
    status = both ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  }
  if (status == ROTA_OK)
    status = expression_parse("cap * tanh(s / cap) + abs(s)", (SourcePlace){"m.lua", 1},
                              EXPRESSION_SCORE, &symbols, NULL, 0, &score);
  if (status == ROTA_OK)
    status = expression_derivative(score, &slope);
  bindings.tensors[0] = (TensorBinding){.data = data, .size = {40}, .stride = {1}};
  if (status == ROTA_OK)
    status = expression_prepare_ranges(&symbols, &bindings);
  expression_release_ranges(&bindings);
  expression_release(mask);
  expression_release(other);
  expression_release(both);
  expression_release(score);
  expression_release(slope);
  return status;
}

static void test_out_of_memory(void **state) {
  (void)state;
  int failures = 0;
  for (;; failures++) {
    status_clear();
    memory_fail_at(failures + 1);
    rota_status status = use_memory();
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    assert_non_null(strstr(status_message(), "memory"));
  }
  assert_in_range(failures, 15, 200);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages),     cmocka_unit_test(test_precedence),
      cmocka_unit_test(test_names),        cmocka_unit_test(test_symbols),
      cmocka_unit_test(test_limits),       cmocka_unit_test(test_growth),
      cmocka_unit_test(test_combinations), cmocka_unit_test(test_composition),
      cmocka_unit_test(test_cap),          cmocka_unit_test(test_derivatives),
      cmocka_unit_test(test_values),       cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("expression", tests, NULL, NULL);
}
