#include "tensor/unwritten_memory.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

constexpr int64_t kMostFlags = int64_t{64} << 20;  // a byte each

// The flags of a tensor's elements; of more than a unit per element in a last dimension. Nothing: they cannot be told.
std::optional<at::Tensor> flags_of(const at::Tensor& flags, int64_t unit, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  const at::IntArrayRef own = own_sizes(tensor), steps = own_strides(tensor);
  if (bytes % unit != 0 || tensor.layout() != at::kStrided || static_cast<int64_t>(own.size()) != tensor.dim() ||
      own.size() != steps.size()) {
    return std::nullopt;
  }
  const int64_t units = bytes / unit;
  std::vector<int64_t> sizes(own.begin(), own.end()), strides;
  int64_t end = (tensor.storage_offset() + 1) * units;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return std::nullopt;
    strides.push_back(steps[i] * units);
    end += (sizes[i] - 1) * strides.back();
  }
  if (units > 1) {
    sizes.push_back(units);
    strides.push_back(1);
  }
  if (end > flags.numel()) return std::nullopt;  // the storage has grown
  return flags.as_strided(sizes, strides, tensor.storage_offset() * units);
}

int64_t count_of(const at::Tensor& flags) {
  return flags.sum().item<int64_t>();
}

// Do two of its elements lie at the same place? True also where that is hard to tell.
bool may_overlap(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t end = 1;  // behind the last element of the dimensions so far
  for (const auto& [stride, size] : dims) {
    if (stride < end) return true;
    end += (size - 1) * stride;
  }
  return false;
}

c10::ScalarType bits_of_size(size_t bytes) {
  switch (bytes) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    case 8:
      return at::kLong;
    default:
      return at::kComplexDouble;
  }
}

bool is_all_of_its_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.nbytes() == storage_bytes(tensor) &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace

const UnwrittenMemory::Memory* UnwrittenMemory::find(const at::Tensor& tensor) const {
  if (memories_.empty() || !tensor.has_storage()) return nullptr;
  const auto entry = memories_.find(tensor.storage().unsafeGetStorageImpl());
  return entry == memories_.end() || entry->second.storage.expired() ? nullptr : &entry->second;
}

void UnwrittenMemory::erase(const c10::StorageImpl* storage) {
  const auto entry = memories_.find(storage);
  if (entry == memories_.end()) return;
  if (entry->second.flags.defined()) flags_ -= entry->second.flags.numel();
  memories_.erase(entry);
}

void UnwrittenMemory::sweep() {
  for (auto entry = memories_.begin(); entry != memories_.end();) {
    if (!entry->second.storage.expired()) {
      ++entry;
      continue;
    }
    if (entry->second.flags.defined()) flags_ -= entry->second.flags.numel();
    entry = memories_.erase(entry);
  }
  sweeps_.done(memories_.size());
}

void UnwrittenMemory::add(const at::Tensor& tensor) {
  if (!tensor.has_storage() || storage_bytes(tensor) == 0) return;
  if (sweeps_.due(memories_.size(), storage_bytes(tensor))) sweep();
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  erase(storage);
  // The parts of complex numbers are written one by one, too.
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  memories_.emplace(storage, Memory{tensor.storage().getWeakStorageImpl(), tensor.is_complex() ? bytes / 2 : bytes,
                                    version_of(tensor)});
}

bool UnwrittenMemory::holds(const at::Tensor& tensor) const {
  return shown_by(tensor).part == WrittenPart::kNone;
}

WrittenElements UnwrittenMemory::shown_by(const at::Tensor& tensor) const {
  const Memory* const memory = find(tensor);
  if (!memory) return {};
  const bool is_seen = version_of(tensor) <= memory->version;
  if (memory->is_unknown) return {WrittenPart::kUnknown};
  // A write that was not seen: of new memory it is taken for a write of the whole.
  if (!memory->flags.defined()) return {is_seen ? WrittenPart::kNone : WrittenPart::kNotWatched};
  if (tensor.numel() == 0) return {WrittenPart::kAll};
  if (!is_seen) return {WrittenPart::kUnknown};
  std::optional<at::Tensor> flags = flags_of(memory->flags, memory->unit, tensor);
  if (!flags) return {WrittenPart::kUnknown};
  if (flags->dim() > tensor.dim()) flags = flags->all(-1);
  const int64_t count = count_of(*flags);
  if (count == flags->numel()) return {WrittenPart::kAll};
  return count == 0 ? WrittenElements{WrittenPart::kNone} : WrittenElements{WrittenPart::kSome, flags->clone()};
}

bool UnwrittenMemory::make_flags(Memory& memory, int64_t bytes) {
  const int64_t count = bytes / memory.unit;
  if (flags_ + count > kMostFlags) sweep();
  if (flags_ + count > kMostFlags) return false;
  memory.flags = at::zeros({count}, at::kBool);
  memory.unwritten = count;
  flags_ += count;
  return true;
}

void UnwrittenMemory::written(const at::Tensor& tensor, const WrittenElements& elements) {
  Memory* const memory = const_cast<Memory*>(find(tensor));  // NOLINT: of this table
  if (!memory) return;
  memory->version = std::max(memory->version, version_of(tensor));
  if (elements.part == WrittenPart::kNone || tensor.numel() == 0) return;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (elements.is_whole() && is_all_of_its_memory(tensor)) return erase(storage);
  const auto lose = [&] {
    if (memory->flags.defined()) flags_ -= memory->flags.numel();
    memory->flags.reset();
    memory->is_unknown = true;
  };
  if (memory->is_unknown) return;
  if (elements.part == WrittenPart::kUnknown) return lose();
  if (!memory->flags.defined() && !make_flags(*memory, static_cast<int64_t>(storage_bytes(tensor)))) return lose();
  std::optional<at::Tensor> flags = flags_of(memory->flags, memory->unit, tensor);
  if (!flags) return lose();
  for (int64_t i = 0; i < flags->dim(); ++i) {
    if (elements.is_whole() && flags->stride(i) == 0) flags = flags->narrow(i, 0, 1);
  }
  if (may_overlap(*flags)) return lose();
  const int64_t before = count_of(*flags);
  if (elements.is_whole()) {
    flags->fill_(true);
    memory->unwritten -= flags->numel() - before;
  } else {
    flags->logical_or_(flags->dim() > tensor.dim() ? elements.flags.unsqueeze(-1) : elements.flags);
    memory->unwritten -= count_of(*flags) - before;
  }
  if (memory->unwritten == 0) erase(storage);
}

at::Tensor written_alone(const at::Tensor& tensor, const at::Tensor& flags) {
  at::Tensor copy = on_cpu(tensor.detach()).clone();
  copy.view(bits_of_size(copy.element_size())).masked_fill_(flags.logical_not(), 0);  // for dtypes without arithmetic
  return copy;
}

}  // namespace op_tools
