# Finds libtorch by its files and gives the target op_tools::torch (headers, libtorch_cpu, libc10) and, where it is a Python
# installation, op_tools::torch_python. Not torch's own TorchConfig.cmake: with a CUDA build torch's own file demands a CUDA
# toolkit on the machine, which nothing of ours needs.
#
# Where it looks: OP_TOOLS_TORCH_ROOT, the torch of Python_EXECUTABLE (or python3), CMAKE_PREFIX_PATH (a libtorch folder).
# A missing part is a fatal error with advice, so that whoever comes to the end has found it.
set(OpToolsTorch_FOUND TRUE)

# The versions of torch that op_tools works with, for the whole project: ./dev and cmake/build_backend.py read them here,
# and a test holds the README to them.
set(OP_TOOLS_TORCH_MINIMUM 2.7)
set(OP_TOOLS_TORCH_USUAL 2.13)  # of development: ./dev installs it where there is no torch
set(OP_TOOLS_TORCH_NEWEST 2.15)

if(NOT OP_TOOLS_TORCH_ROOT)
  if(NOT Python_EXECUTABLE)
    find_program(Python_EXECUTABLE NAMES python3 python)
  endif()
  if(Python_EXECUTABLE)
    # find_spec, not import: configuring must not take the seconds of importing torch.
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE OP_TOOLS_TORCH_FROM_PYTHON OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_path(OP_TOOLS_TORCH_INCLUDE torch/library.h
    HINTS ${OP_TOOLS_TORCH_FROM_PYTHON} PATH_SUFFIXES include NO_CACHE)
  if(NOT OP_TOOLS_TORCH_INCLUDE)
    message(FATAL_ERROR "op_tools: no libtorch found. Install torch >= ${OP_TOOLS_TORCH_MINIMUM} for ${Python_EXECUTABLE}, or unpack a libtorch and "
      "pass -DOP_TOOLS_TORCH_ROOT=<its folder> (the one that holds include/ and lib/).")
  endif()
  cmake_path(SET OP_TOOLS_TORCH_ROOT NORMALIZE "${OP_TOOLS_TORCH_INCLUDE}/..")
endif()

# The second folder: before torch 2.10.
find_file(OP_TOOLS_TORCH_VERSION_HEADER version.h PATHS ${OP_TOOLS_TORCH_ROOT}/include/torch/headeronly
  ${OP_TOOLS_TORCH_ROOT}/include/torch/csrc/api/include/torch NO_DEFAULT_PATH NO_CACHE REQUIRED)
file(STRINGS ${OP_TOOLS_TORCH_VERSION_HEADER} OP_TOOLS_TORCH_VERSION_LINES
  REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
  OP_TOOLS_TORCH_VERSION "${OP_TOOLS_TORCH_VERSION_LINES}")
if(OP_TOOLS_TORCH_VERSION VERSION_LESS OP_TOOLS_TORCH_MINIMUM)
  message(FATAL_ERROR "op_tools needs torch >= ${OP_TOOLS_TORCH_MINIMUM}; ${OP_TOOLS_TORCH_ROOT} holds ${OP_TOOLS_TORCH_VERSION}.")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" OP_TOOLS_TORCH_MINOR "${OP_TOOLS_TORCH_VERSION}")
if(OP_TOOLS_TORCH_MINOR VERSION_GREATER OP_TOOLS_TORCH_NEWEST)
  message(WARNING "op_tools was last tried with torch ${OP_TOOLS_TORCH_NEWEST}; this is ${OP_TOOLS_TORCH_VERSION}. "
    "If it does not compile, install torch ${OP_TOOLS_TORCH_NEWEST}.")
endif()
message(STATUS "op_tools: torch ${OP_TOOLS_TORCH_VERSION} in ${OP_TOOLS_TORCH_ROOT}")

function(op_tools_torch_library name)
  find_library(OP_TOOLS_LIB_${name} ${name} PATHS ${OP_TOOLS_TORCH_ROOT}/lib NO_DEFAULT_PATH NO_CACHE)
  set(OP_TOOLS_LIB_${name} ${OP_TOOLS_LIB_${name}} PARENT_SCOPE)
endfunction()
op_tools_torch_library(torch_cpu)
op_tools_torch_library(c10)
op_tools_torch_library(torch_python)
if(NOT OP_TOOLS_LIB_torch_cpu OR NOT OP_TOOLS_LIB_c10)
  message(FATAL_ERROR "op_tools: ${OP_TOOLS_TORCH_ROOT}/lib has no libtorch_cpu and libc10.")
endif()

if(TARGET op_tools::torch)
  return()  # found before, from another folder of this build
endif()
add_library(op_tools::torch INTERFACE IMPORTED GLOBAL)
# Imported: its include folders count as system headers, so warnings judge our code only. NDEBUG always: torch's
# release build lacks symbols that its headers call in debug mode.
target_include_directories(op_tools::torch INTERFACE
  ${OP_TOOLS_TORCH_ROOT}/include ${OP_TOOLS_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(op_tools::torch INTERFACE NDEBUG FMT_HEADER_ONLY=1)
target_compile_features(op_tools::torch INTERFACE cxx_std_20)
target_link_libraries(op_tools::torch INTERFACE ${OP_TOOLS_LIB_torch_cpu} ${OP_TOOLS_LIB_c10})

if(OP_TOOLS_LIB_torch_python)
  add_library(op_tools::torch_python INTERFACE IMPORTED GLOBAL)
  target_link_libraries(op_tools::torch_python INTERFACE op_tools::torch ${OP_TOOLS_LIB_torch_python})
endif()
