// What only the frame of a compiled graph knows (OpCall::is_graph): it is a GraphFrame, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API GraphFrame {
 public:
  virtual ~GraphFrame() = default;

  // Results of the graph's call before, in their order, that the program still holds; undefined where it does not.
  virtual const std::vector<at::Tensor>& held_results() const = 0;
  // An operator of the graph allocates memory and does not write it (torch.empty).
  virtual bool has_unwritten_memory() const = 0;
};

}  // namespace op_tools
