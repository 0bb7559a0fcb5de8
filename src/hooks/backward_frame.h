// What only the frame of a backward pass knows (Phase::kBackward): it is a GradientsInGraph, too.
#pragma once

#include <vector>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API GradientsInGraph {
 public:
  virtual ~GradientsInGraph() = default;

  // CallGradients::in_graph.
  virtual const std::vector<bool>& in_graph() const = 0;
};

}  // namespace op_tools
