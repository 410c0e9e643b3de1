/* lua/masks.lua and lua/scores.lua: what each word of the vocabulary means, position by position.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scripts.h"

/* What each position of a mask with known parameters allows. */
static bool allows(const Spec *spec, int q, int k, int n_q, int n_k) {
  Bindings bindings = {0};
  for (int i = 0; i < spec->symbols.parameter_count; i++)
    bindings.parameters[i] = spec->symbols.parameters[i].value;
  RowPosition row = {.q = q, .n_q = n_q, .n_k = n_k};
  bool out = true;
  if (spec->mask)
    expression_evaluate_mask(spec->mask, &bindings, &row, k, 1, &out);
  return out;
}

typedef bool Rule(int q, int k, int n_q, int n_k);
static bool rule_full(int q, int k, int n_q, int n_k) {
  return q >= 0 && k >= 0 && n_q && n_k;
}
static bool rule_none(int q, int k, int n_q, int n_k) {
  return !rule_full(q, k, n_q, n_k);
}
static bool rule_causal(int q, int k, int n_q, int n_k) {
  return k <= q + n_k - n_q;
}
static bool rule_top_left(int q, int k, int n_q, int n_k) {
  (void)n_q, (void)n_k;
  return k <= q;
}
static bool rule_window(int q, int k, int n_q, int n_k) {
  int at = q + n_k - n_q;
  return k >= at - 5 && k <= at + 2;
}
static bool rule_shifted(int q, int k, int n_q, int n_k) {
  int at = q + n_k - n_q;
  return k >= at - 9 && k <= at - 3;
}
static bool rule_right(int q, int k, int n_q, int n_k) {
  return k <= q + n_k - n_q + 3;
}
static bool rule_sinks(int q, int k, int n_q, int n_k) {
  return rule_causal(q, k, n_q, n_k) && (k < 4 || k >= q + n_k - n_q - 2);
}
static bool rule_prefix(int q, int k, int n_q, int n_k) {
  return rule_causal(q, k, n_q, n_k) || k < 6;
}
static bool rule_chunk(int q, int k, int n_q, int n_k) {
  int at = q + n_k - n_q;
  return (at >= 0 ? at / 4 : (at - 3) / 4) == k / 4;
}
static bool rule_dilated(int q, int k, int n_q, int n_k) {
  return (q + n_k - n_q - k) % 3 == 0;
}
static bool rule_mixture(int q, int k, int n_q, int n_k) {
  (void)n_q, (void)n_k;
  return !(k < 3 || q < 2) || k == 7;
}

/* Each mask against C code of its own, all positions, three shapes. */
static void test_masks(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    Rule *rule;
  } cases[] = {
      {"full", rule_full},
      {"~full", rule_none},
      {"~~full", rule_full},
      {"causal & ~full", rule_none},
      {"~full | causal", rule_causal},
      {"causal", rule_causal},
      {"causal & full", rule_causal},
      {"causal & causal", rule_causal},
      {"~~causal", rule_causal},
      {"causal { align = 'bottom_right' }", rule_causal},
      {"causal { align = 'top_left' }", rule_top_left},
      {"rota.causal { align = 'top_left' }", rule_top_left},
      {"window(5, 2)", rule_window},
      {"window(math.huge, 2) & window(5, math.huge)", rule_window},
      {"window(9, -3)", rule_shifted},
      {"window(math.huge, 3)", rule_right},
      {"window(math.huge, math.huge)", rule_full},
      {"causal & (window(2, 0) | sinks(4))", rule_sinks},
      {"causal | prefix(6)", rule_prefix},
      {"chunk(4)", rule_chunk},
      {"dilated(3)", rule_dilated},
      {"~('k < 3' | sinks(0) | where('q < edge', {edge = 2})) | 'k == 7'", rule_mixture},
      {"'k <= q'", rule_top_left},
      {"where('k <= q + shift', {shift = rota.const(0)})", rule_top_left},
  };
  static const int shapes[][2] = {{12, 12}, {7, 15}, {15, 7}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    snprintf(text, sizeof text, "return rota.attention { head_dim = 64, mask = %s }",
             cases[i].mask);
    Spec spec = spec_of(text);
    for (int shape = 0; shape < 3; shape++) {
      int n_q = shapes[shape][0], n_k = shapes[shape][1];
      for (int q = 0; q < n_q; q++) {
        for (int k = 0; k < n_k; k++) {
          if (allows(&spec, q, k, n_q, n_k) != cases[i].rule(q, k, n_q, n_k))
            fail_msg("%s is wrong at q %d, k %d of %d x %d", cases[i].mask, q, k, n_q, n_k);
        }
      }
    }
    spec_free(&spec);
  }
}

