// The stand-alone replay program: everything is in op_tools_replay.
#include <string>
#include <vector>

#include "run_op_from_data/replay.h"

int main(int argc, char** argv) {
  return op_tools::replay::run_command(std::vector<std::string>(argv + 1, argv + argc));
}
