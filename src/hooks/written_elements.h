// Which elements of memory that was never written a call writes: a common answer for OpOverflowCheck and OpRecord,
// which note them in UnwrittenMemory. An operator writes all of a tensor that it writes, but those that are told by an
// index which elements (x[1] = y, index_copy_), and those that make new elements of the old ones. Under InternalGuard;
// any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/op_call.h"
#include "tensor/unwritten_memory.h"

namespace op_tools {

// The operator of this name is told by an argument which elements it writes, or copies them. Asked once for each name.
bool names_elements(std::string_view op_name);

// Before a call of such an operator: the elements of its first argument that it will write. Nothing: all.
std::optional<WrittenElements> elements_named(OpCall& call,
                                              const std::function<WrittenElements(const at::Tensor&)>& shown_by);

// After the call. `inputs`: all tensors of its arguments, `written` by input; `named`: the answer before it.
void note_writes(const OpCall& call, c10::ArrayRef<at::Tensor> inputs, const std::vector<bool>& written,
                 const std::optional<WrittenElements>& named, UnwrittenMemory* memory);

}  // namespace op_tools
