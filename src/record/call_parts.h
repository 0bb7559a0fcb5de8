// The arguments or results of a call, taken apart for a row: its tensors with the places where they stand, and the rest
// as JSON.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "tensor/value.h"

namespace op_tools {

struct PlacedTensor {
  std::string place;  // "args[0]", "kwargs.weight", "args[1][2]", "result"; of a module's own: "self.weight"
  at::Tensor tensor;

  bool is_own() const;  // a parameter or buffer of the module that is called
};

class CallParts {
 public:
  void add_arguments(const Value& args, const Value& kwargs);
  void add_result(const Value& result);

  void add_text(const std::string& name, const std::string& text);  // beside the arguments

  const std::vector<PlacedTensor>& tensors() const { return tensors_; }
  std::vector<PlacedTensor> take_tensors() { return std::move(tensors_); }
  // {"args[1]": 2, "kwargs.dim": [0, 1]}; empty where all are tensors or None. A very long value is given by its hash.
  std::string scalars() const;

 private:
  void add(const Value& value, std::string& place);

  std::vector<PlacedTensor> tensors_;
  std::string scalars_;
};

}  // namespace op_tools
