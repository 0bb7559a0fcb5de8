// One run of an operator call as data, whoever ran it: the device (observed; its tensors may still be there), the CPU,
// float64. Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/plain_tensor.h"
#include "tensor/value.h"

namespace op_tools {

class MovedCall;

struct RunOutcome {
  std::string raised;      // what the operator raised; empty when it returned
  std::string impossible;  // why it could not be run at all
  Value result;
  std::vector<at::Tensor> inputs;  // by tensor index of (args, kwargs): as they are after the call
  std::vector<bool> written;       // by tensor index: the operator says that it writes this input
  // By tensor of the result: the inputs whose memory it shows; and its strides.
  std::vector<std::vector<int64_t>> aliases;
  std::vector<std::vector<int64_t>> strides;
  std::vector<at::Tensor> gradients;           // of one backward pass, by tensor index; undefined where there is none
  std::shared_ptr<const MovedCall> made_from;  // a run of ours: where the graph of `result` ends

  bool returned() const { return raised.empty() && impossible.empty(); }
};

// How a call is to be run again.
struct RunVariant {
  enum class Kind : uint8_t {
    kReference,         // on the CPU, in its own dtypes
    kFloat64,           // in float64 and complex128
    kFloat64Perturbed,  // kFloat64, from inputs changed by less than their rounding
    kPerturbed,         // in its own dtypes, on the CPU, from inputs changed by their rounding
    kFloat32Scalars,    // kFloat64, the call's scalar arguments rounded to float32
  };
  bool in_own_dtypes() const { return kind == Kind::kReference || kind == Kind::kPerturbed; }
  bool changes_inputs() const { return kind == Kind::kFloat64Perturbed || kind == Kind::kPerturbed; }

  Kind kind = Kind::kReference;
  int sample = 0;  // a different change of the inputs for each
  bool coarse =
      false;  // kFloat64Perturbed: by the rounding of their own dtype, else of the dtype in which sums are kept
};

// For each tensor of the result, which of the inputs share its memory.
inline std::vector<std::vector<int64_t>> shared_memory(const std::vector<at::Tensor>& results,
                                                       const std::vector<at::Tensor>& inputs) {
  const auto memory = [](const at::Tensor& tensor) -> const void* {
    if (!tensor.defined() || !tensor.has_storage() || tensor._is_zerotensor()) return nullptr;
    if (!tensor.is_nested() && c10::multiply_integers(own_sizes(tensor)) == 0) return nullptr;
    return tensor.storage().unsafeGetStorageImpl();
  };
  std::vector<std::vector<int64_t>> shared(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const void* const own = memory(results[i]);
    for (size_t j = 0; own && j < inputs.size(); ++j) {
      if (memory(inputs[j]) == own) shared[i].push_back(static_cast<int64_t>(j));
    }
  }
  return shared;
}

}  // namespace op_tools
