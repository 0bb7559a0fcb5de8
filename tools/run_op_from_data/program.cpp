// The replay program's library: all of it is in op_tools_replay.
#include <string>
#include <vector>

#include "base/export.h"
#include "run_op_from_data/replay.h"

extern "C" OP_TOOLS_API int op_tools_run_op_from_data(int argc, char** argv);

int op_tools_run_op_from_data(int argc, char** argv) {
  return op_tools::replay::run_command(std::vector<std::string>(argv + 1, argv + argc));
}
