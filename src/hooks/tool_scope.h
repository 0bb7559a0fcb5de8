// A tool as a C++ scope: starts when made (Error when an option or an environment value is wrong), ends with the block.
//
//   op_tools::OpCapture scope;              // from here to the end of the block, everything on this thread
//   op_tools::CaptureOptions options;       // or only some: options.ops = "add.*, mm";
//   op_tools::OpCapture scope{options};
#pragma once

#include <memory>
#include <utility>

#include "hooks/scope.h"

namespace op_tools {

// HookType: a Hook with an Options struct, made from the result of resolve(Options), with result().
template <class HookType>
class ToolScope {
 public:
  using Options = typename HookType::Options;

  ToolScope() : ToolScope(Options{}) {}
  explicit ToolScope(const Options& options) : ToolScope(resolve(options)) {}

  void step() { scope_.step(); }  // marks a training step
  auto result() const { return hook_->result(); }
  Coverage coverage() const { return scope_.coverage(); }
  Value report() const { return scope_.report(); }
  HookType& hook() { return *hook_; }

 private:
  explicit ToolScope(const Resolved<Options>& options)
      : hook_(std::make_shared<HookType>(options)), scope_(hook_, options.scope) {
    scope_.enter();
  }

  const std::shared_ptr<HookType> hook_;
  HookScope scope_;
};

}  // namespace op_tools
