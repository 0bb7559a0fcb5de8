#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/links.h"
#include "base/own_command.h"
#include "calls/call_store.h"
#include "calls/capture_paths.h"
#include "calls/lost_calls.h"
#include "coverage/coverage_file.h"
#include "pth/content_store.h"
#include "pth/pth.h"
#include "pth/zip.h"

namespace op_tools {
namespace {

const std::string kInContainer = std::string(kContainerName) + "!";  // a call's path: the part before its folder

// The bytes that a file of shared bytes holds.
at::Tensor shared_bytes_of(const Value& value, const std::string& path) {
  const auto* bytes = value.get_if<at::Tensor>();
  if (bytes == nullptr || bytes->scalar_type() != at::kByte || bytes->dim() != 1 || !bytes->is_contiguous() ||
      bytes->storage_offset() != 0) {
    throw Error(path + ": holds " + describe(value) + ", expected the bytes of a tensor");
  }
  return *bytes;
}

class FolderCall final : public StoredCall {
 public:
  explicit FolderCall(std::string path) : path_(std::move(path)) {}

  const std::string& path() const override { return path_; }
  bool has(CallFile file, uint32_t pass) const override {
    struct stat status = {};
    return ::lstat(path_of(file, pass).c_str(), &status) == 0 && S_ISREG(status.st_mode);
  }
  uint64_t size(CallFile file, uint32_t pass) const override {
    const std::string path = path_of(file, pass);
    struct stat status = {};
    if (::lstat(path.c_str(), &status) != 0) fail(path, "cannot be read", errno);
    return static_cast<uint64_t>(status.st_size);
  }
  Value read(CallFile file, uint32_t pass) const override { return read_call_file(path_of(file, pass)); }
  std::string read_text(CallFile file) const override {
    const std::string path = path_of(file, 0);
    const FileSource source(path, Links::kRefused);
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
      std::string& problem = problems_.emplace_back(
          path_ + ": cut off or damaged: it has no whole directory at its end, as when its program was killed or " +
          "still writes it; " + std::to_string(entries_.size()) + " whole entries are read");
      if (walk.cut_off) {
        problem += "; the last " + std::to_string(source_.size() - walk.end) + " bytes, from byte " +
                   std::to_string(walk.end) + " on, are no whole entry";
      }
    }
    refuse_names_outside();
    const auto by_name = [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; };
    std::stable_sort(entries_.begin(), entries_.end(), by_name);
  }

  const std::string& path() const { return path_; }
  const std::vector<std::string>& problems() const { return problems_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }

  const ZipEntry* find(const std::string& name) const {
    const auto place = std::lower_bound(entries_.begin(), entries_.end(), name,
                                        [](const ZipEntry& entry, const std::string& key) { return entry.name < key; });
    return place != entries_.end() && place->name == name ? &*place : nullptr;
  }

  const ZipEntry& entry(const std::string& name) const {
    const ZipEntry* entry = find(name);
    if (entry == nullptr) throw Error(path_ + "!" + name + ": the container has no such entry");
    return *entry;
  }

  FileSource::Range load(const std::string& name) const {
    const ZipEntry& wanted = entry(name);
    const std::string where = path_ + "!" + name;
    try {
      auto range = source_.load(payload_position(source_, wanted), wanted.size);
      if (crc32_of(range.bytes) != wanted.crc) throw Error("damaged (its CRC is wrong)");
      return range;
    } catch (const Error& error) {
      throw Error(where + ": " + error.what());
    }
  }

 private:
  // Who made the container chose its names, and an export makes folders of them. Nothing reads such an entry.
  void refuse_names_outside() {
    const auto outside = std::stable_partition(entries_.begin(), entries_.end(),
                                               [](const ZipEntry& entry) { return is_below(entry.name); });
    if (outside == entries_.end()) return;
    problems_.push_back(path_ + ": " + std::to_string(entries_.end() - outside) +
                        " entries are refused, because their names lead out of a folder: '" +
                        visible(outside->name.substr(0, kLongestShown)) + "'; op_tools wrote no such file");
    entries_.erase(outside, entries_.end());
  }

