/* generator/spec.c, value.c, spec_value.c and tiling.c: names, ranges, and tables from Lua that are
 * wrong in every way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generator/spec_value.h"
#include "generator/tiling.h"

static void test_names(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    Backward backward;
    assert_true(backward_from_name(backward_name((Backward)i), &backward));
    assert_int_equal(backward, i);
    assert_int_equal(backward_is_deterministic(backward), backward != BACKWARD_ATOMIC);
    rota_dtype dtype;
    assert_true(dtype_from_name(dtype_name((rota_dtype)i), &dtype));
    assert_int_equal(dtype, i);
  }
  assert_int_equal(dtype_size(ROTA_BF16), 2);
  assert_int_equal(dtype_size(ROTA_FP32), 4);
  assert_int_equal(dtype_size((rota_dtype)77), 0);
  assert_string_equal(dtype_name((rota_dtype)77), "unknown");
  assert_string_equal(backward_name((Backward)77), "unknown");
  assert_false(backward_is_deterministic((Backward)77));
  Backward backward;
  rota_dtype dtype;
  assert_false(backward_from_name("exactly", &backward));
  assert_false(dtype_from_name("BF16", &dtype));
}

static void test_finish(void **state) {
  (void)state;
  static const struct {
    Spec spec;
    rota_status status;
    const char *word;
  } cases[] = {
      {{.head_dim = 1, .heads = 1}, ROTA_OK, ""},
      {{.head_dim = 1024, .heads = 1024, .kv_heads = 1}, ROTA_OK, ""},
      {{.head_dim = 0, .heads = 1}, ROTA_INVALID_ARGUMENT, "head_dim 0"},
      {{.head_dim = -5, .heads = 1}, ROTA_INVALID_ARGUMENT, "head_dim -5"},
      {{.head_dim = 1025, .heads = 1}, ROTA_UNSUPPORTED, "1 to 1024"},
      {{.head_dim = 64, .head_dim_v = -1, .heads = 1}, ROTA_INVALID_ARGUMENT, "head_dim_v -1"},
      {{.head_dim = 64, .head_dim_v = 1025, .heads = 1}, ROTA_UNSUPPORTED, "head_dim_v 1025"},
      {{.head_dim = 64, .heads = 0}, ROTA_INVALID_ARGUMENT, "heads 0"},
      {{.head_dim = 64, .heads = 4, .kv_heads = -2}, ROTA_INVALID_ARGUMENT, "kv_heads -2"},
      {{.head_dim = 64, .heads = 4, .kv_heads = 8}, ROTA_INVALID_ARGUMENT, "multiple"},
      {{.head_dim = 64, .heads = 1025, .kv_heads = 1}, ROTA_UNSUPPORTED, "1024"},
      {{.head_dim = 64, .heads = 1, .dtype = ROTA_INT32}, ROTA_UNSUPPORTED, "int32"},
      {{.head_dim = 64, .heads = 1, .scale = INFINITY}, ROTA_INVALID_ARGUMENT, "scale"},
      {{.head_dim = 64, .heads = 1, .scale = NAN}, ROTA_INVALID_ARGUMENT, "scale"},
      {{.head_dim = 64, .heads = 1, .backward = (Backward)9}, ROTA_INVALID_ARGUMENT, "backward 9"},
      {{.head_dim = 64, .heads = 1, .backward = BACKWARD_ATOMIC}, ROTA_OK, ""},
      {{.head_dim = 64, .heads = 1, .deterministic = true, .backward = BACKWARD_ATOMIC},
       ROTA_NONDETERMINISTIC,
       "deterministic = false"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Spec spec = cases[i].spec;
    status_clear();
    assert_int_equal(spec_finish(&spec), cases[i].status);
    assert_non_null(strstr(status_message(), cases[i].word));
    if (cases[i].status != ROTA_OK)
      continue;
    assert_int_equal(spec.head_dim_v, spec.head_dim);
    assert_true(fabsf(spec.scale * spec.scale * (float)spec.head_dim - 1) < 1e-6f);
    assert_string_equal(spec.schedule, "auto");
  }
}

static void test_copy(void **state) {
  (void)state;
  Spec spec = {.head_dim = 64, .heads = 1}, copy;
  SourcePlace place = {"model.lua", 1};
  assert_int_equal(
      expression_parse("k <= q", place, EXPRESSION_MASK, &spec.symbols, NULL, 0, &spec.mask),
      ROTA_OK);
  assert_int_equal(
      expression_parse("s * s", place, EXPRESSION_SCORE, &spec.symbols, NULL, 0, &spec.score),
      ROTA_OK);
  assert_int_equal(spec_finish(&spec), ROTA_OK);
  assert_non_null(spec.score_derivative);
  spec_copy(&copy, &spec);
  spec_free(&spec);
  RowPosition row = {.q = 1, .n_q = 4, .n_k = 4};
  Bindings bindings = {0};
  bool out[4];
  expression_evaluate_mask(copy.mask, &bindings, &row, 0, 4, out);
  assert_true(out[0] && out[1] && !out[2] && !out[3]);
  float s = 3, slope;
  expression_evaluate_score(copy.score_derivative, &bindings, &row, 0, 1, &s, &slope);
  assert_true(slope == 6);
  spec_free(&copy);
  spec_free(&copy); /* twice does no harm */
}

