/* lua/sandbox.lua and the limits of generator/script.c: each way out that we know of is tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <time.h>

#include "generator/text.h"
#include "tests/support/scripts.h"

static void test_what_is_not_there(void **state) {
  (void)state;
  static const char *const names[] = {
      "io",      "os",      "load",     "loadstring",     "loadfile",     "dofile",
      "require", "package", "debug",    "collectgarbage", "getmetatable", "setmetatable",
      "rawget",  "rawset",  "rawequal", "rawlen",         "next",         "coroutine",
      "print",   "xpcall",  "host",     "import",         "_G",           "utf8",
      "module",  "setfenv", "newproxy", "warn",           "_VERSION"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char text[64], words[64];
    snprintf(text, sizeof text, "return %s", names[i]);
    snprintf(words, sizeof words, "model.lua:1: unknown name '%s'", names[i]);
    check_fails(text, ROTA_SCRIPT, words);
    snprintf(text, sizeof text, "return _ENV['%s']", names[i]);
    check_fails(text, ROTA_SCRIPT, words);
  }
  static const char *const members[] = {
      "string.rep",  "string.find", "string.gsub", "string.match", "string.gmatch",
      "string.dump", "string.pack", "table.move",  "math.random",  "math.randomseed"};
  for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
    char text[64];
    snprintf(text, sizeof text, "%s()", members[i]);
    check_fails(text, ROTA_SCRIPT, "model.lua:1: attempt to call a nil value");
  }
}

static void test_escapes(void **state) {
  (void)state;
  /* Through strings, whose metatable is shared by everyone. */
  check_fails("return ('x').rep", ROTA_SCRIPT, "attempt to index a string value");
  check_fails("return ('x'):gsub('x', 'y')", ROTA_SCRIPT, "attempt to index a string value");
  /* Precompiled code could do anything. */
  check_fails("\033Lua", ROTA_SCRIPT, "attempt to load a binary chunk");
  /* Sealed values and the vocabulary. */
  check_fails("causal.call = 1", ROTA_SCRIPT, "cannot be changed");
  check_fails("rota.causal = full", ROTA_SCRIPT, "cannot be changed");
  check_fails("rota.x = 1", ROTA_SCRIPT, "cannot be changed");
  check_fails("return causal.text", ROTA_SCRIPT, "a mask has no field 'text'");
  check_fails("for k, v in pairs(causal) do error(k) end for k, v in pairs(rota) do error(k) end",
              ROTA_SCRIPT, "returned a nil");
  check_fails("return string.format('%p', rota)", ROTA_SCRIPT, "%p is not available");
  check_fails("return string.format('%-20p', 'x')", ROTA_SCRIPT, "%p is not available");
  check_fails("error(string.format('%s', pairs))", ROTA_SCRIPT, "model.lua:1: function");
  check_fails("error(tostring({}))", ROTA_SCRIPT, "model.lua:1: table");
  /* The environment itself can be spoilt, for this script alone. */
  check_fails("causal = 3 string.format = nil math.floor = nil pairs = nil _ENV.window = nil\n"
              "return causal",
              ROTA_SCRIPT, "returned a number");
  Spec spec = spec_of("local n = math.floor(4.5)\n"
                      "return rota.attention { head_dim = 64, mask = causal & window(n, 0) }");
  spec_free(&spec);
  /* The errors of a pcall are the script's own affair. */
  spec = spec_of("local ok, message = pcall(error, 'x') assert(not ok and message == 'x')\n"
                 "local ok, message = pcall(window, 'x') assert(not ok)\n"
                 "assert(select('#', pcall(function() return 1, 2, 3 end)) == 4)\n"
                 "return rota.attention { head_dim = 64 }");
  spec_free(&spec);
}

static void test_limits(void **state) {
  (void)state;
  static const char *const endless[] = {
      "while true do end",
      "local function f() return f() end f()",
      "pcall(function() while true do end end)",
      "while true do pcall(function() while true do end end) end",
      "local function f() pcall(f) while true do end end f()",
      "goto top ::top:: goto top",
      "for i = 1, math.maxinteger do end",
      "table.sort({3, 2, 1}, function() while true do end end)",
  };
  for (size_t i = 0; i < sizeof endless / sizeof endless[0]; i++) {
    clock_t begin = clock();
    check_fails(endless[i], ROTA_SCRIPT, "model.lua:|the script runs for more than 1");
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 60);
  }
  static const char *const greedy[] = {
      "local s = 'x' while true do s = s .. s end",
      "local t = {} while true do t[#t + 1] = {} end",
      "local s = 'x' pcall(function() while true do s = s .. s end end) while true do s = s .. s "
      "end",
      "local t = {} for i = 1, 1e9 do t[i] = 'x' .. i end",
      "local function f() return f() + 1 end pcall(f) local t = {} while true do t[#t + 1] = {} "
      "end",
  };
  for (size_t i = 0; i < sizeof greedy / sizeof greedy[0]; i++)
    check_fails(greedy[i], ROTA_SCRIPT, "model.lua:1|64 MB");
  /* A pcall must not hide that memory ran out. */
  check_fails("pcall(function() local s = 'x' while true do s = s .. s end end)\n"
              "return rota.attention { head_dim = 64 }",
              ROTA_SCRIPT, "64 MB");
  /* Deep nesting meets Lua's own limits. */
  Text text = {0};
  text_append(&text, "return ");
  for (int i = 0; i < 10000; i++)
    text_append(&text, "(");
  check_fails(text.data, ROTA_SCRIPT, "model.lua:1");
  text_free(&text);
  /* Afterwards the state serves as before. */
  Spec spec = spec_of("return rota.attention { head_dim = 64, mask = causal }");
  spec_free(&spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_not_there),
      cmocka_unit_test(test_escapes),
      cmocka_unit_test(test_limits),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
