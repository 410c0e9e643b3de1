/* A program that carries and exports a Lua of its own and loads Rota, compiled and run by
 * test_lua_isolation.c. With FAKE_LUA its Lua is a set of functions that none may ever call;
 * otherwise a real one, in use before, between and after. Usage: lua_host PATH_OF_LIBROTA */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rota/rota.h"

#ifdef FAKE_LUA
/* Exported by the executable, these come first in the search order of dynamic symbols. */
/* clang-format off */
#define TRAPS(X) \
  X(lua_newstate) X(lua_close) X(lua_settop) X(lua_pushnil) X(lua_pushcclosure) \
  X(lua_pushlightuserdata) X(lua_pushstring) X(lua_pushlstring) X(lua_pushinteger) \
  X(lua_pushvalue) X(lua_pushfstring) X(lua_callk) X(lua_pcallk) X(lua_load) X(lua_getfield) \
  X(lua_setfield) X(lua_rawseti) X(lua_next) X(lua_type) X(lua_tolstring) X(lua_tointegerx) \
  X(lua_tonumberx) X(lua_error) X(lua_sethook) X(lua_getstack) X(lua_getinfo) \
  X(lua_createtable) X(lua_setmetatable) X(lua_checkstack) X(lua_rotate) X(lua_absindex) \
  X(luaL_newstate) X(luaL_loadbufferx) X(luaL_requiref) X(luaL_checklstring) \
  X(luaL_checkinteger) X(luaL_setfuncs) X(luaL_error) X(luaL_checktype) X(luaL_checkversion_) \
  X(luaopen_base) X(luaopen_string) X(luaopen_table) X(luaopen_math)
/* clang-format on */
#define TRAP(name)                                                                                 \
  void name(void);                                                                                 \
  void name(void) {                                                                                \
    fprintf(stderr, "the host's " #name " was called\n");                                          \
    abort();                                                                                       \
  }
TRAPS(TRAP)

static void use_own_lua(void) {}
#else
#include <lauxlib.h>
#include <lualib.h>

/* The host's own state lives through all of Rota's work. */
static void use_own_lua(void) {
  static lua_State *lua;
  if (!lua) {
    lua = luaL_newstate();
    luaL_openlibs(lua);
    lua_pushinteger(lua, 0);
    lua_setglobal(lua, "count");
  }
  /* String methods are there: Rota took them from its own state only. */
  if (luaL_dostring(lua, "count = count + #('x'):rep(10) return count") != LUA_OK ||
      lua_tointeger(lua, -1) % 10 != 0) {
    fprintf(stderr, "the host's Lua is broken\n");
    exit(1);
  }
  lua_settop(lua, 0);
}
#endif

/* One function of the library. Through memcpy: C knows no conversion from void * to functions. */
static void find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  memcpy(function, &found, sizeof found);
}

static void expect(bool right, const char *what) {
  if (right)
    return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

int main(int count, char **arguments) {
  expect(count == 2, "usage");
  use_own_lua();
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  use_own_lua();
  expect(dlsym(library, "lua_newstate") == NULL, "librota exports lua_newstate");
  expect(dlsym(library, "rota_lua_stdout") == NULL, "librota exports rota_lua_stdout");
  __typeof__(&rota_context_create) create;
  __typeof__(&rota_context_destroy) destroy;
  __typeof__(&rota_spec_create_from_script) from_script;
  __typeof__(&rota_spec_get) get;
  __typeof__(&rota_spec_destroy) spec_destroy;
  __typeof__(&rota_error_message) error_message;
  find(library, "rota_context_create", &create);
  find(library, "rota_context_destroy", &destroy);
  find(library, "rota_spec_create_from_script", &from_script);
  find(library, "rota_spec_get", &get);
  find(library, "rota_spec_destroy", &spec_destroy);
  find(library, "rota_error_message", &error_message);

  rota_context *context;
  rota_context_options options = {.cache_dir = "", .debug = 0};
  expect(create(&options, &context) == ROTA_OK, "context");
  rota_spec *spec;
  const char *text = "return rota.attention { head_dim = 96, heads = 8, kv_heads = 2,\n"
                     " mask = causal & (window(64, 0) | sinks(4)), score = softcap(30) }";
  if (from_script(context, text, "model.lua", &spec) != ROTA_OK) {
    fprintf(stderr, "%s\n", error_message());
    return 1;
  }
  use_own_lua();
  rota_spec_fields fields;
  get(spec, &fields);
  expect(fields.head_dim == 96 && fields.kv_heads == 2, "fields");
  spec_destroy(spec);
  /* Errors unwind by longjmp: within the right Lua. */
  expect(from_script(context, "error('on purpose')", "model.lua", &spec) == ROTA_SCRIPT, "status");
  expect(strcmp(error_message(), "model.lua:1: on purpose") == 0, error_message());
  use_own_lua();
  destroy(context);
  use_own_lua();
  puts("both work");
  return 0;
}
