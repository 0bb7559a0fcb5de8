// The runs of a call again that its judge asked for, each made once. An object per call; not shared between threads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "compare/rerun/run_outcome.h"

namespace op_tools {

using RunAgain = std::function<RunOutcome(const RunVariant&)>;

class Reruns {
 public:
  // Held by reference.
  explicit Reruns(const RunAgain& again) : again_(again) {}

  // References stay valid until take_reference().
  const RunOutcome& reference() {
    if (!reference_) reference_ = again_({RunVariant::Kind::kReference});
    return *reference_;
  }
  const RunOutcome& variant(const RunVariant& variant) {
    const std::tuple key(variant.kind, variant.sample, variant.coarse);
    const auto known = variants_.find(key);
    return known != variants_.end() ? known->second : variants_.emplace(key, again_(variant)).first->second;
  }

  // nullopt: it was not needed.
  std::optional<RunOutcome> take_reference() { return std::move(reference_); }

 private:
  const RunAgain& again_;
  std::optional<RunOutcome> reference_;
  std::map<std::tuple<RunVariant::Kind, int, bool>, RunOutcome> variants_;  // by kind, sample, coarse
};

}  // namespace op_tools
