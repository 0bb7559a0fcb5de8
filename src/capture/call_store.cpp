#include "capture/call_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "capture/pth.h"
#include "capture/zip.h"
#include "hooks/error.h"
#include "hooks/run_folder.h"

namespace op_tools {
namespace {

constexpr std::string_view kTemporary = ".tmp";
constexpr const char* kContainerName = "calls.zip";

std::string file_name(CallFile file, uint32_t pass) {
  const std::string middle = pass == 0 ? "" : "." + std::to_string(pass + 1);
  switch (file) {
    case CallFile::kInput:
      return "input" + middle + ".pth";
    case CallFile::kOutput:
      return "output" + middle + ".pth";
    case CallFile::kGradInputs:
      return "grad_inputs" + middle + ".pth";
    case CallFile::kGradOutputs:
      return "grad_outputs" + middle + ".pth";
    case CallFile::kMeta:
      return "meta" + middle + ".json";
  }
  throw Error("unknown file of a call");
}

// The folder of an operator: its name, fit for every file system.
std::string folder_name(const std::string& op) {
  std::string name;
  for (size_t i = 0; i < op.size(); ++i) {
    const bool scope = op.compare(i, 2, "::") == 0;
    if (scope) ++i;
    const bool plain = !scope && op[i] != '/' && static_cast<unsigned char>(op[i]) >= 0x20;
    name += plain ? op[i] : '.';
  }
  if (name.find_first_not_of('.') == std::string::npos) name += "op";  // no "", ".", ".."

  // File systems end at 255 bytes; two long names stay two folders by the hash of the whole
  // (FNV-1a).
  constexpr size_t kLongest = 200, kKept = 180;
  if (name.size() <= kLongest) return name;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : op) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  size_t kept = kKept;
  while ((static_cast<unsigned char>(name[kept]) & 0xC0) == 0x80) --kept;  // not inside a UTF-8 character
  char digits[17] = {};
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return name.substr(0, kept) + "-" + digits;
}

std::string call_folder(const CallKey& key) {
  const std::string call = folder_name(key.op) + "/" + std::to_string(key.id);
  return key.side.empty() ? call : call + "/" + key.side;
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw Error(path + ": " + what + ": " + std::strerror(error));
}

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

// What the two stores share: encoding, and messages that name the file.
class EncodingStore : public CallStore {
 public:
  explicit EncodingStore(std::string root) : root_(std::move(root)) {}

  std::string write(const CallKey& key, CallFile file, uint32_t pass, const Value& value) final {
    const std::string name = call_folder(key) + "/" + file_name(file, pass);
    const EncodedPth encoded = encode(name, value);
    return put(name, encoded.pieces(), encoded.size(), encoded.crc());
  }

  std::string write_text(const CallKey& key, CallFile file, uint32_t pass, std::string_view text) final {
    const Pieces pieces{{text.data(), text.size()}};
    return put(call_folder(key) + "/" + file_name(file, pass), pieces, text.size(), crc32_of(text));
  }

  const std::string& root() const final { return root_; }
  uint64_t bytes_written() const final { return bytes_written_; }

 private:
  EncodedPth encode(const std::string& name, const Value& value) const {
    try {
      return EncodedPth(value);
    } catch (const Error& error) {
      throw Error(root_ + "/" + name + ": " + error.what());
    }
  }

 protected:
  // Stores one file under `name` ("torch.Tensor.mul/9/input.pth"); returns the path that people
  // see.
  virtual std::string put(const std::string& name, const Pieces& pieces, uint64_t size, uint32_t crc) = 0;

  const std::string root_;
  uint64_t bytes_written_ = 0;
};

class FolderStore final : public EncodingStore {
 public:
  using EncodingStore::EncodingStore;

  void flush() override {}

