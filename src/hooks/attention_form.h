// The queries and keys of a call of attention, and which keys a query reads: all, those of a mask, or in causal order
// those up to its own place. Known for torch's own scaled dot product attention. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

struct AttentionForm {
  // Of the call's arguments. [..., queries, size], [..., keys, size].
  at::Tensor query, key, value;
  at::Tensor mask;              // [..., keys]; undefined: none
  bool is_causal = false;       // query i reads the keys up to i
  std::string_view why_not;     // it is not known
  std::string_view parameters;  // of the operator, in order (python_arguments.h)
  std::string_view mask_name;   // of these; empty: it takes none
  // Keys behind the last would not be read.
  bool leaves_out() const { return mask.defined() || is_causal; }
};

// nullopt: it is no attention.
OP_TOOLS_API std::optional<AttentionForm> attention_form(std::string_view op_name, const Value& args,
                                                         const Value& kwargs);

}  // namespace op_tools
