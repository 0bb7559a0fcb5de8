#include "capture/packed_values.h"

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

#include "hooks/copy_memory.h"
#include "hooks/plain_tensor.h"
#include "hooks/small_map.h"

namespace op_tools {
namespace {

// A tensor whose strides span more than this many times its elements (and more than the slack) is stored contiguous.
constexpr int64_t kMaxSpan = 4;
constexpr int64_t kSpanSlackBytes = 16 * 1024;
constexpr size_t kAlign = 64;
// A private tensor of fewer bytes is copied once more: its object is then freed by the thread that made it.
constexpr size_t kWorthKeeping = size_t{32} << 10;

enum class Node : uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,
  kDouble,
  kText,
  kTensor,  // number in the snapshot
  kKnown,   // number of an earlier one
  kDtype,
  kDevice,
  kLayout,
  kMemoryFormat,
  kList,
  kTuple,
  kNamedTuple,
  kSet,
  kSlice,
  kDict,
  kOther,  // number in the list of others
};

constexpr int32_t kNoMemory = -1;

// What is known of a tensor, followed by its sizes and strides.
struct Entry {
  int64_t offset = 0;        // in the program's storage, in elements
  int64_t copy_offset = 0;   // in the copy's
  int32_t storage = -1;      // number that aliases share
  int32_t memory = kNoMemory;  // of the copy
  int32_t tensor = -1;       // else: the copy, in the list of tensors
  int32_t other = -1;        // else: Unsupported, in the list of others
  uint32_t first;            // the same tensor object came here first
  uint16_t sizes = 0, strides = 0;
  at::ScalarType dtype;
  c10::Device device;
  c10::Layout layout;
  bool requires_grad, is_leaf;
  bool conj = false, neg = false;
  bool compact = false;  // the copy lies densely, the strides are the program's
};

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

// Of one tensor, while a snapshot is made.
struct Packer::Shown {
  const at::Tensor* tensor;
  Entry entry;
  bool in_storage = false;  // plain and strided: it shows a part of a storage
  bool lost = false;        // but the storage has not got that part
  Range64 bytes{};          // of the storage
  std::string why{}, type{};  // no form in a file
};

// Makes the copies of one snapshot.
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
    Entry& entry = shown.entry;
    entry.sizes = tensor.is_nested() ? 0 : static_cast<uint16_t>(own_sizes(tensor).size());
    shown.why = why_not_plain(tensor, &shown.type);
    if (entry.layout != at::kStrided || !shown.why.empty()) return shown;
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

  // Pass 2: the copy of one tensor, or why there is none.
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
      keep(shown, copy_of_parts(tensor));
    } else if (packer_.owned_ && tensor.device().is_cpu() && tensor.nbytes() >= kWorthKeeping) {
      bytes_ += tensor.nbytes();
      keep(shown, tensor);
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
    size_t base = 0;             // what the copy begins with
  };

  // Nothing when the bytes lie outside of the storage (a freed one).
  static void find_bytes(Shown& shown) {
    const at::Tensor& tensor = *shown.tensor;
    if (tensor.numel() == 0) return;
    const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
    int64_t last = shown.entry.offset;
    for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    const size_t item = tensor.itemsize();
    shown.bytes = {shown.entry.offset * item, (last + 1) * item};
    shown.lost = shown.bytes.end > tensor.storage().nbytes();
  }

  void keep(Shown& shown, at::Tensor copy) {
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
        return keep(shown, copy_compact(tensor));
      }
      copy_storage(tensor, range, span);
    }
    shown.entry.memory = range.memory;
    shown.entry.copy_offset =
        tensor.numel() == 0 ? 0 : shown.entry.offset - static_cast<int64_t>(range.base / tensor.itemsize());
  }

  // The shown range of a storage, once. The base is rounded down so that alignment within 64 bytes stays what it was.
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
      fill_copy(packer_.memories_.back().data.get(), static_cast<const char*>(tensor.storage().data()) + range.base,
                size);
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
    auto* const copy = new at::Tensor(to_cpu(flat));
    c10::DataPtr data(copy->mutable_data_ptr(), copy, [](void* made) { delete static_cast<at::Tensor*>(made); },
                      c10::Device(c10::kCPU));
    packer_.memories_.push_back({std::move(data), copy->storage().nbytes()});
  }

  at::Tensor copy_compact(const at::Tensor& tensor) {
    // clone() would resolve conj and neg bits: the bits are kept as bits.
    at::Tensor copy = at::_ops::clone::call(without_bits(tensor), at::MemoryFormat::Contiguous);
    if (!copy.device().is_cpu()) copy = to_cpu(copy);
    bytes_ += copy.nbytes();
    copy_flags(tensor, copy);
    return copy;
  }

  // Sparse layouts and zero tensors: a whole copy of their own.
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
  tree_at_ = bytes_.size();
  put(uint32_t{0});  // the tree's bytes, once they are known
}