static void test_values(void **state) {
  (void)state;
  Value table = {0};
  assert_int_equal(value_set_string(&table, "zeta", "last"), ROTA_OK);
  assert_int_equal(value_set_integer(&table, "alpha", 1), ROTA_OK);
  assert_int_equal(value_set_number(&table, "half", 0.5), ROTA_OK);
  assert_int_equal(value_set_number(&table, "three", 3.0), ROTA_OK);
  assert_int_equal(value_set_number(&table, "huge", 1e300), ROTA_OK);
  assert_int_equal(value_set_boolean(&table, "yes", true), ROTA_OK);
  assert_int_equal(value_set_string(&table, "nothing", NULL), ROTA_OK);
  for (int i = 20; i >= 1; i--)
    *value_add(&table, NULL, i) = (Value){.kind = KIND_INTEGER, .as.integer = i * i};
  assert_int_equal(value_count(&table), 20);
  value_sort(&table);
  assert_int_equal(value_count(&table), 20);
  for (int i = 0; i < 20; i++)
    assert_int_equal(table.as.table.entries[i].number, i + 1);
  assert_string_equal(table.as.table.entries[20].name, "alpha");
  assert_string_equal(table.as.table.entries[25].name, "zeta");
  int64_t integer = -1;
  double number = -1;
  assert_true(value_integer(value_item(&table, 7), 0, 100, &integer));
  assert_int_equal(integer, 49);
  assert_false(value_integer(value_item(&table, 11), 0, 100, &integer));
  assert_true(value_integer(value_field(&table, "three"), 0, 100, &integer));
  assert_int_equal(integer, 3);
  assert_false(value_integer(value_field(&table, "half"), 0, 100, &integer));
  assert_false(value_integer(value_field(&table, "huge"), INT64_MIN, INT64_MAX, &integer));
  assert_false(value_integer(value_field(&table, "zeta"), 0, 100, &integer));
  assert_true(value_number(value_field(&table, "half"), &number) && number == 0.5);
  assert_true(value_number(value_field(&table, "alpha"), &number) && number == 1.0);
  assert_false(value_number(value_field(&table, "yes"), &number));
  assert_true(value_boolean(value_field(&table, "yes"), false));
  assert_false(value_boolean(value_field(&table, "zeta"), false));
  assert_string_equal(value_string(value_field(&table, "zeta"), ""), "last");
  assert_string_equal(value_string(value_field(&table, "alpha"), "none"), "none");
  /* What is absent reads as nil, at any depth. */
  const Value *absent = value_field(value_item(value_field(&table, "zeta"), 3), "x");
  assert_int_equal(absent->kind, KIND_NIL);
  assert_int_equal(value_field(&table, "nothing")->kind, KIND_NIL);
  assert_int_equal(value_count(absent), 0);
  value_free(&table);
  assert_int_equal(table.kind, KIND_NIL);
}

/* A tiling as a good architecture file writes it. */
static Value good_tiling(void) {
  Value tiling = {0};
  value_set_string(&tiling, "architecture", "portable");
  value_set_string(&tiling, "algorithm", "forward");
  value_set_string(&tiling, "template", "templates/portable/forward.cuh");
  value_set_integer(&tiling, "tile_q", 128);
  value_set_integer(&tiling, "tile_kv", 64);
  value_set_integer(&tiling, "stages", 2);
  Value *launches = value_add(&tiling, "launches", 0);
  *launches = (Value){.kind = KIND_TABLE};
  Value *launch = value_add(launches, NULL, 1);
  value_set_string(launch, "entry", "rota_forward");
  value_set_string(launch, "grid", "row_items");
  value_set_integer(launch, "threads", 128);
  value_set_integer(launch, "shared_bytes", 4096);
  value_sort(&tiling);
  return tiling;
}

/* The value of an entry that is there. */
static Value *entry_of(Value *table, const char *name) {
  for (int i = 0; i < table->as.table.count; i++) {
    const char *found = table->as.table.entries[i].name;
    if (found && strcmp(found, name) == 0)
      return &table->as.table.entries[i].value;
  }
  fail_msg("no entry %s", name);
  return NULL;
}

static void check_spoilt(const char *field, bool in_launch, Value spoilt, const char *word) {
  Value value = good_tiling();
  Value *table = in_launch ? &entry_of(&value, "launches")->as.table.entries[0].value : &value;
  Value *at = entry_of(table, field);
  value_free(at);
  *at = spoilt;
  Tiling tiling;
  assert_int_equal(tiling_from_value(&value, &tiling), ROTA_INTERNAL);
  if (!strstr(status_message(), word))
    fail_msg("'%s' is not in: %s", word, status_message());
  *at = (Value){0}; /* spoilt values own nothing of the heap */
  value_free(&value);
}

