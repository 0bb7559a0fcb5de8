#include <c10/util/Exception.h>

#include <limits>
#include <optional>

#include "base/error.h"
#include "pth/pickler.h"
#include "pth/pth.h"
#include "pth/zip.h"

namespace op_tools {

struct EncodedPth::Impl {
  // Payloads up to this size are copied next to their headers: fewer pieces, fewer system calls.
  static constexpr size_t kCopyBelow = 4096;
  static constexpr size_t kNotLarge = std::numeric_limits<size_t>::max();

  struct Entry {
    std::string name;
    std::string_view payload;
    size_t large = kNotLarge;  // its place in large_pieces
  };

  Pickled pickled;
  std::vector<Entry> entries;
  std::vector<Piece> large_pieces;
  std::vector<std::optional<uint32_t>> large_crcs;
  uint64_t size = 0;

  // After finish():
  bool is_finished = false;
  std::string own;  // headers and small payloads
  std::vector<Piece> pieces;
  uint32_t crc = 0;

  // Where the large payloads will stand, and the size of the whole: the parts that do not depend on the CRCs, so no
  // payload is read. A file without large payloads is made at once.
  void lay_out() {
    for (Entry& entry : entries) {
      if (entry.payload.size() <= kCopyBelow) continue;
      entry.large = large_pieces.size();
      large_pieces.push_back({entry.payload.data(), entry.payload.size()});
    }
    if (large_pieces.empty()) return finish();
    large_crcs.resize(large_pieces.size());
    std::string header;
    ZipDirectory directory;
    for (const Entry& entry : entries) {
      header.clear();
      append_local_header(header, entry.name, entry.payload.size(), 0, size);
      directory.add(entry.name, entry.payload.size(), 0, size);
      size += header.size();
      if (entry.large != kNotLarge) large_pieces[entry.large].position = size;
      size += entry.payload.size();
    }
    header.clear();
    directory.append_to(header, size);
    size += header.size();
  }

  void finish() {
    if (is_finished) return;
    ZipDirectory directory;
    uint64_t position = 0;
    own.reserve(pickled.bytes.size() + 1024 + 256 * pickled.storages.size());
    for (const Entry& entry : entries) {
      const bool is_large = entry.large != kNotLarge;
      const uint32_t payload_crc =
          is_large && large_crcs[entry.large] ? *large_crcs[entry.large] : crc32_of(entry.payload);
      directory.add(entry.name, entry.payload.size(), payload_crc, position);
      const size_t before = own.size();
      append_local_header(own, entry.name, entry.payload.size(), payload_crc, position);
      position += own.size() - before + entry.payload.size();
      if (!is_large) {
        own += entry.payload;
        continue;
      }
      end_own_piece();
      pieces.push_back(large_pieces[entry.large]);
      crc = crc32_join(crc, payload_crc, entry.payload.size());
    }
    directory.append_to(own, position);
    end_own_piece();
    // `own` moved while it grew: only now are its addresses final.
    const char* next = own.data();
    position = 0;
    for (auto& piece : pieces) {
      if (piece.data == nullptr) {
        piece = {next, piece.size, position};
        next += piece.size;
      }
      position += piece.size;
    }
    size = position;
    is_finished = true;
  }

 private:
  void end_own_piece() {
    const std::string_view fresh = std::string_view(own).substr(own_pieces_end_);
    crc = crc32_of(fresh, crc);
    pieces.push_back({nullptr, fresh.size()});
    own_pieces_end_ = own.size();
  }

  size_t own_pieces_end_ = 0;
};

EncodedPth::EncodedPth(const Value& value) : impl_(std::make_unique<Impl>()) {
  try {
    impl_->pickled = pickle(value);
  } catch (const c10::Error& error) {
    // A fake tensor, for example, throws when asked for its memory.
    throw Error(std::string("torch does not give the memory of a tensor: ") + error.what_without_backtrace());
  }
  const auto& storages = impl_->pickled.storages;
  auto& entries = impl_->entries;
  entries.reserve(3 + storages.size());
  entries.push_back({"archive/data.pkl", impl_->pickled.bytes});
  entries.push_back({"archive/byteorder", "little"});
  for (size_t i = 0; i < storages.size(); ++i) {
    entries.push_back({"archive/data/" + std::to_string(i), storages[i].payload()});
  }
  entries.push_back({"archive/version", "3\n"});
  impl_->lay_out();
}

EncodedPth::~EncodedPth() = default;
EncodedPth::EncodedPth(EncodedPth&&) noexcept = default;
EncodedPth& EncodedPth::operator=(EncodedPth&&) noexcept = default;

uint64_t EncodedPth::size() const {
  return impl_->size;
}
const std::vector<EncodedPth::Piece>& EncodedPth::large_pieces() const {
  return impl_->large_pieces;
}
void EncodedPth::set_crc(size_t large_piece, uint32_t crc) {
  impl_->large_crcs.at(large_piece) = crc;
}
std::vector<EncodedPth::Piece> EncodedPth::other_pieces() const {
  std::vector<Piece> others;
  for (const Piece& piece : pieces()) {
    const bool is_own = piece.data >= impl_->own.data() && piece.data < impl_->own.data() + impl_->own.size();
    if (is_own) others.push_back(piece);
  }
  return others;
}
const std::vector<EncodedPth::Piece>& EncodedPth::pieces() const {
  impl_->finish();
  return impl_->pieces;
}
uint32_t EncodedPth::crc() const {
  impl_->finish();
  return impl_->crc;
}

}  // namespace op_tools
