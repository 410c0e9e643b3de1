/* The two-level memory machine: what it counts, and which programs it refuses. */
#include "generator/io_machine.h"
#include "generator/io_plane.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static IoMachine *open_machine(IoMode mode, int64_t capacity) {
  IoMachine *machine;
  assert_int_equal(io_machine_create(mode, capacity, &machine), ROTA_OK);
  return machine;
}

/* Ends the program, which must have been refused with these words. */
static void expect_refusal(IoMachine *machine, rota_status status, const char *words) {
  IoCount count;
  assert_int_equal(io_machine_finish(machine, &count), status);
  if (!strstr(status_message(), words))
    fail_msg("'%s' does not say '%s'", status_message(), words);
  io_machine_destroy(machine);
}

static void add_one(const void *context, const IoView *views) {
  (void)context;
  for (int64_t i = 0; i < views[0].rows * views[0].columns; i++)
    views[0].data[i] += 1;
}

static void test_moves_and_counts(void **state) {
  (void)state;
  IoMachine *machine = open_machine(IO_EXECUTE, 6);
  IoMatrix *matrix = io_matrix_create(machine, 4, 5);
  assert_true(isnan(matrix->data[0]));
  for (int i = 0; i < 20; i++)
    matrix->data[i] = i;
  IoBlock block = io_load(machine, matrix, 1, 2, 2, 3);
  io_compute(machine, add_one, NULL, &block, 1);
  io_store(machine, block, matrix, 0, 0);
  io_evict(machine, block);
  IoBlock zeros = io_zeros(machine, 1, 5);
  io_put(machine, zeros, matrix, 3, 0);
  IoCount count;
  assert_int_equal(io_machine_finish(machine, &count), ROTA_OK);
  assert_int_equal(count.loads, 6);
  assert_int_equal(count.stores, 6 + 5);
  assert_int_equal(count.peak, 6);
  const double expected[20] = {8, 9, 10, 3, 4, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 0};
  for (int i = 0; i < 20; i++)
    assert_true(matrix->data[i] == expected[i]);
  io_machine_destroy(machine);
}

static void test_refuses_more_than_m(void **state) {
  (void)state;
  for (int mode = IO_COUNT; mode <= IO_EXECUTE; mode++) {
    IoMachine *machine = open_machine((IoMode)mode, 10);
    IoMatrix *matrix = io_matrix_create(machine, 10, 10);
    IoBlock block = io_load(machine, matrix, 0, 0, 2, 4);
    io_zeros(machine, 1, 2); /* exactly full */
    assert_false(io_refused(machine));
    io_load(machine, matrix, 0, 0, 1, 1);
    assert_true(io_refused(machine));
    io_evict(machine, block); /* too late */
    expect_refusal(machine, ROTA_INVALID_ARGUMENT, "10 in use, 1 more needed");
  }
}

static void test_refuses_absent_operands(void **state) {
  (void)state;
  for (int mode = IO_COUNT; mode <= IO_EXECUTE; mode++) {
    IoMachine *machine = open_machine((IoMode)mode, 10);
    IoBlock old = io_zeros(machine, 1, 1), block = io_zeros(machine, 1, 1);
    io_evict(machine, old);
    io_zeros(machine, 2, 1); /* takes the old one's place: the old name stays stale */
    io_compute(machine, add_one, NULL, (IoBlock[]){block, old}, 2);
    expect_refusal(machine, ROTA_INTERNAL, "not in fast memory");

    machine = open_machine((IoMode)mode, 10);
    io_evict(machine, (IoBlock){0, 0}); /* never was a block */
    expect_refusal(machine, ROTA_INTERNAL, "not in fast memory");

    machine = open_machine((IoMode)mode, 10);
    IoMatrix *matrix = io_matrix_create(machine, 1, 1);
    block = io_zeros(machine, 1, 1);
    io_evict(machine, block);
    io_store(machine, block, matrix, 0, 0);
    expect_refusal(machine, ROTA_INTERNAL, "not in fast memory");
  }
}

static void test_refuses_the_rest(void **state) {
  (void)state;
  IoMachine *machine = open_machine(IO_COUNT, 10);
  IoMatrix *matrix = io_matrix_create(machine, 3, 3);
  io_load(machine, matrix, 2, 0, 2, 1);
  expect_refusal(machine, ROTA_INTERNAL, "leave their matrix");

  machine = open_machine(IO_COUNT, 10);
  matrix = io_matrix_create(machine, 3, 3);
  io_store(machine, io_zeros(machine, 1, 2), matrix, 0, 2);
  expect_refusal(machine, ROTA_INTERNAL, "leave their matrix");

  machine = open_machine(IO_COUNT, 10);
  io_zeros(machine, 2, 2);
  expect_refusal(machine, ROTA_INTERNAL, "4 elements left");

  machine = open_machine(IO_COUNT, 10);
  for (IoLoop i = io_loop(machine, 0, 5, 2); io_next(machine, &i);)
    io_zeros(machine, 1, 1); /* every step leaves one more */
  expect_refusal(machine, ROTA_INTERNAL, "changed the use of fast memory");

  assert_int_equal(io_machine_create(IO_COUNT, 0, &machine), ROTA_INVALID_ARGUMENT);
  assert_null(machine);
}