static void test_tiling(void **state) {
  (void)state;
  Value value = good_tiling();
  Tiling tiling;
  assert_int_equal(tiling_from_value(&value, &tiling), ROTA_OK);
  assert_int_equal(tiling.tile_q, 128);
  assert_int_equal(tiling.tile_kv, 64);
  assert_int_equal(tiling.field_count, 3);
  assert_string_equal(tiling.fields[0].name, "stages");
  assert_int_equal(tiling_get(&tiling, "stages", 0), 2);
  assert_int_equal(tiling.launch_count, 1);
  assert_int_equal(tiling.launches[0].grid, GRID_ROW_ITEMS);
  assert_string_equal(grid_name(tiling.launches[0].grid), "row_items");
  assert_string_equal(grid_name((Grid)99), "unknown");
  value_free(&value);

  const Value nil = {0}, zero = {.kind = KIND_INTEGER},
              odd = {.kind = KIND_INTEGER, .as.integer = 33},
              large = {.kind = KIND_INTEGER, .as.integer = (int64_t)1 << 40};
  static char upper[] = "Rota-Forward", elsewhere[] = "everywhere", long_text[200];
  memset(long_text, 'x', sizeof long_text - 1);
  const Value name = {.kind = KIND_STRING, .as.string = upper};
  const Value grid = {.kind = KIND_STRING, .as.string = elsewhere};
  const Value longer = {.kind = KIND_STRING, .as.string = long_text};
  check_spoilt("architecture", false, nil, "architecture is missing");
  check_spoilt("algorithm", false, zero, "algorithm is missing");
  check_spoilt("algorithm", false, longer, "algorithm is missing");
  check_spoilt("template", false, longer, "template is missing or too long");
  check_spoilt("tile_q", false, zero, "tile_q and tile_kv");
  check_spoilt("tile_kv", false, nil, "tile_q and tile_kv");
  check_spoilt("stages", false, large, "32-bit");
  check_spoilt("entry", true, nil, "entry");
  check_spoilt("entry", true, name, "entry");
  check_spoilt("grid", true, grid, "GRID_LIST");
  check_spoilt("threads", true, odd, "multiple of 32");
  check_spoilt("threads", true, zero, "multiple of 32");
  check_spoilt("shared_bytes", true, large, "byte count");
  check_spoilt("shared_bytes", true, nil, "byte count");
  assert_int_equal(tiling_from_value(&nil, &tiling), ROTA_INTERNAL);
}

static void test_target(void **state) {
  (void)state;
  const Target target = {.name = "sm_90",
                         .sm = 90,
                         .shared_per_block = 232448,
                         .shared_per_sm = 233472,
                         .registers_per_sm = 65536,
                         .multiprocessors = 132,
                         .l2_bytes = 52428800};
  Value value = {0};
  Target again;
  assert_int_equal(target_to_value(&target, &value), ROTA_OK);
  assert_int_equal(target_from_value(&value, &again), ROTA_OK);
  assert_string_equal(again.name, target.name);
  assert_int_equal(again.shared_per_sm, target.shared_per_sm);
  assert_int_equal(again.l2_bytes, target.l2_bytes);
  entry_of(&value, "sm")->as.integer = -1;
  assert_int_equal(target_from_value(&value, &again), ROTA_INTERNAL);
  assert_non_null(strstr(status_message(), "target sm_90 lacks sm"));
  value_free(&value);
  assert_int_equal(target_from_value(&value, &again), ROTA_INTERNAL);
}

/* A node list that lua/value.lua would never write must not be followed. */
static void test_broken_nodes(void **state) {
  (void)state;
  static const struct {
    const char *op;
    int64_t left;
    const char *word;
  } cases[] = {{"and", 1, "lacks an operand"}, {"not", 2, "lacks an operand"},
               {"not", 0, "lacks an operand"}, {"not", -1, "lacks an operand"},
               {"xor", 1, "lacks an operand"}, {"", 1, "lacks an operand"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Value model = {0};
    value_set_integer(&model, "head_dim", 64);
    Value *list = value_add(&model, "mask", 0);
    *list = (Value){.kind = KIND_TABLE};
    Value *leaf = value_add(list, NULL, 1);
    value_set_string(leaf, "op", "leaf");
    value_set_string(leaf, "text", "k <= q");
    Value *node = value_add(list, NULL, 2);
    value_set_string(node, "op", cases[i].op);
    value_set_integer(node, "left", cases[i].left);
    Spec spec;
    assert_int_equal(spec_from_value(&model, &spec), ROTA_INTERNAL);
    assert_non_null(strstr(status_message(), cases[i].word));
    assert_null(spec.mask);
    value_free(&model);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names),        cmocka_unit_test(test_finish),
      cmocka_unit_test(test_copy),         cmocka_unit_test(test_values),
      cmocka_unit_test(test_tiling),       cmocka_unit_test(test_target),
      cmocka_unit_test(test_broken_nodes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
