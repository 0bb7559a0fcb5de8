// Judges a call: every output, every input that it changes (or changes though it must not), every input gradient.
// Asks for the reference runs it needs, and for none that it does not. Used by the compare hook and by
// run_op_from_data. An object per call; not shared between threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/export.h"
#include "compare/compare_options.h"
#include "compare/judge.h"
#include "compare/rerun/run_outcome.h"
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

struct CallFacts {
  // Of the tool.
  struct Options {
    CompareMethod method = CompareMethod::kRelative;
    const ToleranceTable* tolerances = nullptr;
    bool golden = true, nan_equal = true, strides = true;
    bool hands_out = false;  // see JudgeContext
  };
  struct Device {
    bool alone = false;                            // the call ran on the CPU: its own CPU run would say nothing
    std::optional<c10::ScalarType> autocast = {};  // its dtype where it is on; the devices' lists of operators differ
    bool tf32 = false;                             // it rounded the factors of float32 products to TF32
    bool approximated = false;                     // its kernel has approximations where the CPU's is exact
    bool names_device = false;                     // a copy to the CPU stands for a copy to another device
  };
  struct RandomNumbers {
    bool drawn = false;
    bool repeatable = false;  // the reference run draws the same
    bool is_other() const { return drawn && !repeatable; }
  };
  struct Pass {
    bool goes_backward = false;  // forward: golden's results are wanted for the gradients, too
    bool incomplete = false;     // backward: not all parts of the gradients came
    bool in_backward = false;    // an operator of a backward pass (aten level)
    bool in_transform = false;   // inside vmap, grad and other transforms, which the CPU's run is not
  };
  struct Memory {
    bool uninitialized = false;             // returns uninitialized memory although its name does not show it
    int workspace = -1;                     // likewise: the result at this place is scratch memory
    std::vector<bool> written_inputs = {};  // by tensor index of the inputs; empty: no schema
    std::vector<bool> overlapping = {};     // likewise; see reads_what_it_writes()
  };

  std::string name;
  Options options = {};
  Device device = {};
  RandomNumbers random = {};
  Pass pass = {};
  Memory memory = {};
  Value args, kwargs;              // as they were before the call
  std::vector<at::Tensor> before;  // the input tensors, before the call

  // The call ran on the CPU, and the CPU's second run would only repeat it.
  bool has_no_reference() const { return device.alone && (!random.drawn || random.is_other()); }
};

class OP_TOOLS_API CallJudge {
 public:
  using RunAgain = std::function<RunOutcome(const RunVariant&)>;

  // All are held by reference.
  CallJudge(const CallFacts& facts, const RunOutcome& observed, const RunAgain& again)
      : facts_(facts), observed_(observed), again_(again) {}

  std::vector<Check> forward();    // outputs and inputs
  std::vector<Check> gradients();  // input gradients: the runs must have gone backward

  // The CPU's run, where it was needed. Nothing is judged after that.
  std::optional<RunOutcome> take_reference() { return std::move(reference_); }

 private:
  using Pick = std::function<at::Tensor(const RunOutcome&)>;  // the tensor in question, of any run

  const RunOutcome& reference_run();
  const RunOutcome& other_run(const RunVariant& variant);
  void judge_leaf(size_t leaf, size_t count, size_t* tensor_index);
  void judge_raised();
  void judge_inputs();
  std::shared_ptr<Expectation> expected_of(const at::Tensor& observed, const at::Tensor& reference,
                                           JudgeContext context) const;
  double coarser_unit(c10::ScalarType dtype) const;
  bool is_unchanged(size_t input);
  bool has_nan_for(const at::Tensor& result);
  bool shows_inputs(size_t tensor_index);
  // `shows_inputs`: the tensor has no numbers of its own.
  TensorVerdict judge_tensor(const at::Tensor& observed, const Pick& pick, bool shows_inputs = false);
  JudgeContext context_of(const at::Tensor& observed, const Pick& pick);
  std::optional<TensorVerdict> judge_shown(const at::Tensor& observed, const Pick& pick, JudgeContext context);
  TensorVerdict reconsidered(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference,
                             const Pick& pick, const JudgeContext& context);
  TensorVerdict judge_set(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference);
  TensorVerdict judge_sizes(const at::Tensor& result, const at::Tensor& reference, JudgeContext context) const;
  bool is_of_integers(const at::Tensor& observed) const;
  bool has_integers_below(size_t bytes) const;
  TensorVerdict judge_integers(const at::Tensor& observed, const Pick& pick);
  void look_at_memory(size_t tensor_index, TensorVerdict* judgement);
  std::vector<int64_t> expected_strides(size_t tensor_index);
  std::vector<int64_t> strides_without_data(size_t tensor_index);
  void look_at_strides(const at::Tensor& gradient, const at::Tensor& wanted, TensorVerdict* judgement) const;
  bool same_elements_named(const at::Tensor& result, const at::Tensor& reference) const;
  void add(Part part, std::optional<size_t> index, TensorVerdict judgement, const at::Tensor& result = {});

  const CallFacts& facts_;
  const RunOutcome& observed_;
  const RunAgain& again_;
  bool backward_ = false;
  std::optional<RunOutcome> reference_;
  std::map<std::tuple<RunVariant::Kind, int, bool>, RunOutcome> others_;  // by kind, sample, coarse
  std::vector<std::optional<bool>> unchanged_, nans_;  // by tensor index of the inputs, where it was asked
  std::vector<Check> checks_;
};

// The values of a tree that have no parts, in order.
OP_TOOLS_API Values leaves_of(const Value& value);

}  // namespace op_tools
