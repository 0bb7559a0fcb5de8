# Settings for a faster build of the project itself; nothing here changes the outputs, and nothing reaches those who
# use the installed package.
option(OP_TOOLS_PRECOMPILE "Precompile the headers that nearly every file includes" ON)
option(OP_TOOLS_UNITY "Compile small files of the tests, the bindings, replay and the simulated device together" ON)

# torch's headers then include the operators that they call, a header each, instead of all of them.
add_compile_definitions(AT_PER_OPERATOR_HEADERS)

# gcc's garbage collector walks over all that torch's headers made again and again. Without it a file takes an eighth
# less time, and up to 1.5 GB instead of 1 GB of memory.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=2000000>)

# A file that is compiled together with others is included by the file that the compiler is given: a class with a member of an
# unnamed namespace then looks like a header's.
if(CMAKE_UNITY_BUILD)
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

# Four files of the target are compiled together: most of a small file's time goes into the headers that it includes. The rooms of
# the library are not, so that an edit of a hook compiles a single file. Each file still includes its needs: clang-tidy in
# ./dev lint sees them singly.
function(op_tools_compile_together target)
  if(OP_TOOLS_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
    if(NOT CMAKE_UNITY_BUILD)  # ./dev matrix: then all targets, and more files at once
      set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 4)
    endif()
  endif()
endfunction()

# A program that links a shared library is not linked again when only the library's code changed: after an edit of a hook there is
# a single file to compile and a single library to link.
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)

# gcc 12 warns of bounds and overlaps in std::string's own code where nothing is wrong (its bug 105651). Such warnings of a
# system header are not shown, but in a precompiled header the standard library no longer counts as a system header.
function(op_tools_quiet_precompiled target)
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>")
endfunction()

# The target's files start with cmake/precompiled.h, which is parsed once. Each file still names its includes: a build
# with OP_TOOLS_PRECOMPILE=OFF, and clang-tidy in ./dev lint, compile without it.
function(op_tools_precompile target)
  if(NOT OP_TOOLS_PRECOMPILE)
    return()
  endif()
  op_tools_quiet_precompiled(${target})
  if(NOT TARGET op_tools_precompiled)
    add_library(op_tools_precompiled OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
    target_link_libraries(op_tools_precompiled PRIVATE op_tools::torch op_tools_warnings)
    op_tools_quiet_precompiled(op_tools_precompiled)
    target_precompile_headers(op_tools_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h
      $<$<BOOL:${CMAKE_UNITY_BUILD}>:${PROJECT_SOURCE_DIR}/cmake/precompiled_dispatcher.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM op_tools_precompiled)
endfunction()
