#include "blackbox/blackbox_content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/range_loader.h"
#include "base/run_folder.h"
#include "blackbox/blackbox_file.h"
#include "calls/capture_paths.h"
#include "hooks/op_call.h"

namespace op_tools {
namespace {

double seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

const char* to_string(Kept kept) {
  switch (kept) {
    case Kept::kNotAsked:
      return "";
    case Kept::kCopying:
      return "copying";
    case Kept::kInputs:
      return "inputs";
    case Kept::kTooLarge:
      return "too large";
    case Kept::kFailed:
      return "failed";
    case Kept::kNoRoom:
      return "no room";
  }
  return "?";
}

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ >= 0) {
      size_ = size_now();
      memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
    }
    if (memory_ != MAP_FAILED) return;
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    fail(path, "cannot be read as a file of OpBlackBox", error);
  }
  ~MappedFile() {
    ::munmap(memory_, size_);
    ::close(descriptor_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(memory_), size_}; }
  bool has_grown() const { return size_now() > size_; }

 private:
  size_t size_now() const {
    struct stat status {};
    return ::fstat(descriptor_, &status) == 0 ? static_cast<size_t>(status.st_size) : 0;
  }

  int descriptor_ = -1;
  void* memory_ = MAP_FAILED;
  size_t size_ = 0;
};

// A process that writes the file may add a part behind the bytes that are mapped.
template <class Read>
auto read_growing(const std::string& path, const Read& read) {
  for (;;) {
    const MappedFile file(path);
    try {
      return read(file.bytes());
    } catch (const Error&) {
      if (!file.has_grown()) throw;
    }
  }
}

// What stands in a damaged file may be too large.
int64_t sum(int64_t left, int64_t right) {
  int64_t result = 0;
  return __builtin_add_overflow(left, right, &result) ? 0 : result;
}

