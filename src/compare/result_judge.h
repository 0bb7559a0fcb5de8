// Judges a tensor that a call gave against the runs that its judgement needs: the CPU's in the same dtypes, float64's,
// those that measure noise. An object per call; not shared between threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compare/call_facts.h"
#include "compare/judge.h"
#include "compare/rerun/reruns.h"

namespace op_tools {

class ResultJudge {
 public:
  using Pick = std::function<at::Tensor(const RunOutcome&)>;  // the tensor in question, of any run
  enum class Subject : uint8_t {
    kResult,       // or an input that the call changed
    kShownInputs,  // a result that shows memory of unchanged inputs and has no numbers of its own
    kGradient,
  };

  // All are held by reference.
  ResultJudge(const CallFacts& facts, const RunOutcome& observed, Reruns& reruns)
      : facts_(facts), observed_(observed), reruns_(reruns) {}

  // `pick` must give an undefined tensor for runs that did not return.
  TensorVerdict judge_tensor(const at::Tensor& observed, const Pick& pick, Subject subject = Subject::kResult);

 private:
  JudgeContext context_of(const at::Tensor& observed, const Pick& pick, Subject subject);
  double coarser_unit(c10::ScalarType dtype, Subject subject) const;
  bool has_nan_for(const at::Tensor& result);
  int64_t summed_inside(std::string_view base) const;
  double rounded_inside(const at::Tensor& observed, const Pick& pick, Subject subject);
  bool overflows(c10::ScalarType dtype);
  int64_t rounded_terms(const at::Tensor& observed, Subject subject) const;
  bool needs_no_rounding(const at::Tensor& observed) const;
  bool is_of_integers(const at::Tensor& observed) const;
  bool has_integers_below(size_t bytes) const;
  TensorVerdict judge_integers(const at::Tensor& observed, const Pick& pick);
  std::optional<TensorVerdict> judge_shown(const at::Tensor& observed, const Pick& pick, JudgeContext context);
  TensorVerdict reconsidered(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference,
                             const Pick& pick, const JudgeContext& context, Subject subject);
  std::shared_ptr<Expectation> expected_of(const at::Tensor& observed, const at::Tensor& reference,
                                           JudgeContext context, Subject subject) const;

  const CallFacts& facts_;
  const RunOutcome& observed_;
  Reruns& reruns_;
  std::vector<std::optional<bool>> nans_;  // by tensor index of the inputs, where it was asked
};

}  // namespace op_tools
