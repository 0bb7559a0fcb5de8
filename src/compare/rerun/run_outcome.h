// A run of an operator call as data: of the device (observed; its tensors may still be there), the CPU,
// float64. Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

class VariantInputs;

// Of the items of a sequence; undefined: an item that is none.
OP_TOOLS_API std::vector<at::Tensor> tensors_in(const Value& sequence);

struct RunOutcome {
  std::string raised;      // the operator's exception; empty when it returned
  std::string impossible;  // why it could not be run at all
  Value result;
  std::vector<at::Tensor> inputs;  // by tensor index of (args, kwargs): as they are after the call
  std::vector<bool> written;       // by tensor index: the schema or the version counter shows a write
  // By tensor of the result: the inputs whose memory it shows; and its strides.
  std::vector<std::vector<int64_t>> aliases;
  std::vector<std::vector<int64_t>> strides;
  // By tensor of the result: the results before it that show an element of its memory, where that is no input's.
  std::vector<std::vector<int64_t>> shared;
  std::vector<bool> requires_grad;                 // by tensor of the result
  std::vector<at::Tensor> gradients;               // of a backward pass, by tensor index; undefined where there is none
  std::vector<at::Tensor> arriving;                // of a backward pass of ours: the gradients that it began with
  std::vector<bool> gradients_in_graph;            // observed, of a compiled graph: CallGradients::in_graph
  std::shared_ptr<const VariantInputs> made_from;  // a run of ours: where the graph of `result` ends

  bool returned() const { return raised.empty() && impossible.empty(); }
  // Fills `aliases`, `strides`, `shared` and `requires_grad`. `results`: the tensors of the result; `live_inputs`:
  // those that the operator was given, in whose memory results may lie.
  OP_TOOLS_API void record_memory(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& live_inputs);
};

// How a call is to be run again.
struct RunVariant {
  enum class Kind : uint8_t {
    kReference,         // on the CPU, in its own dtypes
    kFloat64,           // in float64 and complex128
    kFloat64Perturbed,  // kFloat64, from inputs changed by less than their rounding
    kPerturbed,         // in its own dtypes, on the CPU, from inputs changed by their rounding
    kFloat32Scalars,    // kFloat64, the call's scalar arguments rounded to float32
    kFloat64Gaps,       // kFloat64, from inputs whose elements do not lie side by side
    kFloat64Zeros,      // kFloat64, the inputs that require a gradient in zeros
    kFloat32Perturbed,  // on the CPU, 16-bit floats in float32, from inputs changed by float32's rounding
    kAutocastDtype,     // on the CPU, all of it in the dtype of the call's autocast
    kMeta,              // without data: torch's own account of the results' forms
    kWideIntegers,      // on the CPU, integers in 64 bits
    kMiddleIntegers,    // on the CPU, integers in 32 bits
    kUnwritten,         // kReference, with the unwritten memory of a graph's operators filled: UnwrittenFill(sample)
    kInGraph,           // kReference, whose backward pass makes a graph (create_graph=True)
    kOnDevice,          // where the program ran it, in its own dtypes, from inputs in fresh memory
  };
  bool in_own_dtypes() const {
    return kind == Kind::kReference || kind == Kind::kPerturbed || kind == Kind::kUnwritten || kind == Kind::kInGraph ||
           kind == Kind::kOnDevice;
  }
  bool in_float64() const {
    return kind == Kind::kFloat64 || kind == Kind::kFloat64Perturbed || kind == Kind::kFloat32Scalars ||
           kind == Kind::kFloat64Gaps || kind == Kind::kFloat64Zeros;
  }
  bool changes_inputs() const {
    return kind == Kind::kFloat64Perturbed || kind == Kind::kPerturbed || kind == Kind::kFloat32Perturbed;
  }

  Kind kind = Kind::kReference;
  int sample = 0;  // a different change of the inputs for each
  // kFloat64Perturbed: by the rounding of the inputs' own dtype, else of the dtype in which sums are accumulated.
  bool coarse = false;
};

}  // namespace op_tools
