/* lua/configurations.lua and what uses it: every tiling that is offered exists, the first one is
 * the one that was measured to be fastest, a name that is none is refused; and lua/tuning.lua. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/records.h"
#include "generator/script_tuning.h"
#include "tests/support/scripts.h"

/* Names of all tilings of one direction; value_free them. */
static Value tilings_of(const Spec *spec, rota_direction direction, const Target *target) {
  Value request = {0}, names = {0};
  check_ok(tiling_request_to_value(spec, direction, ROTA_LAYOUT_ALIGNED, target, &request));
  check_ok(script_call(test_script, "tilings", &request, ROTA_INTERNAL, &names));
  value_free(&request);
  return names;
}

static rota_status named_tiling(Spec *spec, rota_direction direction, const Target *target,
                                const char *name, Tiling *tiling) {
  snprintf(spec->tiling[direction], TILING_CHOICE_MAX, "%s", name);
  return script_tiling(test_script, spec, direction, ROTA_LAYOUT_ALIGNED, target, tiling);
}

/* Registers of the Hopper forward kernel: what a consumer holds, and what all threads have. */
static void check_registers(const Spec *spec, const Tiling *tiling) {
  if (strcmp(tiling->template_path, "templates/hopper/forward.cuh") != 0)
    return;
  int consumers = tiling_get(tiling, "consumers", 0);
  int registers = tiling_get(tiling, "consumer_registers", 0);
  assert_true(tiling->tile_kv * 3 / 4 + spec->head_dim_v / 2 + 24 <= registers);
  assert_true(128 * (consumers * registers + tiling_get(tiling, "loader_registers", 0)) <= 65536);
  assert_true(tiling->tile_kv % 16 == 0 && tiling->tile_kv <= 128);
}

/* Each tiling of a spec exists under its name. Returns how many there are. */
static int check_all(Spec *spec, rota_direction direction, const Target *target) {
  Tiling first, tiling;
  check_ok(named_tiling(spec, direction, target, "auto", &first));
  Value names = tilings_of(spec, direction, target);
  int count = value_count(&names);
  assert_true(count > 0);
  for (int i = 0; i < count; i++) {
    const char *name = value_string(value_item(&names, i + 1), "");
    check_ok(named_tiling(spec, direction, target, name, &tiling));
    assert_true(tiling_shared_bytes(&tiling) <= target->shared_per_block);
    assert_string_equal(tiling.architecture, first.architecture);
    assert_string_equal(tiling.algorithm, first.algorithm);
    check_registers(spec, &tiling);
    if (i == 0)
      assert_true(tiling.tile_q == first.tile_q && tiling.tile_kv == first.tile_kv);
    for (int j = 0; j < i; j++)
      assert_string_not_equal(name, value_string(value_item(&names, j + 1), ""));
  }
  snprintf(spec->tiling[direction], TILING_CHOICE_MAX, "auto");
  value_free(&names);
  return count;
}

static void test_every_head_dim(void **state) {
  (void)state;
  static const char *const targets[] = {"sm_80", "sm_86", "sm_90"};
  static const char *const masks[] = {"full", "causal", "causal & document",
                                      "where '(q >= k and q - k <= 9) or (q >= 4 and k <= 4)'"};
  int offered = 0;
  for (int t = 0; t < 3; t++) {
    Target target;
    check_ok(script_target(test_script, targets[t], &target));
    for (int dim = 8; dim <= 256; dim += 8)
      for (int v = 0; v < 4; v++) {
        static const int dims_v[] = {0, 64, 128, 256};
        char text[256];
        snprintf(text, sizeof text,
                 "return rota.attention{head_dim = %d, head_dim_v = %d, mask = %s%s}", dim,
                 dims_v[v] ? dims_v[v] : dim, masks[(dim / 8 + v) % 4],
                 dim % 32 ? "" : ", score = softcap(30)");
        Spec spec = spec_of(text);
        for (int direction = 0; direction < 2; direction++)
          offered += check_all(&spec, (rota_direction)direction, &target);
        spec_free(&spec);
      }
  }
  assert_true(offered > 2000);
}

