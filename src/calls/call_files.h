// What goes into the files of a call, for those who write them: OpCapture, and OpAutoCompare for its failures. The form
// is in docs/architecture.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "hooks/op_call.h"
#include "tensor/value.h"

namespace op_tools {

// The dict of input.pth, output.pth, grad_inputs.pth and grad_outputs.pth.
Value call_file(const std::string& name, uint64_t id, Value args, Value kwargs,
                std::vector<std::pair<Value, Value>> more = {});

// By input tensor: does the operator's schema say that it writes it? Empty at the torch level. Version counters don't
// tell for an operator that another one called below autograd: the outer one has counted already.
std::vector<bool> written_by_schema(OpCall& call);

// The operator's schema as torch prints it; empty when there is none (torch level). Kept by operator's name until the
// process ends: printing takes longer than a small call. Any thread.
const std::string& schema_text(const c10::OperatorHandle* op, std::string_view name);

// -1: the tensor has no version counter.
OP_TOOLS_API int64_t version_of(const at::Tensor& tensor);

}  // namespace op_tools
