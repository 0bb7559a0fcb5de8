#include "calls/call_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/run_folder.h"
#include "calls/capture_paths.h"
#include "pth/content_store.h"
#include "pth/pth.h"
#include "pth/zip.h"

namespace op_tools {
namespace {

// A file that is closed whatever happens.
class File {
 public:
  File() = default;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool open(const std::string& path, int flags) {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    return fd_ >= 0;
  }
  // Some file systems report a failed write only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

using Pieces = std::vector<EncodedPth::Piece>;

// Writes all pieces at `position`; false with errno set when the system does not take them all.
bool write_pieces(int fd, const Pieces& pieces, uint64_t position) {
  constexpr size_t kMaxParts = 512;
  std::vector<iovec> parts;
  size_t next = 0, done_of_next = 0;
  while (true) {
    while (next < pieces.size() && done_of_next == pieces[next].size) {
      ++next;
      done_of_next = 0;
    }
    if (next == pieces.size()) return true;
    parts.clear();
    for (size_t i = next; i < pieces.size() && parts.size() < kMaxParts; ++i) {
      const size_t done = i == next ? done_of_next : 0;
      parts.push_back({const_cast<char*>(pieces[i].data) + done, pieces[i].size - done});
    }
    const ssize_t count = ::pwritev(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO;
    if (count <= 0) return false;
    position += static_cast<uint64_t>(count);
    for (auto left = static_cast<size_t>(count); left > 0;) {
      const size_t step = std::min(left, pieces[next].size - done_of_next);
      done_of_next += step;
      left -= step;
      if (done_of_next == pieces[next].size) {
        ++next;
        done_of_next = 0;
      }
    }
  }
}

// Writes large bytes and returns their CRC. Nothing with errno set when the system does not take them all. The largest
// are summed up by a second thread meanwhile: when they come in a row, the program waits for this thread.
// Others go part by part, so that they come from memory once and are summed up and copied in the caches.
std::optional<uint32_t> write_and_sum(int fd, const EncodedPth::Piece& piece, uint64_t position) {
  constexpr size_t kPart = size_t{256} << 10;
  constexpr size_t kWorthAThread = size_t{4} << 20;
  uint32_t crc = 0;
  if (piece.size >= kWorthAThread) {
    try {
      std::jthread sum([&] { crc = crc32_of({piece.data, piece.size}); });
      if (!write_pieces(fd, {piece}, position)) return std::nullopt;
      sum.join();
      return crc;
    } catch (const std::system_error&) {  // no thread to be had
    }
  }
  for (size_t done = 0; done < piece.size;) {
    const std::string_view part(piece.data + done, std::min(kPart, piece.size - done));
    crc = crc32_of(part, crc);
    if (!write_pieces(fd, {{part.data(), part.size()}}, position + done)) return std::nullopt;
    done += part.size();
  }
  return crc;
}

// Writes the large pieces of a file that begins at `start`; its other pieces can be written then.
bool write_large(int fd, EncodedPth& file, uint64_t start) {
  for (size_t i = 0; i < file.large_pieces().size(); ++i) {
    const EncodedPth::Piece& piece = file.large_pieces()[i];
    const auto crc = write_and_sum(fd, piece, start + piece.position);
    if (!crc) return false;
    file.set_crc(i, *crc);
  }
  return true;
}

// The common part of the two stores: encoding, bytes that are stored once, and messages that name the file.
class EncodingStore : public CallStore {
 public:
  explicit EncodingStore(std::string root, bool dedupe = false) : root_(std::move(root)) {
    if (!dedupe) return;
    shared_.emplace(
        [this](const std::string& content, const at::Tensor& bytes) { put_encoded(tensor_file(content), bytes); });
  }

  std::string write(const CallKey& key, CallFile file, uint32_t pass, const Value& value) final {
    const std::string name = call_folder(key) + "/" + file_name(file, pass);
    // The shared bytes are in place before the file that refers to them: a program that is killed leaves no call with
    // bytes missing.
    return put_encoded(name, shared_ ? shared_->share(value) : value);
  }

  std::string write_text(const CallKey& key, CallFile file, uint32_t pass, std::string_view text) final {
    return put_text(call_folder(key) + "/" + file_name(file, pass), text);
  }

  const std::string& root() const final { return root_; }
  uint64_t bytes_written() const final { return bytes_written_; }

 private:
  std::string put_encoded(const std::string& name, const Value& value) {
    EncodedPth encoded = encode(name, value);
    return put(name, encoded);
  }

  EncodedPth encode(const std::string& name, const Value& value) const {
    try {
      return EncodedPth(value);
    } catch (const Error& error) {
      throw Error(root_ + "/" + name + ": " + error.what());
    }
  }

 protected:
  // Stores a file under `name` ("torch.Tensor.mul/9/input.pth"); returns the path that people
  // see.
  virtual std::string put(const std::string& name, EncodedPth& file) = 0;
  virtual std::string put_text(const std::string& name, std::string_view text) = 0;

  const std::string root_;
  uint64_t bytes_written_ = 0;

 private:
  std::optional<ContentWriter> shared_;
};

class FolderStore final : public EncodingStore {
 public:
  using EncodingStore::EncodingStore;

  void flush() override {}

 private:
  std::string put(const std::string& name, EncodedPth& file) override {
    return put_with(name, file.size(), [&](int fd) {
      if (!write_large(fd, file, 0)) return false;
      for (const auto& piece : file.other_pieces()) {
        if (!write_pieces(fd, {piece}, piece.position)) return false;
      }
      return true;
    });
  }
  std::string put_text(const std::string& name, std::string_view text) override {
    return put_with(name, text.size(), [&](int fd) { return write_pieces(fd, {{text.data(), text.size()}}, 0); });
  }

  // `write`: false with errno set when it failed.
  template <class Write>
  std::string put_with(const std::string& name, uint64_t size, Write&& write) {
    std::string path = root_ + "/" + name;
    const std::string temporary = path + std::string(kTemporary);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    File file;
    if (!file.open(temporary, kFlags) && errno == ENOENT) {
      // The first file of this call. The root is not made again: when it is gone, the user moved it
      // away on purpose.
      for (size_t slash = path.find('/', root_.size() + 1); slash != std::string::npos;
           slash = path.find('/', slash + 1)) {
        make_folder(path.substr(0, slash));
      }
      file.open(temporary, kFlags);
    }
    if (file.fd() < 0) fail(path, "cannot be created", errno);
    const bool written = write(file.fd()) && file.close();
    if (!written || ::rename(temporary.c_str(), path.c_str()) != 0) {
      const int error = errno;
      ::unlink(temporary.c_str());
      fail(path, "cannot be written", error);
    }
    bytes_written_ += size;
    return path;
  }
};

// The first part of a long directory, so that memory does not grow with the number of calls: a file without a name,
// gone with the process. Where it cannot be had, the directory stays in memory.
class DirectoryStart {
 public:
  explicit DirectoryStart(std::string path) : path_(std::move(path)) {}

  // True when the bytes are stored.
  bool append(const std::string& bytes) {
    if (file_.fd() < 0) {
      if (tried_) return false;
      tried_ = true;
      if (!file_.open(path_, O_RDWR | O_CREAT | O_EXCL)) return false;
      ::unlink(path_.c_str());
    }
    if (!write_pieces(file_.fd(), {{bytes.data(), bytes.size()}}, size_)) return false;
    size_ += bytes.size();
    return true;
  }

  uint64_t size() const { return size_; }

  // Copies all of it to `position` of another file; false with errno set when that fails.
  bool copy_to(int fd, uint64_t position) const {
    std::string buffer(std::min<uint64_t>(size_, uint64_t{1} << 20), '\0');
    for (uint64_t done = 0; done < size_;) {
      const size_t wanted = std::min<uint64_t>(buffer.size(), size_ - done);
      const ssize_t count = ::pread(file_.fd(), buffer.data(), wanted, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) errno = EIO;
      if (count <= 0) return false;
      const auto read = static_cast<size_t>(count);
      if (!write_pieces(fd, {{buffer.data(), read}}, position + done)) return false;
      done += read;
    }
    return true;
  }

 private:
  const std::string path_;
  File file_;
  bool tried_ = false;
  uint64_t size_ = 0;
};

// A write per entry and no buffer of ours: bytes for which write() has returned survive kill -9.
// (Measured: a 1 MiB buffer saves under a microsecond per call.)
class ContainerStore final : public EncodingStore {
 public:
  ContainerStore(std::string root, bool dedupe)
      : EncodingStore(std::move(root), dedupe),
        path_(root_ + "/" + kContainerName),
        directory_start_(path_ + ".directory" + std::string(kTemporary)) {
    if (!file_.open(path_, O_RDWR | O_CREAT | O_EXCL)) fail(path_, "cannot be created", errno);
  }

  void flush() override {
    fail_if_removed();
    if (has_directory_) return;
    std::string tail;
    directory_.append_to(tail, end_);
    if (!directory_start_.copy_to(file_.fd(), end_)) cut_and_fail();
    append({{tail.data(), tail.size()}}, end_ + directory_start_.size());
    has_directory_ = true;
  }

 private:
  // The beginning goes last: an entry that was cut off by a kill is none for a reader that walks.
  std::string put(const std::string& name, EncodedPth& file) override {
    before_entry();
    const uint64_t start = end_ + header_of(name, file.size(), 0).size();
    if (!write_large(file_.fd(), file, start)) cut_and_fail();
    const Pieces others = file.other_pieces();  // the first begins the file
    for (size_t i = 1; i < others.size(); ++i) append({others[i]}, start + others[i].position);
    return end_entry(name, others.front(), file.size(), file.crc());
  }

  std::string put_text(const std::string& name, std::string_view text) override {
    before_entry();
    return end_entry(name, {text.data(), text.size()}, text.size(), crc32_of(text));
  }

  void before_entry() {
    if (has_directory_) {
      // It is removed before the entry is written: a directory with rubbish behind it would hide the new
      // entries.
      if (::ftruncate(file_.fd(), static_cast<off_t>(end_)) != 0) fail(path_, "cannot be written", errno);
      has_directory_ = false;
    }
    if (++puts_ % kPutsBetweenLooks == 0) fail_if_removed();
  }

  std::string header_of(const std::string& name, uint64_t size, uint32_t crc) const {
    std::string header;
    append_local_header(header, name, size, crc, end_);
    return header;
  }

  std::string end_entry(const std::string& name, const EncodedPth::Piece& first, uint64_t size, uint32_t crc) {
    const std::string header = header_of(name, size, crc);
    // A kill can end a write between two pages. Where the rest of the entry is in the file already, half a beginning
    // would pass for a whole entry: its first byte goes by itself. Otherwise the file ends where the write did.
    const size_t held_back = first.size < size ? 1 : 0;
    append({{header.data() + held_back, header.size() - held_back}, first}, end_ + held_back);
    if (held_back > 0) append({{header.data(), held_back}}, end_);
    directory_.add(name, size, crc, end_);
    if (directory_.recent().size() >= kDirectoryInMemory && directory_start_.append(directory_.recent())) {
      directory_.forget();
    }
    end_ += header.size() + size;
    bytes_written_ += header.size() + size;
    return path_ + "!" + name;
  }

  // Writing to a deleted file succeeds, and all of it is lost.
  void fail_if_removed() {
    struct stat status = {};
    if (::fstat(file_.fd(), &status) == 0 && status.st_nlink == 0)
      fail(path_, "was removed while it was written", ENOENT);
  }

  void append(const Pieces& pieces, uint64_t position) {
    if (!write_pieces(file_.fd(), pieces, position)) cut_and_fail();
  }

  [[noreturn]] void cut_and_fail() {
    const int error = errno;
    // Half an entry would hide the later ones from a reader that walks. When this fails as well, so
    // will the next write.
    if (::ftruncate(file_.fd(), static_cast<off_t>(end_)) != 0)
      fail(path_, "cannot be written, nor made shorter", error);
    fail(path_, "cannot be written", error);
  }

  static constexpr size_t kDirectoryInMemory = size_t{1} << 20;
  static constexpr uint64_t kPutsBetweenLooks = 64;

  const std::string path_;
  File file_;
  DirectoryStart directory_start_;
  ZipDirectory directory_;
  uint64_t end_ = 0;  // of the last whole entry
  bool has_directory_ = false;
  uint64_t puts_ = 0;
};

}  // namespace

std::unique_ptr<CallStore> CallStore::create(CaptureFormat format, const std::string& output_dir, int64_t rank,
                                             bool dedupe) {
  std::string root = claim_run_folder(output_dir, "op_capture_result", rank);
  if (format == CaptureFormat::kContainer) return std::make_unique<ContainerStore>(std::move(root), dedupe);
  return std::make_unique<FolderStore>(std::move(root), dedupe);
}

std::unique_ptr<CallStore> CallStore::in_folder(std::string root) {
  return std::make_unique<FolderStore>(std::move(root));
}

}  // namespace op_tools
