// A Value tree whose tensors were taken out, so that it holds none of the program's memory; to be filled again later
// with restore_tensors, in the order of for_each_tensor.
#pragma once

#include <functional>

#include "tensor/value.h"

namespace op_tools {

// The same tree with something empty in the place of each tensor; `taken` gets the tensors.
Value strip_tensors(const Value& value, const std::function<void(const at::Tensor&)>& taken);

// Fills the places of a strip_tensors tree: next() gives the values in turn.
inline Value restore_tensors(const Value& stripped, const std::function<Value()>& next) {
  return map_tensors(stripped, [&](const at::Tensor&) { return next(); });
}

}  // namespace op_tools
