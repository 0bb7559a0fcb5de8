#include "record/arriving_values.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tensor/plain_tensor.h"

namespace op_tools {
void ArrivingValues::add(const at::Tensor& tensor, uint32_t number) {
  constexpr size_t kMost = 256;  // tensors that are held
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) return;
  std::erase_if(waiting_, [](const ArrivingValue& value) { return value.tensor.storage().use_count() == 1; });
  if (waiting_.size() >= kMost) waiting_.erase(waiting_.begin());
  waiting_.push_back({same_memory(tensor), version_of(tensor), number});
}

bool ArrivingValues::shows(const at::Tensor& read) const {
  return read.layout() == at::kStrided &&
         std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const ArrivingValue& value) { return share_bytes(value.tensor, read); });
}

std::vector<ArrivingValue> ArrivingValues::take(const at::Tensor& read) {
  std::vector<ArrivingValue> arrived;
  if (waiting_.empty() || read.layout() != at::kStrided) return arrived;
  const auto stays = [&](const ArrivingValue& value) { return !share_bytes(value.tensor, read); };
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), stays);
  std::move(first, waiting_.end(), std::back_inserter(arrived));
  waiting_.erase(first, waiting_.end());
  std::erase_if(arrived, [](const ArrivingValue& value) { return version_of(value.tensor) != value.version; });
  return arrived;
}

std::vector<ArrivingValue> ArrivingValues::take_all() {
  return std::exchange(waiting_, {});
}

}  // namespace op_tools