/* For causal and for full masks, as measured on an H200 (docs/configurations.md). */
static void test_first_choices(void **state) {
  (void)state;
  static const struct {
    int dim, dim_v;
    const char *tiles[2];
  } cases[] = {
      {8, 8, {"192x128", "192x128"}},   {64, 64, {"192x128", "192x128"}},
      {72, 72, {"192x96", "192x64"}},   {80, 80, {"128x128", "192x112"}},
      {96, 96, {"128x128", "192x64"}},  {128, 128, {"128x128", "128x128"}},
      {104, 104, {"192x96", "192x64"}}, {120, 120, {"192x64", "192x64"}},
      {136, 136, {"192x64", "192x64"}}, {160, 160, {"128x96", "192x64"}},
      {192, 192, {"128x64", "128x64"}}, {192, 128, {"128x128", "128x128"}},
      {200, 200, {"128x64", "128x64"}}, {256, 256, {"128x64", "128x64"}},
  };
  Target target;
  check_ok(script_target(test_script, "sm_90", &target));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int full = 0; full < 2; full++) {
      char text[128], tiles[24];
      snprintf(text, sizeof text,
               "return rota.attention{head_dim = %d, head_dim_v = %d, mask = %s}", cases[i].dim,
               cases[i].dim_v, full ? "full" : "causal");
      Spec spec = spec_of(text);
      Tiling tiling;
      check_ok(named_tiling(&spec, ROTA_FORWARD, &target, "auto", &tiling));
      snprintf(tiles, sizeof tiles, "%dx%d", tiling.tile_q, tiling.tile_kv);
      if (strcmp(tiles, cases[i].tiles[full]) != 0)
        fail_msg("%s: %s, not %s", text, tiles, cases[i].tiles[full]);
      spec_free(&spec);
    }
}

/* ---- Names ---- */

