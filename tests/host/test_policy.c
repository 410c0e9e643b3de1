/* lua/policy.lua, schedules.lua and architectures/: targets, tilings and schedules for every kind
 * of request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/scripts.h"

static void test_targets(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int sm, shared_per_block;
  } cases[] = {{"sm_80", 80, 163 << 10}, {"sm_86", 86, 99 << 10},   {"sm_89", 89, 99 << 10},
               {"sm_90", 90, 227 << 10}, {"sm_90a", 90, 227 << 10}, {"sm_100", 100, 227 << 10},
               {"sm_120", 120, 99 << 10}};
  Target target;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    check_ok(script_target(test_script, cases[i].name, &target));
    assert_string_equal(target.name, cases[i].name);
    assert_int_equal(target.sm, cases[i].sm);
    assert_int_equal(target.shared_per_block, cases[i].shared_per_block);
    assert_true(target.shared_per_sm > target.shared_per_block);
    assert_true(target.multiprocessors > 0 && target.l2_bytes > 1 << 20);
  }
  static const char *const wrong[] = {"sm_70", "90",     "sm_",          "hopper",
                                      "",      "sm_90b", "sm_9999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(script_target(test_script, wrong[i], &target), ROTA_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "known are sm_80, sm_86"));
  }
}

static void check_tiling(const Spec *spec, const Tiling *tiling, const Target *target,
                         rota_direction direction) {
  assert_int_equal(tiling->tile_q, tiling_get(tiling, "tile_q", -1));
  assert_int_equal(tiling->tile_kv, tiling_get(tiling, "tile_kv", -1));
  assert_int_equal(tiling_get(tiling, "no_such_field", -7), -7);
  for (int i = 1; i < tiling->field_count; i++)
    assert_true(strcmp(tiling->fields[i - 1].name, tiling->fields[i].name) < 0);
  bool portable = strcmp(tiling->architecture, "portable") == 0;
  const char *first = direction == ROTA_FORWARD ? "rota_forward" : "rota_delta";
  if (portable)
    assert_string_equal(tiling->launches[0].entry, first);
  bool has_sink = false;
  for (int i = 0; i < tiling->launch_count; i++) {
    assert_true(tiling->launches[i].shared_bytes <= target->shared_per_block);
    has_sink = has_sink || strcmp(tiling->launches[i].entry, "rota_sink_gradient") == 0;
  }
  if (direction == ROTA_BACKWARD) {
    assert_int_equal(has_sink, spec->sink_logit);
    if (spec->deterministic)
      assert_string_not_equal(tiling->algorithm, "atomic");
  } else {
    assert_string_equal(tiling->algorithm, "forward");
  }
  char path[96];
  snprintf(path, sizeof path, "lua/architectures/%s.lua", tiling->architecture);
  assert_non_null(store_get(test_store, path, NULL));
  assert_string_equal(tiling_code(tiling, target), portable ? target->name : "sm_90a");
  /* Where the best architecture does not serve, the reason is told. */
  if (portable)
    assert_non_null(strstr(tiling->passed_over, "hopper: "));
  else
    assert_int_equal(target->sm, 90);
  if (target->sm != 90)
    assert_string_equal(tiling->passed_over, "hopper: for sm_90 alone");
}

/* Every head dim, dtype, algorithm and GPU: a tiling within the limits, or a reason. */
static void test_tilings(void **state) {
  (void)state;
  static const char *const targets[] = {"sm_80", "sm_86", "sm_90", "sm_120"};
  for (int t = 0; t < 4; t++) {
    Target target;
    check_ok(script_target(test_script, targets[t], &target));
    for (int dim = 1; dim <= 256; dim += dim < 16 ? 5 : 24) {
      for (int dtype = 0; dtype < 3; dtype++) {
        for (int backward = 0; backward < 4; backward++) {
          Spec spec = {.dtype = (rota_dtype)dtype,
                       .head_dim = dim,
                       .heads = 8,
                       .kv_heads = 2,
                       .sink_logit = backward == 2,
                       .deterministic = backward != BACKWARD_ATOMIC,
                       .backward = (Backward)backward};
          check_ok(spec_finish(&spec));
          for (int direction = 0; direction < 2; direction++) {
            Tiling tiling;
            rota_status status =
                script_tiling(test_script, &spec, (rota_direction)direction,
                              dim % 8 ? ROTA_LAYOUT_ANY : ROTA_LAYOUT_ALIGNED, &target, &tiling);
            if (direction == ROTA_FORWARD || backward == BACKWARD_AUTO)
              check_ok(status);
            if (status == ROTA_OK) {
              check_tiling(&spec, &tiling, &target, (rota_direction)direction);
              if (direction == ROTA_BACKWARD && backward != BACKWARD_AUTO)
                assert_string_equal(tiling.algorithm, backward_name((Backward)backward));
            } else {
              assert_int_equal(status, ROTA_UNSUPPORTED);
              assert_non_null(strstr(status_message(), targets[t]));
            }
          }
        }
      }
    }
  }
  Target old = {.name = "sm_75",
                .sm = 75,
                .shared_per_block = 1,
                .shared_per_sm = 1,
                .registers_per_sm = 1,
                .multiprocessors = 1,
                .l2_bytes = 1};
  Spec spec = spec_of("return rota.attention { head_dim = 64 }");
  Tiling tiling;
  assert_int_equal(script_tiling(test_script, &spec, ROTA_FORWARD, ROTA_LAYOUT_ANY, &old, &tiling),
                   ROTA_UNSUPPORTED);
  assert_non_null(strstr(status_message(), "sm_80 or newer"));
  spec_free(&spec);
}

