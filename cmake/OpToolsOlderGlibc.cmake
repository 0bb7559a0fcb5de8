# Libraries and programs that are built here load where glibc is 2.28 or newer and libstdc++ that of gcc 8 or newer, as torch's own
# wheels do (manylinux_2_28), whatever newer glibc they were built with.
option(OP_TOOLS_OLDER_GLIBC "Build for glibc 2.28 and newer (the presets do; without it: for this machine's glibc)" OFF)

# std::to_chars of floating-point numbers is younger than gcc 8: libop_tools.so has libstdc++'s own inside.
function(op_tools_own_to_chars target)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE archive
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/to_chars)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CMAKE_AR} x ${archive} floating_to_chars.o WORKING_DIRECTORY ${folder} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_AR} rcs libop_tools_to_chars.a floating_to_chars.o WORKING_DIRECTORY ${folder}
    COMMAND_ERROR_IS_FATAL ANY)
  target_link_libraries(${target} PRIVATE ${folder}/libop_tools_to_chars.a)
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,libop_tools_to_chars.a)
endfunction()

# op_tools_for_older_glibc(TARGET...): shared libraries, modules and programs.
function(op_tools_for_older_glibc)
  if(NOT OP_TOOLS_OLDER_GLIBC OR OP_TOOLS_SANITIZE OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if(NOT TARGET op_tools_older_glibc)
    add_library(op_tools_older_glibc OBJECT ${PROJECT_SOURCE_DIR}/cmake/older_glibc.cpp)
    # The compiler may not take a definition for the function that it knows by that name.
    target_compile_options(op_tools_older_glibc PRIVATE -fno-builtin)
    add_library(op_tools_older_glibc_start OBJECT ${PROJECT_SOURCE_DIR}/cmake/older_glibc_start.cpp)
  endif()
  foreach(target IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:op_tools_older_glibc>)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:op_tools_older_glibc_start>)
    endif()
  endforeach()
endfunction()
