/* Level 6. The Lua state, its limits, and the conversion between Lua's tables and the tree of
 * value.h. What scripts may say and what policy decides is written in lua/; here is only what Lua
 * cannot do for itself.
 *
 * Lua raises errors by longjmp, so no Lua call that may fail stands outside lua_pcall: every entry
 * is `run`. */
#include "generator/script.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "generator/value.h"

enum {
  HOOK_PERIOD = 100, /* instructions between looks at the limits */
  CHUNK_NAME_MAX = 1024,
};
static const size_t memory_limit = (size_t)64 << 20; /* bytes, of the whole state */
static const int64_t instruction_limit = 100000000;
static const int64_t time_limit =
    10; /* seconds of processor time: single instructions may be slow (`..`) */

/* The private copy of Lua refers to these in place of stdin, stdout and stderr (see
 * cmake/lua.cmake). */
__attribute__((visibility("hidden"))) FILE *rota_lua_stdin, *rota_lua_stdout, *rota_lua_stderr;
__attribute__((constructor)) static void set_streams(void) {
  rota_lua_stdin = stdin;
  rota_lua_stdout = stdout;
  rota_lua_stderr = stderr;
}

/* A list that script_names gave out. */
typedef struct NameList {
  struct NameList *next;
  char *table;
  Value names;
  const char **strings; /* borrowed from names, NULL at the end */
} NameList;

struct Script {
  lua_State *lua;
  const Store *store;
  locale_t locale; /* "C": numbers in messages and texts are written with a point */
  NameList *lists;
  size_t memory; /* bytes in use */
  /* Of the call in progress: */
  int64_t instructions;
  time_t deadline;
  const char *exhausted;      /* which limit was reached, NULL: none */
  bool refused;               /* an allocation was refused by memory_limit */
  char chunk[CHUNK_NAME_MAX]; /* the user's chunk; "": none runs */
  int line;                   /* its line that ran last */
  ScriptAsk *ask;             /* who answers host.ask, NULL: nobody */
  void *asked;
};

static Script *script_of(lua_State *lua) {
  return *(Script **)lua_getextraspace(lua);
}

/* ---- Limits --------------------------------------------------------------------------------- */

static void *allocate(void *data, void *old, size_t old_size, size_t size) {
  Script *script = data;
  if (!old)
    old_size = 0; /* then it tells the kind of object */
  if (size == 0) {
    free(old);
    script->memory -= old_size;
    return NULL;
  }
  if (size > old_size && size - old_size > memory_limit - script->memory) {
    script->refused = true;
    return NULL;
  }
  void *block = memory_resize(old, size, 1);
  /* Lua counts on shrinking to succeed; the larger block will do. */
  if (!block && size <= old_size)
    block = old;
  if (block)
    script->memory += size - old_size;
  return block;
}

static time_t processor_seconds(void) {
  struct timespec now = {0};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec;
}

/* User chunks are named "@file", shipped ones "=lua/...". */
static bool is_user(const lua_Debug *frame) {
  return frame->source[0] == '@';
}

/* Pushes file and line of the innermost user function. A tail call leaves no trace of its caller:
 * then the line that the hook saw last. Without a user's script: the frame at `level`. */
static int push_place(lua_State *lua, int level) {
  const Script *script = script_of(lua);
  lua_Debug frame;
  for (int i = 0; lua_getstack(lua, i, &frame); i++) {
    lua_getinfo(lua, "Sl", &frame);
    if (frame.currentline < 1 || !is_user(&frame))
      continue;
    lua_pushstring(lua, frame.source + 1);
    lua_pushinteger(lua, frame.currentline);
    return 2;
  }
  if (script->line > 0) {
    lua_pushstring(lua, script->chunk);
    lua_pushinteger(lua, script->line);
    return 2;
  }
  if (!lua_getstack(lua, level, &frame))
    return 0;
  lua_getinfo(lua, "Sl", &frame);
  lua_pushstring(lua, frame.source + 1);
  lua_pushinteger(lua, frame.currentline);
  return 2;
}

