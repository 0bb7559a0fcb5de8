// What only the frame of a compiled graph knows (OpCall::is_graph): it is a GraphFrame, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/export.h"

namespace op_tools {

// Of its operators.
struct GraphTraits {
  bool has_unwritten_memory = false;  // some allocates memory and does not write it (torch.empty)
  bool adds_product = false;          // OpTrait::kAddsProduct
};

class OP_TOOLS_API GraphFrame {
 public:
  virtual ~GraphFrame() = default;

  // Results of the graph's call before, in their order, that the program still holds; undefined where it does not.
  virtual const std::vector<at::Tensor>& held_results() const = 0;
  virtual GraphTraits traits() const = 0;
};

}  // namespace op_tools