  static constexpr size_t kLongestShown = 200;

  const std::string path_;
  const FileSource source_;
  std::vector<ZipEntry> entries_;
  std::vector<std::string> problems_;
};

class ContainerCall final : public StoredCall {
 public:
  ContainerCall(std::shared_ptr<const Container> container, std::string folder)
      : container_(std::move(container)), folder_(std::move(folder)), path_(container_->path() + "!" + folder_) {}

  const std::string& path() const override { return path_; }
  bool has(CallFile file, uint32_t pass) const override { return container_->find(name_of(file, pass)) != nullptr; }
  uint64_t size(CallFile file, uint32_t pass) const override { return container_->entry(name_of(file, pass)).size; }
  Value read(CallFile file, uint32_t pass) const override {
    const std::string name = name_of(file, pass);
    ContentReader shared([this](const std::string& content) {
      const Value bytes = read_entry(tensor_file(content), nullptr);
      return shared_bytes_of(bytes, container_->path() + "!" + tensor_file(content));
    });
    return read_entry(name, &shared);
  }
  std::string read_text(CallFile file) const override { return std::string(container_->load(name_of(file, 0)).bytes); }

 private:
  Value read_entry(const std::string& name, ContentReader* shared) const {
    const auto range = container_->load(name);
    return read_pth(range.bytes, container_->path() + "!" + name, range.mapped ? range.owner : nullptr, shared);
  }
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
// Calls without a number come last.
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
    const std::vector<std::string>& problems = container->problems();
    listing_.problems.insert(listing_.problems.end(), problems.begin(), problems.end());
    const std::string input = file_name(CallFile::kInput, 0);
    const std::string* last = nullptr;
    for (const auto& entry : container->entries()) {
      if (last != nullptr && *last == entry.name) {
        listing_.problems.push_back(path + "!" + entry.name + ": is there more than once; the first is read");
        continue;
      }
      last = &entry.name;
      if (entry.name.starts_with(std::string(kTensorFolder) + "/")) listing_.shared_bytes += entry.size;
      if (entry.name == input || ends_with(entry.name, "/" + input)) {
        const size_t folder_size = entry.name.size() - input.size();
        listing_.calls.push_back(
            std::make_unique<ContainerCall>(container, entry.name.substr(0, folder_size == 0 ? 0 : folder_size - 1)));
      }
    }
  }

  // Everything at and below a folder. `top` may be a link; those below are not followed, and are problems if calls
  // could lie behind them that the listing lacks.
  void add_folders(const std::string& top) {
    top_ = top;
    std::vector<std::string> waiting{top};
    while (!waiting.empty()) {
      const std::string folder = std::move(waiting.back());
      waiting.pop_back();
      struct stat status = {};
      if (::stat(folder.c_str(), &status) == 0) seen_.emplace(status.st_dev, status.st_ino);
      add_folder(folder, waiting, folder == top);
    }
    for (const auto& [path, place] : linked_folders_) {
      if (!seen_.contains(place)) listing_.problems.push_back(path + std::string(kIsLink));
    }
  }

  // The account of the run whose container was added.
  void add_account_beside(const std::string& container) { account_folders_.push_back(run_of(container)); }

  FoundCalls take() {
    for (const auto& call : listing_.calls) count(call->path());
    RanksOfLaunches ranks;
    for (const std::string& folder : account_folders_) {
      const int64_t launched = judge_by_account(folder, calls_here_[folder], listing_);
      if (launched > 0) ranks.add(folder, launched);
    }
    for (const auto& [run, calls] : calls_here_) {
      if (!calls.empty()) ranks.add(run);
    }
    if (!top_.empty()) ranks.name_missing(top_, listing_.problems);
    const auto before = [](const auto& a, const auto& b) {
      return std::forward_as_tuple(capture_id(a->path()), a->path()) <
             std::forward_as_tuple(capture_id(b->path()), b->path());
    };
    std::sort(listing_.calls.begin(), listing_.calls.end(), before);
    std::sort(listing_.problems.begin(), listing_.problems.end());
    return std::move(listing_);
  }

