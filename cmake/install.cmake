# cmake --install: the library, its one header, the command, and what find_package(Rota) and pkg-config read. All of it may be
# moved as a whole: paths are relative.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Rota)

install(TARGETS rota EXPORT RotaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS rota_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/rota/rota.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rota)
install(EXPORT RotaTargets NAMESPACE Rota:: DESTINATION ${package_dir})

configure_package_config_file(cmake/RotaConfig.cmake.in ${CMAKE_BINARY_DIR}/RotaConfig.cmake
                              INSTALL_DESTINATION ${package_dir}
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Before 1.0 each minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/RotaConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/RotaConfig.cmake ${CMAKE_BINARY_DIR}/RotaConfigVersion.cmake
        DESTINATION ${package_dir})

# From the directory of rota.pc up to the prefix.
file(RELATIVE_PATH ROTA_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" ROTA_PC_PREFIX "${ROTA_PC_PREFIX}")
configure_file(cmake/rota.pc.in ${CMAKE_BINARY_DIR}/rota.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/rota.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The Python package carries its own copy (pyproject.toml), under a name without a version: wheels hold no links.
add_custom_target(python_library) # "rota" alone would name the command's file to Ninja
add_dependencies(python_library rota)
install(FILES $<TARGET_FILE:rota> DESTINATION rota RENAME librota.so COMPONENT python EXCLUDE_FROM_ALL)