/* What the copy engine needs, and who says so. */
static void test_hopper_reasons(void **state) {
  (void)state;
  static const struct {
    const char *chunk, *words;
    rota_layout layout;
    bool old_driver;
  } cases[] = {
      {"return rota.attention { head_dim = 64, dtype = 'fp32' }", "hopper: no fp32",
       ROTA_LAYOUT_ALIGNED, false},
      {"return rota.attention { head_dim = 64 }", "ROTA_LAYOUT_ALIGNED", ROTA_LAYOUT_ANY, false},
      {"return rota.attention { head_dim = 64 }", "CUDA 12.0", ROTA_LAYOUT_ALIGNED, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Target target;
    Tiling tiling;
    Spec spec = spec_of(cases[i].chunk);
    check_ok(script_target(test_script, "sm_90", &target));
    assert_true(target.tensor_maps);
    target.tensor_maps = !cases[i].old_driver;
    check_ok(script_tiling(test_script, &spec, ROTA_FORWARD, cases[i].layout, &target, &tiling));
    assert_string_equal(tiling.architecture, "portable");
    assert_non_null(strstr(tiling.passed_over, cases[i].words));
    assert_string_equal(tiling_code(&tiling, &target), "sm_90");
    spec_free(&spec);
  }
}

/* "auto" by mask, architecture and tiles. */
static void check_auto_by_mask(void) {
  static const struct {
    const char *mask, *portable, *hopper, *higher; /* the last: kv tiles of 192 */
  } cases[] = {
      {"full", "shortest_first", "by_length", "shortest_first"},
      {"causal", "longest_first", "by_length", "by_length"},
      {"causal{align = 'top_left'}", "longest_first", "by_length", "by_length"},
      {"causal | prefix(100)", "longest_first", "by_length", "by_length"},
      {"causal & window(100, 0)", "longest_first", "tiers", "tiers"},
      {"prefix(100)", "longest_first", "tiers", "tiers"},
      {"where('first <= k and k <= q', {first = 3})", "longest_first", "tiers", "tiers"},
      {"causal & document", "longest_first", "by_tiles", "by_tiles"},
  };
  Target target = {.multiprocessors = 132};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char chunk[160];
    snprintf(chunk, sizeof chunk, "return rota.attention{head_dim = 64, mask = %s}", cases[i].mask);
    Spec spec = spec_of(chunk);
    Tiling tiling = {.algorithm = "ordered", .tile_q = 64, .tile_kv = 128};
    const char *const expected[] = {cases[i].portable, cases[i].hopper, cases[i].higher};
    for (int kind = 0; kind < 3; kind++) {
      Schedule rule;
      snprintf(tiling.architecture, sizeof tiling.architecture, kind ? "hopper" : "portable");
      tiling.tile_kv = kind == 2 ? 192 : 128;
      check_ok(script_schedule(test_script, &spec, &tiling, &target, &rule));
      assert_string_equal(rule.name, expected[kind]);
    }
    spec_free(&spec);
  }
}

static void test_schedules(void **state) {
  (void)state;
  const char *const *names = script_names(test_script, "schedules");
  const char *const *sources = script_names(test_script, "schedule_sources");
  Spec spec = {.head_dim = 64, .head_dim_v = 64, .heads = 1, .kv_heads = 1};
  Tiling ordered = {
      .algorithm = "ordered", .architecture = "portable", .tile_q = 64, .tile_kv = 64};
  Tiling two_pass = ordered;
  snprintf(two_pass.algorithm, sizeof two_pass.algorithm, "two_pass");
  Target target = {.multiprocessors = 132};
  Schedule rule;
  int count = 0;
  for (; names[count]; count++) {
    assert_true(strlen(sources[count]) > 5);
    snprintf(spec.schedule, sizeof spec.schedule, "%s", names[count]);
    check_ok(script_schedule(test_script, &spec, &ordered, &target, &rule));
    assert_string_equal(rule.name, names[count]);
  }
  assert_int_equal(count, 12);
  snprintf(spec.schedule, sizeof spec.schedule, "auto");
  check_ok(script_schedule(test_script, &spec, &ordered, &target, &rule));
  assert_string_equal(rule.name, "shortest_first");
  assert_true(rule.portable);
  assert_int_equal(rule.assignment, ASSIGN_TICKETS);
  check_auto_by_mask();
  assert_int_equal(rule.workers, 132);
  check_ok(script_schedule(test_script, &spec, &two_pass, &target, &rule));
  assert_string_equal(rule.name, "ascending");
  snprintf(spec.schedule, sizeof spec.schedule, "sideways");
  assert_int_equal(script_schedule(test_script, &spec, &ordered, &target, &rule), ROTA_SCHEDULE);
  assert_non_null(
      strstr(status_message(),
             "known: ascending, by_length, by_tiles, descending, halves, longest_first"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_targets),
      cmocka_unit_test(test_tilings),
      cmocka_unit_test(test_hopper_reasons),
      cmocka_unit_test(test_schedules),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
