/* See scripts.h. */
#include "tests/support/scripts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/text.h"

Store *test_store;
Script *test_script;

int script_setup(void **state) {
  (void)state;
  if (store_create(NULL, &test_store) != ROTA_OK ||
      script_create(test_store, &test_script) != ROTA_OK) {
    print_error("%s\n", status_message());
    return 1;
  }
  return 0;
}

int script_teardown(void **state) {
  (void)state;
  script_destroy(test_script);
  store_destroy(test_store);
  return 0;
}

void check_ok(rota_status status) {
  if (status != ROTA_OK)
    fail_msg("%s", status_message());
}

Spec spec_of(const char *text) {
  Spec spec;
  check_ok(script_spec(test_script, text, "model.lua", &spec));
  return spec;
}

char *describe(const Spec *spec) {
  Text text = {0};
  text_format(&text, "%s %d/%d %d/%d %d %d %s %s ", dtype_name(spec->dtype), spec->head_dim,
              spec->head_dim_v, spec->heads, spec->kv_heads, spec->sink_logit, spec->deterministic,
              backward_name(spec->backward), spec->schedule);
  text_append_float(&text, spec->scale);
  const Expression *const parts[] = {spec->mask, spec->score, spec->score_derivative};
  for (int i = 0; i < 3; i++) {
    text_append(&text, "\n");
    if (parts[i])
      expression_print(parts[i], &spec->symbols, &text);
  }
  for (int i = 0; i < spec->symbols.parameter_count; i++) {
    const Parameter *parameter = &spec->symbols.parameters[i];
    text_format(&text, "\n%s %d %d %d", parameter->name, parameter->type, parameter->constant,
                parameter->value.i);
  }
  for (int i = 0; i < spec->symbols.tensor_count; i++) {
    const TensorSymbol *tensor = &spec->symbols.tensors[i];
    text_format(&text, "\n%s %s %d", tensor->name, dtype_name(tensor->element), tensor->rank);
  }
  assert_int_equal(text_status(&text), ROTA_OK);
  return text_release(&text);
}

char *describe_script(Script *script, const char *text) {
  Spec spec;
  check_ok(script_spec(script, text, "model.lua", &spec));
  char *words = describe(&spec);
  spec_free(&spec);
  return words;
}

void check_fails(const char *text, rota_status expected, const char *words) {
  Spec spec;
  rota_status status = script_spec(test_script, text, "model.lua", &spec);
  if (status == ROTA_OK)
    spec_free(&spec);
  if (status != expected)
    fail_msg("status %d instead of %d for: %s\n%s", status, expected, text, status_message());
  char copy[512];
  snprintf(copy, sizeof copy, "%s", words);
  for (char *word = strtok(copy, "|"); word; word = strtok(NULL, "|")) {
    if (!strstr(status_message(), word))
      fail_msg("'%s' is not in the message: %s", word, status_message());
  }
}
