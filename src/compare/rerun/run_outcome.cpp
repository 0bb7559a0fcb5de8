#include "compare/rerun/run_outcome.h"

#include <algorithm>
#include <utility>

#include "tensor/element_runs.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// The memory whose elements the tensor shows; nullptr where it shows none.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor._is_zerotensor()) return nullptr;
  if (!tensor.is_nested() && c10::multiply_integers(own_sizes(tensor)) == 0) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

std::vector<std::pair<int64_t, int64_t>> sorted_runs(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  each_run(tensor, [&](int64_t begin, int64_t end) { runs.emplace_back(begin, end); });
  std::sort(runs.begin(), runs.end());
  return runs;
}

// Of two tensors with elements in the same storage: would a write into one show in the other? The halves of a buffer
// are as good as buffers of their own.
bool share_elements(const at::Tensor& tensor, const at::Tensor& other) {
  for (const at::Tensor* each : {&tensor, &other}) {
    const c10::TensorImpl& impl = *each->unsafeGetTensorImpl();
    const bool tells_its_places =
        !each->is_nested() && !impl.is_python_dispatch() && !impl.has_symbolic_sizes_strides();
    if (each->layout() != at::kStrided || !tells_its_places) return false;
  }
  if (!share_bytes(tensor, other)) return false;
  const auto a = sorted_runs(tensor), b = sorted_runs(other);
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first < b[j].second && b[j].first < a[i].second) return true;
    a[i].second <= b[j].first ? ++i : ++j;
  }
  return false;
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
  shared.assign(results.size(), {});
  requires_grad.assign(results.size(), false);
  std::vector<const void*> memory;
  for (size_t i = 0; i < results.size(); ++i) {
    requires_grad[i] = results[i].defined() && results[i].requires_grad();
    const void* const own = memory.emplace_back(memory_of(results[i]));
    for (size_t j = 0; own && j < live_inputs.size(); ++j) {
      if (memory_of(live_inputs[j]) == own) aliases[i].push_back(static_cast<int64_t>(j));
    }
    for (size_t j = 0; own && aliases[i].empty() && j < i; ++j) {
      if (memory[j] == own && share_elements(results[j], results[i])) shared[i].push_back(static_cast<int64_t>(j));
    }
    if (!results[i].defined() || results[i].layout() != at::kStrided || results[i].is_nested()) continue;
    strides[i] = own_strides(results[i]).vec();
  }
}

}  // namespace op_tools
