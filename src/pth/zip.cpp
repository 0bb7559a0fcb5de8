#include "pth/zip.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/range_loader.h"

namespace op_tools {
namespace {

// Zip and our pickles are little endian; so is every machine torch has wheels for.
static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kDirectorySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;

constexpr size_t kLocalSize = 30;
constexpr size_t kDirectoryEntrySize = 46;
constexpr size_t kEndSize = 22;
constexpr size_t kEnd64Size = 56;
constexpr size_t kLocator64Size = 20;

constexpr uint16_t kVersionPlain = 20;
constexpr uint16_t kVersionZip64 = 45;
constexpr uint16_t kFlagEncrypted = 1;
constexpr uint16_t kFlagSizesAfterwards = 1 << 3;
constexpr uint16_t kFlagUtf8 = 1 << 11;
constexpr uint16_t kDosDate = 0x21;  // 1980-01-01: files with the same content are equal byte for byte
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kPaddingField = 0x4246;  // "FB", as PyTorch marks its own padding
constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();
constexpr uint16_t kMax16 = std::numeric_limits<uint16_t>::max();

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T get(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint16_t name_flags(std::string_view name) {
  const bool ascii = std::all_of(name.begin(), name.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
  return ascii ? 0 : kFlagUtf8;
}

// The fields of a local header and of a directory entry from "flags" to "length of the name".
void put_common(std::string& out, std::string_view name, uint64_t size, uint32_t crc) {
  const uint32_t size32 = size >= kMax32 ? kMax32 : static_cast<uint32_t>(size);
  put<uint16_t>(out, name_flags(name));
  put<uint16_t>(out, 0);  // stored
  put<uint16_t>(out, 0);  // time
  put<uint16_t>(out, kDosDate);
  put<uint32_t>(out, crc);
  put<uint32_t>(out, size32);
  put<uint32_t>(out, size32);
  put<uint16_t>(out, static_cast<uint16_t>(name.size()));
}

// Replaces the 32-bit sizes and position by those of a zip64 extra field where they say "look
// there".
void apply_zip64(std::string_view extra, uint64_t& size, uint64_t& stored_size, uint64_t* position) {
  while (extra.size() >= 4) {
    const auto id = get<uint16_t>(extra.data());
    const auto length = get<uint16_t>(extra.data() + 2);
    extra.remove_prefix(4);
    if (length > extra.size()) throw Error("an extra field of the zip is longer than its header");
    if (id == kZip64Field) {
      std::string_view field = extra.substr(0, length);
      for (uint64_t* number : {&size, &stored_size, position}) {
        if (number == nullptr || *number != kMax32) continue;
        if (field.size() < 8) throw Error("a zip64 field of the zip is too short");
        *number = get<uint64_t>(field.data());
        field.remove_prefix(8);
      }
      return;
    }
    extra.remove_prefix(length);
  }
}

void require_stored(const std::string& name, uint16_t flags, uint16_t method, uint64_t size, uint64_t stored_size) {
  if (flags & kFlagEncrypted) throw Error("the zip entry '" + name + "' is encrypted");
  if (method != 0 || size != stored_size)
    throw Error("the zip entry '" + name + "' is compressed; only stored entries are read (torch.save writes such)");
}

struct EndRecord {
  uint64_t count, directory_size, directory_position;
};

EndRecord read_end_record(const ByteSource& source) {
  const uint64_t size = source.size();
  if (size < kEndSize) throw Error("too short to be a zip archive (" + std::to_string(size) + " bytes)");
  const auto tail_size = static_cast<size_t>(std::min<uint64_t>(size, kEndSize + kMax16));
  std::string tail(tail_size, '\0');
  source.read(size - tail_size, tail.data(), tail_size);

  // The end record is the last thing but a comment, whose length it holds.
  size_t at = tail_size - kEndSize;
  while (get<uint32_t>(&tail[at]) != kEndSignature || at + kEndSize + get<uint16_t>(&tail[at + 20]) != tail_size) {
    if (at == 0) throw Error("no zip directory at its end: cut off, or no zip archive");
    --at;
  }
  EndRecord end{get<uint16_t>(&tail[at + 10]), get<uint32_t>(&tail[at + 12]), get<uint32_t>(&tail[at + 16])};

  const uint64_t end_position = size - tail_size + at;
  if (end_position >= kLocator64Size) {
    char locator[kLocator64Size];
    source.read(end_position - kLocator64Size, locator, sizeof locator);
    if (get<uint32_t>(locator) == kLocator64Signature) {
      char end64[kEnd64Size];
      source.read(get<uint64_t>(locator + 8), end64, sizeof end64);
      if (get<uint32_t>(end64) != kEnd64Signature) throw Error("the zip64 end record is not where the zip says");
      end = {get<uint64_t>(end64 + 32), get<uint64_t>(end64 + 40), get<uint64_t>(end64 + 48)};
    }
  }
  if (end.directory_position > size || end.directory_size > size - end.directory_position)
    throw Error("the zip directory lies outside the file");
  return end;
}

}  // namespace

uint32_t crc32_of(std::string_view bytes, uint32_t crc) {
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
}

uint32_t crc32_join(uint32_t first, uint32_t second, uint64_t second_size) {
  return static_cast<uint32_t>(crc32_combine(first, second, static_cast<z_off_t>(second_size)));
}

void append_local_header(std::string& out, std::string_view name, uint64_t size, uint32_t crc, uint64_t position) {
  const bool zip64 = size >= kMax32;
  const size_t zip64_size = zip64 ? 20 : 0;
  const size_t unpadded = kLocalSize + name.size() + zip64_size + 4;
  const size_t padding = (kZipAlignment - (position + unpadded) % kZipAlignment) % kZipAlignment;
  put<uint32_t>(out, kLocalSignature);
  put<uint16_t>(out, zip64 ? kVersionZip64 : kVersionPlain);
  put_common(out, name, size, crc);
  put<uint16_t>(out, static_cast<uint16_t>(zip64_size + 4 + padding));
  out += name;
  if (zip64) {
    put<uint16_t>(out, kZip64Field);
    put<uint16_t>(out, 16);
    put<uint64_t>(out, size);
    put<uint64_t>(out, size);
  }
  put<uint16_t>(out, kPaddingField);
  put<uint16_t>(out, static_cast<uint16_t>(padding));
  out.append(padding, 'Z');
}

void ZipDirectory::add(std::string_view name, uint64_t size, uint32_t crc, uint64_t header_position) {
  const bool large = size >= kMax32;
  const bool far = header_position >= kMax32;
  const uint16_t field_size = static_cast<uint16_t>((large ? 16 : 0) + (far ? 8 : 0));
  put<uint32_t>(recent_, kDirectorySignature);
  put<uint16_t>(recent_, kVersionZip64);                               // written by
  put<uint16_t>(recent_, field_size ? kVersionZip64 : kVersionPlain);  // needed to read
  put_common(recent_, name, size, crc);
  put<uint16_t>(recent_, field_size ? static_cast<uint16_t>(field_size + 4) : uint16_t{0});
  recent_.append(10, '\0');  // comment, disk, attributes
  put<uint32_t>(recent_, far ? kMax32 : static_cast<uint32_t>(header_position));
  recent_ += name;
  if (field_size) {
    put<uint16_t>(recent_, kZip64Field);
    put<uint16_t>(recent_, field_size);
    if (large) {
      put<uint64_t>(recent_, size);
      put<uint64_t>(recent_, size);
    }
    if (far) put<uint64_t>(recent_, header_position);
  }
  ++count_;
}

void ZipDirectory::forget() {
  forgotten_ += recent_.size();
  recent_.clear();
}

void ZipDirectory::append_to(std::string& out, uint64_t position) const {
  const uint64_t size = forgotten_ + recent_.size();
  const bool zip64 = position >= kMax32 || size >= kMax32 || count_ >= kMax16;
  out += recent_;
  if (zip64) {
    put<uint32_t>(out, kEnd64Signature);
    put<uint64_t>(out, kEnd64Size - 12);
    put<uint16_t>(out, kVersionZip64);
    put<uint16_t>(out, kVersionZip64);
    put<uint32_t>(out, 0);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, count_);
    put<uint64_t>(out, count_);
    put<uint64_t>(out, size);
    put<uint64_t>(out, position);
    put<uint32_t>(out, kLocator64Signature);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, position + size);
    put<uint32_t>(out, 1);
  }
  const uint16_t count16 = zip64 ? kMax16 : static_cast<uint16_t>(count_);
  put<uint32_t>(out, kEndSignature);
  put<uint32_t>(out, 0);
  put<uint16_t>(out, count16);
  put<uint16_t>(out, count16);
  put<uint32_t>(out, zip64 ? kMax32 : static_cast<uint32_t>(size));
  put<uint32_t>(out, zip64 ? kMax32 : static_cast<uint32_t>(position));
  put<uint16_t>(out, 0);
}

void MemorySource::read(uint64_t position, char* out, size_t size) const {
  if (position > bytes_.size() || size > bytes_.size() - position)
    throw Error("cut off, or a zip offset points outside");
  std::copy_n(bytes_.data() + position, size, out);
}

FileSource::FileSource(const std::string& path, Links links) : path_(path) {
  const auto fail = [this](int error) {
    if (fd_ >= 0) ::close(fd_);
    throw Error(path_ + ": cannot be read: " + std::strerror(error));
  };
  if (path.find('\0') != std::string::npos)
    throw Error(std::string(path.c_str()) + ": cannot be read: NUL in the path");
  // Without O_NONBLOCK a named pipe would wait for a writer for ever.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kRefused ? O_NOFOLLOW : 0));
  if (fd_ < 0 && errno == ELOOP && links == Links::kRefused) throw Error(path_ + std::string(kIsLink));
  struct stat status = {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail(errno);
  if (S_ISDIR(status.st_mode)) fail(EISDIR);
  if (!S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw Error(path_ + ": is no ordinary file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileSource::~FileSource() {
  ::close(fd_);
}

void FileSource::read(uint64_t position, char* out, size_t size) const {
  if (position > size_ || size > size_ - position) throw Error("cut off, or a zip offset points outside");
  load_range(path_, position, position + size);
  while (size > 0) {
    const ssize_t count = ::pread(fd_, out, size, static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0) throw Error("became shorter while it was read");
    out += count;
    position += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

FileSource::Range FileSource::load(uint64_t position, uint64_t size) const {
  constexpr uint64_t kMapFrom = uint64_t{1} << 20;
  if (position > size_ || size > size_ - position) throw Error("cut off, or a zip offset points outside");
  if (size < kMapFrom) {
    auto buffer = std::make_shared<std::string>(size, '\0');
    read(position, buffer->data(), size);
    return {*buffer, buffer, false};
  }
  load_range(path_, position, position + size);
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t lead = position % page;
  const uint64_t mapped_size = size + lead;
  void* start = ::mmap(nullptr, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_,
                       static_cast<off_t>(position - lead));
  if (start == MAP_FAILED) throw Error(std::string("cannot be mapped: ") + std::strerror(errno));
  std::shared_ptr<const void> owner(start, [mapped_size](void* mapping) { ::munmap(mapping, mapped_size); });
  return {{static_cast<const char*>(start) + lead, size}, std::move(owner), true};
}

std::vector<ZipEntry> read_zip_directory(const ByteSource& source) {
  const EndRecord end = read_end_record(source);
  std::string directory(end.directory_size, '\0');
  source.read(end.directory_position, directory.data(), directory.size());

  std::vector<ZipEntry> entries;
  std::string_view rest = directory;
  for (uint64_t i = 0; i < end.count; ++i) {
    if (rest.size() < kDirectoryEntrySize || get<uint32_t>(rest.data()) != kDirectorySignature)
      throw Error("the zip directory is damaged at entry " + std::to_string(i));
    const char* at = rest.data();
    const size_t name_size = get<uint16_t>(at + 28), extra_size = get<uint16_t>(at + 30),
                 comment_size = get<uint16_t>(at + 32);
    const size_t whole = kDirectoryEntrySize + name_size + extra_size + comment_size;
    if (rest.size() < whole) throw Error("the zip directory is cut off at entry " + std::to_string(i));
    ZipEntry entry;
    entry.name.assign(at + kDirectoryEntrySize, name_size);
    entry.crc = get<uint32_t>(at + 16);
    entry.size = get<uint32_t>(at + 24);
    entry.header_position = get<uint32_t>(at + 42);
    uint64_t stored_size = get<uint32_t>(at + 20);
    apply_zip64(rest.substr(kDirectoryEntrySize + name_size, extra_size), entry.size, stored_size,
                &entry.header_position);
    require_stored(entry.name, get<uint16_t>(at + 8), get<uint16_t>(at + 10), entry.size, stored_size);
    if (entry.header_position > source.size() || entry.size > source.size() - entry.header_position)
      throw Error("the zip entry '" + entry.name + "' lies outside the file");
    entries.push_back(std::move(entry));
    rest.remove_prefix(whole);
  }
  if (!rest.empty()) throw Error("the zip directory holds more than the entries that it counts");
  return entries;
}

ZipWalk walk_zip_entries(const ByteSource& source) {
  ZipWalk walk;
  const uint64_t total = source.size();
  std::string names;
  while (total - walk.end >= kLocalSize) {
    char header[kLocalSize];
    source.read(walk.end, header, sizeof header);
    const auto signature = get<uint32_t>(header);
    if (signature == kDirectorySignature) return walk;
    const auto flags = get<uint16_t>(header + 6);
    if (signature != kLocalSignature || (flags & kFlagSizesAfterwards)) break;
    const size_t name_size = get<uint16_t>(header + 26), extra_size = get<uint16_t>(header + 28);
    if (total - walk.end - kLocalSize < name_size + extra_size) break;
    names.resize(name_size + extra_size);
    source.read(walk.end + kLocalSize, names.data(), names.size());
    ZipEntry entry{names.substr(0, name_size), walk.end, get<uint32_t>(header + 22), get<uint32_t>(header + 14)};
    uint64_t stored_size = get<uint32_t>(header + 18);
    try {
      apply_zip64(std::string_view(names).substr(name_size), entry.size, stored_size, nullptr);
      require_stored(entry.name, flags, get<uint16_t>(header + 8), entry.size, stored_size);
    } catch (const Error&) {
      break;  // no header that op_tools writes: the records read so far are still good
    }
    const uint64_t payload = walk.end + kLocalSize + names.size();
    if (entry.size > total - payload) break;
    walk.end = payload + entry.size;
    walk.entries.push_back(std::move(entry));
  }
  walk.cut_off = walk.end != total;
  return walk;
}

uint64_t payload_position(const ByteSource& source, const ZipEntry& entry) {
  char header[kLocalSize];
  source.read(entry.header_position, header, sizeof header);
  const size_t name_size = get<uint16_t>(header + 26), extra_size = get<uint16_t>(header + 28);
  if (get<uint32_t>(header) != kLocalSignature || name_size != entry.name.size())
    throw Error("the zip entry '" + entry.name + "' is not where the zip directory says");
  std::string name(name_size, '\0');
  source.read(entry.header_position + kLocalSize, name.data(), name_size);
  if (name != entry.name) throw Error("the zip entry '" + entry.name + "' is not where the zip directory says");
  const uint64_t position = entry.header_position + kLocalSize + name_size + extra_size;
  if (position > source.size() || entry.size > source.size() - position)
    throw Error("the zip entry '" + entry.name + "' lies outside the file");
  return position;
}

}  // namespace op_tools
