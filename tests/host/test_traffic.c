/* The traffic model against sums by hand, its limits, and Lua's rates. */
#include "generator/script_rates.h"
#include "generator/traffic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Target target = {.name = "sm_90",
                              .sm = 90,
                              .shared_per_block = 227 << 10,
                              .shared_per_sm = 228 << 10,
                              .registers_per_sm = 65536,
                              .multiprocessors = 100,
                              .l2_bytes = 40 << 20};
static const Rates even = {.tensor = 1e15, .fp32 = 1e14, .dram = 1e12, .l2 = 1e12, .shared = 1e12};

static Spec spec_of(int head_dim) {
  return (Spec){
      .dtype = ROTA_BF16, .head_dim = head_dim, .head_dim_v = head_dim, .heads = 1, .kv_heads = 1};
}

static Tiling tiling_of(int tile_q, int tile_kv) {
  return (Tiling){.tile_q = tile_q, .tile_kv = tile_kv};
}

/* One head, full: n queries and keys. */
static TrafficShape full_shape(const Tiling *tiling, double n) {
  return (TrafficShape){.visits = n / tiling->tile_q * n / tiling->tile_kv,
                        .rows_q = n,
                        .rows_k = n,
                        .chains = n / tiling->tile_kv,
                        .row_items = n / tiling->tile_q,
                        .longest_q = n,
                        .longest_k = n};
}

static Traffic model(TrafficAlgorithm algorithm, int head_dim, double n) {
  Spec spec = spec_of(head_dim);
  Tiling tiling = tiling_of(64, 128);
  TrafficShape shape = full_shape(&tiling, n);
  Traffic traffic;
  traffic_model(algorithm, &spec, &target, &even, &tiling, &shape, &traffic);
  return traffic;
}

static void assert_close(double a, double b) {
  if (fabs(a - b) > 1e-9 * fabs(b))
    fail_msg("%.12g, not %.12g", a, b);
}

static void test_by_hand(void **state) {
  (void)state;
  double n = 1024, d = 64, visits = 16 * 8;
  Traffic t = model(TRAFFIC_ORDERED, 64, n);
  assert_close(t.flops, 10 * n * n * d);
  /* Q, dO (2 bytes), LSE, delta, fp32 sums; K, V in and dK, dV out; the delta kernel; dQ at last.
   */
  assert_close(t.l2_bytes,
               visits * 64 * (4 * d + 8 + 4 * d) + 2 * n * 4 * d + n * (4 * d + 16) + n * d * 6);
  /* Q, dO, O and dO, dQ, LSE, delta; K, V, dK, dV: all fits the L2. */
  assert_close(t.dram_bytes, n * (4 * d + 4 * d + 2 * d + 16) + 2 * n * 4 * d);
  Traffic exact = model(TRAFFIC_EXACT, 64, n);
  assert_close(exact.l2_bytes - t.l2_bytes, n * d * (4 + 4)); /* zeroing; K and V for bounds */
  Traffic two_pass = model(TRAFFIC_TWO_PASS, 64, n);
  assert_close(two_pass.flops, 14 * n * n * d);
  assert_close(two_pass.l2_bytes, visits * 64 * (4 * d + 8) + 2 * n * 4 * d + visits * 128 * 4 * d +
                                      n * (4 * d + 8 + 2 * d) + n * (4 * d + 16));
  assert_int_equal(t.products, 5);
  assert_int_equal(two_pass.products, 7);
}

/* P and dS written once, P read once and dS twice: 10 bytes a pair, beside the operands. */
static void test_materialised(void **state) {
  (void)state;
  double n = 1024, d = 256, pairs = n * n;
  Traffic t = model(TRAFFIC_MATERIALISED, 256, n);
  double operands = pairs * 2 * (2 * d * (1.0 / 128 + 1.0 / 256) + 3 * d / 128);
  assert_int_equal(t.chunks, 1);
  assert_close(t.l2_bytes, 10 * pairs + operands + n * (4 * d + 16));
  assert_true(model(TRAFFIC_MATERIALISED, 256, 65536).chunks > 50);
}