using Header = BlackBoxFile::Header;
using FilesOfCall = std::map<std::string, std::string_view>;

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {
    std::memcpy(header_, range(0, sizeof header_).data(), sizeof header_);
    const Header& header = this->header();
    constexpr std::string_view kMagic = "OPTBLBX4";
    if (std::string_view(header.magic, sizeof header.magic) != kMagic || header.header_bytes < sizeof(Header) ||
        header.call_bytes != sizeof(BlackBoxCall)) {
      throw Error(path_ + ": is no file of OpBlackBox, or of another version of it");
    }
    if (header.bytes.load() > bytes_.size()) {
      throw Error(path_ + ": is cut off: it has " + std::to_string(bytes_.size()) + " bytes of " +
                  std::to_string(header.bytes.load()));
    }
    if (header.calls < 1) throw Error(path_ + ": is damaged: it has no room for calls");
  }

  const Header& header() const { return *reinterpret_cast<const Header*>(header_); }

  std::string string(StringId id) const { return text(id).value_or("?"); }

  struct Calls {
    std::vector<BlackBoxRow> rows;  // in the order in which they began
    uint64_t damaged = 0;
  };
  Calls calls() const {
    const Header& header = this->header();
    Calls calls;
    calls.damaged += header.bytes.load() < bytes_.size() ? 1 : 0;  // it has parts that the header does not know
    for (uint64_t i = 0; i < std::min(header.regions_used.load(), BlackBoxFile::kThreads); ++i) {
      const uint64_t region = place_of(header.regions[i]);
      Begin begin{};
      const std::vector<BlackBoxCall> open = region ? open_calls(region, begin) : std::vector<BlackBoxCall>();
      if (begin.thread == 0 || begin.depth > header.nested) {
        ++calls.damaged;
        continue;
      }
      const std::vector<BlackBoxCall> ended = ended_calls(region, begin.ended, calls.damaged);
      for (const BlackBoxCall& call : ended) add(call, begin.thread, /*is_open=*/false, calls);
      for (const BlackBoxCall& call : open) add(call, begin.thread, /*is_open=*/true, calls);
    }
    std::stable_sort(calls.rows.begin(), calls.rows.end(),
                     [](const BlackBoxRow& row, const BlackBoxRow& other) { return row.begun < other.begun; });
    return calls;
  }

  // By the number of the call; the files lie in the bytes.
  std::map<int64_t, FilesOfCall> kept() const {
    struct Lengths {
      uint64_t first,
          second;  // of a place: the call's number, the bytes of its files; of a file: its name, its content
    };
    const Header& header = this->header();
    std::map<int64_t, FilesOfCall> calls;
    for (uint64_t i = 0; i < header.kept_places && header.kept_bytes > sizeof(Lengths); ++i) {
      uint64_t place = place_of(at<uint32_t>(header.kept_at + i * sizeof(PageNumber)));
      if (place == 0) continue;
      const auto [call, size] = at<Lengths>(place);
      place += sizeof(Lengths);
      if (call == 0 || size > header.kept_bytes - sizeof(Lengths)) continue;
      FilesOfCall& files = calls[static_cast<int64_t>(call)];
      for (const uint64_t end = place + size; place + sizeof(Lengths) <= end;) {
        const auto [name_size, file_size] = at<Lengths>(place);
        place += sizeof(Lengths);
        if (name_size > end - place || file_size > end - place - name_size) break;
        files[std::string(range(place, name_size))] = range(place + name_size, file_size);
        place += name_size + file_size;
      }
    }
    return calls;
  }

 private:
  struct Begin {  // of a region
    uint64_t thread, depth, ended;
    bool operator==(const Begin&) const = default;
  };
  struct StreamCopy {
    int64_t id;
    StringId device;
    uint32_t reserved;
    int64_t done_until;
    uint64_t launched;
  };
  static_assert(sizeof(StreamCopy) == sizeof(BlackBoxFile::Stream));

  static uint64_t place_of(uint32_t page) { return uint64_t{page} * BlackBoxFile::kPage; }
  std::string_view range(uint64_t place, uint64_t size) const {
    if (size > bytes_.size() || place > bytes_.size() - size) {
      throw Error(path_ + ": is cut off or damaged: nothing at byte " + std::to_string(place));
    }
    load_range(path_, place, place + size);
    return bytes_.substr(place, size);
  }
  template <class T>
  T at(uint64_t place) const {
    T value;
    std::memcpy(&value, range(place, sizeof value).data(), sizeof value);
    return value;
  }
  // A text, which stands behind its length, at that byte of the segments; nothing where zeros stand, or no text.
  template <size_t kSegments>
  std::optional<std::string> text_in(const PageNumber (&segments)[kSegments], uint64_t byte) const {
    const uint64_t segment = byte / BlackBoxFile::kSegment, in_segment = byte % BlackBoxFile::kSegment;
    if (segment >= kSegments || segments[segment] == 0) return std::nullopt;
    const uint64_t length_at = place_of(segments[segment]) + in_segment;
    const uint64_t most = BlackBoxFile::kLongestText - std::min<uint64_t>(in_segment, BlackBoxFile::kLongestText);
    const uint64_t length = at<uint32_t>(length_at);
    if (length == 0 || length > most) return std::nullopt;
    const std::string_view text = range(length_at + sizeof(uint32_t), length);
    if (text.find('\0') != std::string_view::npos) return std::nullopt;
    return std::string(text);
  }

  std::optional<std::string> text(StringId id) const {
    if (id == 0) return "";
    if (id < header().strings_used.load()) return text_in(header().strings, id);
    // Of a copy, the strings' number is older than the calls.
    return is_copy() ? std::optional<std::string>("?") : std::nullopt;
  }

  // Of inputs. Those that are no longer there are no damage.
  std::optional<std::string> description(InputsId id) const {
    const Header& header = this->header();
    if (id == 0) return "";
    if (static_cast<uint32_t>(header.inputs_used.load()) - id > BlackBoxFile::kInputsUnits) return "?";
    return text_in(header.inputs, uint64_t{id % BlackBoxFile::kInputsUnits} * BlackBoxFile::kUnit);
  }

  // Its process went on while it was copied.
  bool is_copy() const { return header().copied != 0; }

  std::vector<BlackBoxCall> calls_at(uint64_t place, uint64_t count) const {
    const std::string_view bytes = range(place, count * sizeof(BlackBoxCall));
    std::vector<BlackBoxCall> calls(count);
    if (count) std::memcpy(calls.data(), bytes.data(), bytes.size());
    return calls;
  }

  // The calls that a thread is in, and in `begin` the state of its region then: a thread that makes calls meanwhile
  // writes to their places.
  std::vector<BlackBoxCall> open_calls(uint64_t region, Begin& begin) const {
    constexpr int kMostAttempts = 1000;
    std::vector<BlackBoxCall> open;
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      begin = at<Begin>(region);
      open = calls_at(region + offsetof(BlackBoxFile::Region, open), std::min<uint64_t>(begin.depth, header().nested));
      std::atomic_thread_fence(std::memory_order_acquire);
      if (at<Begin>(region) == begin) return open;
    }
    return {};
  }

  // No call ends before the call that ended before it, but the clock may step back, by less than this.
  static constexpr int64_t kClockStep = 100'000;  // nanoseconds

  // The calls of the ring, in the order in which they ended. A ring that lost a page has zeros there, or the calls of a
  // former round.
  std::vector<BlackBoxCall> ended_calls(uint64_t region, uint64_t ended, uint64_t& damaged) const {
    const uint64_t size = header().calls;
    const uint64_t ring = region + offsetof(BlackBoxFile::Region, open) + header().nested * sizeof(BlackBoxCall);
    const std::vector<BlackBoxCall> places = calls_at(ring, size);
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t ended_since = at<Begin>(region).ended;  // calls took the places of the oldest while these were read
    const int64_t last = ended ? sum(places[(ended - 1) % size].end, kClockStep) : INT64_MAX;
    std::vector<BlackBoxCall> calls;
    int64_t latest = 0;
    for (uint64_t n = ended - std::min(ended, size); n < ended; ++n) {
      const BlackBoxCall& call = places[n % size];
      if (n + size < ended_since || (is_copy() && (call.end > last || (call.id && !call.end)))) continue;
      if (call.id != 0 && call.begin != 0 && call.end >= sum(std::max(call.begin, latest), -kClockStep)) {
        calls.push_back(call);
        latest = std::max(latest, call.end);
      } else if (n + size != ended_since) {  // where the process wrote when it died
        ++damaged;
      }
    }
    // Later calls than the last: their number is an older one. (A thread that has ended left earlier calls there.)
    for (uint64_t place = ended; place < size && !is_copy(); ++place) {
      damaged += place > ended_since && places[place].end > last ? 1 : 0;
    }
    return calls;
  }

  void add(const BlackBoxCall& call, uint64_t thread, bool is_open, Calls& calls) const {
    if (call.id == 0 || call.begin == 0) {
      calls.damaged += is_copy() ? 0 : 1;
      return;
    }
    bool is_whole = call.op != 0 || header().names_lost.load() > 0;
    const auto shown = [&](const std::optional<std::string>& known) {
      is_whole = is_whole && known;
      return known.value_or("?");
    };
    BlackBoxRow row;
    row.state = is_open ? "open" : call.failed ? "failed" : "ended";
    row.op = shown(text(call.op));
    row.phase = to_string(call.phase ? Phase::kBackward : Phase::kForward);
    row.module = shown(text(call.module));
    row.line = shown(text(call.line));
    row.inputs = shown(description(call.inputs));
    row.step = call.step;
    row.id = static_cast<int64_t>(call.id);
    row.thread = static_cast<int64_t>(thread);
    row.begun = seconds(sum(call.begin, header().clock_to_unix));
    if (!is_open) row.ms = (static_cast<double>(call.end) - static_cast<double>(call.begin)) / 1e6;
    row.stored = to_string(call.kept);
    row.done = !is_open;
    if (call.stream >= 1 && call.stream <= std::min(header().streams_used.load(), BlackBoxFile::kStreams)) {
      const auto stream = at<StreamCopy>(offsetof(Header, streams) + (call.stream - 1U) * sizeof(BlackBoxFile::Stream));
      row.stream = string(stream.device) + ", stream " + std::to_string(stream.id);
      row.done = row.done && call.end <= stream.done_until;
    }
    row.group = shown(text(call.group));
    row.number = call.number;
    row.reduction = shown(text(call.reduction));
    calls.damaged += is_whole ? 0 : 1;
    calls.rows.push_back(std::move(row));
  }

  const std::string_view bytes_;
  const std::string& path_;
  alignas(Header) char header_[sizeof(Header)];  // as it was at the beginning
};

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) fail(path, "cannot be written", errno);
}