/* An error at the user's line. */
static int raise(lua_State *lua, const char *message) {
  if (push_place(lua, 0) == 2)
    lua_pushfstring(lua, "%s:%I: %s", lua_tostring(lua, -2), (LUAI_UACINT)lua_tointeger(lua, -1),
                    message);
  else
    lua_pushstring(lua, message);
  return lua_error(lua);
}

static void hook(lua_State *lua, lua_Debug *event) {
  Script *script = script_of(lua);
  if (event->event == LUA_HOOKLINE) {
    lua_getinfo(lua, "S", event);
    if (is_user(event))
      script->line = event->currentline;
    return;
  }
  script->instructions += HOOK_PERIOD;
  if (script->instructions > instruction_limit) {
    script->exhausted = "the script runs for more than 100 million instructions";
  } else if (processor_seconds() > script->deadline) {
    script->exhausted = "the script runs for more than 10 seconds";
  }
  /* Once reached, a limit strikes again every time: a pcall in the script gains nothing. */
  if (!script->exhausted)
    return;
  raise(lua, script->exhausted);
}

/* ---- What the shipped Lua code may ask of C: the table `host`, and `import` ----------------- */

static int host_place(lua_State *lua) {
  return push_place(lua, (int)luaL_checkinteger(lua, 1));
}

static int host_exhausted(lua_State *lua) {
  lua_pushboolean(lua, script_of(lua)->exhausted != NULL);
  return 1;
}

/* compile(text, name, environment): source text only, precompiled code could break out of the
 * sandbox. */
static int host_compile(lua_State *lua) {
  Script *script = script_of(lua);
  size_t length;
  const char *text = luaL_checklstring(lua, 1, &length);
  snprintf(script->chunk, sizeof script->chunk, "%s", luaL_checkstring(lua, 2));
  luaL_checktype(lua, 3, LUA_TTABLE);
  script->line = 1; /* until the first line runs */
  const char *name = lua_pushfstring(lua, "@%s", script->chunk);
  if (luaL_loadbufferx(lua, text, length, name, "t") != LUA_OK)
    return lua_error(lua);
  lua_pushvalue(lua, 3);
  lua_setupvalue(lua, -2, 1); /* _ENV */
  return 1;
}

/* enter(name): a function of that user's chunk is about to run again. */
static int host_enter(lua_State *lua) {
  Script *script = script_of(lua);
  snprintf(script->chunk, sizeof script->chunk, "%s", luaL_checkstring(lua, 1));
  script->line = 1;
  return 0;
}

/* ask(what, up to three integers): integers, from whoever called Lua (script_call_asking). */
static int host_ask(lua_State *lua) {
  enum { IN = 3, OUT = 5 };
  const Script *script = script_of(lua);
  int64_t in[IN] = {0}, out[OUT] = {0};
  const char *what = luaL_checkstring(lua, 1);
  for (int i = 0; i < IN && i + 2 <= lua_gettop(lua); i++)
    in[i] = luaL_checkinteger(lua, i + 2);
  if (!script->ask)
    return raise(lua, "what a schedule's function was given is of use only while it runs");
  int count = script->ask(script->asked, what, in, out);
  if (count < 0)
    return raise(lua, "there is no such chain, tile, head or item");
  luaL_checkstack(lua, OUT, "answers");
  for (int i = 0; i < count; i++)
    lua_pushinteger(lua, out[i]);
  return count;
}

/* leave(): the user's chunk has ended; later messages carry no place. */
static int host_leave(lua_State *lua) {
  script_of(lua)->line = 0;
  return 0;
}

/* list(prefix): the store's Lua files below a folder, sorted. */
static int host_list(lua_State *lua) {
  size_t length;
  const char *prefix = luaL_checklstring(lua, 1, &length);
  lua_newtable(lua);
  int count = 0;
  for (const char *const *path = store_paths(script_of(lua)->store); *path; path++) {
    size_t size = strlen(*path);
    if (strncmp(*path, prefix, length) != 0 || size < 4 || strcmp(*path + size - 4, ".lua") != 0)
      continue;
    lua_pushstring(lua, *path);
    lua_rawseti(lua, -2, ++count);
  }
  return 1;
}