/* dS alone: 4 bytes a pair; Q and dO for each kv tile, K for each query tile. */
static void test_chains(void **state) {
  (void)state;
  double n = 1024, d = 192, dv = 128, pairs = n * n;
  Spec spec = spec_of(192);
  spec.head_dim_v = 128;
  Tiling tiling = tiling_of(128, 128);
  tiling.fields[0] = (TilingField){.name = "score_planes", .value = 1};
  tiling.field_count = 1;
  TrafficShape shape = full_shape(&tiling, n);
  Traffic t;
  traffic_model(TRAFFIC_MATERIALISED, &spec, &target, &even, &tiling, &shape, &t);
  assert_close(t.flops, 2 * pairs * (3 * d + 2 * dv));
  assert_close(t.l2_bytes,
               4 * pairs + pairs * 2 * (2 * d + dv) / 128 + n * 2 * (d + dv) + n * (4 * dv + 16));
}

/* DRAM: once while it fits, again in waves when it does not. */
static void test_dram_grows_beyond_the_l2(void **state) {
  (void)state;
  for (int i = 0; i < TRAFFIC_ALGORITHMS; i++) {
    Traffic small = model((TrafficAlgorithm)i, 128, 8192);
    Traffic large = model((TrafficAlgorithm)i, 128, 131072);
    assert_true(large.dram_bytes > 1.2 * 16 * small.dram_bytes);
    assert_true(large.dram_bytes <= large.l2_bytes);
    assert_true(small.seconds < large.seconds);
  }
}

/* 16 heads of 16,384 rows: one head's stream of 16 MB fits the L2, all heads' do not. */
static void test_heads_at_once(void **state) {
  (void)state;
  Spec spec = spec_of(128);
  spec.heads = spec.kv_heads = 16;
  Tiling tiling = tiling_of(64, 128);
  TrafficShape shape = full_shape(&tiling, 16384);
  shape.visits *= 16, shape.rows_q *= 16, shape.rows_k *= 16, shape.chains *= 16;
  Traffic one, all;
  shape.heads_at_once = 1;
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &one);
  shape.heads_at_once = 16;
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &all);
  assert_close(all.l2_bytes, one.l2_bytes);
  /* 6.25 workers of 100 a head: 21 waves, each with Q, dO and the sums in and out. */
  double sums = 4 * 128 * shape.rows_q;
  assert_close(all.dram_bytes - one.dram_bytes,
               20 * 4 * 128 * shape.rows_q + 2 * 21 * sums - 1.5 * sums);
}

/* wgmma: what a visit's products read (S and dP, dV and dK by warpgroup, dQ by one), dS written,
 * the partial, Q and dO; KB. */
static void check_wgmma(int head_dim, int tile_kv, double kilobytes) {
  Spec spec = spec_of(head_dim);
  Tiling tiling = tiling_of(64, tile_kv);
  tiling.wgmma_count = 1;
  TrafficShape shape = full_shape(&tiling, 4096);
  Traffic t;
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &t);
  assert_close(t.shared_bytes, shape.visits * kilobytes * 1024);
}
static void test_wgmma_reads_shared_memory(void **state) {
  (void)state;
  check_wgmma(128, 128, (64 + 2 * 32) + 2 * 32 + (16 + 32) + 16 + 64 + 32);
  check_wgmma(64, 192, (48 + 3 * 16) + 3 * 16 + (24 + 24) + 24 + 32 + 16);
}

static void test_limits(void **state) {
  (void)state;
  const struct {
    Rates rates;
    const char *limit;
  } cases[] = {{{1e9, 1e21, 1e18, 1e18, 1e18}, "tensor cores"},
               {{1e21, 1e21, 1e18, 1e18, 1e9}, "shared memory"},
               {{1e21, 1e21, 1e18, 1e9, 1e18}, "L2"},
               {{1e21, 1e21, 1e9, 1e18, 1e18}, "DRAM"}};
  Spec spec = spec_of(128);
  Tiling tiling = tiling_of(64, 128);
  TrafficShape shape = full_shape(&tiling, 4096);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int algorithm = 0; algorithm < TRAFFIC_ALGORITHMS; algorithm++) {
      Traffic t;
      traffic_model((TrafficAlgorithm)algorithm, &spec, &target, &cases[i].rates, &tiling, &shape,
                    &t);
      assert_string_equal(t.limit, cases[i].limit);
    }
}

