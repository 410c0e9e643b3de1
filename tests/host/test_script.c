/* generator/script.c, spec_value.c and lua/model.lua: from a model script or plain fields to a
 * spec, messages, the same result everywhere, memory running out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/text.h"
#include "tests/support/scripts.h"

static void test_fields(void **state) {
  (void)state;
  Spec spec = spec_of(
      "return rota.attention { head_dim = 192, head_dim_v = 128, heads = 28, kv_heads = 4,\n"
      " dtype = 'fp16', scale = 0.5, sink_logit = true, deterministic = false,\n"
      " backward = 'atomic', schedule = 'descending' }");
  assert_int_equal(spec.dtype, ROTA_FP16);
  assert_int_equal(spec.head_dim, 192);
  assert_int_equal(spec.head_dim_v, 128);
  assert_int_equal(spec_group(&spec), 7);
  assert_true(spec.scale == 0.5f);
  assert_true(spec.sink_logit);
  assert_false(spec.deterministic);
  assert_int_equal(spec.backward, BACKWARD_ATOMIC);
  assert_string_equal(spec.schedule, "descending");
  spec_free(&spec);
  spec = spec_of("return rota.attention { head_dim = 64.0 }");
  assert_int_equal(spec.dtype, ROTA_BF16);
  assert_int_equal(spec.head_dim_v, 64);
  assert_int_equal(spec.heads, 1);
  assert_int_equal(spec.kv_heads, 1);
  assert_true(spec.scale == 0.125f);
  assert_false(spec.sink_logit);
  assert_true(spec.deterministic);
  assert_int_equal(spec.backward, BACKWARD_AUTO);
  assert_string_equal(spec.schedule, "auto");
  assert_null(spec.mask);
  assert_null(spec.score);
  assert_null(spec.score_derivative);
  spec_free(&spec);
}

static void test_parameter_names(void **state) {
  (void)state;
  Spec spec = spec_of("local w = window(3, 0)\n"
                      "return rota.attention { head_dim = 64, mask = w & window(9, 1) | w,\n"
                      " score = score('s * window_left', {window_left = rota.const(2.0)}) }");
  static const char *const names[] = {"window_left", "window_right", "window_left_2",
                                      "window_right_2", "window_left_3"};
  static const int values[] = {3, 0, 9, 1};
  assert_int_equal(spec.symbols.parameter_count, 5);
  for (int i = 0; i < 5; i++) {
    const Parameter *parameter = &spec.symbols.parameters[i];
    assert_string_equal(parameter->name, names[i]);
    assert_int_equal(parameter->constant, i == 4);
    assert_int_equal(parameter->type, i == 4 ? VALUE_FLOAT : VALUE_INT);
    if (i < 4)
      assert_int_equal(parameter->value.i, values[i]);
  }
  assert_true(spec.symbols.parameters[4].value.f == 2.0f);
  spec_free(&spec);
}

/* ---- Messages ---- */

/* Cuts the next line off; NULL at the end. */
static char *next_line(char **rest) {
  char *line = *rest;
  if (!line || !*line)
    return NULL;
  char *end = strchr(line, '\n');
  *rest = end ? end + 1 : NULL;
  if (end)
    *end = '\0';
  return line;
}

static void check_case(const char *name, char *text, const char *status, char *expected) {
  Spec spec;
  rota_status result = script_spec(test_script, text, "model.lua", &spec);
  if (result == ROTA_OK)
    spec_free(&spec);
  while (*expected && expected[strlen(expected) - 1] == '\n')
    expected[strlen(expected) - 1] = '\0';
  static const char *const names[] = {
#define X(code, value, meaning) [value] = #code,
      ROTA_STATUS_LIST(X)
#undef X
  };
  if (strcmp(names[result], status) != 0 || strcmp(status_message(), expected) != 0)
    fail_msg("%s\nexpected %s: %s\nbut got  %s: %s", name, status, expected, names[result],
             result == ROTA_OK ? "" : status_message());
}

/* tests/errors/script.txt, see there. */
static void test_messages(void **state) {
  (void)state;
  const char *source = getenv("ROTA_TEST_SOURCE");
  char path[4096];
  snprintf(path, sizeof path, "%s/tests/errors/script.txt", source ? source : ".");
  char *data;
  size_t length;
  check_ok(text_read_file(path, &data, &length));
  char *rest = data, *line, name[128] = "", status[32] = "";
  Text text = {0}, expected = {0};
  int cases = 0;
  enum { BEFORE, SCRIPT, MESSAGE } part = BEFORE;
  do {
    line = next_line(&rest);
    if (!line || strncmp(line, "=== ", 4) == 0) {
      if (part == MESSAGE) {
        check_case(name, text.data, status, expected.data);
        cases++;
      }
      text_free(&text);
      text_free(&expected);
      part = SCRIPT;
      if (line)
        snprintf(name, sizeof name, "%s", line + 4);
    } else if (strncmp(line, "--- ", 4) == 0) {
      snprintf(status, sizeof status, "%s", line + 4);
      part = MESSAGE;
    } else if (part != BEFORE) {
      text_format(part == SCRIPT ? &text : &expected, "%s\n", line);
    }
  } while (line);
  free(data);
  assert_true(cases > 50);
}

/* ---- The same everywhere ---- */

static const char long_model[] =
    "local parameters = {}\n"
    "for i = 1, 12 do parameters['p' .. i] = i end\n"
    "local text = 'k < 0'\n"
    "for name in pairs(parameters) do text = text .. ' or q == ' .. name end\n"
    "local half = 0.5\n"
    "return rota.attention { head_dim = 96, mask = where(text, parameters) | causal & document,\n"
    " score = alibi >> softcap(30) >> ('s * ' .. half) }";

