#include "calls/packed_values.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "calls/packed_form.h"
#include "tensor/copy_memory.h"
#include "tensor/plain_tensor.h"
#include "tensor/small_map.h"

namespace op_tools {
namespace {

// A tensor whose strides span more than this many times its elements (and more than the slack) is stored contiguous.
constexpr int64_t kMaxSpan = 4;
constexpr int64_t kSpanSlackBytes = 16 * 1024;
constexpr size_t kAlign = 64;
// A private tensor of fewer bytes is copied once more: its object is then freed by the thread that made it.
constexpr size_t kWorthHandingOver = size_t{32} << 10;

constexpr int32_t kNoMemory = -1;

struct Range64 {
  size_t begin = 0;
  size_t end = 0;
};

at::Tensor to_cpu(const at::Tensor& tensor) {
  return at::_ops::_to_copy::call(tensor, std::nullopt, std::nullopt, c10::Device(c10::kCPU), std::nullopt, false,
                                  at::MemoryFormat::Preserve);
}

void copy_flags(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
  if (from.requires_grad()) to.set_requires_grad(true);
}

}  // namespace

Packed::~Packed() {
  std::destroy_n(memories(), memories_);
}

// Of a tensor, while a snapshot is made.
struct Packer::Shown {
  const at::Tensor* tensor;
  PackedEntry entry;
  bool in_storage = false;    // plain and strided: it shows a part of a storage
  bool lost = false;          // but the storage has not got that part
  Range64 bytes{};            // of the storage
  std::string why{}, type{};  // no form in a file
};

// Makes the copies of a snapshot.
class Packer::Copier {
 public:
  explicit Copier(Packer& packer) : packer_(packer) {}

  // Pass 1: which range of each storage is shown, by all tensors together.
  Shown look(const at::Tensor& tensor, uint32_t number) {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    const auto [first, is_new] = first_.entry(impl);
    if (is_new) *first = number;
    Shown shown{&tensor,
                {.first = *first,
                 .dtype = tensor.scalar_type(),
                 .device = tensor.device(),
                 .layout = tensor.layout(),
                 .requires_grad = tensor.requires_grad(),
                 .is_leaf = tensor.is_leaf()}};
    PackedEntry& entry = shown.entry;
    entry.sizes = tensor.is_nested() ? 0 : static_cast<uint16_t>(own_sizes(tensor).size());
    shown.why = why_not_copied(tensor, &shown.type);
    if (entry.layout != at::kStrided || !shown.why.empty() || is_copied_by_its_device(tensor)) return shown;
    entry.strides = entry.sizes;
    entry.offset = tensor.storage_offset();
    if (tensor._is_zerotensor()) return shown;
    shown.in_storage = true;
    entry.conj = tensor.is_conj();
    entry.neg = tensor.is_neg();
    find_bytes(shown);
    const auto [range, is_new_storage] = ranges_.entry(tensor.storage().unsafeGetStorageImpl());
    if (is_new_storage) range->number = static_cast<int32_t>(ranges_.size()) - 1;
    entry.storage = range->number;
    if (!is_new) return shown;
    ++range->tensors;
    if (shown.lost || shown.bytes.end == 0) return shown;
    range->shown.begin = std::min(range->shown.begin, shown.bytes.begin);
    range->shown.end = std::max(range->shown.end, shown.bytes.end);
    return shown;
  }

  // Pass 2: the copy of a tensor, or why there is none.
  void copy(Shown& shown) {
    const at::Tensor& tensor = *shown.tensor;
    if (shown.lost) {
      shown.type = "tensor";
      shown.why = "its storage was freed or resized: it shows memory that it does not have";
    }
    if (!shown.why.empty()) {
      shown.entry.other = static_cast<int32_t>(packer_.others_.size());
      packer_.others_.emplace_back(Unsupported{std::move(shown.type), std::move(shown.why)});
      ++packer_.unsupported_;
    } else if (!shown.in_storage) {
      hand_over(shown, copy_of_parts(tensor));
    } else if (packer_.owned_ && tensor.device().is_cpu() && tensor.nbytes() >= kWorthHandingOver) {
      bytes_ += tensor.nbytes();
      hand_over(shown, tensor);
    } else {
      copy_range(shown);
    }
  }