static void test_document_and_blocks(void **state) {
  (void)state;
  static const int32_t ids[12] = {1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4};
  static const int shapes[][2] = {{12, 12}, {5, 12}, {12, 5}};
  Spec spec = spec_of("return rota.attention { head_dim = 64, mask = document }");
  assert_int_equal(spec.symbols.tensor_count, 1);
  assert_string_equal(spec.symbols.tensors[0].name, "document");
  assert_int_equal(spec.symbols.tensors[0].element, ROTA_INT32);
  assert_int_equal(spec.symbols.tensors[0].rank, 2);
  assert_true(spec.symbols.tensors[0].in_mask);
  Bindings bindings = {.tensors[0] = {.data = ids, .size = {1, 12}, .stride = {12, 1}}};
  for (int shape = 0; shape < 3; shape++) {
    int n_q = shapes[shape][0], n_k = shapes[shape][1];
    for (int q = 0; q < n_q; q++) {
      bool out[12];
      RowPosition row = {.q = q, .n_q = n_q, .n_k = n_k};
      expression_evaluate_mask(spec.mask, &bindings, &row, 0, n_k, out);
      /* Both ends of the twelve positions meet. */
      for (int k = 0; k < n_k; k++)
        assert_int_equal(out[k], ids[12 - n_q + q] == ids[12 - n_k + k]);
    }
  }
  spec_free(&spec);

  static const int32_t blocks[2 * 3] = {1, 0, 7, 0, -1, 0};
  spec = spec_of("return rota.attention { head_dim = 64,\n"
                 " mask = blocks { tile_q = 6, tile_kv = 4 } }");
  bindings = (Bindings){.tensors[0] = {.data = blocks, .size = {1, 2, 3}, .stride = {6, 3, 1}}};
  for (int q = 0; q < 12; q++) {
    bool out[12];
    RowPosition row = {.q = q, .n_q = 12, .n_k = 12};
    expression_evaluate_mask(spec.mask, &bindings, &row, 0, 12, out);
    for (int k = 0; k < 12; k++)
      assert_int_equal(out[k], blocks[q / 6 * 3 + k / 4] != 0);
  }
  spec_free(&spec);
}

/* Scores and their composition at one position: q 7, k 3 of 8 x 8, head 1. */
static void test_scores(void **state) {
  (void)state;
  static const float slopes[2] = {0.5f, 0.25f};
  static float biases[2 * 16];
  for (int i = 0; i < 32; i++)
    biases[i] = (float)i;
  static const struct {
    const char *score;
    float s, expected, tolerance;
  } cases[] = {
      {"softcap(2)", 100.0f, 2.0f, 1e-6f},
      {"softcap(2.5)", 1e-3f, 1e-3f, 1e-8f},
      {"'s * 2'", 3.0f, 6.0f, 0},
      {"score('s + strength * (k - q)', {strength = 0.5})", 3.0f, 1.0f, 0},
      {"alibi", 3.0f, 2.0f, 0},
      {"relative_bias(7)", 3.0f, 3.0f + 27.0f, 0},
      {"alibi >> 's * 2'", 3.0f, 4.0f, 0}, /* (3 - 1) * 2: left first */
      {"'s * 2' >> alibi", 3.0f, 5.0f, 0}, /* 3 * 2 - 1 */
      {"'s + 1' >> score('s * s') >> 's - 1'", 3.0f, 15.0f, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    snprintf(text, sizeof text, "return rota.attention { head_dim = 64, heads = 2, score = %s }",
             cases[i].score);
    Spec spec = spec_of(text);
    assert_non_null(spec.score_derivative);
    Bindings bindings = {0};
    for (int p = 0; p < spec.symbols.parameter_count; p++)
      bindings.parameters[p] = spec.symbols.parameters[p].value;
    for (int t = 0; t < spec.symbols.tensor_count; t++) {
      bool slope = strcmp(spec.symbols.tensors[t].name, "slope") == 0;
      assert_int_equal(spec.symbols.tensors[t].element, ROTA_FP32);
      bindings.tensors[t] =
          slope ? (TensorBinding){.data = slopes, .size = {2}, .stride = {1}}
                : (TensorBinding){.data = biases, .size = {2, 16}, .stride = {16, 1}};
    }
    RowPosition row = {.q = 7, .h = 1, .n_q = 8, .n_k = 8};
    float out;
    expression_evaluate_score(spec.score, &bindings, &row, 3, 1, &cases[i].s, &out);
    if (!(out >= cases[i].expected - cases[i].tolerance &&
          out <= cases[i].expected + cases[i].tolerance))
      fail_msg("%s: %g instead of %g", cases[i].score, (double)out, (double)cases[i].expected);
    spec_free(&spec);
  }
}

/* Every entry of the vocabulary has an example that becomes a spec. */
static void test_every_entry(void **state) {
  (void)state;
  static const char *const tables[][4] = {{"masks", "mask_examples", "mask_abouts", "mask"},
                                          {"scores", "score_examples", "score_abouts", "score"}};
  for (int t = 0; t < 2; t++) {
    const char *const *names = script_names(test_script, tables[t][0]);
    const char *const *examples = script_names(test_script, tables[t][1]);
    const char *const *abouts = script_names(test_script, tables[t][2]);
    assert_non_null(names);
    assert_non_null(examples);
    assert_non_null(abouts);
    assert_ptr_equal(names, script_names(test_script, tables[t][0])); /* kept */
    int count = 0;
    for (; names[count]; count++) {
      if (count)
        assert_true(strcmp(names[count - 1], names[count]) < 0);
      assert_true(strlen(abouts[count]) > 5);
      assert_non_null(strstr(examples[count], names[count]));
      char text[512];
      snprintf(text, sizeof text, "return rota.attention { head_dim = 64, %s = %s }", tables[t][3],
               examples[count]);
      Spec spec = spec_of(text);
      spec_free(&spec);
      /* The same through plain fields. */
      rota_spec_fields fields = {.head_dim = 64};
      if (t == 0)
        fields.mask = examples[count];
      else
        fields.score = examples[count];
      check_ok(script_spec_from_fields(test_script, &fields, &spec));
      char *from_fields = describe(&spec), *from_script = describe_script(test_script, text);
      assert_string_equal(from_fields, from_script);
      free(from_fields);
      free(from_script);
      spec_free(&spec);
    }
    assert_true(count >= 4);
  }
  assert_null(script_names(test_script, "colours"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_masks),
      cmocka_unit_test(test_document_and_blocks),
      cmocka_unit_test(test_scores),
      cmocka_unit_test(test_every_entry),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
