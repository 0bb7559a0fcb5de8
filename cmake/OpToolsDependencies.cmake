# The libraries besides torch: the system's first (find_package), FetchContent for machines with a network.
include(FetchContent)

find_package(ZLIB REQUIRED)

find_package(spdlog QUIET)
if(NOT spdlog_FOUND)
  FetchContent_Declare(spdlog GIT_REPOSITORY https://github.com/gabime/spdlog.git GIT_TAG v1.14.1)
  FetchContent_MakeAvailable(spdlog)
endif()
# Header-only spdlog and fmt, so that no libspdlog or libfmt is needed where the wheel runs.
add_library(op_tools_spdlog INTERFACE)
get_target_property(OP_TOOLS_SPDLOG_INCLUDE spdlog::spdlog_header_only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(op_tools_spdlog SYSTEM INTERFACE ${OP_TOOLS_SPDLOG_INCLUDE})
target_compile_definitions(op_tools_spdlog INTERFACE FMT_HEADER_ONLY=1)
find_package(fmt QUIET)
if(fmt_FOUND)
  # Debian's spdlog uses the system's fmt.
  target_compile_definitions(op_tools_spdlog INTERFACE SPDLOG_FMT_EXTERNAL=1)
endif()

find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  FetchContent_Declare(nlohmann_json URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz)
  FetchContent_MakeAvailable(nlohmann_json)
endif()
add_library(op_tools_json INTERFACE)
target_link_libraries(op_tools_json INTERFACE nlohmann_json::nlohmann_json)

find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  FetchContent_Declare(cli11 GIT_REPOSITORY https://github.com/CLIUtils/CLI11.git GIT_TAG v2.4.2)
  FetchContent_MakeAvailable(cli11)
endif()
add_library(op_tools_cli11 INTERFACE)
target_link_libraries(op_tools_cli11 INTERFACE CLI11::CLI11)

if(OP_TOOLS_BUILD_TESTS)
  find_package(Catch2 QUIET)
  if(NOT Catch2_FOUND)
    FetchContent_Declare(Catch2 GIT_REPOSITORY https://github.com/catchorg/Catch2.git GIT_TAG v3.7.1)
    FetchContent_MakeAvailable(Catch2)
  endif()
endif()
