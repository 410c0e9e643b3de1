/* The library as others get it: installed, found by CMake and by pkg-config, moved, exporting its
 * public functions and nothing else, and living beside a host's own Lua. examples/embed.c is the
 * program that is built against it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/text.h"
#include "tests/support/workbench.h"

#ifdef __SANITIZE_ADDRESS__
/* A sanitized library wants a sanitized program. Lua's own tests of memory are not ours to judge.
 */
#define EXTRA_FLAGS "-fsanitize=address,undefined"
#else
#define EXTRA_FLAGS ""
#endif

static const char *source, *build;
static Workbench bench;

/* Installed once for all tests, then moved: no path of the first place may be needed. */
static int install(void **state) {
  (void)state;
  source = getenv("ROTA_TEST_SOURCE");
  build = getenv("ROTA_TEST_BUILD");
  workbench_open(&bench);
  if (!source || !build)
    return 0;
  char path[600];
  snprintf(path, sizeof path, "%s/cmake_install.cmake", build);
  if (access(path, R_OK) != 0)
    build = NULL;
  if (!build)
    return 0;
  workbench_shell("cmake --install %s --prefix %s/first >%s/install.log", build, bench.root,
                  bench.root);
  workbench_shell("mv %s/first %s/prefix", bench.root, bench.root);
  return 0;
}

static int clean(void **state) {
  (void)state;
  workbench_close(&bench);
  return 0;
}

static void need_build(void) {
  if (build)
    return;
  fprintf(stderr, "*** SKIPPED: run by CTest, or set ROTA_TEST_SOURCE and ROTA_TEST_BUILD\n");
  skip();
}

/* The built program prints what the example prints. */
static void expect_output(const char *program, const char *words) {
  char *text;
  size_t length;
  workbench_shell("%s >%s/output.txt", program, bench.root);
  assert_int_equal(text_read_file(workbench_path(&bench, "output.txt"), &text, &length), ROTA_OK);
  if (!strstr(text, words))
    fail_msg("%s printed: %s", program, text);
  free(text);
}

static void write_text(const char *name, const char *text) {
  workbench_write(workbench_path(&bench, name), text, strlen(text));
}

static void test_find_package(void **state) {
  (void)state;
  need_build();
  workbench_shell("mkdir -p %s/consumer && cp %s/examples/embed.c %s/consumer/", bench.root, source,
                  bench.root);
  write_text("consumer/CMakeLists.txt", "cmake_minimum_required(VERSION 3.22)\n"
                                        "project(consumer C)\n"
                                        "find_package(Rota 0.1 REQUIRED)\n"
                                        "add_executable(consumer embed.c)\n"
                                        "target_link_libraries(consumer PRIVATE Rota::rota m)\n");
  workbench_shell("cmake -S %s/consumer -B %s/consumer/build -DCMAKE_PREFIX_PATH=%s/prefix "
                  "-DCMAKE_C_FLAGS='" EXTRA_FLAGS "' >%s/configure.log",
                  bench.root, bench.root, bench.root, bench.root);
  workbench_shell("cmake --build %s/consumer/build >%s/build.log", bench.root, bench.root);
  expect_output(workbench_path(&bench, "consumer/build/consumer"), "same bits again: yes");
}

/* Before 1.0 another minor version is another interface. */
static void test_version_refused(void **state) {
  (void)state;
  need_build();
  write_text("other.cmake",
             "cmake_minimum_required(VERSION 3.22)\n"
             "find_package(Rota 0.2 QUIET)\n"
             "if(Rota_FOUND)\n  message(FATAL_ERROR \"0.2 was found\")\nendif()\n"
             "if(NOT Rota_CONSIDERED_VERSIONS STREQUAL \"0.1.0\")\n"
             "  message(FATAL_ERROR \"seen: ${Rota_CONSIDERED_VERSIONS}\")\nendif()\n");
  workbench_shell("cmake -DCMAKE_PREFIX_PATH=%s/prefix -DCMAKE_SYSTEM_NAME=Linux "
                  "-DCMAKE_SIZEOF_VOID_P=8 -P %s/other.cmake",
                  bench.root, bench.root);
}

static void test_pkg_config(void **state) {
  (void)state;
  need_build();
  workbench_shell("pc=$(find %s/prefix -name rota.pc) && export PKG_CONFIG_PATH=${pc%%/*} && "
                  "test \"$(pkg-config --modversion rota)\" = 0.1.0 && "
                  "cc -std=c11 -Wall -Wextra -Wconversion -Werror " EXTRA_FLAGS
                  " %s/examples/embed.c $(pkg-config --cflags --libs rota) -lm "
                  "-Wl,-rpath,$(pkg-config --variable=libdir rota) -o %s/embed",
                  bench.root, source, bench.root);
  expect_output(workbench_path(&bench, "embed"), "same bits again: yes");
}