static void test_model_field(void **state) {
  (void)state;
  static const struct {
    const char *tiling, *forward, *backward;
  } cases[] = {
      {"'auto'", "auto", "auto"},
      {"{}", "auto", "auto"},
      {"{forward = '128x64'}", "128x64", "auto"},
      {"{backward = {tile_q = 64, tile_kv = 32}}", "auto", "64x32"},
      {"{forward = 'auto', backward = '32x32'}", "auto", "32x32"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[128];
    snprintf(text, sizeof text, "return rota.attention{head_dim = 64, tiling = %s}",
             cases[i].tiling);
    Spec spec = spec_of(text);
    assert_string_equal(spec.tiling[ROTA_FORWARD], cases[i].forward);
    assert_string_equal(spec.tiling[ROTA_BACKWARD], cases[i].backward);
    spec_free(&spec);
  }
  rota_spec_fields fields = {.head_dim = 64, .backward_tiling = "64x64"};
  Spec spec;
  check_ok(script_spec_from_fields(test_script, &fields, &spec));
  assert_string_equal(spec.tiling[ROTA_FORWARD], "auto");
  assert_string_equal(spec.tiling[ROTA_BACKWARD], "64x64");
  spec_free(&spec);
}

static void test_mistakes(void **state) {
  (void)state;
  static const struct {
    const char *tiling, *words;
  } cases[] = {
      {"'128x64'", "tiling: {forward = |is expected, not a string|each pass"},
      {"{tile_q = 128}", "tiling: unknown pass 'tile_q'; known: backward, forward"},
      {"{forwards = '64x64'}", "did you mean 'forward'?"},
      {"{'64x64'}", "tiling: fields need names"},
      {"{forward = '64'}", "tiling.forward: '64' is neither auto nor"},
      {"{forward = '64x0'}", "tiling.forward: '64x0' is neither auto nor"},
      {"{forward = 64}", "is expected, not a number"},
      {"{backward = {tile_q = 64}}", "tiling.backward: tile_q and tile_kv are both needed"},
      {"{backward = {tile_q = 64, tile_kv = 0}}", "tiling.backward: '64x0'"},
      {"{backward = {tile_q = 64, tile_k = 32}}", "tiling.backward: unknown field 'tile_k'; did"},
      {"{backward = {tile_q = 6.5, tile_kv = 32}}", "tiling.backward.tile_q: an integer is"},
      {"{backward = causal}", "tiling.backward: |is expected, not a mask"},
      {"{forward = '64x64x64'}", "'64x64x64' is neither"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[160];
    snprintf(text, sizeof text, "return rota.attention{head_dim = 64, tiling = %s}",
             cases[i].tiling);
    check_fails(text, ROTA_SCRIPT, cases[i].words);
  }
}

static void test_refusal(void **state) {
  (void)state;
  static const struct {
    const char *architecture;
    rota_direction direction;
    const char *words[3];
  } cases[] = {
      {"sm_90",
       ROTA_FORWARD,
       {"tiling.forward '48x48': for head_dim 128/128 bf16 the hopper kernels (forward) have ",
        "128x128, ", "name one of these, or leave it out for the first"}},
      {"sm_90",
       ROTA_BACKWARD,
       {"tiling.backward '48x48'", "hopper kernels (ordered) have", "64x128"}},
      {"sm_80", ROTA_BACKWARD, {"tiling.backward '48x48'", "portable kernels (ordered)", "64x128"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Spec spec = spec_of("return rota.attention{head_dim = 128, mask = causal}");
    Target target;
    Tiling tiling;
    check_ok(script_target(test_script, cases[i].architecture, &target));
    assert_int_equal(named_tiling(&spec, cases[i].direction, &target, "48x48", &tiling),
                     ROTA_UNSUPPORTED);
    for (int j = 0; j < 3; j++)
      if (!strstr(status_message(), cases[i].words[j]))
        fail_msg("'%s' lacks '%s'", status_message(), cases[i].words[j]);
    spec_free(&spec);
  }
}

/* ---- lua/tuning.lua ---- */

static void check_candidates(const char *text, int32_t n, int atomic) {
  Spec spec = spec_of(text);
  Target target;
  Candidate *list;
  int count, found[8] = {0}, forward = 0, shift = 0;
  check_ok(script_target(test_script, "sm_90", &target));
  CandidateRequest request = {.spec = &spec, .target = &target, .n_q = n, .n_k = n};
  check_ok(script_candidates(test_script, &request, &list, &count));
  for (int i = 0; i < count; i++) {
    const Candidate *x = &list[i];
    if (x->direction == ROTA_FORWARD)
      assert_true(x->rank >= ++forward && i + 1 == forward);
    else
      found[x->backward] += x->rank == 1;
    shift += x->rank == 1 && !strncmp(x->schedule, "shift", 5);
    for (int j = 0; j < i; j++)
      assert_true(x->direction != list[j].direction || x->backward != list[j].backward ||
                  strcmp(x->schedule, list[j].schedule) != 0 ||
                  strcmp(x->tiling, list[j].tiling) != 0);
  }
  assert_true(forward >= 5 && forward <= 6);
  assert_int_equal(found[BACKWARD_ATOMIC], atomic);
  assert_int_equal(found[BACKWARD_TWO_PASS], 1);
  assert_true(found[BACKWARD_ORDERED] > 8);
  assert_int_equal(shift, 3);
  free(list);
  spec_free(&spec);
}

static void test_candidates(void **state) {
  (void)state;
  check_candidates("return rota.attention{head_dim = 128}", 0, 0);
  check_candidates("return rota.attention{head_dim = 128, deterministic = false}", 4096, 1);
  check_candidates("return rota.attention{head_dim = 64, mask = causal}", 512, 0);
  check_candidates("return rota.attention{head_dim = 64, mask = causal}", 1 << 26, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_head_dim), cmocka_unit_test(test_first_choices),
      cmocka_unit_test(test_model_field),    cmocka_unit_test(test_mistakes),
      cmocka_unit_test(test_refusal),        cmocka_unit_test(test_candidates),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
