/* CUDA text of expressions: golden pieces, and random ones compiled as C++ for the host, with
 * stand-ins for CUDA's intrinsics, against expression_evaluate. Signed overflow traps there, so
 * that a 32-bit operation which needed 64 is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/random_expression.h"

/* ---- Golden text ---- */

static const struct {
  ExpressionKind kind;
  const char *text, *expected;
} golden[] = {
    {EXPRESSION_MASK, "k <= q", "(at.k <= at.q)"},
    {EXPRESSION_MASK, "k <= q + n_k - n_q and q - k < window",
     "((at.k <= ((at.q + at.n_k) - at.n_q)) && ((at.q - at.k) < p_window))"},
    {EXPRESSION_MASK, "not (h == 0) or b ~= 1", "((!(at.h == 0)) || (at.b != 1))"},
    {EXPRESSION_MASK, "doc[q] == doc[k]", "(tensor_doc(at.q) == tensor_doc(at.k))"},
    {EXPRESSION_MASK, "grid[q // 8, k % 8] > -2",
     "((-2) < tensor_grid((at.q / 8), (at.k % 8)))"}, /* neither negative nor zero */
    {EXPRESSION_MASK, "(q - k) % window == 0", "(rota_modulo((at.q - at.k), p_window) == 0)"},
    {EXPRESSION_MASK, "(q - k) // 3 < 2", "(rota_floor_divide((at.q - at.k), 3) < 2)"},
    /* wide: 64-bit operations, narrow results cast back */
    {EXPRESSION_MASK, "q * k < 5", "(((long long)at.q * (long long)at.k) < 5)"},
    {EXPRESSION_MASK, "q * k % 7 < 5",
     "((int)(((long long)at.q * (long long)at.k) % (long long)7) < 5)"},
    {EXPRESSION_MASK, "k + 4294967296 > q", "(at.q < ((long long)at.k + 4294967296LL))"},
    {EXPRESSION_MASK, "min(q * k, 3) == 3",
     "((int)rota_min(((long long)at.q * (long long)at.k), (long long)3) == 3)"},
    {EXPRESSION_MASK, "select(k < q, k, q * k) > 9",
     "(9 < ((at.k < at.q) ? (long long)at.k : ((long long)at.q * (long long)at.k)))"},
    /* exact floats */
    {EXPRESSION_MASK, "scale * q - 0.5 < k / 3",
     "(__fsub_rn(__fmul_rn(p_scale, (float)at.q), 0.5f) < "
     "rota_divide_exactly((float)at.k, 3.0f))"},
    {EXPRESSION_MASK, "sqrt(q) + abs(-0.5) < k ^ 2",
     "(__fadd_rn(__fsqrt_rn((float)at.q), rota_abs((-0.5f))) < rota_power<2>((float)at.k))"},
    {EXPRESSION_MASK, "int(bias[k]) == floor(bias[q])",
     "((float)rota_to_int(tensor_bias(at.k)) == floorf(tensor_bias(at.q)))"},
    /* scores */
    {EXPRESSION_SCORE, "s", "s"},
    {EXPRESSION_SCORE, "scale * tanh(s / scale)", "(p_scale * rota_tanh(rota_divide(s, p_scale)))"},
    {EXPRESSION_SCORE, "30 * tanh(s / 30)", "(30.0f * rota_tanh((s * 0.033333335f)))"},
    {EXPRESSION_SCORE, "s - 1e-7 * (q - k)", "(s - (1e-07f * (float)(at.q - at.k)))"},
    {EXPRESSION_SCORE, "s + bias[h]", "(s + tensor_bias(at.h))"},
    {EXPRESSION_SCORE, "exp(-s) + s ^ 1.5", "(rota_exp((-s)) + powf(s, 1.5f))"},
};

static World world;

static void test_golden(void **state) {
  (void)state;
  world_create(&world, 1);
  for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
    Expression *expression;
    assert_int_equal(expression_parse(golden[i].text, (SourcePlace){0}, golden[i].kind,
                                      &world.symbols, NULL, 0, &expression),
                     ROTA_OK);
    Text out = {0};
    expression_emit(expression, &world.symbols, golden[i].kind == EXPRESSION_MASK, &out);
    assert_string_equal(out.data, golden[i].expected);
    text_free(&out);
    expression_release(expression);
  }
  world_free(&world);
}

/* ---- Compiled text ---- */

enum { FUNCTIONS = 360, POSITIONS = 96 };

