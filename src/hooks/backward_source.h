// The part of a source of torch-level calls for hooks that take part in the backward of its calls: it collects the
// gradients by call and follows the call's autograd nodes, as far as hooks want that (Wants). An object per call, used
// from Frame::prepare() and Frame::conclude() on the thread of the call.
#pragma once

#include <memory>
#include <optional>

#include "autograd/gradients.h"
#include "autograd/node_watch.h"
#include "base/export.h"
#include "hooks/chain.h"
#include "hooks/op_call.h"

namespace op_tools {

class OP_TOOLS_API BackwardSource {
 public:
  // `chain` outlives the call.
  explicit BackwardSource(const Chain& chain) : chain_(chain) {}

  void prepare(OpCall& call);                     // before the operator runs
  void conclude(OpCall& call);                    // after it returned
  bool is_identity() const { return identity_; }  // as Frame::is_identity()

 private:
  const Chain& chain_;
  std::unique_ptr<GradientCollector> collector_;
  std::optional<NewNodes> new_nodes_;
  bool identity_ = false;
};

}  // namespace op_tools
