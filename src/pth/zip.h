// Stored (uncompressed) zip archives: the common part of .pth files and containers of calls. Used
// by pth_writer, pth_reader and call_store only. Plain functions over bytes; nothing here is shared
// between threads.
//
// Reading trusts nothing: every offset and size is checked against the size of the source before it
// is used. All failures are Errors without a path; the caller knows the path and puts it in front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/links.h"

namespace op_tools {

// CRC-32 of `bytes`, continued from `crc`.
uint32_t crc32_of(std::string_view bytes, uint32_t crc = 0);
// The CRC of two ranges of bytes, in their order, from the CRC of each and the length of the second.
uint32_t crc32_join(uint32_t first, uint32_t second, uint64_t second_size);

// Payloads start at multiples of this, so that tensors can point into a mapped file.
constexpr size_t kZipAlignment = 64;

// Appends the local header of an entry that will stand at `position` in the archive; its payload
// has to follow at once.
void append_local_header(std::string& out, std::string_view name, uint64_t size, uint32_t crc, uint64_t position);

// The central directory, built as entries are written: about 50 bytes and the name per entry. An owner that writes many
// may keep the first part elsewhere.
class ZipDirectory {
 public:
  void add(std::string_view name, uint64_t size, uint32_t crc, uint64_t header_position);
  // The bytes added since forget(): the owner has stored those, and writes them in front of the bytes of append_to().
  const std::string& recent() const { return recent_; }
  void forget();
  // Appends the recent part of the directory and the end records, for an archive whose entries end at `position`.
  void append_to(std::string& out, uint64_t position) const;

 private:
  std::string recent_;
  uint64_t forgotten_ = 0;  // bytes
  uint64_t count_ = 0;
};

// Where the bytes of an archive come from: memory or an open file.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Copies size bytes; throws Error when they do not lie within the source or cannot be read.
  virtual void read(uint64_t position, char* out, size_t size) const = 0;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t position, char* out, size_t size) const override;

 private:
  std::string_view bytes_;
};

// An open file. Errors name the path.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path, Links links = Links::kFollowed);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size() const override { return size_; }
  void read(uint64_t position, char* out, size_t size) const override;

  // A range of the file in memory: read when it is small, else mapped (private and writable: a
  // change stays in this process). A mapping must not be used after the file was made shorter;
  // files of op_tools never are.
  struct Range {
    std::string_view bytes;
    std::shared_ptr<const void> owner;
    bool mapped = false;
  };
  Range load(uint64_t position, uint64_t size) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

struct ZipEntry {
  std::string name;
  uint64_t header_position = 0;
  uint64_t size = 0;
  uint32_t crc = 0;
};

// The entries of the central directory. An archive without directory, with compressed or encrypted
// entries, or with an entry that points outside is an Error.
std::vector<ZipEntry> read_zip_directory(const ByteSource& source);

// The entries found by going from local header to local header: for an archive whose writer was
// killed before it wrote the directory. `end`: where the last whole entry ends; `cut_off`:
// something else than a directory stands there.
struct ZipWalk {
  std::vector<ZipEntry> entries;
  uint64_t end = 0;
  bool cut_off = false;
};
ZipWalk walk_zip_entries(const ByteSource& source);

// Where the entry's payload starts. Checks that the local header stands where the directory says,
// bears the same name, and that the payload lies within the source.
uint64_t payload_position(const ByteSource& source, const ZipEntry& entry);

}  // namespace op_tools