static const char prelude[] =
    "#include <float.h>\n#include <math.h>\n#include <stdio.h>\n#include <string.h>\n"
    "#define __device__\n#define __forceinline__ inline\n"
    "static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }\n"
    "static float __fadd_rn(float a, float b) { return a + b; }\n"
    "static float __fsub_rn(float a, float b) { return a - b; }\n"
    "static float __fmul_rn(float a, float b) { return a * b; }\n"
    "static float __fdiv_rn(float a, float b) { return a / b; }\n"
    "static float __fsqrt_rn(float a) { return sqrtf(a); }\n"
    "#define ROTA_LIB_TYPES_CUH\n" /* what is taken from there: */
    "namespace rota {\n"
    "static const float kLog2E = 1.44269504f;\n"
    "static float exp2_fast(float a) { return exp2f(a); }\n"
    "static float tanh_beyond(float y, float a, float square) {\n"
    "  return square < 0.36f ? y : tanhf(a);\n}\n"
    "static float reciprocal_fast(float a) { return 1 / a; }\n"
    "static float reciprocal_or_zero(float a) { return fabsf(a) < FLT_MIN ? 0 : 1 / a; }\n"
    "}\n"
    "static int __float2int_rz(float a) {\n"
    "  return a != a ? 0 : a >= 2147483648.0f ? 2147483647\n"
    "       : a <= -2147483648.0f ? -2147483647 - 1 : (int)a;\n}\n"
    "#include \"templates/lib/expression.cuh\"\n"
    "struct Position { int q, k, h, b, n_q, n_k; float s; };\n"
    "using namespace rota;\n"
    "static const int p_window = 7, p_zero = 0, p_big = 1 << 30;\n"
    "static const float p_scale = 0.75f, p_nothing = 0.0f;\n"
    "struct Data { int doc[24]; int grid[24][24]; float bias[24]; };\n"
    "static Data data;\nstatic int outside;\n"
    "static bool inside(long long i) {\n"
    "  if (i >= 0 && i < 24) return true;\n  outside++;\n  return false;\n}\n"
    "static int tensor_doc(long long i) { return inside(i) ? data.doc[i] : 0; }\n"
    "static float tensor_bias(long long i) { return inside(i) ? data.bias[i] : 0; }\n"
    "static int tensor_grid(long long i, long long j) {\n"
    "  return inside(i) && inside(j) ? data.grid[i][j] : 0;\n}\n";

static const char driver[] =
    "int main(int, char **argv) {\n"
    "  FILE *in = fopen(argv[1], \"rb\"), *out = fopen(argv[2], \"wb\");\n"
    "  static Position positions[POSITIONS];\n"
    "  if (!in || !out || fread(&data, sizeof data, 1, in) != 1 ||\n"
    "      fread(positions, sizeof positions, 1, in) != 1) return 1;\n"
    "  for (Function *function : functions)\n"
    "    for (const Position &at : positions) {\n"
    "      outside = 0;\n"
    "      float value = function(at, at.s);\n"
    "      fwrite(&value, 4, 1, out);\n      fwrite(&outside, 4, 1, out);\n    }\n"
    "  return fclose(out) != 0;\n}\n";

/* Masks that random ones hardly ever are: the ends of 32 and 64 bits. */
static const char *const edges[] = {
    "(-2147483647 - 1) % (zero - 1) == 0",
    "(-2147483647 - 1) // (zero - 1) == 2147483648",
    "abs(-2147483647 - 1 + zero) == 2147483648",
    "-(-2147483647 - 1 + zero) == 2147483648",
    "(-9223372036854775807 - 1) % (zero - 1) == 0",
    "(q - 67108864) * 16 + (zero - 1) < 2147483647",
    "big + big == 2147483648 and big * 4 - 1 == 4294967295",
    "(big + big) // 2 == big and (big * 8) % 7 == 4 + zero",
    "min(big * 4, 3) == 3 and max(-big * 4, 3) == 3",
    "select(q > k, big * 8, -7) % 9 ~= zero",
};

static Expression *expressions[FUNCTIONS]; /* even: masks; odd: scores and derivatives */
static WorldPosition positions[POSITIONS];

static void draw_functions(Text *source) {
  static RandomExpression drawn;
  const int edge_count = (int)(sizeof edges / sizeof edges[0]);
  int count = 0;
  text_append(source, prelude);
  for (uint64_t seed = 1; count < FUNCTIONS; seed++) {
    bool mask = count % 2 == 0, derivative = count % 4 == 3;
    bool edge = mask && count / 2 < edge_count;
    random_expression(&drawn, seed, mask ? EXPRESSION_MASK : EXPRESSION_SCORE, derivative,
                      2 + (int)(seed % 5));
    Expression *expression;
    if (expression_parse(edge ? edges[count / 2] : drawn.text, (SourcePlace){0}, drawn.kind,
                         &world.symbols, NULL, 0, &expression) != ROTA_OK) {
      assert_false(edge);
      continue;
    }
    if (derivative) {
      Expression *score = expression;
      assert_int_equal(expression_derivative(score, &expression), ROTA_OK);
      expression_release(score);
    }
    expressions[count] = expression;
    text_format(source, "static float f%d(const Position &at, float s) {\n  (void)at, (void)s;\n",
                count++);
    text_append(source, "  return ");
    expression_emit(expression, &world.symbols, mask, source);
    text_append(source, ";\n}\n");
  }
  text_append(source, "typedef float Function(const Position &, float);\n"
                      "static Function *const functions[] = {");
  for (int i = 0; i < FUNCTIONS; i++)
    text_format(source, "%sf%d", i ? ", " : "", i);
  text_format(source, "};\nenum { POSITIONS = %d };\n%s", POSITIONS, driver);
}

