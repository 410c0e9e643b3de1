/* librota in a program that carries another Lua: neither sees the other's. Needs the built library,
 * ROTA_TEST_BUILD, and a C compiler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) /* the library wants the sanitizers' run-time in the program */
#define SANITIZE "-fsanitize=address,undefined"
#else
#define SANITIZE ""
#endif

static char library[1024], folder[] = "/tmp/rota_lua_XXXXXX";

static int setup(void **state) {
  (void)state;
  const char *build = getenv("ROTA_TEST_BUILD");
  snprintf(library, sizeof library, "%s/librota.so", build ? build : "build");
  return mkdtemp(folder) ? 0 : 1;
}

static int teardown(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

/* Compiles lua_host.c with `flags` and runs it; it must say that both work. */
static void check_host(const char *name, const char *flags) {
  const char *source = getenv("ROTA_TEST_SOURCE");
  char command[4096], said[256] = "";
  snprintf(command, sizeof command,
           "cc -std=gnu11 -Wall -Wextra -Werror " SANITIZE " -rdynamic -I%s/include "
           "-I/usr/include/lua5.4 %s/tests/host/lua_host.c %s -o %s/%s -lm -ldl 2>&1",
           source ? source : ".", source ? source : ".", flags, folder, name);
  if (system(command) != 0)
    fail_msg("%s: cannot be built", name);
  snprintf(command, sizeof command, "%s/%s %s 2>&1", folder, name, library);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t length = fread(said, 1, sizeof said - 1, pipe);
  said[length] = '\0';
  int status = pclose(pipe);
  if (status != 0 || strcmp(said, "both work\n") != 0)
    fail_msg("%s: status %d, said: %s", name, status, said);
}

static void test_fake_lua(void **state) {
  (void)state;
  check_host("fake", "-DFAKE_LUA");
}

static void test_real_lua(void **state) {
  (void)state;
  check_host("real", "-Wl,--whole-archive -l:liblua5.4.a -Wl,--no-whole-archive");
}

/* The names that the library gives to the world: rota_ and nothing else. */
static void test_exports(void **state) {
  (void)state;
  char command[2048];
  snprintf(command, sizeof command,
           "nm -D --defined-only %s > %s/names && grep -q ' T rota_run' %s/names && "
           "! grep -v ' [TA] rota_' %s/names",
           library, folder, folder, folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fake_lua),
      cmocka_unit_test(test_real_lua),
      cmocka_unit_test(test_exports),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
