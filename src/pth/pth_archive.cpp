#include "pth/pth_archive.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace op_tools {

PthArchive::PthArchive(std::string_view bytes, std::shared_ptr<const void> owner)
    : source_(bytes), bytes_(bytes), owner_(std::move(owner)) {
  if (bytes.substr(0, 2) != "PK") {
    // The old format of torch.save is a bare pickle that starts with a magic number (10 bytes,
    // LONG1).
    if (bytes.substr(0, 4) == "\x80\x02\x8a\x0a")
      throw Error("written in torch.save's old format without zip: load it in Python and save it again");
    throw Error("no .pth file of torch.save (it does not start as a zip archive does)");
  }
  for (auto& entry : read_zip_directory(source_)) {
    const std::string name = entry.name;
    if (!entries_.try_emplace(name, std::move(entry)).second)
      throw Error("the zip entry '" + name + "' is there twice");
  }
  find_root();
  if (entries_.count(root_ + "constants.pkl")) throw Error("a TorchScript archive: only files of torch.save are read");
  if (entries_.count(root_ + "byteorder") && record("byteorder") != "little")
    throw Error("written on a big-endian machine, which is not supported");
}

std::string_view PthArchive::record(const std::string& name) {
  const auto entry = entries_.find(root_ + name);
  if (entry == entries_.end()) throw Error("the zip entry '" + root_ + name + "' is missing");
  const std::string_view payload = bytes_.substr(payload_position(source_, entry->second), entry->second.size);
  // Entries that lie on each other could make a small file use much memory and time.
  handed_out_ += payload.size();
  if (handed_out_ > bytes_.size()) throw Error("its zip entries overlap");
  if (crc32_of(payload) != entry->second.crc)
    throw Error("the zip entry '" + entry->first + "' is damaged (its CRC is wrong)");
  return payload;
}

const at::Storage& PthArchive::storage(const std::string& key) {
  const auto [entry, added] = storages_.try_emplace(key);
  if (added) entry->second = load_storage(record("data/" + key));
  return entry->second;
}

void PthArchive::find_root() {
  for (const auto& [name, entry] : entries_) {
    const size_t slash = name.find('/');
    if (slash != std::string::npos && std::string_view(name).substr(slash) == "/data.pkl") {
      if (!root_.empty()) throw Error("the zip holds several data.pkl");
      root_ = name.substr(0, slash + 1);
    }
  }
  if (root_.empty()) throw Error("the zip holds no data.pkl: not written by torch.save");
}

at::Storage PthArchive::load_storage(std::string_view payload) const {
  at::Allocator* allocator = c10::GetCPUAllocator();
  at::DataPtr data;
  const bool aligned = reinterpret_cast<uintptr_t>(payload.data()) % kZipAlignment == 0;
  if (owner_ && aligned && !payload.empty()) {
    auto holder = std::make_unique<std::shared_ptr<const void>>(owner_);
    // Writable by the promise of read_pth: the mapping is private.
    data = at::DataPtr(
        const_cast<char*>(payload.data()), holder.release(),
        [](void* context) { delete static_cast<std::shared_ptr<const void>*>(context); }, at::kCPU);
  } else {
    data = allocator->allocate(payload.size());
    std::copy(payload.begin(), payload.end(), static_cast<char*>(data.mutable_get()));
  }
  // Resizable with the usual allocator, so that an operator with out= can be run on the tensor.
  return at::Storage(at::Storage::use_byte_size_t(), payload.size(), std::move(data), allocator,
                     /*resizable=*/true);
}

}  // namespace op_tools