  size_t bytes() const { return bytes_; }

 private:
  struct Range {
    Range64 shown{std::numeric_limits<size_t>::max(), 0};
    int tensors = 0;
    int32_t number = 0;
    int32_t memory = kNoMemory;  // of the copy, once it is made
    size_t base = 0;             // the first byte of the copy
  };

  // Nothing when the bytes lie outside of the storage (a freed storage).
  static void find_bytes(Shown& shown) {
    const at::Tensor& tensor = *shown.tensor;
    if (tensor.numel() == 0) return;
    const ByteRange bytes = bytes_shown(tensor);
    shown.bytes = {static_cast<size_t>(bytes.begin), static_cast<size_t>(bytes.end)};
    shown.lost = shown.bytes.end > tensor.storage().nbytes();
  }

  void hand_over(Shown& shown, at::Tensor copy) {
    shown.entry.tensor = static_cast<int32_t>(packer_.tensors_.size());
    packer_.tensors_.push_back(std::move(copy));
  }

  void copy_range(Shown& shown) {
    const at::Tensor& tensor = *shown.tensor;
    Range& range = *ranges_.find(tensor.storage().unsafeGetStorageImpl());
    if (range.memory == kNoMemory) {
      const int64_t span = range.shown.end > range.shown.begin ? range.shown.end - range.shown.begin : 0;
      const bool sparse = span > kMaxSpan * static_cast<int64_t>(tensor.nbytes()) + kSpanSlackBytes;
      if (packer_.restride_ && range.tensors == 1 && sparse) {
        shown.entry.compact = true;
        return hand_over(shown, copy_compact(tensor));
      }
      copy_storage(tensor, range, span);
    }
    shown.entry.memory = range.memory;
    shown.entry.copy_offset =
        tensor.numel() == 0 ? 0 : shown.entry.offset - static_cast<int64_t>(range.base / tensor.itemsize());
  }