/* import(path): the value that a file of the store returns; each file runs once. */
static int import(lua_State *lua) {
  const char *path = luaL_checkstring(lua, 1);
  lua_getfield(lua, LUA_REGISTRYINDEX, "rota.imported");
  if (lua_getfield(lua, -1, path) != LUA_TNIL)
    return 1;
  size_t length;
  const char *text = store_get(script_of(lua)->store, path, &length);
  if (!text)
    return luaL_error(lua, "%s is not in the store", path);
  const char *name = lua_pushfstring(lua, "=%s", path);
  if (luaL_loadbufferx(lua, text, length, name, "t") != LUA_OK)
    return lua_error(lua);
  lua_call(lua, 0, 1);
  lua_pushvalue(lua, -1);
  lua_setfield(lua, 2, path);
  return 1;
}

/* ---- Values --------------------------------------------------------------------------------- */

static void push_value(lua_State *lua, const Value *value) {
  luaL_checkstack(lua, 4, "a value is nested too deeply");
  switch (value->kind) {
  case KIND_NIL:
    lua_pushnil(lua);
    return;
  case KIND_BOOLEAN:
    lua_pushboolean(lua, value->as.boolean);
    return;
  case KIND_INTEGER:
    lua_pushinteger(lua, value->as.integer);
    return;
  case KIND_NUMBER:
    lua_pushnumber(lua, value->as.number);
    return;
  case KIND_STRING:
    lua_pushstring(lua, value->as.string);
    return;
  case KIND_TABLE:
    break;
  }
  lua_newtable(lua);
  for (int i = 0; i < value->as.table.count; i++) {
    const ValueEntry *entry = &value->as.table.entries[i];
    push_value(lua, &entry->value);
    if (entry->name)
      lua_setfield(lua, -2, entry->name);
    else
      lua_rawseti(lua, -2, entry->number);
  }
}

static rota_status read_value(lua_State *lua, int index, int depth, Value *value);

/* Raw access only: raises no error, so nothing is lost by a jump. */
static rota_status read_table(lua_State *lua, int index, int depth, Value *table) {
  if (depth == 0 || !lua_checkstack(lua, 4))
    return status_fail(ROTA_INTERNAL, "lua/main.lua: a value is nested too deeply");
  *table = (Value){.kind = KIND_TABLE};
  index = lua_absindex(lua, index);
  lua_pushnil(lua);
  while (lua_next(lua, index)) {
    bool named =
        lua_type(lua, -2) == LUA_TSTRING; /* lua_tostring would turn a number key into one */
    if (!named && !lua_isinteger(lua, -2))
      return status_fail(ROTA_INTERNAL, "lua/main.lua: keys are names and integers");
    Value *entry = named ? value_add(table, lua_tostring(lua, -2), 0)
                         : value_add(table, NULL, lua_tointeger(lua, -2));
    if (!entry)
      return ROTA_OUT_OF_MEMORY;
    ROTA_TRY(read_value(lua, -1, depth - 1, entry));
    lua_pop(lua, 1);
  }
  return ROTA_OK;
}

static rota_status read_value(lua_State *lua, int index, int depth, Value *value) {
  size_t length;
  switch (lua_type(lua, index)) {
  case LUA_TNIL:
    *value = (Value){0};
    return ROTA_OK;
  case LUA_TBOOLEAN:
    *value = (Value){.kind = KIND_BOOLEAN, .as.boolean = lua_toboolean(lua, index)};
    return ROTA_OK;
  case LUA_TNUMBER:
    if (lua_isinteger(lua, index))
      *value = (Value){.kind = KIND_INTEGER, .as.integer = lua_tointeger(lua, index)};
    else
      *value = (Value){.kind = KIND_NUMBER, .as.number = lua_tonumber(lua, index)};
    return ROTA_OK;
  case LUA_TSTRING: {
    const char *string = lua_tolstring(lua, index, &length);
    return value_copy_string(value, string, length);
  }
  case LUA_TTABLE:
    return read_table(lua, index, depth, value);
  default:
    return status_fail(ROTA_INTERNAL, "lua/main.lua: a %s where a plain value is expected",
                       lua_typename(lua, lua_type(lua, index)));
  }
}

/* ---- Calls ---------------------------------------------------------------------------------- */

