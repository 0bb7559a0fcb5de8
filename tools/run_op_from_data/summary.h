// The closing summary of a replay, and its parts: a digest of each call, from the call's report or from a file
// that --json wrote. So several parts of a replay (--shard) have a common summary. Prints to standard output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"
#include "run_op_from_data/report.h"

namespace op_tools::replay {

enum class CallStatus : uint8_t { kCouldNotRun, kDiffers, kAgrees, kNotJudged, kRan };
const char* to_string(CallStatus status);  // as in the JSON report: "could not run"

struct CallDigest {
  std::string path, name;
  CallStatus status = CallStatus::kRan;
  std::string reason;  // why it could not be run, or is not judged
  bool bit_equal = false;
  std::vector<double> forward_ms, backward_ms;
  // Of the result that disagrees most.
  struct Worst {
    std::string tensor, against, explained;
    double max_abs = 0, max_rel = 0;
  };
  std::optional<Worst> worst;
};

// Everything that the closing summary reports.
struct Summary {
  bool acc_check = false, sync_time_measure = false, allow_unseen = false;
  std::string device, filter, compare;  // as in ReplayOptions
  std::vector<CallDigest> calls;
  std::vector<std::string> problems;          // "path: reason" of calls that could not even be tried, or were cut off
  size_t left_out = 0;                        // by --filter
  std::set<std::string> left_out_names = {};  // not known of parts that were merged
  double seconds = 0;

  size_t count(CallStatus status) const;
  size_t not_run() const { return count(CallStatus::kCouldNotRun) + problems.size(); }
  size_t not_judged() const;  // with acc_check: calls that ran and have no verdict
  bool most_unjudged() const;
  size_t bit_equal() const;
  int exit_status() const;
};

// A filter that matched no call of all is a problem: a misspelt name must not pass for "all agree".
void note_filter(Summary* summary);

// A file that an option names cannot be read or written: kIncomplete, no wrong usage.
class FileError final : public Error {
 public:
  using Error::Error;
};
// `option`: "--json". Throws FileError. No file: nothing.
void check_writable(const std::string& option, const std::string& file);
// The exit status after `write`. When it throws FileError, that is said, and kAgrees becomes kIncomplete.
int status_after(int status, const std::function<void()>& write);

CallDigest digest_of(const CallReport& report);
CallStatus status_of(const CallReport& report);
void print_summary(const Summary& summary);
// "summary", "problems" and "times" of the JSON report.
nlohmann::json json_of(const Summary& summary);
// Throws FileError.
void write_json(const std::string& file, nlohmann::json summary, nlohmann::json calls);

// Reads parts that --json wrote, prints a summary of them, writes a JSON report where wanted. Returns the exit
// status of the whole. Throws FileError: a file cannot be read, or is no report; Error: a part is given twice, or is
// missing.
int merge_reports(const ReplayOptions& options);

}  // namespace op_tools::replay