std::vector<std::string> save_kept_calls(const Reader& reader, const std::string& path, const std::string& folder) {
  const std::map<int64_t, FilesOfCall> kept = reader.kept();
  const std::string input = file_name(CallFile::kInput, 0), meta = file_name(CallFile::kMeta, 0);
  std::vector<BlackBoxRow> rows = reader.calls().rows;
  std::erase_if(rows, [&](const BlackBoxRow& row) {
    const auto files = kept.find(row.id);
    return row.stored != to_string(Kept::kInputs) || files == kept.end() || !files->second.contains(input) ||
           !files->second.contains(meta);
  });
  if (rows.empty()) throw Error(path + ": has no inputs of calls; OpBlackBox keeps them with inputs=N");
  std::stable_partition(rows.begin(), rows.end(), [](const BlackBoxRow& row) { return row.state != "open"; });
  std::vector<std::string> folders;
  for (const BlackBoxRow& row : rows) {
    const std::string place = folder + "/" + call_folder({row.op, static_cast<uint64_t>(row.id)});
    make_folders(place);
    const FilesOfCall& files = kept.at(row.id);
    for (const std::string& file : {input, meta}) write_file(place + "/" + file, files.at(file));
    folders.push_back(place);
  }
  return folders;
}

}  // namespace

const Columns<BlackBoxRow>& BlackBoxRow::columns() {
  static const Columns<BlackBoxRow> all{
      "BlackBoxRow",
      "A call in the file of OpBlackBox.",
      {
          {"state", &BlackBoxRow::state, "`open`: it had begun and not ended; `ended`; `failed`: the operator raised"},
          {"op", &BlackBoxRow::op, "the operator"},
          {"phase", &BlackBoxRow::phase, "`forward` or `backward`"},
          {"module", &BlackBoxRow::module, "the module that made the call"},
          {"line", &BlackBoxRow::line, "the program's line"},
          {"inputs", &BlackBoxRow::inputs, "dtypes, shapes and devices of the tensors"},
          {"step", &BlackBoxRow::step, "the training step"},
          {"id", &BlackBoxRow::id, "the number of the call"},
          {"thread", &BlackBoxRow::thread, "the thread, as the system numbers it"},
          {"begun", &BlackBoxRow::begun, "seconds since 1970"},
          {"ms", &BlackBoxRow::ms, "how long the program's thread was in it; nothing for an open call"},
          {"stored", &BlackBoxRow::stored,
           "`inputs`: they are in the file; `too large`, `failed`, `no room`: why not; `copying`: the call had not "
           "begun; "
           "empty: not asked"},
          {"stream", &BlackBoxRow::stream, "the stream of a device: `sim:0, stream 0`"},
          {"done", &BlackBoxRow::done,
           "an event of its stream showed that the device had done it; on the CPU: it ended"},
          {"group", &BlackBoxRow::group, "the process group of a collective"},
          {"number", &BlackBoxRow::number, "the collective's number in its group, from 1"},
          {"reduction", &BlackBoxRow::reduction, "how the collective reduces, and its root: `sum, root 0`"},
      }};
  return all;
}