/* Whether "somewhere:3:" stands in front. */
static bool has_place(const char *message) {
  for (const char *colon = strchr(message, ':'); colon; colon = strchr(colon + 1, ':')) {
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits > 0 && colon[1 + digits] == ':')
      return true;
  }
  return false;
}

/* Message handler: every error becomes a string, with a place in the user's script if there is one.
 */
static int explain(lua_State *lua) {
  const char *kind = luaL_typename(lua, 1);
  if (lua_type(lua, 1) != LUA_TSTRING) {
    if (lua_type(lua, 1) == LUA_TNUMBER)
      kind = lua_tostring(lua, 1);
    lua_pushfstring(lua, "error(%s) was called; give error a message", kind);
    lua_replace(lua, 1);
  }
  lua_settop(lua, 1);
  if (script_of(lua)->line == 0 || has_place(lua_tostring(lua, 1)))
    return 1;
  if (push_place(lua, 1) != 2)
    return 1;
  lua_pushfstring(lua, "%s:%I: %s", lua_tostring(lua, 2), (LUAI_UACINT)lua_tointeger(lua, 3),
                  lua_tostring(lua, 1));
  return 1;
}

/* Turns the error on top of the stack into a status. */
static rota_status failure(const Script *script, int code, rota_status status) {
  static const char memory_message[] = "not enough memory"; /* Lua's own */
  lua_State *lua = script->lua;
  const char *message = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : "unknown error";
  if (code != LUA_ERRMEM && strcmp(message, memory_message) != 0)
    return status_fail(status, "%s", message);
  if (!script->refused)
    return status_fail(ROTA_OUT_OF_MEMORY, "out of memory in Lua");
  if (script->line == 0)
    return status_fail(status, "more than 64 MB are needed in Lua");
  return status_fail(status, "%s:%d: the script uses more than 64 MB", script->chunk, script->line);
}

/* Runs `function` with `job` in protected mode and in the C locale. `status` is what Lua's errors
 * become. */
static rota_status run(Script *script, lua_CFunction function, void *job, rota_status status) {
  lua_State *lua = script->lua;
  script->instructions = 0;
  script->deadline = processor_seconds() + time_limit;
  script->exhausted = NULL;
  script->refused = false;
  script->line = 0;
  locale_t before = uselocale(script->locale);
  lua_settop(lua, 0);
  lua_pushcfunction(lua, explain);
  lua_pushcfunction(lua, function);
  lua_pushlightuserdata(lua, job);
  int code = lua_pcall(lua, 1, 0, 1);
  rota_status result = code == LUA_OK ? ROTA_OK : failure(script, code, status);
  lua_settop(lua, 0);
  uselocale(before);
  return result;
}

typedef struct Call {
  const char *function; /* of lua/main.lua */
  const Value *argument;
  Value *result;
  rota_status status;
} Call;

static rota_status status_from_name(const char *name) {
  static const char *const names[] = {
#define X(name, value, meaning) [value] = #name,
      ROTA_STATUS_LIST(X)
#undef X
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i] && strcmp(names[i], name) == 0)
      return (rota_status)i;
  }
  return ROTA_INTERNAL;
}

static int perform(lua_State *lua) {
  Call *call = lua_touserdata(lua, 1);
  lua_getfield(lua, LUA_REGISTRYINDEX, "rota.main");
  lua_getfield(lua, -1, call->function);
  push_value(lua, call->argument);
  lua_call(lua, 1, 3);
  if (lua_isnil(lua, -3) && lua_isstring(lua, -2)) { /* refused: nil, status, message */
    call->status = status_fail(status_from_name(lua_tostring(lua, -2)), "%s",
                               luaL_optstring(lua, -1, "refused without a reason"));
  } else {
    call->status = read_value(lua, -3, VALUE_DEPTH_MAX, call->result);
    value_sort(call->result);
  }
  return 0;
}

rota_status script_call_asking(Script *script, const char *function, const Value *argument,
                               rota_status status, ScriptAsk *ask, void *asked, Value *result) {
  Call call = {function, argument, result, ROTA_OK};
  script->ask = ask;
  script->asked = asked;
  rota_status ran = run(script, perform, &call, status);
  script->ask = NULL;
  script->asked = NULL;
  return ran == ROTA_OK ? call.status : ran;
}

