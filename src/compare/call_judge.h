// Judges a call: every output, every input that it changes (or changes though it must not), every input gradient.
// Asks for the reference runs it needs, and for none that it does not. Used by the compare hook and by
// run_op_from_data. An object per call; not shared between threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "compare/call_facts.h"
#include "compare/judge.h"
#include "compare/rerun/reruns.h"
#include "compare/result_judge.h"
#include "tensor/tensor_meta.h"
#include "tensor/value.h"

namespace op_tools {

// The part of a call that was judged.
enum class Part : uint8_t {
  kCall,  // whether it returned
  kOutput,
  kInput,  // after the call
  kGradient,
};
OP_TOOLS_API std::string_view to_string(Part part);

struct Check {
  std::string subject;  // for people: "" (the output), "0th", "0th input grad", "input 1 after the call"
  TensorVerdict judgement;
  std::optional<TensorMeta> form;  // of the result; none when there is none
  Part part = Part::kCall;
  std::optional<size_t> index = {};  // of several outputs, inputs or gradients
  std::string against = {};          // replay: "saved" or "cpu"; live judging knows the CPU alone
};

class OP_TOOLS_API CallJudge {
 public:
  // All are held by reference.
  CallJudge(const CallFacts& facts, const RunOutcome& observed, const RunAgain& again)
      : facts_(facts), observed_(observed), reruns_(again), results_(facts, observed, reruns_) {}

  std::vector<Check> forward();    // outputs and inputs
  std::vector<Check> gradients();  // input gradients: the runs must have gone backward
  // Of results that agree otherwise: those with other strides or memory than the CPU's.
  std::vector<Check> memory();

  // The CPU's run, where it was needed. Nothing is judged after that.
  std::optional<RunOutcome> take_reference() { return reruns_.take_reference(); }

 private:
  struct Listed {
    Values leaves;
    std::vector<at::Tensor> tensors;
  };
  const Listed& listed(const RunOutcome& run);
  at::Tensor leaf_tensor(const RunOutcome& run, size_t leaf);
  void judge_leaf(size_t leaf, size_t count, size_t* tensor_index);
  void judge_numbers();
  void judge_raised(const char* where);
  void judge_inputs();
  bool is_unchanged(size_t input);
  bool shows_inputs(size_t tensor_index);
  void look_at_form(const at::Tensor& result, size_t leaf, TensorVerdict* judgement);
  void look_at_memory(size_t tensor_index, TensorVerdict* judgement);
  std::string fault_of_sharing(size_t tensor_index);
  bool lacks_gradient_function(size_t tensor_index);
  bool is_lost_for_second_order(size_t gradient);
  bool shows_unwritten_memory(size_t leaf);
  std::vector<int64_t> expected_strides(size_t tensor_index);
  std::vector<int64_t> strides_without_data(size_t tensor_index);
  void look_at_strides(const at::Tensor& gradient, const at::Tensor& wanted, TensorVerdict* judgement) const;
  void add(Part part, std::optional<size_t> index, TensorVerdict judgement, const at::Tensor& result = {});

  const CallFacts& facts_;
  const RunOutcome& observed_;
  Reruns reruns_;
  ResultJudge results_;
  std::vector<std::optional<bool>> unchanged_;  // by tensor index of the inputs, where it was asked
  std::map<const RunOutcome*, Listed> listed_;  // results, each listed once: a call may return thousands of tensors
  std::vector<Check> checks_;
};

// The values of a tree that have no parts, in order.
OP_TOOLS_API Values leaves_of(const Value& value);

}  // namespace op_tools
