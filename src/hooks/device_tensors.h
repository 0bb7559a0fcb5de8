// Whether a call that a tool took part in gave a tensor on a device other than the host: what a run on the host beside
// an accelerator lacks. One note for the process; who begins a run asks for it anew. Looking ends with the first such
// tensor, so a run on a device pays for a few calls only. Thread-safe.
#pragma once

#include <atomic>

#include "base/export.h"

namespace op_tools {

class OpCall;

inline std::atomic<bool> g_looks_for_device_tensors{false};

OP_TOOLS_API void look_for_device_tensors();  // anew, from the next call on
OP_TOOLS_API bool device_tensor_seen();       // since then

// After the call; it returned.
void look_for_device_tensor(OpCall& call) noexcept;

}  // namespace op_tools