void Packer::tree_tuple(size_t count) {
  put(Node::kTuple);
  put(static_cast<uint32_t>(count));
}

void Packer::tree_dict(size_t count) {
  put(Node::kDict);
  put(static_cast<uint32_t>(count));
}

void Packer::tree_int(int64_t number) {
  put(Node::kInt);
  put(number);
}

void Packer::tree_tensor(const at::Tensor& tensor) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const at::Tensor* one) {
    return one->unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl();
  });
  if (known != known_.end()) {
    put(Node::kKnown);
    put(static_cast<uint32_t>(known - known_.begin()));
    return;
  }
  put(Node::kTensor);
  put(static_cast<uint32_t>(seen_.size()));
  seen_.push_back(&tensor);
}

void Packer::tree_items(const Values& items) {
  put(static_cast<uint32_t>(items.size()));
  for (const Value& item : items) tree(item);
}

void Packer::tree_other(const Value& value) {
  put(Node::kOther);
  put(static_cast<uint32_t>(others_.size()));
  others_.push_back(value);
  if (value.is<Unsupported>()) ++unsupported_;
}

void Packer::tree(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return tree_tensor(*tensor);
  if (value.is<None>()) return put(Node::kNone);
  if (const auto* flag = value.get_if<bool>()) return put(*flag ? Node::kTrue : Node::kFalse);
  if (const auto* number = value.get_if<int64_t>()) return tree_int(*number);
  const auto plain = [this](Node node, const auto& what) {
    put(node);
    put(what);
  };
  if (const auto* number = value.get_if<double>()) return plain(Node::kDouble, *number);
  if (const auto* dtype = value.get_if<at::ScalarType>()) return plain(Node::kDtype, *dtype);
  if (const auto* device = value.get_if<c10::Device>()) return plain(Node::kDevice, *device);
  if (const auto* layout = value.get_if<at::Layout>()) return plain(Node::kLayout, *layout);
  if (const auto* format = value.get_if<at::MemoryFormat>()) return plain(Node::kMemoryFormat, *format);
  if (const auto* text = value.get_if<std::string>()) {
    put(Node::kText);
    return put_text(*text);
  }
  const auto items = [this](Node node, const Values& of) {
    put(node);
    tree_items(of);
  };
  if (const auto* list = value.get_if<List>()) return items(Node::kList, *list->items);
  if (const auto* tuple = value.get_if<Tuple>()) return items(Node::kTuple, *tuple->items);
  if (const auto* set = value.get_if<Set>()) return items(Node::kSet, *set->items);
  if (const auto* slice = value.get_if<Slice>()) return items(Node::kSlice, *slice->items);
  if (const auto* named = value.get_if<NamedTuple>()) {
    put(Node::kNamedTuple);
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
  put(static_cast<uint32_t>(all.size()));
  for (uint32_t i = 0; i < all.size(); ++i) {
    Shown& shown = all[i];
    if (shown.entry.first == i) copier.copy(shown);
    put(shown.entry);
    if (shown.entry.sizes > 0) {
      append(own_sizes(*shown.tensor).data(), shown.entry.sizes * sizeof(int64_t));
    }
    if (shown.entry.strides > 0) append(shown.tensor->strides().data(), shown.entry.strides * sizeof(int64_t));
  }
  put(copier.bytes());
  return {copier.bytes(), unsupported_};
}

void Packer::put_value(const Value& value) {
  put(static_cast<uint32_t>(others_.size()));
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
  packed.tensors_ = std::move(tensors_);
  packed.others_ = std::move(others_);
  return packed;
}

Unpacker::Unpacker(const Packed& packed)
    : packed_(packed), at_(reinterpret_cast<const char*>(packed.memories() + packed.memories_)) {
  storages_.resize(packed.memories_);
}

std::string_view Unpacker::text() {
  const auto size = get<size_t>();
  const char* const begin = std::exchange(at_, at_ + size);
  return {begin, size};
}

Value Unpacker::value() {
  return packed_.others_[get<uint32_t>()];
}

const c10::Storage& Unpacker::storage(size_t memory) {
  c10::Storage& made = storages_[memory];
  if (!made) {
    Packed::Memory& of = packed_.memories()[memory];
    made = c10::Storage(c10::Storage::use_byte_size_t(), of.size, std::move(of.data), nullptr, false);
  }
  return made;
}

Values Unpacker::items(size_t count) {
  Values items;
  items.reserve(count);
  for (size_t i = 0; i < count; ++i) items.push_back(tree());
  return items;
}

Value Unpacker::tree() {
  const auto shared = [this] { return std::make_shared<const Values>(items(get<uint32_t>())); };
  switch (get<Node>()) {
    case Node::kNone:
      return {};
    case Node::kFalse:
      return false;
    case Node::kTrue:
      return true;
    case Node::kInt:
      return get<int64_t>();
    case Node::kDouble:
      return get<double>();
    case Node::kText:
      return std::string(text());
    case Node::kTensor:
      return copies_[get<uint32_t>()];
    case Node::kKnown:
      return (*known_)[get<uint32_t>()];
    case Node::kDtype:
      return get<at::ScalarType>();
    case Node::kDevice: {
      c10::Device device(c10::kCPU);
      std::memcpy(&device, std::exchange(at_, at_ + sizeof device), sizeof device);
      return device;
    }
    case Node::kLayout:
      return get<at::Layout>();
    case Node::kMemoryFormat:
      return get<at::MemoryFormat>();
    case Node::kList:
      return List{shared()};
    case Node::kTuple:
      return Tuple{shared()};
    case Node::kSet:
      return Set{shared()};
    case Node::kSlice:
      return Slice{shared()};
    case Node::kNamedTuple: {
      std::string type(text());
      return NamedTuple{shared(), std::move(type)};
    }
    case Node::kDict: {
      const auto count = get<uint32_t>();
      std::vector<std::pair<Value, Value>> dict;
      dict.reserve(count);
      for (uint32_t i = 0; i < count; ++i) {
        Value key = tree();
        dict.emplace_back(std::move(key), tree());
      }
      return make_dict(std::move(dict));
    }
    case Node::kOther:
      return value();
  }
  return {};
}

Snapshot Unpacker::snapshot(std::string_view root, const Values* known) {
  Snapshot snapshot;
  known_ = known;
  const auto tree_bytes = get<uint32_t>();
  const char* const tree_at = std::exchange(at_, at_ + tree_bytes);
  const auto count = get<uint32_t>();
  snapshot.tensors.reserve(count);
  copies_.assign(count, {});
  for (uint32_t i = 0; i < count; ++i) {
    alignas(Entry) char bytes[sizeof(Entry)];
    std::memcpy(bytes, std::exchange(at_, at_ + sizeof(Entry)), sizeof(Entry));
    const Entry& entry = *reinterpret_cast<const Entry*>(bytes);
    TensorFacts facts{{}, {}, entry.dtype, entry.device, entry.layout, entry.requires_grad, entry.is_leaf};
    const auto numbers = [this](at::DimVector& dims, size_t size) {
      dims.resize(size);
      std::memcpy(dims.data(), at_, size * sizeof(int64_t));
      at_ += size * sizeof(int64_t);
    };
    numbers(facts.shape, entry.sizes);
    numbers(facts.stride, entry.strides);
    facts.storage = entry.storage;
    facts.offset = entry.offset;
    if (entry.first != i) {
      copies_[i] = copies_[entry.first];
    } else if (entry.other >= 0) {
      copies_[i] = packed_.others_[entry.other];
    } else if (entry.tensor >= 0) {
      copies_[i] = packed_.tensors_[entry.tensor];
      if (entry.compact) snapshot.restrided.emplace_back(i, std::vector<int64_t>(facts.stride.begin(), facts.stride.end()));
    } else {
      at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(storage(static_cast<size_t>(entry.memory))), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(entry.dtype));
      copy.unsafeGetTensorImpl()->set_sizes_and_strides(facts.shape, facts.stride, entry.copy_offset);
      if (entry.conj) copy._set_conj(true);
      if (entry.neg) copy._set_neg(true);
      if (entry.requires_grad) copy.set_requires_grad(true);
      copies_[i] = std::move(copy);
    }
    snapshot.tensors.push_back(std::move(facts));
  }
  snapshot.bytes = get<size_t>();
  const char* const after = std::exchange(at_, tree_at);
  snapshot.value = tree();
  at_ = after;
  if (first_unsupported(snapshot.value)) note_unsupported(snapshot.value, std::string(root), snapshot.unsupported);
  return snapshot;
}

}  // namespace op_tools
