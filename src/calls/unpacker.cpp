#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <memory>
#include <utility>

#include "calls/packed_form.h"
#include "calls/packed_values.h"

namespace op_tools {

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
  switch (get<PackedNode>()) {
    case PackedNode::kNone:
      return {};
    case PackedNode::kFalse:
      return false;
    case PackedNode::kTrue:
      return true;
    case PackedNode::kInt:
      return get<int64_t>();
    case PackedNode::kDouble:
      return get<double>();
    case PackedNode::kText:
      return std::string(text());
    case PackedNode::kTensor:
      return copies_[get<uint32_t>()];
    case PackedNode::kKnown:
      return (*known_)[get<uint32_t>()];
    case PackedNode::kDtype:
      return get<at::ScalarType>();
    case PackedNode::kDevice: {
      c10::Device device(c10::kCPU);
      std::memcpy(&device, std::exchange(at_, at_ + sizeof device), sizeof device);
      return device;
    }
    case PackedNode::kLayout:
      return get<at::Layout>();
    case PackedNode::kMemoryFormat:
      return get<at::MemoryFormat>();
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
      const auto count = get<uint32_t>();
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

Snapshot Unpacker::snapshot(std::string_view root, const Values* known) {
  Snapshot snapshot;
  known_ = known;
  const auto tree_bytes = get<uint32_t>();
  const char* const tree_at = std::exchange(at_, at_ + tree_bytes);
  const auto count = get<uint32_t>();
  snapshot.tensors.reserve(count);
  copies_.assign(count, {});
  for (uint32_t i = 0; i < count; ++i) {
    alignas(PackedEntry) char bytes[sizeof(PackedEntry)];
    std::memcpy(bytes, std::exchange(at_, at_ + sizeof(PackedEntry)), sizeof(PackedEntry));
    const PackedEntry& entry = *reinterpret_cast<const PackedEntry*>(bytes);
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
      if (entry.compact)
        snapshot.restrided.emplace_back(i, std::vector<int64_t>(facts.stride.begin(), facts.stride.end()));
    } else {
      at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(storage(static_cast<size_t>(entry.memory))), c10::DispatchKeySet(c10::DispatchKey::CPU),
          c10::scalarTypeToTypeMeta(entry.dtype));
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
