// CUDA graphs: while a stream is captured, reading a value or waiting for the device ends the capture with an error,
// and the program's graph with it. Asked by the chain for hooks that want values of the device, and by those that
// measure. Any thread.
#pragma once

#include <c10/core/Device.h>

#include "base/export.h"

namespace op_tools {

class OpCall;

// The device's current stream is being captured: it must be neither waited for nor asked for the time.
OP_TOOLS_API bool is_recording_graph(c10::Device device);

// The same of the first device of the call's inputs, else of the device that an argument names.
bool is_recorded_into_graph(OpCall& call);

}  // namespace op_tools