 private:
  void add_folder(const std::string& folder, std::vector<std::string>& waiting, bool is_top) {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), &::closedir);
    if (!stream) {
      if (is_top) fail(folder, "cannot be read", errno);
      listing_.problems.push_back(folder + ": cannot be read: " + std::strerror(errno));
      return;
    }
    bool has_input = false, has_other = false, is_cut_off = false, is_empty = true;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      is_empty = false;
      const std::string path = folder + "/" + name;
      struct stat status = {};
      if (::lstat(path.c_str(), &status) != 0) continue;  // it is gone
      if (S_ISLNK(status.st_mode)) {
        add_link(path, name, folder);
      } else if (S_ISDIR(status.st_mode)) {
        waiting.push_back(path);
      } else if (name == file_name(CallFile::kInput, 0)) {
        has_input = true;
      } else if (ends_with(name, kTemporary)) {
        listing_.problems.push_back(path + ": cut off: its program ended while it was written");
        is_cut_off = true;
      } else if (name == kCoverageFile) {
        account_folders_.push_back(folder);
      } else if (name == kContainerName) {
        add_found_container(path);
      } else if (is_shared_tensors(name, folder)) {
        listing_.shared_bytes += static_cast<uint64_t>(status.st_size);
      } else {
        has_other = has_other || is_call_file(name);
      }
    }
    if (has_input) {
      listing_.calls.push_back(std::make_unique<FolderCall>(folder));
    } else if (has_other) {
      listing_.problems.push_back(folder + ": has files of a call but no " + file_name(CallFile::kInput, 0));
    } else if (is_empty && !is_top && is_of_call(folder)) {
      listing_.problems.push_back(folder + ": cut off: it is empty, no file of the call is there");
      is_cut_off = true;
    }
    if (!has_input && (has_other || is_cut_off)) count(folder);  // named already
  }

  // By its name: the names of operators have a dot, the folders of results and ranks have none.
  static bool is_of_call(const std::string& folder) {
    const size_t slash = folder.rfind('/');
    if (slash == std::string::npos || slash == 0 || slash + 1 == folder.size()) return false;
    const std::string op = folder.substr(0, slash).substr(folder.rfind('/', slash - 1) + 1);
    return folder.find_first_not_of("0123456789", slash + 1) == std::string::npos &&
           op.find('.') != std::string::npos && op != "." && op != "..";
  }

  static std::string run_of(const std::string& container) {
    const size_t slash = container.rfind('/', container.size() - std::string_view(kContainerName).size());
    return slash == std::string::npos ? "." : container.substr(0, slash);
  }

  // A call at ".../<run>/<op>/<id>" or ".../<run>/calls.zip!<op>/<id>"; of other forms runs have none.
  void count(const std::string& path) {
    const size_t id = path.rfind('/');
    if (id == std::string::npos || id == 0) return;
    const size_t op = path.find_last_of("/!", id - 1);
    if (op == std::string::npos) return;
    const std::string run = path[op] == '!' ? run_of(path.substr(0, op)) : path.substr(0, op);
    ++calls_here_[run][path.substr(op + 1, id - op - 1)];
  }

  void add_link(const std::string& path, const std::string& name, const std::string& folder) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) return;  // it leads nowhere
    if (S_ISDIR(status.st_mode)) {
      linked_folders_.emplace_back(path, Place{status.st_dev, status.st_ino});
    } else if (name == file_name(CallFile::kInput, 0) || is_call_file(name) || name == kContainerName ||
               is_shared_tensors(name, folder)) {
      listing_.problems.push_back(path + std::string(kIsLink));
    }
  }

  void add_found_container(const std::string& path) {
    try {
      add_container(path);
    } catch (const Error& error) {
      listing_.problems.emplace_back(error.what());
    }
  }

  static bool is_shared_tensors(const std::string& file, const std::string& folder) {
    return ends_with(folder, "/" + std::string(kTensorFolder)) && is_content_name(file.substr(0, file.find('.')));
  }

  static bool is_call_file(const std::string& name) {
    return name == file_name(CallFile::kOutput, 0) || name == file_name(CallFile::kGradInputs, 0) ||
           name == file_name(CallFile::kGradOutputs, 0) || name == file_name(CallFile::kMeta, 0);
  }

  using Place = std::pair<dev_t, ino_t>;

  FoundCalls listing_;
  std::string top_;  // the folder that was asked for; empty: a container
  std::set<Place> seen_;
  std::vector<std::pair<std::string, Place>> linked_folders_;
  std::vector<std::string> account_folders_;
  std::map<std::string, CallsByFolder> calls_here_;  // by the run's folder
};

