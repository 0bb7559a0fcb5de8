// The outcome of each replayed call, and all output for people and programs:
// lines, progress bar, summary, JSON. Measuring and comparing (replay.cpp) print nothing
// themselves.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "compare/call_judge.h"
#include "run_op_from_data/arguments.h"

namespace op_tools::replay {

enum class Status { kLeftOut, kRan, kCouldNotRun };

struct CallReport {
  std::string path;
  std::string name;
  std::string target;  // the operator that ran
  Status status = Status::kRan;
  std::string reason;   // why it could not be run
  std::string missing;  // the parts that its files lack although it was run
  std::vector<Check> checks;
  std::vector<double> forward_ms, backward_ms;  // by run (and backward pass)

  bool differs() const;
  bool comparable() const;  // some check has a verdict
  bool bit_equal() const;   // comparable, and all of that has the same bits
};

// Takes reports in any order from any thread, prints in the order of the calls.
class Reporter {
 public:
  // `of_all`: the number of all calls, of which those are a part.
  Reporter(const ReplayOptions& options, size_t calls, size_t of_all);
  void add(size_t index, CallReport report);
  // After all calls: writes the summary to standard output, JSON where wanted. `problems`: "path:
  // reason" of calls that could not even be tried. Returns the exit status. Throws Error when the JSON
  // file cannot be written.
  int finish(std::vector<std::string> problems, double seconds);

 private:
  void print_lines(const CallReport& report) const;
  void show_progress(const CallReport& report);
  nlohmann::json json_calls() const;

  const ReplayOptions& options_;
  const size_t of_all_;
  std::mutex mutex_;  // guards the members below while calls run
  std::vector<CallReport> reports_;
  std::vector<bool> arrived_;
  size_t printed_ = 0;
  size_t done_ = 0;
};

}  // namespace op_tools::replay