  // The shown range of a storage, once. The base is rounded down so that alignment within 64 bytes stays.
  void copy_storage(const at::Tensor& tensor, Range& range, int64_t span) {
    range.memory = static_cast<int32_t>(packer_.memories_.size());
    if (span == 0) {
      packer_.memories_.push_back({c10::DataPtr(nullptr, c10::Device(c10::kCPU)), 0});
      return;
    }
    range.base = range.shown.begin / kAlign * kAlign;
    const size_t size = range.shown.end - range.base;
    bytes_ += size;
    if (tensor.device().is_cpu()) {
      packer_.memories_.push_back({memory_for_copy(size), size});
      packer_.unfilled_.push_back(
          {packer_.memories_.back().data.get(), static_cast<const char*>(tensor.storage().data()) + range.base, size});
      return;
    }
    // Through the device's own operators, so that vendors with memory formats of their own give plain numbers: a flat
    // view in the tensor's dtype over the range. Tensors of another item size on the same storage need whole items.
    const int64_t item = static_cast<int64_t>(tensor.itemsize());
    const int64_t begin = static_cast<int64_t>(range.base) / item;
    const int64_t count = (static_cast<int64_t>(range.shown.end) - begin * item + item - 1) / item;
    range.base = static_cast<size_t>(begin * item);
    // Without its bits: a copy would resolve them, and they stay bits.
    at::Tensor flat = at::_ops::as_strided::call(without_bits(tensor), c10::SymIntArrayRef({c10::SymInt(count)}),
                                                 c10::SymIntArrayRef({c10::SymInt(1)}), c10::SymInt(begin));
    at::Tensor copy = to_cpu(flat);
    c10::StorageImpl& storage = *copy.storage().unsafeGetStorageImpl();
    const size_t bytes = storage.nbytes();
    if (copy.storage().use_count() == 1 && copy.storage_offset() == 0) {
      // As its allocator made it: wrapped memory torch would not share until it is written
      // (compare/rerun/replayable_call.cpp).
      packer_.memories_.push_back({storage.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU))), bytes});
      return;
    }
    void* const memory = copy.mutable_data_ptr();
    c10::DataPtr data(
        memory, new at::Tensor(std::move(copy)), [](void* owner) { delete static_cast<at::Tensor*>(owner); },
        c10::Device(c10::kCPU));
    packer_.memories_.push_back({std::move(data), bytes});
  }

  at::Tensor copy_compact(const at::Tensor& tensor) {
    // clone() would resolve conj and neg bits: the bits stay bits.
    at::Tensor copy = at::_ops::clone::call(without_bits(tensor), at::MemoryFormat::Contiguous);
    if (!copy.device().is_cpu()) copy = to_cpu(copy);
    bytes_ += copy.nbytes();
    copy_flags(tensor, copy);
    return copy;
  }

  // Sparse layouts, zero tensors and those without storage: a whole copy of their own.
  at::Tensor copy_of_parts(const at::Tensor& tensor) {
    at::Tensor copy;
    if (tensor._is_zerotensor()) {
      copy =
          at::_ops::zeros::call(tensor.sym_sizes(), tensor.scalar_type(), at::kStrided, c10::Device(c10::kCPU), false);
    } else {
      copy = tensor.device().is_cpu() ? at::_ops::clone::call(tensor, std::nullopt) : to_cpu(tensor);
      copy = copy.detach();
    }
    bytes_ += copy.layout() == at::kStrided ? copy.nbytes() : 0;
    if (tensor.requires_grad()) copy.set_requires_grad(true);
    return copy;
  }

  Packer& packer_;
  size_t bytes_ = 0;
  SmallMap<uint32_t> first_;
  SmallMap<Range> ranges_;
};

void Packer::begin(bool owned, bool restride, c10::ArrayRef<const at::Tensor*> known) {
  owned_ = owned;
  restride_ = restride;
  known_.assign(known.begin(), known.end());
  seen_.clear();
  unsupported_ = 0;
  put_plain(kSnapshotNumber);
  tree_at_ = bytes_.size();
  put_plain(uint32_t{0});  // the tree's bytes, once they are known
}

void Packer::tree_tuple(size_t count) {
  put_plain(PackedNode::kTuple);
  put_plain(static_cast<uint32_t>(count));
}

void Packer::tree_dict(size_t count) {
  put_plain(PackedNode::kDict);
  put_plain(static_cast<uint32_t>(count));
}

void Packer::tree_int(int64_t number) {
  put_plain(PackedNode::kInt);
  put_plain(number);
}

void Packer::tree_tensor(const at::Tensor& tensor) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const at::Tensor* earlier) {
    return earlier->unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl();
  });
  if (known != known_.end()) {
    put_plain(PackedNode::kKnown);
    put_plain(static_cast<uint32_t>(known - known_.begin()));
    return;
  }
  put_plain(PackedNode::kTensor);
  put_plain(static_cast<uint32_t>(seen_.size()));
  seen_.push_back(&tensor);
}

void Packer::tree_items(const Values& items) {
  put_plain(static_cast<uint32_t>(items.size()));
  for (const Value& item : items) tree(item);
}

void Packer::tree_other(const Value& value) {
  put_plain(PackedNode::kOther);
  put_plain(static_cast<uint32_t>(others_.size()));
  others_.push_back(value);
  if (value.is<Unsupported>()) ++unsupported_;
}