 private:
  std::string put(const std::string& name, const Pieces& pieces, uint64_t size, uint32_t) override {
    std::string path = root_ + "/" + name;
    const std::string temporary = path + std::string(kTemporary);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    File file;
    if (!file.open(temporary, kFlags) && errno == ENOENT) {
      // The first file of this call. The root is not made again: when it is gone, somebody took it
      // away on purpose.
      for (size_t slash = path.find('/', root_.size() + 1); slash != std::string::npos;
           slash = path.find('/', slash + 1)) {
        make_folder(path.substr(0, slash));
      }
      file.open(temporary, kFlags);
    }
    if (file.fd() < 0) fail(path, "cannot be created", errno);
    const bool written = write_pieces(file.fd(), pieces, 0) && file.close();
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

// One write per entry and no buffer of our own: what write() has returned for survives kill -9.
// (Measured: a 1 MiB buffer saves under a microsecond per call.)
class ContainerStore final : public EncodingStore {
 public:
  explicit ContainerStore(std::string root)
      : EncodingStore(std::move(root)),
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
  std::string put(const std::string& name, const Pieces& pieces, uint64_t size, uint32_t crc) override {
    if (has_directory_) {
      // It goes before the entry comes: a directory with rubbish behind it would hide the new
      // entries.
      if (::ftruncate(file_.fd(), static_cast<off_t>(end_)) != 0) fail(path_, "cannot be written", errno);
      has_directory_ = false;
    }
    if (++puts_ % kPutsBetweenLooks == 0) fail_if_removed();
    std::string header;
    append_local_header(header, name, size, crc, end_);
    Pieces all{{header.data(), header.size()}};
    all.insert(all.end(), pieces.begin(), pieces.end());
    append(all, end_);
    directory_.add(name, size, crc, end_);
    if (directory_.recent().size() >= kDirectoryInMemory && directory_start_.append(directory_.recent())) {
      directory_.forget();
    }
    end_ += header.size() + size;
    bytes_written_ += header.size() + size;
    return path_ + "!" + name;
  }

  // Writing to a file that somebody deleted succeeds, and all of it is lost.
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

// --- reading ---

class FolderCall final : public StoredCall {
 public:
  explicit FolderCall(std::string path) : path_(std::move(path)) {}

  const std::string& path() const override { return path_; }
  bool has(CallFile file, uint32_t pass) const override {
    struct stat status = {};
    return ::stat(path_of(file, pass).c_str(), &status) == 0 && S_ISREG(status.st_mode);
  }
  Value read(CallFile file, uint32_t pass) const override { return read_pth(path_of(file, pass)); }
  std::string read_text(CallFile file) const override {
    const std::string path = path_of(file, 0);
    const FileSource source(path);
    try {
      return std::string(source.load(0, source.size()).bytes);
    } catch (const Error& error) {
      throw Error(path + ": " + error.what());
    }
  }

 private:
  std::string path_of(CallFile file, uint32_t pass) const { return path_ + "/" + file_name(file, pass); }

  const std::string path_;
};

// An open container and its entries by name. Shared by its calls.
class Container {
 public:
  explicit Container(const std::string& path) : path_(path), source_(path) {
    try {
      entries_ = read_zip_directory(source_);
    } catch (const Error&) {
      ZipWalk walk = walk_zip_entries(source_);
      entries_ = std::move(walk.entries);
      problem_ = path_ +
                 ": cut off or damaged: it has no whole directory at its end, as when its program was killed or " +
                 "still writes it; " + std::to_string(entries_.size()) + " whole entries are read";
      if (walk.cut_off) {
        problem_ += "; the last " + std::to_string(source_.size() - walk.end) + " bytes, from byte " +
                    std::to_string(walk.end) + " on, are no whole entry";
      }
    }
    const auto by_name = [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; };
    std::stable_sort(entries_.begin(), entries_.end(), by_name);
  }

  const std::string& path() const { return path_; }
  const std::string& problem() const { return problem_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }

  const ZipEntry* find(const std::string& name) const {
    const auto found = std::lower_bound(entries_.begin(), entries_.end(), name,
                                        [](const ZipEntry& entry, const std::string& key) { return entry.name < key; });
    return found != entries_.end() && found->name == name ? &*found : nullptr;
  }

  FileSource::Stretch load(const std::string& name) const {
    const std::string where = path_ + "!" + name;
    const ZipEntry* entry = find(name);
    if (entry == nullptr) throw Error(where + ": the container has no such entry");
    try {
      auto stretch = source_.load(payload_position(source_, *entry), entry->size);
      if (crc32_of(stretch.bytes) != entry->crc) throw Error("damaged (its CRC is wrong)");
      return stretch;
    } catch (const Error& error) {
      throw Error(where + ": " + error.what());
    }
  }

 private:
  const std::string path_;
  const FileSource source_;
  std::vector<ZipEntry> entries_;
  std::string problem_;
};

class ContainerCall final : public StoredCall {
 public:
  ContainerCall(std::shared_ptr<const Container> container, std::string folder)
      : container_(std::move(container)), folder_(std::move(folder)), path_(container_->path() + "!" + folder_) {}

  const std::string& path() const override { return path_; }
  bool has(CallFile file, uint32_t pass) const override { return container_->find(name_of(file, pass)) != nullptr; }
  Value read(CallFile file, uint32_t pass) const override {
    const std::string name = name_of(file, pass);
    const auto stretch = container_->load(name);
    return read_pth(stretch.bytes, container_->path() + "!" + name, stretch.mapped ? stretch.owner : nullptr);
  }
  std::string read_text(CallFile file) const override { return std::string(container_->load(name_of(file, 0)).bytes); }

 private:
  std::string name_of(CallFile file, uint32_t pass) const {
    return folder_.empty() ? file_name(file, pass) : folder_ + "/" + file_name(file, pass);
  }

  const std::shared_ptr<const Container> container_;
  const std::string folder_;
  const std::string path_;
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// The capture's number: the last folder name of digits only (ditorch puts a timestamp below it).
// Calls without one come last.
uint64_t capture_id(std::string_view path) {
  for (int level = 0; level < 2 && !path.empty(); ++level) {
    const size_t slash = path.find_last_of("/!");
    const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error == std::errc() && end == name.data() + name.size()) return id;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  }
  return std::numeric_limits<uint64_t>::max();
}

class Finder {
 public:
  void add_container(const std::string& path) {
    const auto container = std::make_shared<const Container>(path);
    if (!container->problem().empty()) found_.problems.push_back(container->problem());
    const std::string input = file_name(CallFile::kInput, 0);
    const std::string* last = nullptr;
    for (const auto& entry : container->entries()) {
      if (last != nullptr && *last == entry.name) {
        found_.problems.push_back(path + "!" + entry.name + ": is there more than once; the first is read");
        continue;
      }
      last = &entry.name;
      if (entry.name == input || ends_with(entry.name, "/" + input)) {
        const size_t folder_size = entry.name.size() - input.size();
        found_.calls.push_back(
            std::make_unique<ContainerCall>(container, entry.name.substr(0, folder_size == 0 ? 0 : folder_size - 1)));
      }
    }
  }

  // Everything at and below a folder. Links are followed; a folder that was seen by another way is
  // not entered again.
  void add_folders(const std::string& top) {
    std::vector<std::string> waiting{top};
    while (!waiting.empty()) {
      const std::string folder = std::move(waiting.back());
      waiting.pop_back();
      struct stat status = {};
      if (::stat(folder.c_str(), &status) != 0 || !seen_.emplace(status.st_dev, status.st_ino).second) continue;
      add_folder(folder, waiting, folder == top);
    }
  }

  FoundCalls take() {
    const auto before = [](const auto& a, const auto& b) {
      return std::forward_as_tuple(capture_id(a->path()), a->path()) <
             std::forward_as_tuple(capture_id(b->path()), b->path());
    };
    std::sort(found_.calls.begin(), found_.calls.end(), before);
    std::sort(found_.problems.begin(), found_.problems.end());
    return std::move(found_);
  }

 private:
  void add_folder(const std::string& folder, std::vector<std::string>& waiting, bool is_top) {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), &::closedir);
    if (!stream) {
      if (is_top) fail(folder, "cannot be read", errno);
      found_.problems.push_back(folder + ": cannot be read: " + std::strerror(errno));
      return;
    }
    bool has_input = false, has_other = false;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      const std::string path = folder + "/" + name;
      struct stat status = {};
      if (::stat(path.c_str(), &status) != 0) continue;  // a dangling link
      if (S_ISDIR(status.st_mode)) {
        waiting.push_back(path);
      } else if (name == file_name(CallFile::kInput, 0)) {
        has_input = true;
      } else if (ends_with(name, kTemporary)) {
        found_.problems.push_back(path + ": cut off: its program ended while it was written");
      } else if (name == kContainerName) {
        add_found_container(path);
      } else {
        has_other = has_other || is_call_file(name);
      }
    }
    if (has_input) {
      found_.calls.push_back(std::make_unique<FolderCall>(folder));
    } else if (has_other) {
      found_.problems.push_back(folder + ": has files of a call but no " + file_name(CallFile::kInput, 0));
    }
  }

