// Calls that OpCapture saved and that are gone: the account of its run (coverage.json) says how many it saved of each
// operator. Of the reader of stored calls. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "calls/call_store.h"

namespace op_tools {

using CallsByFolder = std::map<std::string, uint64_t>;  // by the operator's folder

// Adds to `listing` what the account in a run's folder says of its calls, of which `here` are there, cut off or not.
// Folders without an account of OpCapture: nothing.
void judge_by_account(const std::string& run, CallsByFolder here, FoundCalls& listing);

}  // namespace op_tools
