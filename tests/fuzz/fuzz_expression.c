/* libFuzzer target of the expression language: any text is parsed, and what parses is printed,
 * parsed again, evaluated, bounded, derived and emitted. Aborts where these disagree.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -Iinclude tests/fuzz/fuzz_expression.c \
 *         generator/expression_*.c generator/status.c generator/text.c -lm -o fuzz_expression
 *     ./fuzz_expression -max_total_time=20 -max_len=400 -dict=tests/fuzz/expression.dict
 *
 * Input: byte 0 picks mask or score, bytes 1 to 6 a box, the rest is text. */
#include <stdlib.h>
#include <string.h>

#include "generator/expression.h"

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition))                                                                              \
      abort();                                                                                     \
  } while (0)

enum { SIZE = 12, HEAD = 7 };

static void fill(Symbols *symbols) {
  const Parameter parameters[] = {{"w", VALUE_INT, false, {.i = 3}},
                                  {"z", VALUE_INT, false, {.i = 0}},
                                  {"f", VALUE_FLOAT, false, {.f = -1.5f}},
                                  {"c", VALUE_INT, true, {.i = 4}}};
  memcpy(symbols->parameters, parameters, sizeof parameters);
  symbols->parameter_count = 4;
}

/* Every tensor becomes a cube of SIZE per dimension with values of either sign. */
static void bind(const Symbols *symbols, Bindings *bindings) {
  static int32_t integers[SIZE * SIZE * SIZE * SIZE];
  static float reals[SIZE * SIZE * SIZE * SIZE];
  for (int i = 0; i < SIZE * SIZE * SIZE * SIZE; i++) {
    integers[i] = i % 7 - 2;
    reals[i] = (float)(i % 11) - 4.5f;
  }
  for (int i = 0; i < symbols->parameter_count; i++)
    bindings->parameters[i] = symbols->parameters[i].value;
  for (int i = 0; i < symbols->tensor_count; i++) {
    TensorBinding *tensor = &bindings->tensors[i];
    bool whole = symbols->tensors[i].element == ROTA_INT32;
    tensor->data = whole ? (const void *)integers : reals;
    for (int64_t d = symbols->tensors[i].rank - 1, stride = 1; d >= 0; d--, stride *= SIZE) {
      tensor->size[d] = SIZE;
      tensor->stride[d] = stride;
    }
  }
}

static void check_print(const Expression *expression, ExpressionKind kind, Symbols *symbols) {
  Text once = {0}, twice = {0};
  Expression *again;
  expression_print(expression, symbols, &once);
  CHECK(expression_parse(once.data, (SourcePlace){"printed", 1}, kind, symbols, NULL, 0, &again) ==
        ROTA_OK);
  expression_print(again, symbols, &twice);
  CHECK(strcmp(once.data, twice.data) == 0);
  text_free(&once);
  expression_emit(expression, symbols, kind == EXPRESSION_MASK, &once);
  CHECK(once.length > 0);
  expression_release(again);
  text_free(&once);
  text_free(&twice);
}

static void check_mask(const Expression *mask, const Symbols *symbols, const Bindings *bindings,
                       const Box *box) {
  Ternary answer = expression_interval(mask, bindings, box);
  bool single = box->q_min == box->q_max && box->k_min == box->k_max && box->h_min == box->h_max;
  CHECK(answer != TERNARY_UNKNOWN || !single);
  for (int32_t q = box->q_min; q <= box->q_max; q++)
    for (int32_t h = box->h_min; h <= box->h_max; h++) {
      RowPosition row = {q, h, box->b, box->n_q, box->n_k};
      bool out[8];
      int32_t count = box->k_max - box->k_min + 1;
      expression_evaluate_mask(mask, bindings, &row, box->k_min, count, out);
      for (int32_t i = 0; i < count; i++)
        CHECK(answer == TERNARY_UNKNOWN || out[i] == (answer == TERNARY_TRUE));
    }
  (void)symbols;
}

static void check_score(const Expression *score, const Symbols *symbols, const Bindings *bindings,
                        const Box *box) {
  RowPosition row = {box->q_min, box->h_min, box->b, box->n_q, box->n_k};
  float s[3] = {-1, 0.25f, 30};
  Expression *slope;
  expression_evaluate_score(score, bindings, &row, box->k_min, 3, s, s);
  if (expression_derivative(score, &slope) != ROTA_OK)
    return;
  Text text = {0};
  expression_emit(slope, symbols, false, &text);
  text_free(&text);
  expression_evaluate_score(slope, bindings, &row, box->k_min, 3, s, s);
  expression_release(slope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < HEAD)
    return 0;
  ExpressionKind kind = data[0] & 1 ? EXPRESSION_SCORE : EXPRESSION_MASK;
  Box box = {data[1] % 16, data[1] % 16 + data[2] % 4, data[3] % 16, data[3] % 16 + data[4] % 8,
             data[5] % 3,  data[5] % 3 + data[6] % 2,  data[2] % 5,  data[3] % 20,
             data[4] % 20};
  char *text = malloc(size - HEAD + 1);
  CHECK(text);
  memcpy(text, data + HEAD, size - HEAD);
  text[size - HEAD] = '\0';
  Symbols symbols = {0};
  Bindings bindings = {0};
  Expression *expression;
  fill(&symbols);
  if (expression_parse(text, (SourcePlace){"fuzz.lua", 7}, kind, &symbols, NULL, 0, &expression) ==
      ROTA_OK) {
    bind(&symbols, &bindings);
    if (data[0] & 2)
      CHECK(expression_prepare_ranges(&symbols, &bindings) == ROTA_OK);
    check_print(expression, kind, &symbols);
    (void)expression_check_bounds(expression, &symbols, &bindings, &box);
    (kind == EXPRESSION_MASK ? check_mask : check_score)(expression, &symbols, &bindings, &box);
    expression_release_ranges(&bindings);
    expression_release(expression);
  } else {
    CHECK(strncmp(status_message(), "fuzz.lua:", 9) == 0);
  }
  free(text);
  return 0;
}