  void add_found_container(const std::string& path) {
    try {
      add_container(path);
    } catch (const Error& error) {
      found_.problems.emplace_back(error.what());
    }
  }

  static bool is_call_file(const std::string& name) {
    return name == file_name(CallFile::kOutput, 0) || name == file_name(CallFile::kGradInputs, 0) ||
           name == file_name(CallFile::kGradOutputs, 0) || name == file_name(CallFile::kMeta, 0);
  }

  FoundCalls found_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

}  // namespace

std::unique_ptr<CallStore> CallStore::create(CaptureFormat format, const std::string& output_dir, int64_t rank) {
  std::string root = claim_run_folder(output_dir, "op_capture_result", rank);
  if (format == CaptureFormat::kContainer) return std::make_unique<ContainerStore>(std::move(root));
  return in_folder(std::move(root));
}

std::unique_ptr<CallStore> CallStore::in_folder(std::string root) {
  return std::make_unique<FolderStore>(std::move(root));
}

FoundCalls find_calls(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) fail(path, "cannot be read", errno);
  Finder finder;
  if (S_ISDIR(status.st_mode)) {
    // Without the slash at the end that shells like to add.
    const size_t last = path.find_last_not_of('/');
    finder.add_folders(last == std::string::npos ? "/" : path.substr(0, last + 1));
    return finder.take();
  }
  finder.add_container(path);
  FoundCalls found = finder.take();
  if (found.calls.empty() && found.problems.empty())
    throw Error(path + ": no container of calls: give the folder of a call, a folder above, or a " + kContainerName);
  return found;
}

}  // namespace op_tools