void Packer::tree(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return tree_tensor(*tensor);
  if (value.is<None>()) return put_plain(PackedNode::kNone);
  if (const auto* flag = value.get_if<bool>()) return put_plain(*flag ? PackedNode::kTrue : PackedNode::kFalse);
  if (const auto* number = value.get_if<int64_t>()) return tree_int(*number);
  const auto plain = [this](PackedNode node, const auto& content) {
    put_plain(node);
    put_plain(content);
  };
  if (const auto* number = value.get_if<double>()) return plain(PackedNode::kDouble, *number);
  if (const auto* dtype = value.get_if<at::ScalarType>()) return plain(PackedNode::kDtype, *dtype);
  if (const auto* device = value.get_if<c10::Device>()) return plain(PackedNode::kDevice, *device);
  if (const auto* layout = value.get_if<at::Layout>()) return plain(PackedNode::kLayout, *layout);
  if (const auto* format = value.get_if<at::MemoryFormat>()) return plain(PackedNode::kMemoryFormat, *format);
  if (const auto* text = value.get_if<std::string>()) {
    put_plain(PackedNode::kText);
    return put_text(*text);
  }
  const auto items = [this](PackedNode node, const Values& of) {
    put_plain(node);
    tree_items(of);
  };
  if (const auto* list = value.get_if<List>()) return items(PackedNode::kList, *list->items);
  if (const auto* tuple = value.get_if<Tuple>()) return items(PackedNode::kTuple, *tuple->items);
  if (const auto* set = value.get_if<Set>()) return items(PackedNode::kSet, *set->items);
  if (const auto* slice = value.get_if<Slice>()) return items(PackedNode::kSlice, *slice->items);
  if (const auto* named = value.get_if<NamedTuple>()) {
    put_plain(PackedNode::kNamedTuple);
    put_text(named->type);
    return tree_items(*named->items);
  }
  if (const auto* dict = value.get_if<Dict>()) {
    tree_dict(dict->items->size());
    for (const auto& [key, item] : *dict->items) {
      // A tensor as a key is no tensor of the call.
      key.is<at::Tensor>() ? tree_other(key) : tree(key);
      tree(item);
    }
    return;
  }
  tree_other(value);
}

Packer::Made Packer::end() {
  const auto tree_bytes = static_cast<uint32_t>(bytes_.size() - tree_at_ - sizeof(uint32_t));
  std::memcpy(bytes_.data() + tree_at_, &tree_bytes, sizeof tree_bytes);
  Copier copier(*this);
  c10::SmallVector<Shown, 6> all;
  for (const at::Tensor* const tensor : seen_) all.push_back(copier.look(*tensor, static_cast<uint32_t>(all.size())));
  put_plain(static_cast<uint32_t>(all.size()));
  for (uint32_t i = 0; i < all.size(); ++i) {
    Shown& shown = all[i];
    if (shown.entry.first == i) copier.copy(shown);
    put_plain(shown.entry);
    if (shown.entry.sizes > 0) {
      append(own_sizes(*shown.tensor).data(), shown.entry.sizes * sizeof(int64_t));
    }
    if (shown.entry.strides > 0) append(shown.tensor->strides().data(), shown.entry.strides * sizeof(int64_t));
  }
  put_plain(copier.bytes());
  return {copier.bytes(), unsupported_};
}

void Packer::fill() {
  for (const Unfilled& copy : unfilled_) fill_copy(copy.to, copy.from, copy.size);
  unfilled_.clear();
}

void Packer::put_value(const Value& value) {
  if (value.is<None>()) return put_plain(kNoValue);
  put_plain(static_cast<uint32_t>(others_.size()));
  others_.push_back(value);
}

Packed Packer::finish() {
  Packed packed;
  const size_t before = memories_.size() * sizeof(Packed::Memory);
  packed.flat_ = memory_for_copy(before + bytes_.size());
  std::uninitialized_move(memories_.begin(), memories_.end(), packed.memories());
  packed.memories_ = memories_.size();
  packed.size_ = bytes_.size();
  std::memcpy(static_cast<char*>(packed.flat_.get()) + before, bytes_.data(), bytes_.size());
  fill();
  packed.tensors_ = std::move(tensors_);
  packed.others_ = std::move(others_);
  return packed;
}

}  // namespace op_tools
