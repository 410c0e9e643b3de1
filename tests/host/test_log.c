/* Log and environment: the ladder of ROTA_DEBUG, warnings that are given once, empty variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/environment.h"
#include "runtime/log.h"
#include "tests/support/workbench.h"

static Workbench bench;

static int open_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_open(&bench);
  return 0;
}

static int close_bench(void **state) {
  (void)state;
  workbench_clean_environment();
  workbench_close(&bench);
  return 0;
}

/* What a log with that ROTA_DEBUG (NULL: unset) prints of a message on each level. */
static void expect_output(const char *debug, int warnings, const char *expected) {
  if (debug)
    setenv("ROTA_DEBUG", debug, 1);
  workbench_capture(&bench);
  Log log;
  log_init(&log, -1);
  for (int level = 1; level <= LOG_LEVEL_MAX; level++)
    log_print(&log, level, "level %d", level);
  assert_int_equal(workbench_release(&bench), warnings);
  if (warnings == 0)
    assert_string_equal(workbench_captured(), expected);
  else
    assert_non_null(strstr(workbench_captured(), expected));
  unsetenv("ROTA_DEBUG");
}

static void ladder(void **state) {
  (void)state;
  expect_output(NULL, 0, "");
  expect_output("", 0, "");
  expect_output("0", 0, "");
  expect_output("1", 0, "rota: level 1\n");
  expect_output("3", 0, "rota: level 1\nrota: level 2\nrota: level 3\n");
  expect_output("99", 0, "rota: level 1\nrota: level 2\nrota: level 3\nrota: level 4\n");
  expect_output("yes", 1, "ROTA_DEBUG is \"yes\"; a level from 0 to 4 was expected");
  expect_output("-1", 1, "ROTA_DEBUG is \"-1\"");
  expect_output("2x", 1, "ROTA_DEBUG is \"2x\"");
}

static void once_is_per_context_and_warning(void **state) {
  (void)state;
  Log first, second;
  log_init(&first, 0);
  log_init(&second, 0);
  workbench_capture(&bench);
  for (int i = 0; i < 3; i++) {
    log_warn_once(&first, LOG_CACHE_NOT_WRITABLE, "a %d", i);
    log_warn_once(&first, LOG_DUMP_NOT_WRITABLE, "b %d", i);
    log_warn_once(&second, LOG_CACHE_NOT_WRITABLE, "c %d", i);
    log_warn_once(NULL, LOG_CACHE_NOT_WRITABLE, "d %d", i);
    log_print(NULL, 1, "e");
  }
  log_warn(&first, "f\n");
  assert_int_equal(workbench_release(&bench), 4);
  assert_string_equal(workbench_captured(), "rota: warning: a 0\nrota: warning: b 0\n"
                                            "rota: warning: c 0\nrota: warning: f\n");
}

static void empty_variables_count_as_unset(void **state) {
  (void)state;
  for (int i = 0; i < ENVIRONMENT_COUNT; i++) {
    Environment variable = (Environment)i;
    const char *name = environment_name(variable);
    char *before = getenv(name) ? strdup(getenv(name)) : NULL;
    setenv(name, "", 1);
    const char *empty = environment_get(variable);
    assert_int_equal(empty != NULL, variable == ENVIRONMENT_CACHE_DIR);
    setenv(name, "value", 1);
    assert_string_equal(environment_get(variable), "value");
    unsetenv(name);
    assert_null(environment_get(variable));
    if (before)
      setenv(name, before, 1);
    free(before);
    assert_true(strlen(environment_meaning(variable)) > 10);
  }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
  const struct CMUnitTest tests[] = {
      TEST(ladder),
      TEST(once_is_per_context_and_warning),
      TEST(empty_variables_count_as_unset),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
