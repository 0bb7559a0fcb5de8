#include "compare/rerun/run_outcome.h"

#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// The memory whose elements the tensor shows; nullptr where it shows none.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor._is_zerotensor()) return nullptr;
  if (!tensor.is_nested() && c10::multiply_integers(own_sizes(tensor)) == 0) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

std::vector<at::Tensor> tensors_in(const Value& sequence) {
  std::vector<at::Tensor> tensors;
  for (const Value& item : *sequence_items(sequence)) {
    const auto* tensor = item.get_if<at::Tensor>();
    tensors.push_back(tensor ? *tensor : at::Tensor());
  }
  return tensors;
}

void RunOutcome::record_memory(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& live_inputs) {
  aliases.assign(results.size(), {});
  strides.assign(results.size(), {});
  requires_grad.assign(results.size(), false);
  for (size_t i = 0; i < results.size(); ++i) {
    requires_grad[i] = results[i].defined() && results[i].requires_grad();
    const void* const own = memory_of(results[i]);
    for (size_t j = 0; own && j < live_inputs.size(); ++j) {
      if (memory_of(live_inputs[j]) == own) aliases[i].push_back(static_cast<int64_t>(j));
    }
    if (!results[i].defined() || results[i].layout() != at::kStrided || results[i].is_nested()) continue;
    strides[i] = own_strides(results[i]).vec();
  }
}

}  // namespace op_tools
