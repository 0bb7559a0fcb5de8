#include "capture/snapshot.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "hooks/copy_memory.h"
#include "hooks/plain_tensor.h"

namespace op_tools {
namespace {

// A tensor whose strides span more than this many times its elements (and more than the slack) is stored contiguous.
constexpr int64_t kMaxSpan = 4;
constexpr int64_t kSpanSlackBytes = 16 * 1024;
constexpr size_t kAlign = 64;

struct Bytes64 {
  size_t begin = 0;
  size_t end = 0;
};

// The byte range of its storage that a strided tensor shows; nothing when it lies outside of the storage (a freed one).
std::optional<Bytes64> shown_range(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return Bytes64{};
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const size_t item = tensor.itemsize();
  const Bytes64 range{tensor.storage_offset() * item, (last + 1) * item};
  if (range.end > tensor.storage().nbytes()) return std::nullopt;
  return range;
}

at::Tensor make_tensor(const c10::Storage& storage, const at::Tensor& like, c10::IntArrayRef stride, int64_t offset) {
  auto copy = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), stride, offset);
  return copy;
}

void copy_flags(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
  if (from.requires_grad()) to.set_requires_grad(true);
}

at::Tensor to_cpu(const at::Tensor& tensor) {
  return at::_ops::_to_copy::call(tensor, std::nullopt, std::nullopt, c10::Device(c10::kCPU), std::nullopt, false,
                                  at::MemoryFormat::Preserve);
}

class Copier {
 public:
  Copier(Snapshot& snapshot, bool owned, bool restride) : snapshot_(snapshot), owned_(owned), restride_(restride) {}

  // Pass 1: which range of each storage is shown, by all tensors of the tree together.
  void scan(const at::Tensor& tensor) {
    TensorFacts facts{{}, {}, tensor.scalar_type(), tensor.device(), tensor.layout()};
    if (!tensor.is_nested()) facts.shape = own_sizes(tensor);
    facts.requires_grad = tensor.requires_grad();
    facts.is_leaf = tensor.is_leaf();
    std::string type;
    if (tensor.layout() == at::kStrided && why_not_plain(tensor, &type).empty()) {
      facts.stride = tensor.strides();
      facts.offset = tensor.storage_offset();
      if (!tensor._is_zerotensor()) facts.storage = add_range(tensor);
    }
    snapshot_.tensors.push_back(std::move(facts));
  }

  // Pass 2: the copy of one tensor, or Unsupported.
  Value copy(const at::Tensor& tensor) {
    const size_t index = next_index_++;
    if (const at::Tensor* known = snapshot_.copies.find(tensor.unsafeGetTensorImpl())) return *known;
    std::string type;
    std::string why = why_not_plain(tensor, &type);
    if (!why.empty()) return Unsupported{type, why};
    if (tensor.layout() == at::kStrided && !tensor._is_zerotensor() && !shown_range(tensor)) {
      return Unsupported{"tensor", "its storage was freed or resized: it shows memory that it does not have"};
    }
    at::Tensor made = copy_supported(tensor, index);
    *snapshot_.copies.entry(tensor.unsafeGetTensorImpl()).first = made;
    return made;
  }

 private:
  struct Range {
    Bytes64 shown{std::numeric_limits<size_t>::max(), 0};
    size_t elements_bytes = 0;  // of all tensors together
    int tensors = 0;
    int64_t number = 0;
    c10::Storage copy;  // made on first use
    size_t base = 0;
  };

  int64_t add_range(const at::Tensor& tensor) {
    const auto [entry, is_new] = ranges_.entry(tensor.storage().unsafeGetStorageImpl());
    Range& range = *entry;
    if (is_new) range.number = static_cast<int64_t>(ranges_.size()) - 1;
    if (!seen_impls_.entry(tensor.unsafeGetTensorImpl()).second) return range.number;
    ++range.tensors;
    const auto shown = shown_range(tensor);
    if (shown && shown->end > 0) {
      range.shown.begin = std::min(range.shown.begin, shown->begin);
      range.shown.end = std::max(range.shown.end, shown->end);
      range.elements_bytes += tensor.nbytes();
    }
    return range.number;
  }

  at::Tensor copy_supported(const at::Tensor& tensor, size_t index) {
    if (tensor.layout() != at::kStrided || tensor._is_zerotensor()) return copy_parts(tensor);
    Range& range = *ranges_.find(tensor.storage().unsafeGetStorageImpl());
    if (owned_ && tensor.device().is_cpu()) {
      snapshot_.bytes += tensor.nbytes();
      return tensor;
    }
    if (!range.copy) {
      const int64_t span = range.shown.end > range.shown.begin ? range.shown.end - range.shown.begin : 0;
      const bool sparse = span > kMaxSpan * static_cast<int64_t>(tensor.nbytes()) + kSpanSlackBytes;
      if (restride_ && range.tensors == 1 && sparse) return copy_compact(tensor, index);
      copy_storage(tensor, range, span);
    }
    const size_t item = tensor.itemsize();
    const int64_t offset = tensor.numel() == 0 ? 0 : tensor.storage_offset() - static_cast<int64_t>(range.base / item);
    at::Tensor copy = make_tensor(range.copy, tensor, tensor.strides(), offset);
    copy_flags(tensor, copy);
    return copy;
  }