static void test_command(void **state) {
  (void)state;
  need_build();
  expect_output(workbench_path(&bench, "prefix/bin/rota --version"), "0.1.0");
}

/* The header alone, as strict C11 and as C++. */
static void test_header(void **state) {
  (void)state;
  need_build();
  write_text("header.c", "#include <rota/rota.h>\nint main(void) { return ROTA_OK; }\n");
  workbench_shell("cc -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only "
                  "-I%s/prefix/include %s/header.c",
                  bench.root, bench.root);
  if (system("printf 'int x;' | cc -x c++ -fsyntax-only - 2>/dev/null") == 0)
    workbench_shell("cc -x c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only "
                    "-I%s/prefix/include %s/header.c",
                    bench.root, bench.root);
}

/* What the library exports is what the header declares: each name in both lists. */
static void test_exports(void **state) {
  (void)state;
  need_build();
  workbench_shell("nm -D --defined-only $(find %s/prefix -name librota.so) | "
                  "awk '$2 != \"A\" { print $3 }' | sort >%s/exported.txt",
                  bench.root, bench.root);
  workbench_shell("tr '\\n' ' ' <%s/prefix/include/rota/rota.h | grep -o 'ROTA_API [^;]*;' | "
                  "grep -o 'rota_[a-z_]*(' | tr -d '(' | sort >%s/declared.txt",
                  bench.root, bench.root);
  workbench_shell("test $(wc -l <%s/declared.txt) -ge 25", bench.root);
  workbench_shell("diff %s/declared.txt %s/exported.txt", bench.root, bench.root);
}

/* A host that carries another Lua, exports all of its symbols, and uses both in turn. */
static const char lua_host[] =
    "#include <lauxlib.h>\n"
    "#include <lualib.h>\n"
    "#include <rota/rota.h>\n"
    "#include <stdio.h>\n"
    "int main(void) {\n"
    "  lua_State *lua = luaL_newstate();\n"
    "  luaL_openlibs(lua);\n"
    "  rota_context *context; rota_spec *spec;\n"
    "  for (int i = 0; i < 3; i++) {\n"
    "    if (luaL_dostring(lua, \"x = (x or 40) + 1; rota = os.time()\")) return 1;\n"
    "    if (rota_context_create(NULL, &context)) return 2;\n"
    "    if (rota_spec_create_from_script(context, \"return rota.attention{head_dim = 64, \"\n"
    "        \"mask = causal & window(7, 0)}\", \"host.lua\", &spec)) return 3;\n"
    "    rota_spec_destroy(spec);\n"
    "    rota_context_destroy(context);\n"
    "  }\n"
    "  lua_getglobal(lua, \"x\");\n"
    "  printf(\"host's x is %d\\n\", (int)lua_tointeger(lua, -1));\n"
    "  lua_close(lua);\n"
    "  return 0;\n"
    "}\n";

static void test_host_with_lua(void **state) {
  (void)state;
  need_build();
  if (system("pkg-config --exists lua5.4") != 0) {
    fprintf(stderr, "*** SKIPPED: no lua5.4 for a host program\n");
    skip();
  }
  write_text("host.c", lua_host);
  /* -rdynamic with the host's Lua inside the program: the hardest case, its names come first. */
  workbench_shell("lib=$(dirname $(find %s/prefix -name librota.so)) && "
                  "cc " EXTRA_FLAGS " -rdynamic %s/host.c -I%s/prefix/include "
                  "$(pkg-config --cflags lua5.4) -L$lib -lrota -Wl,-rpath,$lib "
                  "-Wl,--whole-archive $(pkg-config --variable=libdir lua5.4)/liblua5.4.a "
                  "-Wl,--no-whole-archive -lm -ldl -o %s/host",
                  bench.root, bench.root, bench.root, bench.root);
  expect_output(workbench_path(&bench, "host"), "host's x is 43");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_find_package),  cmocka_unit_test(test_version_refused),
      cmocka_unit_test(test_pkg_config),    cmocka_unit_test(test_command),
      cmocka_unit_test(test_header),        cmocka_unit_test(test_exports),
      cmocka_unit_test(test_host_with_lua),
  };
  return cmocka_run_group_tests(tests, install, clean);
}