// Also the beginning of a zip: a container may be cut off anywhere.
bool starts_as_zip(const std::string& path) {
  constexpr std::string_view kStart = "PK\x03\x04";
  const FileSource source(path);
  const auto size = static_cast<size_t>(std::min<uint64_t>(source.size(), kStart.size()));
  return source.load(0, size).bytes == kStart.substr(0, size);
}

}  // namespace

FoundCalls find_calls(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    const int problem = errno;
    if (path.find("://") != std::string::npos) {
      throw Error(path + ": is a URL, which Python reads: python -m op_tools.run_op_from_data " + path);
    }
    if (path.find(kInContainer) == std::string::npos) fail(path, "cannot be read", problem);
    FoundCalls result;
    result.calls.push_back(open_call(path));
    return result;
  }
  Finder finder;
  if (S_ISDIR(status.st_mode)) {
    // Without the slash at the end that shells like to add.
    const size_t last = path.find_last_not_of('/');
    finder.add_folders(last == std::string::npos ? "/" : path.substr(0, last + 1));
    return finder.take();
  }
  finder.add_container(path);
  if (ends_with("/" + path, "/" + std::string(kContainerName))) finder.add_account_beside(path);
  FoundCalls calls = finder.take();
  if (calls.calls.empty() && !starts_as_zip(path)) {
    throw Error(path + ": is no capture: give the folder of a call, a folder above, or a " + kContainerName);
  }
  if (calls.calls.empty() && calls.problems.empty())
    throw Error(path + ": no container of calls: give the folder of a call, a folder above, or a " + kContainerName);
  return calls;
}

Value read_call_file(const std::string& path) {
  // <root>/<op>/<id>/input.pth: the tensors' folder stands beside the operators'.
  const size_t slash = path.find_last_of('/');
  const std::string call = slash == std::string::npos ? "." : path.substr(0, slash);
  ContentReader shared([&](const std::string& content) {
    const std::string file = call + "/../../" + tensor_file(content);
    try {
      return shared_bytes_of(read_pth(file, nullptr, Links::kRefused), file);
    } catch (const Error& error) {
      throw Error(std::string("refers to bytes that it shares with other calls (dedupe): ") + error.what() + "; " +
                  op_tools_line({"export"}) + " makes calls that stand alone");
    }
  });
  return read_pth(path, &shared, Links::kRefused);
}

std::unique_ptr<StoredCall> open_call(const std::string& path) {
  const size_t at = path.find(kInContainer);
  if (at == std::string::npos) return std::make_unique<FolderCall>(path);
  const auto container = std::make_shared<const Container>(path.substr(0, at + kInContainer.size() - 1));
  auto call = std::make_unique<ContainerCall>(container, path.substr(at + kInContainer.size()));
  if (!call->has(CallFile::kInput, 0)) {
    std::string text = path + ": there is no such call in " + container->path() + "; " +
                       op_tools_line({"show", container->path()}) + " lists operators";
    for (const std::string& problem : container->problems()) text += "; " + problem;
    throw Error(text);
  }
  return call;
}

}  // namespace op_tools
