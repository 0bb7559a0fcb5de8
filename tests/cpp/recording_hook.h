// Hooks for tests: the first stores its calls, the second fails where it is told to.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/op_filter.h"
#include "base/options.h"
#include "hooks/hook.h"
#include "hooks/interceptor.h"
#include "hooks/scope.h"

namespace op_tools::test {

class RecordingHook final : public Hook {
 public:
  struct Seen {
    std::string name;
    std::vector<at::Tensor> inputs;  // as they were in before(): the program's own
    std::vector<at::Tensor> results;
    std::string error;
  };

  std::string_view name() const override { return "Recording"; }

  std::unique_ptr<HookState> before(OpCall& call) override {
    auto state = std::make_unique<State>();
    state->inputs = flatten_tensors(call.args());
    return state;
  }
  void after(OpCall& call, HookState* state) override {
    Seen seen{std::string(call.name), static_cast<State*>(state)->inputs, flatten_tensors(call.result()), call.error};
    std::lock_guard<std::mutex> lock(mutex_);
    seen_.push_back(std::move(seen));
  }

  std::vector<Seen> seen() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Seen& call : seen()) names.push_back(call.name);
    return names;
  }
  bool saw(const std::string& name) const {
    const auto all = names();
    return std::find(all.begin(), all.end(), name) != all.end();
  }

 private:
  struct State final : HookState {
    std::vector<at::Tensor> inputs;
  };
  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
};

class FailingHook final : public Hook {
 public:
  explicit FailingHook(bool in_before) : in_before_(in_before) {}
  std::string_view name() const override { return "Failing"; }
  std::unique_ptr<HookState> before(OpCall&) override {
    ++asked;
    if (in_before_) throw std::runtime_error("planted in before()");
    return nullptr;
  }
  void after(OpCall&, HookState*) override {
    if (!in_before_) throw std::runtime_error("planted in after()");
  }
  int asked = 0;

 private:
  const bool in_before_;
};

// For an executor at the aten level, after proceed(): gives the program another tensor for each result.
inline void replace_results(OpCall& call, const std::function<at::Tensor(const at::Tensor&)>& replace) {
  std::vector<c10::IValue> returns;
  for (const at::Tensor& tensor : flatten_tensors(call.frame().result())) returns.emplace_back(replace(tensor));
  dynamic_cast<interceptor::OperatorFrame&>(call.frame()).set_returns(std::move(returns));
}

inline ResolvedOptions admitting(std::string_view only = "", std::string_view skip = "") {
  ResolvedOptions options;
  options.filter = std::make_shared<const OpFilter>(only, skip, "only", "skip");
  return options;
}

}  // namespace op_tools::test
