// The keys of a call of attention that no query reads: those behind the last, where a mask or the causal order leaves
// them out. Known for torch's own scaled dot product attention. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

struct AttentionForm {
  // Of the call's arguments. [..., keys, size].
  at::Tensor key, value;
  at::Tensor mask;           // [..., keys]; undefined: the causal order leaves out what is behind
  std::string_view why_not;  // it is not known
};

// nullopt: it is no attention, or has neither a mask nor the causal order: keys behind the last would be read.
OP_TOOLS_API std::optional<AttentionForm> attention_form(std::string_view op_name, const Value& args,
                                                         const Value& kwargs);

}  // namespace op_tools
