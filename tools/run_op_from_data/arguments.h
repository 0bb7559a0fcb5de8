// The command line of run_op_from_data as plain data. The only file that knows CLI11 is
// arguments.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/compare_options.h"

namespace op_tools::replay {

// Exit statuses. A disagreement counts more than a call that could not be run: 1 is a finding, 2
// says "incomplete".
constexpr int kAgrees = 0;
constexpr int kDiffers = 1;
constexpr int kIncomplete = 2;
constexpr int kWrongUsage = 64;

// The calls index, index + count, ... of all, in the order of their paths.
struct Shard {
  int64_t index = 0, count = 1;
};

struct ReplayOptions {
  std::vector<std::string> paths;
  bool acc_check = false;
  std::optional<CompareMethod> method;  // unset: that of the saved failure, else relative
  bool invariance = false;              // has each call the same bits when it is run again?
  bool allow_unseen = false;            // kAgrees in place of kIncomplete
  bool only_run_forward = false;
  bool sync_time_measure = false;
  bool verbose = false;  // a line per call
  bool quiet = false;    // no line per call, check or measurement: the summary only
  int run_times = 1;
  std::optional<int> warm_up;  // runs before those that count; unset: 1, where several runs are measured
  int jobs = 1;
  std::optional<Shard> shard;  // replay this part only
  bool merge = false;          // paths are reports of parts
  bool no_summary = false;     // for a launcher that gathers the reports
  std::string device = "cpu";
  std::string filter;                  // as OP_CAPTURE_LIST
  std::string json;                    // a file
  std::string expected;                // a file for the reference values and limits of the results
  std::string compare;                 // a file that --json wrote elsewhere
  std::optional<uint64_t> seed;        // in place of saved random states
  std::string shrink;                  // a folder for the smallest form of the only call that still fails
  int attempts = 200;                  // of shrink, at most
  int attempt_seconds = 60;            // after which the process ends with SIGALRM
  std::vector<std::string> libraries;  // to load first: operators, devices
};

struct Arguments {
  std::optional<ReplayOptions> options;  // none: there is nothing to run, and exit_status says how it ends
  int exit_status = 0;
};
// Writes help, version and complaints itself.
Arguments parse_arguments(const std::vector<std::string>& arguments);

}  // namespace op_tools::replay