BlackBoxContent read_black_box(std::string_view bytes, const std::string& path) {
  const Reader reader(bytes, path);
  const Header& header = reader.header();
  BlackBoxContent content;
  content.pid = header.pid;
  content.rank = header.rank;
  content.parent = header.parent;
  content.host = reader.string(header.host);
  content.program = reader.string(header.program);
  content.started = seconds(sum(header.started, header.clock_to_unix));
  content.closed = header.closed.load() != 0;
  content.left_out = header.left_out.load();
  content.names_lost = header.names_lost.load();
  if (header.copied) content.copied = seconds(header.copied);
  Reader::Calls calls = reader.calls();
  content.rows = std::move(calls.rows);
  content.damaged = calls.damaged;
  return content;
}

BlackBoxContent read_black_box(const std::string& path) {
  constexpr int kAttempts = 3;  // a process that goes on may have written names and descriptions meanwhile
  BlackBoxContent content;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    content = read_growing(path, [&](std::string_view bytes) { return read_black_box(bytes, path); });
    if (content.damaged == 0) break;
  }
  return content;
}

std::vector<std::string> save_kept_calls(const std::string& path, const std::string& folder) {
  return read_growing(path, [&](std::string_view bytes) { return save_kept_calls(Reader(bytes, path), path, folder); });
}

}  // namespace op_tools