  // The shown range of a storage, once. The base is rounded down so that alignment within 64 bytes stays what it was.
  void copy_storage(const at::Tensor& tensor, Range& range, int64_t span) {
    if (span == 0) {
      range.copy =
          c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetCPUAllocator()->allocate(0), nullptr, false);
      return;
    }
    range.base = range.shown.begin / kAlign * kAlign;
    const size_t size = range.shown.end - range.base;
    snapshot_.bytes += size;
    if (tensor.device().is_cpu()) {
      c10::DataPtr data = memory_for_copy(size);
      fill_copy(data.get(), static_cast<const char*>(tensor.storage().data()) + range.base, size);
      range.copy = c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, false);
      return;
    }
    // Through the device's own operators, so that vendors with memory formats of their own give plain numbers: a flat
    // view in the tensor's dtype over the range. Tensors of another item size on the same storage need whole items.
    const int64_t item = static_cast<int64_t>(tensor.itemsize());
    const int64_t begin = static_cast<int64_t>(range.base) / item;
    const int64_t count = (static_cast<int64_t>(range.shown.end) - begin * item + item - 1) / item;
    range.base = static_cast<size_t>(begin * item);
    at::Tensor flat = at::_ops::as_strided::call(tensor, c10::SymIntArrayRef({c10::SymInt(count)}),
                                                 c10::SymIntArrayRef({c10::SymInt(1)}), c10::SymInt(begin));
    range.copy = to_cpu(flat).storage();
  }

  at::Tensor copy_compact(const at::Tensor& tensor, size_t index) {
    snapshot_.restrided.emplace_back(index, tensor.strides().vec());
    // clone() would resolve conj and neg bits: the bits are kept as bits.
    at::Tensor copy = at::_ops::clone::call(without_bits(tensor), at::MemoryFormat::Contiguous);
    if (!copy.device().is_cpu()) copy = to_cpu(copy);
    snapshot_.bytes += copy.nbytes();
    copy_flags(tensor, copy);
    return copy;
  }

  // Sparse layouts and zero tensors: a whole copy of their own.
  at::Tensor copy_parts(const at::Tensor& tensor) {
    at::Tensor copy;
    if (tensor._is_zerotensor()) {
      copy =
          at::_ops::zeros::call(tensor.sym_sizes(), tensor.scalar_type(), at::kStrided, c10::Device(c10::kCPU), false);
    } else {
      copy = tensor.device().is_cpu() ? at::_ops::clone::call(tensor, std::nullopt) : to_cpu(tensor);
      copy = copy.detach();
    }
    snapshot_.bytes += copy.layout() == at::kStrided ? copy.nbytes() : 0;
    if (tensor.requires_grad()) copy.set_requires_grad(true);
    return copy;
  }

  Snapshot& snapshot_;
  const bool owned_;
  const bool restride_;
  size_t next_index_ = 0;
  SmallMap<Range> ranges_;
  SmallMap<bool> seen_impls_;
};

// Where in the tree the unsupported values are, in words.
void note_unsupported(const Value& value, const std::string& where, std::vector<Note>& notes) {
  if (const auto* unsupported = value.get_if<Unsupported>()) {
    notes.push_back({where, unsupported->type, unsupported->why});
  } else if (const Values* items = sequence_items(value)) {
    for (size_t i = 0; i < items->size(); ++i)
      note_unsupported((*items)[i], where + "[" + std::to_string(i) + "]", notes);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) {
      const auto* text = key.get_if<std::string>();
      note_unsupported(item, (where.empty() ? "" : where + ".") + (text ? *text : describe(key)), notes);
    }
  }
}

}  // namespace

Snapshot take_snapshot(const Value& value, const std::string& root, bool owned, bool restride) {
  Snapshot snapshot;
  snapshot.tensors.reserve(4);
  Copier copier(snapshot, owned, restride);
  for_each_tensor(value, [&](const at::Tensor& tensor) { copier.scan(tensor); });
  snapshot.value = map_tensors(value, [&](const at::Tensor& tensor) { return copier.copy(tensor); });
  if (first_unsupported(snapshot.value)) note_unsupported(snapshot.value, root, snapshot.unsupported);
  return snapshot;
}

Value with_copies(const Value& value, Snapshot& known) {
  return map_tensors(value, [&](const at::Tensor& tensor) -> Value {
    if (const at::Tensor* found = known.copies.find(tensor.unsafeGetTensorImpl())) return *found;
    Snapshot late = take_snapshot(tensor, "");
    known.bytes += late.bytes;
    return late.value;
  });
}

}  // namespace op_tools