/* Two states have other addresses and other hash seeds; a locale may write 0,5. */
static void test_deterministic(void **state) {
  (void)state;
  Script *other;
  check_ok(script_create(test_store, &other));
  char *first = describe_script(test_script, long_model);
  assert_non_null(strstr(first, "0.5"));
  for (int i = 0; i < 3; i++) {
    if (i == 1 && !setlocale(LC_ALL, "de_DE.UTF-8"))
      print_message("no locale de_DE.UTF-8\n");
    char *again = describe_script(i == 2 ? test_script : other, long_model);
    assert_string_equal(first, again);
    free(again);
    setlocale(LC_ALL, "C");
  }
  free(first);
  script_destroy(other);
}

static void test_plain_fields(void **state) {
  (void)state;
  Spec spec;
  rota_spec_fields fields = {.head_dim = 128,
                             .heads = 8,
                             .kv_heads = 2,
                             .mask = "causal & window(64, 0)",
                             .score = "alibi >> softcap(30)",
                             .scale = 0.25f,
                             .backward = "two_pass",
                             .schedule = "ascending",
                             .dtype = ROTA_FP16,
                             .sink_logit = true};
  check_ok(script_spec_from_fields(test_script, &fields, &spec));
  char *from_fields = describe(&spec);
  char *from_script = describe_script(
      test_script,
      "return rota.attention { head_dim = 128, heads = 8, kv_heads = 2, dtype = 'fp16',\n"
      " mask = causal & window(64, 0), score = alibi >> softcap(30), scale = 0.25,\n"
      " backward = 'two_pass', schedule = 'ascending', sink_logit = true }");
  assert_string_equal(from_fields, from_script);
  free(from_fields);
  free(from_script);
  spec_free(&spec);

  static const struct {
    rota_spec_fields fields;
    rota_status status;
    const char *message;
  } cases[] = {
      {{.head_dim = 0}, ROTA_INVALID_ARGUMENT, "head_dim 0: it must be from 1 to 1024"},
      {{.head_dim = 64, .heads = -1},
       ROTA_INVALID_ARGUMENT,
       "heads -1: there must be at least one"},
      {{.head_dim = 64, .mask = "casual"},
       ROTA_SCRIPT,
       "mask:1: unknown name 'casual'; did you mean 'causal'?"},
      {{.head_dim = 64, .mask = "causal &"}, ROTA_SCRIPT, "mask:1: unexpected symbol near <eof>"},
      {{.head_dim = 64, .score = "softcap()"},
       ROTA_SCRIPT,
       "score:1: softcap: a number is expected"},
      {{.head_dim = 64, .score = "causal"}, ROTA_SCRIPT, "a score is expected, not a mask"},
      {{.head_dim = 64, .backward = "fast"},
       ROTA_SCRIPT,
       "backward: unknown name 'fast'; known: auto, ordered, exact, two_pass, "
       "materialised, atomic"},
      {{.head_dim = 64, .dtype = ROTA_INT32},
       ROTA_UNSUPPORTED,
       "dtype int32: kernels serve bf16, fp16 and fp32"},
      {{.head_dim = 64, .dtype = (rota_dtype)99},
       ROTA_UNSUPPORTED,
       "dtype unknown: kernels serve bf16, fp16 and fp32"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(script_spec_from_fields(test_script, &cases[i].fields, &spec),
                     cases[i].status);
    assert_string_equal(status_message(), cases[i].message);
  }
  fields = (rota_spec_fields){.head_dim = 64, .backward = "atomic"};
  assert_int_equal(script_spec_from_fields(test_script, &fields, &spec), ROTA_NONDETERMINISTIC);
  fields.allow_nondeterministic = true;
  check_ok(script_spec_from_fields(test_script, &fields, &spec));
  spec_free(&spec);
}

/* ---- Memory ---- */

/* Memory runs out at every single allocation in turn: an error, no leak (the sanitizers look), and
 * the next call works. */
static void test_out_of_memory(void **state) {
  (void)state;
  static const char model[] =
      "return rota.attention { head_dim = 64, score = alibi >> softcap(30),\n"
      " mask = causal & (window(64, 0) | sinks(4)) & ~where('k == w', {w = 3}) }";
  int failures = 0;
  for (long n = 1;; n++) {
    Spec spec;
    memory_fail_at(n);
    rota_status status = script_spec(test_script, model, "model.lua", &spec);
    memory_fail_at(0);
    if (status == ROTA_OK)
      spec_free(&spec);
    if (status != ROTA_OK && status != ROTA_OUT_OF_MEMORY)
      fail_msg("at allocation %ld: %s", n, status_message());
    failures += status != ROTA_OK;
    /* Lua survives single failures by collecting garbage; C does not. Past the last one nothing
     * fails any more. */
    if (n > 4000)
      break;
  }
  assert_true(failures > 20);
  for (long n = 1; n < 600; n += n < 40 ? 1 : 37) {
    Script *made;
    memory_fail_at(n);
    rota_status status = script_create(test_store, &made);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    if (status != ROTA_OK)
      assert_null(made);
    script_destroy(made);
  }
  Spec spec = spec_of(model);
  spec_free(&spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fields),       cmocka_unit_test(test_parameter_names),
      cmocka_unit_test(test_messages),     cmocka_unit_test(test_deterministic),
      cmocka_unit_test(test_plain_fields), cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