/* 32 x 32 by two warps at head dim 256: dK and dV 256 registers of a thread, S 16, dQ 128. */
static void test_registers(void **state) {
  (void)state;
  Spec spec = spec_of(256);
  Tiling tiling = tiling_of(32, 32);
  TrafficShape shape = full_shape(&tiling, 1024);
  Traffic plain, t;
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &plain);
  assert_false(plain.spills); /* no warps: the tiling does not tell */
  tiling.fields[0] = (TilingField){"warps_d", 1};
  tiling.fields[1] = (TilingField){"warps_kv", 2};
  tiling.field_count = 2;
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &t);
  assert_int_equal(t.accumulators, 256 + 16 + 128);
  assert_true(t.spills);
  assert_close(t.l2_bytes - plain.l2_bytes, shape.visits * 2 * 4 * 64 * (400 - 208));
  spec = spec_of(64);
  traffic_model(TRAFFIC_ORDERED, &spec, &target, &even, &tiling, &shape, &t);
  assert_false(t.spills);
}

static void test_fp32_has_its_own_rate(void **state) {
  (void)state;
  Spec spec = spec_of(64);
  spec.dtype = ROTA_FP32;
  Tiling tiling = tiling_of(32, 32);
  TrafficShape shape = full_shape(&tiling, 1024);
  Rates rates = {.tensor = 1e21, .fp32 = 1e9, .dram = 1e18, .l2 = 1e18, .shared = 1e18};
  Traffic t;
  traffic_model(TRAFFIC_TWO_PASS, &spec, &target, &rates, &tiling, &shape, &t);
  assert_string_equal(t.limit, "fp32 units");
  assert_close(t.seconds, t.flops / 1e9);
}

/* M of a Hopper multiprocessor lies between the squares of head dims 256 and 512. */
static void test_fast_memory(void **state) {
  (void)state;
  Spec spec = spec_of(128);
  assert_int_equal(traffic_fast_memory(&spec, &target), (228 * 1024 + 4 * 65536) / 2);
}

static void test_rates(void **state) {
  (void)state;
  Store *store;
  Script *script;
  assert_int_equal(store_create(NULL, &store), ROTA_OK);
  assert_int_equal(script_create(store, &script), ROTA_OK);
  static const int listed[] = {80, 86, 87, 89, 90, 100, 120};
  for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++) {
    Target other = target;
    Rates rates, newer;
    other.sm = listed[i];
    assert_int_equal(script_rates(script, &other, &rates), ROTA_OK);
    assert_true(rates.tensor > 1e13 && rates.tensor < 1e16);
    assert_true(rates.dram > 1e11 && rates.dram < rates.l2 && rates.l2 < rates.shared);
    other.sm += listed[i] == 86 || listed[i] == 89 ? 0 : 1; /* not listed: the one before */
    assert_int_equal(script_rates(script, &other, &newer), ROTA_OK);
    assert_memory_equal(&rates, &newer, sizeof rates);
  }
  script_destroy(script);
  store_destroy(store);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_by_hand),       cmocka_unit_test(test_materialised),
      cmocka_unit_test(test_chains),        cmocka_unit_test(test_dram_grows_beyond_the_l2),
      cmocka_unit_test(test_heads_at_once), cmocka_unit_test(test_wgmma_reads_shared_memory),
      cmocka_unit_test(test_limits),        cmocka_unit_test(test_fast_memory),
      cmocka_unit_test(test_registers),     cmocka_unit_test(test_fp32_has_its_own_rate),
      cmocka_unit_test(test_rates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