/* Half of them small, half up to the limits. */
static void draw_positions(void) {
  uint64_t random = 9;
  for (int i = 0; i < POSITIONS; i++) {
    int bound = i % 2 ? WORLD_SIZE : (int)LIMIT_LENGTH;
    WorldPosition *at = &positions[i];
    at->q = random_below(&random, bound);
    at->k = random_below(&random, bound);
    at->h = random_below(&random, 8);
    at->b = random_below(&random, 8);
    at->n_q = random_below(&random, bound);
    at->n_k = random_below(&random, bound);
    at->s = (float)random_below(&random, 4000) / 500.0f - 4.0f;
  }
}

static void write_file(const char *directory, const char *name, const void *bytes, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "ab");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

typedef struct Output {
  float value;
  int32_t outside;
} Output;

static bool close_enough(float a, float b) {
  return a == b || (isnan(a) && isnan(b)) || fabsf(a - b) <= 1e-4f * (fabsf(b) + 1e-3f);
}

static void compare(const Output *outputs) {
  int wrong_scores = 0, scores = 0;
  Box box = {0, WORLD_SIZE - 1, 0, WORLD_SIZE - 1, 0, 7, 0, 0, 0};
  for (int i = 0; i < FUNCTIONS; i++) {
    for (int j = 0; j < POSITIONS; j++) {
      const WorldPosition *at = &positions[j];
      RowPosition row = {at->q, at->h, at->b, at->n_q, at->n_k};
      const Output *got = &outputs[i * POSITIONS + j];
      if (i % 2 == 0) {
        bool truth;
        expression_evaluate_mask(expressions[i], &world.bindings, &row, at->k, 1, &truth);
        if (got->value != (float)truth) {
          Text text = {0};
          expression_print(expressions[i], &world.symbols, &text);
          fail_msg("%s at q %d k %d", text.data, at->q, at->k);
        }
        /* What is proven to stay inside does so in the emitted text, guards and all. */
        box.b = at->b;
        box.n_q = at->n_q;
        box.n_k = at->n_k;
        if (got->outside && j % 2)
          assert_int_not_equal(
              expression_check_bounds(expressions[i], &world.symbols, &world.bindings, &box),
              ROTA_OK);
      } else {
        float value;
        expression_evaluate_score(expressions[i], &world.bindings, &row, at->k, 1, &at->s, &value);
        scores++;
        wrong_scores += !close_enough(got->value, value);
      }
    }
  }
  /* Device functions differ in the last places, which a few compositions magnify. */
  print_message("%d of %d scores differ beyond rounding\n", wrong_scores, scores);
  assert_true(wrong_scores * 50 < scores);
}

static void test_compiled(void **state) {
  (void)state;
  if (system("command -v g++ >/dev/null 2>&1") != 0) {
    print_message("SKIPPED: no g++, so the emitted text is not compiled\n");
    skip();
  }
  const char *root = getenv("ROTA_TEST_SOURCE");
  char directory[] = "/tmp/rota-emit-XXXXXX", command[2048];
  assert_non_null(mkdtemp(directory));
  world_create(&world, 2);
  Text source = {0};
  draw_functions(&source);
  draw_positions();
  assert_int_equal(text_status(&source), ROTA_OK);
  write_file(directory, "emitted.cc", source.data, source.length);
  write_file(directory, "in", world.doc, sizeof world.doc);
  write_file(directory, "in", world.grid, sizeof world.grid);
  write_file(directory, "in", world.bias, sizeof world.bias);
  write_file(directory, "in", positions, sizeof positions);
  snprintf(command, sizeof command,
           "g++ -std=c++17 -O0 -ffp-contract=off -fsanitize=signed-integer-overflow "
           "-fno-sanitize-recover=all -I '%s' -o '%s/emitted' '%s/emitted.cc' && "
           "'%s/emitted' '%s/in' '%s/out'",
           root ? root : ".", directory, directory, directory, directory, directory);
  assert_int_equal(system(command), 0);
  char *data;
  size_t length;
  snprintf(command, sizeof command, "%s/out", directory);
  assert_int_equal(text_read_file(command, &data, &length), ROTA_OK);
  assert_int_equal(length, FUNCTIONS * POSITIONS * sizeof(Output));
  Output *outputs = malloc(length);
  assert_non_null(outputs);
  memcpy(outputs, data, length);
  compare(outputs);
  free(outputs);
  free(data);
  for (int i = 0; i < FUNCTIONS; i++)
    expression_release(expressions[i]);
  text_free(&source);
  world_free(&world);
  snprintf(command, sizeof command, "rm -r '%s'", directory);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden),
      cmocka_unit_test(test_compiled),
  };
  return cmocka_run_group_tests_name("expression emission", tests, NULL, NULL);
}
