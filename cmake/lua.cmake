# Lua 5.4 inside librota, invisible from outside. Debian's static Lua is position-independent but for its references to
# stdin, stdout and stderr; those are renamed to pointers of our own (generator/script.c sets them). With the archive's
# symbols excluded from export, a host that carries another Lua neither sees ours nor lends us its own.
find_path(LUA_INCLUDE lua.h PATH_SUFFIXES lua5.4 REQUIRED)
find_library(LUA_STATIC NAMES liblua5.4.a REQUIRED)
set(lua_private ${CMAKE_BINARY_DIR}/liblua_rota.a)
add_custom_command(
  OUTPUT ${lua_private}
  COMMAND ${CMAKE_OBJCOPY} --redefine-sym stdin=rota_lua_stdin --redefine-sym stdout=rota_lua_stdout
          --redefine-sym stderr=rota_lua_stderr ${LUA_STATIC} ${lua_private}
  DEPENDS ${LUA_STATIC} VERBATIM)
add_custom_target(rota_lua_archive DEPENDS ${lua_private})
add_library(rota_lua INTERFACE)
add_dependencies(rota_lua rota_lua_archive)
target_include_directories(rota_lua SYSTEM INTERFACE ${LUA_INCLUDE})
target_link_libraries(rota_lua INTERFACE ${lua_private} m)