static void test_overflow_is_said(void **state) {
  (void)state;
  IoMachine *machine = open_machine(IO_COUNT, 10);
  IoMatrix *matrix = io_matrix_create(machine, 1, 1);
  for (IoLoop i = io_loop(machine, 0, INT64_MAX / 2, 1); io_next(machine, &i);)
    for (IoLoop j = io_loop(machine, 0, 4, 1); io_next(machine, &j);)
      io_evict(machine, io_load(machine, matrix, 0, 0, 1, 1));
  expect_refusal(machine, ROTA_INVALID_ARGUMENT, "63 bits");
}

/* Nested loops with short last steps: the same count in both modes, and every element once. */
static void test_loops_count_alike(void **state) {
  (void)state;
  for (int64_t n = 0; n < 14; n++)
    for (int64_t step = 1; step < 6; step++) {
      IoCount counts[2];
      for (int mode = IO_COUNT; mode <= IO_EXECUTE; mode++) {
        IoMachine *machine = open_machine((IoMode)mode, 100);
        IoMatrix *matrix = io_matrix_create(machine, n, 2 * n);
        for (int64_t i = 0; mode == IO_EXECUTE && i < 2 * n * n; i++)
          matrix->data[i] = 0;
        for (IoLoop i = io_loop(machine, 0, n, step); io_next(machine, &i);)
          for (IoLoop j = io_loop(machine, 0, 2 * n, step + 1); io_next(machine, &j);) {
            IoBlock block = io_load(machine, matrix, i.at, j.at, i.size, j.size);
            io_compute(machine, add_one, NULL, &block, 1);
            io_put(machine, block, matrix, i.at, j.at);
          }
        for (int64_t i = 0; mode == IO_EXECUTE && i < 2 * n * n; i++)
          assert_true(matrix->data[i] == 1);
        assert_int_equal(io_machine_finish(machine, &counts[mode]), ROTA_OK);
        io_machine_destroy(machine);
      }
      assert_memory_equal(&counts[0], &counts[1], sizeof counts[0]);
      assert_int_equal(counts[0].loads, 2 * n * n);
    }
}

/* ---- Runs of a plane ---- */

static void check_plane(const char *text, int32_t n, int32_t tile_q, int32_t tile_kv) {
  Symbols symbols = {.parameter_count = 0};
  Bindings bindings = {.ranges = {0}};
  Expression *mask = NULL;
  if (text)
    assert_int_equal(
        expression_parse(text, (SourcePlace){"test", 1}, EXPRESSION_MASK, &symbols, NULL, 0, &mask),
        ROTA_OK);
  IoPlane plane;
  assert_int_equal(io_plane_build(mask, &bindings, n, tile_q, tile_kv, &plane), ROTA_OK);
  char *rows = calloc((size_t)(n * n) + 1, 1), *columns = calloc((size_t)(n * n) + 1, 1);
  for (int32_t line = 0; line < plane.rows.count; line++)
    for (int64_t i = plane.rows.first[line]; i < plane.rows.first[line + 1]; i++)
      for (int32_t q = line * tile_q; q < n && q < (line + 1) * tile_q; q++)
        for (int32_t k = plane.rows.runs[i].begin; k < plane.rows.runs[i].end; k++)
          rows[q * n + k]++;
  for (int32_t line = 0; line < plane.columns.count; line++)
    for (int64_t i = plane.columns.first[line]; i < plane.columns.first[line + 1]; i++)
      for (int32_t k = line * tile_kv; k < n && k < (line + 1) * tile_kv; k++)
        for (int32_t q = plane.columns.runs[i].begin; q < plane.columns.runs[i].end; q++)
          columns[q * n + k]++;
  assert_memory_equal(rows, columns, (size_t)(n * n));
  int64_t pairs = 0;
  for (int32_t q = 0; q < n; q++)
    for (int32_t k = 0; k < n; k++) {
      RowPosition position = {q, 0, 0, n, n};
      bool allowed = true;
      if (mask)
        expression_evaluate_mask(mask, &bindings, &position, k, 1, &allowed);
      assert_in_range(rows[q * n + k], allowed, 1);
      if (tile_q == 1 && tile_kv == 1)
        assert_int_equal(rows[q * n + k], allowed);
      pairs += rows[q * n + k];
    }
  assert_int_equal(pairs, plane.pairs);
  free(rows);
  free(columns);
  io_plane_free(&plane);
  expression_release(mask);
}

static void test_planes(void **state) {
  (void)state;
  const char *masks[] = {NULL,
                         "k <= q",
                         "k <= q and q - k < 7",
                         "k % 3 == q % 3",
                         "k < 0",
                         "k // 5 == q // 5",
                         "q % 7 == 3",
                         "k ~= q",
                         "q - k == 11",
                         "k < 4 or q - k < 3 and k <= q"};
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++)
    for (int32_t tile = 1; tile < 9; tile += 2) {
      check_plane(masks[i], 23, tile, tile);
      check_plane(masks[i], 23, 1, tile);
      check_plane(masks[i], 24, tile, 1);
      check_plane(masks[i], 1, tile, 1);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_moves_and_counts),
      cmocka_unit_test(test_refuses_more_than_m),
      cmocka_unit_test(test_refuses_absent_operands),
      cmocka_unit_test(test_refuses_the_rest),
      cmocka_unit_test(test_overflow_is_said),
      cmocka_unit_test(test_loops_count_alike),
      cmocka_unit_test(test_planes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
