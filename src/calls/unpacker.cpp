#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <memory>
#include <utility>

#include "calls/packed_form.h"
#include "calls/packed_values.h"

namespace op_tools {

Unpacker::Unpacker(const Packed& packed)
    : packed_(packed),
      at_(reinterpret_cast<const char*>(packed.memories() + packed.memories_)),
      end_(at_ + packed.size_) {
  storages_.resize(packed.memories_);
}

void Unpacker::fail_at_end() {
  throw Error("packed values end before all of them were read: this is an error of op_tools");
}

void Unpacker::expect(uint32_t number, const char* expected) {
  if (plain<uint32_t>() == number) return;
  throw Error(std::string("packed values hold something else than ") + expected + ": this is an error of op_tools");
}

void Unpacker::finish() const {
  if (at_ == end_) return;
  throw Error(std::to_string(end_ - at_) + " bytes of packed values were not read: this is an error of op_tools");
}

std::string_view Unpacker::text() {
  const auto size = plain<size_t>();
  return {take(size), size};
}

Value Unpacker::value() {
  const auto number = plain<uint32_t>();
  return number == kNoValue ? Value() : packed_.others_.at(number);
}

const c10::Storage& Unpacker::storage(size_t memory) {
  c10::Storage& storage = storages_[memory];
  if (!storage) {
    Packed::Memory& of = packed_.memories()[memory];
    storage = c10::Storage(c10::Storage::use_byte_size_t(), of.size, std::move(of.data), nullptr, false);
  }
  return storage;
}

Values Unpacker::items(size_t count) {
  Values items;
  items.reserve(count);
  for (size_t i = 0; i < count; ++i) items.push_back(tree());
  return items;
}

Value Unpacker::tree() {
  const auto shared = [this] { return std::make_shared<const Values>(items(plain<uint32_t>())); };
  switch (plain<PackedNode>()) {
    case PackedNode::kNone:
      return {};
    case PackedNode::kFalse:
      return false;
    case PackedNode::kTrue:
      return true;
    case PackedNode::kInt:
      return plain<int64_t>();
    case PackedNode::kDouble:
      return plain<double>();
    case PackedNode::kText:
      return std::string(text());
    case PackedNode::kTensor:
      return copies_[plain<uint32_t>()];
    case PackedNode::kKnown:
      return (*known_)[plain<uint32_t>()];
    case PackedNode::kDtype:
      return plain<at::ScalarType>();
    case PackedNode::kDevice: {
      c10::Device device(c10::kCPU);
      get_field(device);
      return device;
    }
    case PackedNode::kLayout:
      return plain<at::Layout>();
    case PackedNode::kMemoryFormat:
      return plain<at::MemoryFormat>();
    case PackedNode::kList:
      return List{shared()};
    case PackedNode::kTuple:
      return Tuple{shared()};
    case PackedNode::kSet:
      return Set{shared()};
    case PackedNode::kSlice:
      return Slice{shared()};
    case PackedNode::kNamedTuple: {
      std::string type(text());
      return NamedTuple{shared(), std::move(type)};
    }
    case PackedNode::kDict: {
      const auto count = plain<uint32_t>();
      std::vector<std::pair<Value, Value>> dict;
      dict.reserve(count);
      for (uint32_t i = 0; i < count; ++i) {
        Value key = tree();
        dict.emplace_back(std::move(key), tree());
      }
      return make_dict(std::move(dict));
    }
    case PackedNode::kOther:
      return value();
  }
  return {};
}

at::Tensor Unpacker::copy_of(const PackedEntry& entry, const TensorMeta& meta) {
  at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage(static_cast<size_t>(entry.memory))),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                             c10::scalarTypeToTypeMeta(entry.dtype));
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(meta.shape, meta.stride, entry.copy_offset);
  if (entry.conj) copy._set_conj(true);
  if (entry.neg) copy._set_neg(true);
  if (entry.requires_grad) copy.set_requires_grad(true);
  return copy;
}

Snapshot Unpacker::snapshot(std::string_view root, const Values* known) {
  expect(kSnapshotNumber, "a snapshot");
  Snapshot snapshot;
  known_ = known;
  const auto tree_bytes = plain<uint32_t>();
  const char* const tree_at = take(tree_bytes);
  const auto count = plain<uint32_t>();
  snapshot.tensors.reserve(count);
  copies_.assign(count, {});
  for (uint32_t i = 0; i < count; ++i) {
    alignas(PackedEntry) char bytes[sizeof(PackedEntry)];
    std::memcpy(bytes, take(sizeof(PackedEntry)), sizeof(PackedEntry));
    const PackedEntry& entry = *reinterpret_cast<const PackedEntry*>(bytes);
    TensorMeta meta;
    const auto numbers = [this](at::DimVector& dims, size_t size) {
      dims.resize(size);
      std::memcpy(dims.data(), take(size * sizeof(int64_t)), size * sizeof(int64_t));
    };
    numbers(meta.shape, entry.sizes);
    numbers(meta.stride, entry.strides);
    meta.dtype = entry.dtype;
    meta.device = entry.device;
    meta.layout = entry.layout;
    meta.requires_grad = entry.requires_grad;
    meta.is_leaf = entry.is_leaf;
    meta.storage = entry.storage;
    meta.offset = entry.offset;
    if (entry.first != i) {
      copies_[i] = copies_[entry.first];
    } else if (entry.other >= 0) {
      copies_[i] = packed_.others_[entry.other];
    } else if (entry.tensor >= 0) {
      copies_[i] = packed_.tensors_[entry.tensor];
      if (entry.compact)
        snapshot.restrided.emplace_back(i, std::vector<int64_t>(meta.stride.begin(), meta.stride.end()));
    } else {
      copies_[i] = copy_of(entry, meta);
    }
    snapshot.tensors.push_back(std::move(meta));
  }
  snapshot.bytes = plain<size_t>();
  const char* const after = std::exchange(at_, tree_at);
  snapshot.value = tree();
  if (at_ != tree_at + tree_bytes) throw Error("a packed tree has another size than was noted: an error of op_tools");
  at_ = after;
  if (first_unsupported(snapshot.value)) note_unsupported(snapshot.value, std::string(root), snapshot.unsupported);
  return snapshot;
}

}  // namespace op_tools
