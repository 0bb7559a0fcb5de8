// Runs captured calls again and judges them: the engine of the program run_op_from_data and of the Python module
// op_tools.run_op_from_data.
//
// For each call: read, resolve, restore the program's state, run on fresh inputs, backward from the
// saved output gradients, compare. No failure of a call and no fault of its files ends the run: it
// is reported with its path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "run_op_from_data/arguments.h"
#include "tensor/value.h"

namespace op_tools::replay {

// Calls of Python functions, for the Python module; the C++ program has none. Used for calls of
// torch functions whose files do not say which aten operator they were. Called on worker threads,
// without the GIL; exceptions are the call's.
class PythonCaller {
 public:
  virtual ~PythonCaller() = default;
  virtual bool knows(std::string_view name) = 0;
  virtual Value call(std::string_view name, const Value& args, const Value& kwargs) = 0;
  // Asked between two calls, on the thread that called run(): Ctrl-C has arrived, and the rest is left out.
  virtual bool is_interrupted() { return false; }
};

// Replays as the options say; lines go to the log, the summary to standard output. Returns the
// exit status (arguments.h). Throws Error for settings that are wrong (filter, tolerance variables,
// device, library, JSON file).
int run(const ReplayOptions& options, PythonCaller* caller = nullptr);

// The whole program: arguments (without the program's name) in, exit status out. Never throws.
int run_command(const std::vector<std::string>& arguments, PythonCaller* caller = nullptr);

}  // namespace op_tools::replay
