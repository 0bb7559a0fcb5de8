# Where built things go. Two layouts:
#   cmake --install: bin/run_op_from_data, lib/libop_tools.so, lib/cmake/op_tools/, include/op_tools/
#   a wheel:         the same inside the package op_tools/; among Python's scripts a small one that starts the program. Made by
#                    pip from the source (cmake/build_backend.py, SKBUILD), or by cmake/make_wheel.py (./dev wheel) from the
#                    contents of a build folder.
# For work on the project itself, the Python extensions are built into the source tree's op_tools/, so that the package can
# be imported from there.
include(CMakePackageConfigHelpers)

# --- How binaries find each other and torch: relative to themselves first. The absolute folder of the torch that we were
# built with is added unless a wheel is built for the very site-packages that hold it.
set(OP_TOOLS_TORCH_LIB ${OP_TOOLS_TORCH_ROOT}/lib)
cmake_path(NORMAL_PATH OP_TOOLS_TORCH_LIB)
set(OP_TOOLS_RPATH_FROM_LIB "$ORIGIN;${OP_TOOLS_TORCH_LIB}")
set(OP_TOOLS_RPATH_FROM_BIN "$ORIGIN/../lib;${OP_TOOLS_TORCH_LIB}")
if(OP_TOOLS_BUILD_PYTHON)
  set(OP_TOOLS_WHEEL_RPATH_FROM_LIB "$ORIGIN;$ORIGIN/../../torch/lib")
  set(OP_TOOLS_WHEEL_RPATH_FROM_BIN "$ORIGIN/../lib;$ORIGIN/../../torch/lib")
  cmake_path(IS_PREFIX Python_SITEARCH ${OP_TOOLS_TORCH_LIB} NORMALIZE OP_TOOLS_TORCH_BESIDE)
  if(NOT OP_TOOLS_TORCH_BESIDE)
    list(APPEND OP_TOOLS_WHEEL_RPATH_FROM_LIB ${OP_TOOLS_TORCH_LIB})
    list(APPEND OP_TOOLS_WHEEL_RPATH_FROM_BIN ${OP_TOOLS_TORCH_LIB})
  endif()
  # For make_wheel.py, which changes the paths that cmake --install has set.
  list(JOIN OP_TOOLS_WHEEL_RPATH_FROM_LIB ":" from_lib)
  list(JOIN OP_TOOLS_WHEEL_RPATH_FROM_BIN ":" from_bin)
  file(CONFIGURE OUTPUT wheel.json CONTENT [[{"lib": "@from_lib@", "bin": "@from_bin@",
    "torch": "@OP_TOOLS_TORCH_ROOT@", "older_glibc": "@OP_TOOLS_OLDER_GLIBC@"}]] @ONLY)
endif()
if(SKBUILD)
  set(OP_TOOLS_RPATH_FROM_LIB "${OP_TOOLS_WHEEL_RPATH_FROM_LIB}")
  set(OP_TOOLS_RPATH_FROM_BIN "${OP_TOOLS_WHEEL_RPATH_FROM_BIN}")
  install(PROGRAMS tools/run_op_from_data/run_op_from_data.py DESTINATION ${SKBUILD_SCRIPTS_DIR} RENAME run_op_from_data)
endif()
set_target_properties(op_tools op_tools_sim_device op_tools_replay_program PROPERTIES INSTALL_RPATH "${OP_TOOLS_RPATH_FROM_LIB}")
set_target_properties(run_op_from_data PROPERTIES INSTALL_RPATH "${OP_TOOLS_RPATH_FROM_BIN}")

# --- The library, its headers, the program.
install(TARGETS op_tools op_tools_sim_device EXPORT op_tools_targets LIBRARY DESTINATION lib)
install(TARGETS op_tools_replay_program LIBRARY DESTINATION lib)
install(TARGETS run_op_from_data RUNTIME DESTINATION bin)
# Headers include each other as "hooks/...": include/op_tools is on the include path as well.
install(CODE "set(OP_TOOLS_SOURCES [[${CMAKE_CURRENT_SOURCE_DIR}/src]])")
install(SCRIPT cmake/install_headers.cmake)
target_include_directories(op_tools PUBLIC $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/op_tools>)

# --- The CMake package: find_package(op_tools) gives op_tools::op_tools.
set(OP_TOOLS_CMAKE_DIR lib/cmake/op_tools)
configure_package_config_file(cmake/op_tools-config.cmake.in op_tools-config.cmake INSTALL_DESTINATION ${OP_TOOLS_CMAKE_DIR})
write_basic_package_version_file(op_tools-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT op_tools_targets NAMESPACE op_tools:: DESTINATION ${OP_TOOLS_CMAKE_DIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/op_tools-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/op_tools-config-version.cmake
  cmake/FindOpToolsTorch.cmake DESTINATION ${OP_TOOLS_CMAKE_DIR})
# The same from this build folder, without an installation: find_package(op_tools PATHS build/dev).
export(EXPORT op_tools_targets NAMESPACE op_tools:: FILE ${CMAKE_CURRENT_BINARY_DIR}/op_tools_targets.cmake)
configure_file(cmake/FindOpToolsTorch.cmake FindOpToolsTorch.cmake COPYONLY)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/include)
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/src ${CMAKE_CURRENT_BINARY_DIR}/include/op_tools SYMBOLIC)

# --- The Python extensions.
if(TARGET _C)
  # The facts that the package checks at import: an extension built with one torch does not work with another.
  if(SKBUILD AND NOT SKBUILD_STATE STREQUAL "editable")
    set(OP_TOOLS_PACKAGE_DIR ${CMAKE_CURRENT_BINARY_DIR}/package)
    install(TARGETS _C _sim LIBRARY DESTINATION .)
    install(FILES ${OP_TOOLS_PACKAGE_DIR}/_build_info.py DESTINATION .)
  else()
    set(OP_TOOLS_PACKAGE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/op_tools)
    install(TARGETS _C _sim LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  endif()
  configure_file(cmake/_build_info.py.in ${OP_TOOLS_PACKAGE_DIR}/_build_info.py @ONLY)
  set_target_properties(_C _sim PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${OP_TOOLS_PACKAGE_DIR}
    INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
endif()
