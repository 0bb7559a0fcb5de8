# Installs the headers that a user's program includes, and those that they include; the others are the project's own.
# Runs at installation, so that it reads the headers as they are then.
cmake_policy(VERSION 3.24)  # an installation script starts without
set(waiting op_tools.h sim_device/sim_device.h)
set(installed)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST installed)
    continue()
  endif()
  list(APPEND installed ${header})
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL ${OP_TOOLS_SOURCES}/${header} DESTINATION ${CMAKE_INSTALL_PREFIX}/include/op_tools/${folder})
  file(STRINGS ${OP_TOOLS_SOURCES}/${header} lines REGEX "^#include \"")
  list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
  list(APPEND waiting ${lines})
endwhile()
