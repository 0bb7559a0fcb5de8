#include "pth/content_store.h"

#define XXH_INLINE_ALL
#include <c10/core/ScalarType.h>
#include <c10/core/impl/COW.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include "base/error.h"
#include "pth/pth_tensors.h"
#include "pth/zip.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// Below this a separate file costs more than it saves.
constexpr size_t kLeastShared = 4096;

struct ShownRange {
  at::Storage storage;
  size_t begin = std::numeric_limits<size_t>::max();
  size_t end = 0;
  int64_t number = 0;
  std::string content;  // empty: too small, stays in the call's file
};

// The bytes of its storage that a plain tensor shows; nothing for tensors that stay in the call's own file, or that the
// writer of files has to refuse.
std::optional<std::pair<size_t, size_t>> shared_range(const at::Tensor& tensor) {
  std::string type;
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu() || !why_not_plain(tensor, &type).empty() ||
      tensor._is_zerotensor() || tensor.numel() == 0) {
    return std::nullopt;
  }
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  const size_t end = static_cast<size_t>(last + 1) * tensor.itemsize();
  if (end > tensor.storage().nbytes()) return std::nullopt;
  return std::pair{begin, end};
}

Value numbers(at::IntArrayRef list) {
  return make_tuple(Values(list.begin(), list.end()));
}

template <class T>
const T* field(const Value& dict, std::string_view key) {
  const Value* value = find_key(dict, key);
  return value ? value->get_if<T>() : nullptr;
}

std::optional<std::vector<int64_t>> integers(const Value& dict, std::string_view key) {
  const auto* tuple = field<Tuple>(dict, key);
  if (tuple == nullptr) return std::nullopt;
  std::vector<int64_t> list;
  for (const Value& item : *tuple->items) {
    const auto* number = item.get_if<int64_t>();
    if (number == nullptr) return std::nullopt;
    list.push_back(*number);
  }
  return list;
}

bool flag(const Value& dict, std::string_view key) {
  const auto* value = field<bool>(dict, key);
  return value != nullptr && *value;
}

}  // namespace

Value ContentWriter::share(const Value& value) {
  std::unordered_map<const void*, ShownRange> ranges;
  std::vector<ShownRange*> in_order;  // so that equal calls make equal files
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    const auto range = shared_range(tensor);
    if (!range) return;
    const auto [entry, is_new] = ranges.try_emplace(tensor.storage().unsafeGetStorageImpl());
    ShownRange& shown = entry->second;
    if (is_new) in_order.push_back(&shown);
    shown.storage = tensor.storage();
    shown.begin = std::min(shown.begin, range->first);
    shown.end = std::max(shown.end, range->second);
  });
  int64_t storages = 0;
  for (ShownRange* const each : in_order) {
    ShownRange& shown = *each;
    // Down to a multiple of the alignment, so that element offsets stay whole for every dtype.
    shown.begin = shown.begin / kZipAlignment * kZipAlignment;
    const size_t size = shown.end - shown.begin;
    if (size < kLeastShared) continue;
    shown.number = storages++;
    shown.content = store_content(
        dense_tensor(shown.storage, at::kByte, static_cast<int64_t>(shown.begin), {static_cast<int64_t>(size)}, {1}));
  }
  if (storages == 0) return value;

  std::unordered_map<const void*, int64_t> tensors;
  return map_tensors(value, [&](const at::Tensor& tensor) -> Value {
    if (!shared_range(tensor)) return tensor;
    const ShownRange& shown = ranges.at(tensor.storage().unsafeGetStorageImpl());
    if (shown.content.empty()) return tensor;
    const auto number =
        tensors.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<int64_t>(tensors.size())).first->second;
    const size_t item = tensor.itemsize();
    std::vector<std::pair<Value, Value>> facts{
        {"content", shown.content},
        {"dtype", tensor.scalar_type()},
        {"shape", numbers(tensor.sizes())},
        {"stride", numbers(tensor.strides())},
        {"offset", tensor.storage_offset() - static_cast<int64_t>(shown.begin / item)},
        {"storage", shown.number},
        {"tensor", number},
        {"requires_grad", tensor.requires_grad()}};
    if (tensor.is_conj()) facts.emplace_back("conj", true);
    if (tensor.is_neg()) facts.emplace_back("neg", true);
    return make_dict({{ContentReader::kTag, make_dict(std::move(facts))}});
  });
}

std::string ContentWriter::store_content(const at::Tensor& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.const_data_ptr(), bytes.nbytes());
  char name[33] = {};
  std::snprintf(name, sizeof name, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  const Content content{hash.low64, hash.high64};
  if (stored_.count(content) == 0) {
    store_(name, bytes);
    stored_.insert(content);  // not before: a write that failed stored nothing
  }
  return name;
}

std::optional<at::Tensor> ContentReader::tensor(const Value& reference) {
  const auto* content = field<std::string>(reference, "content");
  const auto* dtype = field<at::ScalarType>(reference, "dtype");
  const auto* offset = field<int64_t>(reference, "offset");
  const auto* storage_number = field<int64_t>(reference, "storage");
  const auto* tensor_number = field<int64_t>(reference, "tensor");
  const auto shape = integers(reference, "shape"), stride = integers(reference, "stride");
  // The name becomes a path: digits only, nothing that leads out of the folder.
  if (!content || !is_content_name(*content) || !dtype || !offset || !storage_number || !tensor_number || !shape ||
      !stride) {
    return std::nullopt;
  }
  const auto known = tensors_.find(*tensor_number);
  if (known != tensors_.end()) return known->second;

  auto stored = storages_.find(*storage_number);
  if (stored == storages_.end()) {
    stored = storages_.emplace(*storage_number, std::pair{*content, storage_of(*content)}).first;
  }
  if (stored->second.first != *content) throw Error("refers to a storage by two contents");
  at::Tensor tensor = dense_tensor(stored->second.second, *dtype, *offset, *shape, *stride);
  if (flag(reference, "conj")) set_conj(tensor);
  if (flag(reference, "neg")) tensor._set_neg(true);
  if (flag(reference, "requires_grad")) require_grad(tensor);
  tensors_.emplace(*tensor_number, tensor);
  return tensor;
}

at::Storage ContentReader::storage_of(const std::string& content) {
  const auto known = contents_.find(content);
  if (known != contents_.end()) {
    if (auto copy = c10::impl::cow::lazy_clone_storage(*known->second.unsafeGetStorageImpl())) return {std::move(copy)};
  }
  at::Storage storage = fetch_(content).storage();
  contents_.try_emplace(content, storage);
  return storage;
}

bool is_content_name(std::string_view name) {
  constexpr size_t kDigits = 32;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == kDigits && std::all_of(name.begin(), name.end(), is_digit);
}

}  // namespace op_tools
