// The record of a call besides its time. Used by the time hook.
#pragma once

#include <string>

#include "hooks/op_call.h"
#include "timing/call_timer.h"
#include "timing/time_records.h"

namespace op_tools {

// "cpu", "cuda:0, cpu"; of no device: "cpu".
std::string names_of(const CallDevices& devices);

// Before the operator runs.
CallDetails describe_call(OpCall& call, const CallDevices& devices);

// Inputs and results, to stand behind the time in the line of a call. After the operator ran; the arguments must
// have been asked for before.
std::string values_text(OpCall& call);

}  // namespace op_tools
