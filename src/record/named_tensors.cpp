#include "record/named_tensors.h"

#include <algorithm>

#include "tensor/known_tensors.h"

namespace op_tools {

namespace {

bool contains(const ByteRange& range, const ByteRange& other) {
  return range.begin <= other.begin && other.end <= range.end;
}

bool overlap(const ByteRange& range, const ByteRange& other) {
  return range.begin < other.end && other.begin < range.end;
}

}  // namespace

const TensorOrigins::Known& TensorOrigins::OfStorage::of(const ByteRange& range) const {
  if (parts.empty()) return whole;
  const auto behind = std::upper_bound(parts.begin(), parts.end(), range.begin,
                                       [](int64_t begin, const auto& part) { return begin < part.first.begin; });
  if (behind == parts.begin()) return whole;
  const auto& [part, known] = *std::prev(behind);
  return contains(part, range) ? known : whole;
}

TensorOrigin TensorOrigins::find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return {};
  const auto entry = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (entry == storages_.end() || entry->second.storage.expired()) return {};
  const Known& known = entry->second.parts.empty() ? entry->second.whole : entry->second.of(bytes_shown(tensor));
  if (known.producer != kNoCall && known.version == version_of(tensor)) {
    return {Origin::kCall, known.producer, known.output, known.name};
  }
  return {known.named, kNoCall, 0, known.name};
}

TensorOrigins::OfStorage* TensorOrigins::known_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  if (sweeps_.due(storages_.size(), storage_bytes(tensor))) {
    for (auto entry = storages_.begin(); entry != storages_.end();) {
      if (entry->second.storage.expired()) {
        entry = storages_.erase(entry);
      } else {
        ++entry;
      }
    }
    sweeps_.done(storages_.size());
  }
  // A storage that is held weakly keeps its address; the address of a storage that is gone is another's now only when
  // it was released here.
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto entry = storages_.find(storage);
  if (entry != storages_.end()) return &entry->second;
  return &storages_.emplace(storage, OfStorage{tensor.storage().getWeakStorageImpl(), {}, {}}).first->second;
}

StringNumber TensorOrigins::note_producer(const at::Tensor& tensor, uint32_t call, uint32_t output) {
  OfStorage* const known = known_of(tensor);
  if (!known) return 0;
  const auto note = [&](Known& noted) {
    noted.producer = call, noted.output = output, noted.version = version_of(tensor);
  };
  note(known->whole);
  if (known->parts.empty()) return known->whole.name;
  const ByteRange range = bytes_shown(tensor);
  for (auto& [part, of_part] : known->parts) {
    if (overlap(part, range)) note(of_part);
  }
  return known->of(range).name;
}

void TensorOrigins::name(const at::Tensor& tensor, Origin origin, StringNumber name) {
  OfStorage* const known = known_of(tensor);
  if (!known) return;
  const auto set = [&](Known& part) {
    if (part.named == Origin::kParameter && origin == Origin::kInput) return;
    part.named = origin, part.name = name;
  };
  // Inputs are cut out of one tensor in any way and number: their parts are not told apart.
  const ByteRange range = origin == Origin::kInput ? ByteRange() : bytes_shown(tensor);
  if (range.end == 0 || range.end - range.begin >= static_cast<int64_t>(tensor.storage().nbytes()))
    return set(known->whole);
  const auto place = std::lower_bound(known->parts.begin(), known->parts.end(), range.begin,
                                      [](const auto& part, int64_t begin) { return part.first.begin < begin; });
  if (place != known->parts.end() && place->first.begin == range.begin) {
    place->first.end = range.end;
    return set(place->second);
  }
  // Until now what was known of the whole was known of this part.
  set(known->parts.emplace(place, range, known->whole)->second);
}

}  // namespace op_tools
