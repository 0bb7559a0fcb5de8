// Calls that OpCapture saved and that are gone: the account of its run (coverage.json) says how many it saved of each
// operator. Of the reader of stored calls. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "calls/call_store.h"

namespace op_tools {

using CallsByFolder = std::map<std::string, uint64_t>;  // by the operator's folder

// The ranks of a launch that have calls or an account, by the folder that holds theirs: <launch>/<rank>/<time>.
class RanksOfLaunches {
 public:
  // The run of a rank; folders of another form are of none. `launched`: how many ranks the account says there were.
  void add(const std::string& run, int64_t launched = 0);
  // Adds a sentence for each launch in which ranks are missing: below the largest, or of those that were launched.
  // Launches without an account are left out, and those outside of `top`: who names the folder of a rank asks for no
  // other.
  void name_missing(const std::string& top, std::vector<std::string>& problems) const;

 private:
  struct Launch {
    std::set<int64_t> ranks;
    int64_t launched = 0;
  };
  std::map<std::string, Launch> launches_;
};

// Adds to `listing` what the account in a run's folder says of its calls, of which `here` are there, cut off or not.
// Folders without an account of OpCapture: nothing. Returns the number of launched ranks; 0: it is not known.
int64_t judge_by_account(const std::string& run, CallsByFolder here, FoundCalls& listing);

}  // namespace op_tools