rota_status script_call(Script *script, const char *function, const Value *argument,
                        rota_status status, Value *result) {
  return script_call_asking(script, function, argument, status, NULL, NULL, result);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int initialise(lua_State *lua) {
  static const luaL_Reg libraries[] = {{LUA_GNAME, luaopen_base},
                                       {LUA_TABLIBNAME, luaopen_table},
                                       {LUA_STRLIBNAME, luaopen_string},
                                       {LUA_MATHLIBNAME, luaopen_math}};
  static const luaL_Reg host[] = {{"place", host_place},     {"exhausted", host_exhausted},
                                  {"compile", host_compile}, {"leave", host_leave},
                                  {"enter", host_enter},     {"ask", host_ask},
                                  {"list", host_list},       {NULL, NULL}};
  for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
    luaL_requiref(lua, libraries[i].name, libraries[i].func, 1);
  /* No methods and no arithmetic on strings: scripts share the metatable with the shipped code. */
  lua_pushliteral(lua, "");
  lua_pushnil(lua);
  lua_setmetatable(lua, -2);
  luaL_newlib(lua, host);
  lua_setglobal(lua, "host");
  lua_newtable(lua);
  lua_setfield(lua, LUA_REGISTRYINDEX, "rota.imported");
  lua_pushcfunction(lua, import);
  lua_setglobal(lua, "import");
  lua_pushcfunction(lua, import);
  lua_pushliteral(lua, "lua/main.lua");
  lua_call(lua, 1, 1);
  lua_setfield(lua, LUA_REGISTRYINDEX, "rota.main");
  return 0;
}

rota_status script_create(const Store *store, Script **script) {
  *script = NULL;
  Script *made = memory_allocate(1, sizeof *made);
  if (!made)
    return ROTA_OUT_OF_MEMORY;
  made->store = store;
  made->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  made->lua = made->locale ? lua_newstate(allocate, made) : NULL;
  if (!made->lua) {
    script_destroy(made);
    return status_fail(ROTA_OUT_OF_MEMORY, "out of memory for Lua");
  }
  *(Script **)lua_getextraspace(made->lua) = made;
  lua_sethook(made->lua, hook, LUA_MASKLINE | LUA_MASKCOUNT, HOOK_PERIOD);
  rota_status status = run(made, initialise, NULL, ROTA_INTERNAL);
  if (status != ROTA_OK) {
    script_destroy(made);
    return status;
  }
  *script = made;
  return ROTA_OK;
}

void script_destroy(Script *script) {
  if (!script)
    return;
  if (script->lua)
    lua_close(script->lua);
  if (script->locale)
    freelocale(script->locale);
  while (script->lists) {
    NameList *list = script->lists;
    script->lists = list->next;
    value_free(&list->names);
    free(list->strings);
    free(list->table);
    free(list);
  }
  free(script);
}

/* ---- Names ---------------------------------------------------------------------------------- */

/* Fills a list that is already in the script's chain, so that it is released in any case. */
static rota_status fill_names(Script *script, const char *table, NameList *list) {
  Value argument = {0};
  rota_status status = value_set_string(&argument, "table", table);
  if (status == ROTA_OK)
    status = script_call(script, "names", &argument, ROTA_INTERNAL, &list->names);
  value_free(&argument);
  ROTA_TRY(status);
  if (list->names.kind != KIND_TABLE)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s: no such table of names", table);
  int count = value_count(&list->names);
  list->table = memory_copy_string(table);
  const char **strings = memory_allocate((size_t)count + 1, sizeof *strings);
  if (!list->table || !strings) {
    free(strings);
    return ROTA_OUT_OF_MEMORY;
  }
  for (int i = 0; i < count; i++)
    strings[i] = value_string(value_item(&list->names, i + 1), "");
  list->strings = strings;
  return ROTA_OK;
}

const char *const *script_names(Script *script, const char *table) {
  for (const NameList *list = script->lists; list; list = list->next) {
    if (list->strings && strcmp(list->table, table) == 0)
      return list->strings;
  }
  NameList *list = memory_allocate(1, sizeof *list);
  if (!list)
    return NULL;
  list->next = script->lists;
  script->lists = list;
  return fill_names(script, table, list) == ROTA_OK ? list->strings : NULL;
}
