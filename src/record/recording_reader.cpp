#include <c10/core/Device.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/range_loader.h"
#include "record/json_lines.h"
#include "record/recording_blocks.h"
#include "record/recording_file.h"
#include "record/row_tables.h"
#include "report/json_writer.h"

namespace op_tools {

using namespace recording_blocks;  // NOLINT: the format of this file

namespace {

// The fault of a block; the reader adds its place.
struct Damage {
  std::string problem;
};

// A file of which parts are read; its size is that at the beginning, for it may grow.
class Source {
 public:
  explicit Source(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) fail();
    if (!S_ISREG(status.st_mode)) throw Error(path_ + ": is no file");
    size_ = static_cast<uint64_t>(status.st_size);
  }
  ~Source() { ::close(descriptor_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  uint64_t at() const { return at_; }
  void go_to(uint64_t byte) { at_ = std::min(byte, size_); }
  uint64_t left() const { return size_ - at_; }
  std::string take(uint64_t bytes) {  // no more than left()
    load_range(path_, at_, at_ + bytes);
    std::string text(bytes, '\0');
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(descriptor_, text.data() + done, bytes - done, static_cast<off_t>(at_ + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail();
      if (got == 0) throw Error(path_ + ": became shorter while it was read");
      done += static_cast<size_t>(got);
    }
    at_ += bytes;
    return text;
  }
  // Before another reader takes the file.
  void load_all() const { load_range(path_, 0, size_); }

 private:
  [[noreturn]] void fail() {
    const int problem = errno;
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    throw Error(path_ + ": cannot be read: " + std::strerror(problem));
  }

  const std::string& path_;
  int descriptor_;
  uint64_t size_ = 0, at_ = 0;
};

// The next parts of a block, none beyond its end.
class Parts {
 public:
  explicit Parts(std::string_view bytes) : left_(bytes) {}
  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) throw Damage{"a block of rows is shorter than its counts say"};
    const std::string_view part = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return part;
  }
  template <class T>
  void take(size_t count, T* to) {
    const std::string_view part = take(uint64_t{count} * sizeof(T));
    if (count > 0) std::memcpy(static_cast<void*>(to), part.data(), part.size());
  }
  bool is_empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

void require(bool holds, const char* problem) {
  if (!holds) throw Damage{problem};
}

// Is the byte of a bool, which may not be read as a bool before? Or of several small members.
template <class Row>
void require_flags(std::string_view rows, size_t place, uint8_t most = 1) {
  for (size_t at = place; at < rows.size(); at += sizeof(Row)) {
    require(static_cast<unsigned char>(rows[at]) <= most, "a boolean is neither 0 nor 1");
  }
}

template <class Row>
void add_rows(std::string_view bytes, std::vector<Row>& to) {
  const size_t before = to.size();
  to.resize(before + bytes.size() / sizeof(Row));
  if (!bytes.empty()) std::memcpy(static_cast<void*>(to.data() + before), bytes.data(), bytes.size());
}

// How many values, uses and calls there are: `before` in blocks that were not read, and the recording's.
struct RowNumbers {
  RowNumbers(const RowBlock& before, const Recording& recording)
      : values(before.values + recording.values.size()),
        uses(before.uses + recording.uses.size()),
        calls(before.calls + recording.calls.size()) {}
  size_t values, uses, calls;
};

void check_value(const Recording& recording, const RowNumbers& rows, const RecordedValue& value) {
  require(value.origin <= Origin::kInput, "an unknown origin of a value");
  const auto dtype = static_cast<int>(value.dtype);
  require(dtype >= 0 && dtype <= static_cast<int>(c10::ScalarType::NumOptions), "an unknown dtype");
  require(value.producer == kNoCall || value.producer < rows.calls, "a producer that is no call");
  require(value.name < recording.strings.size() && value.device < recording.strings.size(),
          "a string that is not there");
  require(value.shape < recording.lists.size() && value.stride < recording.lists.size(), "a list that is not there");
  require(std::min({value.nan, value.inf, value.zero}) >= -1, "a negative count");
  for (const int64_t size : recording.lists[value.shape]) require(size >= 0, "a negative size");
}

void check_call(const Recording& recording, const RowNumbers& rows, const RecordedCall& call) {
  require(call.level <= Level::kTorch && call.phase <= Phase::kBackward, "an unknown level or phase");
  for (const StringNumber number : {call.op, call.module, call.line, call.error, call.scalars, call.random}) {
    require(number < recording.strings.size(), "a string that is not there");
  }
  const uint64_t end = uint64_t{call.first_use} + call.inputs + call.outputs;
  require(end <= rows.uses, "a tensor of a call that is not there");
}

uint64_t rows_in(std::string_view tables) {
  uint64_t count = 0;
  for (size_t at = offsetof(RecordedRows, count); at < tables.size(); at += sizeof(RecordedRows)) {
    uint32_t rows = 0;
    std::memcpy(&rows, tables.data() + at, sizeof rows);
    count += rows;
  }
  return count;
}

void check_rows(const Recording& recording, const RecordedRows& rows) {
  require(rows.value < recording.values.size(), "rows of a value that is not there");
  const std::vector<int64_t>& sizes = recording.lists[recording.values[rows.value].shape];
  const auto dims = static_cast<int64_t>(sizes.size());
  require(rows.first_dim >= 0 && rows.first_dim < dims && rows.second_dim >= kNoDim && rows.second_dim < dims,
          "rows along a dimension that is not there");
  const int64_t inner = rows.second_dim == kNoDim ? 1 : sizes[static_cast<size_t>(rows.second_dim)];
  const int64_t outer = sizes[static_cast<size_t>(rows.first_dim)];
  require(inner > 0 && rows.count % inner == 0 && rows.count / inner == outer, "not as many rows as the value has");
}

// Adds the rows of a block, all of them or, with Damage, none that counts (the caller cuts back). `before`: the rows in
// blocks that are not read; where there are some, prints of rows are left out.
void add_block(std::string_view payload, const RowBlock& before, Recording& recording) {
  Parts parts(payload);
  RowCounts counts;
  parts.take(1, &counts);
  const RowNumbers present(before, recording);
  const auto fits = [](size_t rows, uint32_t more) { return rows + more < kNoCall; };
  require(fits(recording.strings.size(), counts.strings) && fits(recording.lists.size(), counts.lists) &&
              fits(present.values, counts.values) && fits(present.uses, counts.uses) &&
              fits(present.calls, counts.calls),
          "more rows than a recording has");
  // All are there before memory is taken for them.
  require((uint64_t{counts.strings} + counts.lists) * sizeof(uint32_t) <= payload.size(),
          "a block of rows is shorter than its counts say");
  std::vector<uint32_t> lengths(counts.strings), list_lengths(counts.lists);
  parts.take(lengths.size(), lengths.data());
  parts.take(list_lengths.size(), list_lengths.data());
  const std::string_view values = parts.take(uint64_t{counts.values} * sizeof(RecordedValue));
  require_flags<RecordedValue>(values, offsetof(RecordedValue, known));
  require_flags<RecordedValue>(values, kFlagsOfValue, kMostFlagsOfValue);
  const std::string_view uses = parts.take(uint64_t{counts.uses} * sizeof(RecordedUse));
  const std::string_view calls = parts.take(uint64_t{counts.calls} * sizeof(RecordedCall));
  require_flags<RecordedCall>(calls, offsetof(RecordedCall, grad_enabled));
  const std::string_view rows = parts.take(uint64_t{counts.rows} * sizeof(RecordedRows));
  const std::string_view prints = parts.take(uint64_t{rows_in(rows)} * sizeof(RowPrint));
  for (const uint32_t length : list_lengths) {
    const std::string_view numbers = parts.take(uint64_t{length} * sizeof(int64_t));
    add_rows(numbers, recording.lists.emplace_back());
  }
  for (const uint32_t length : lengths) recording.strings.emplace_back(parts.take(length));
  require(parts.is_empty(), "a block of rows is longer than its counts say");

  const size_t old_values = recording.values.size(), old_uses = recording.uses.size(),
               old_calls = recording.calls.size(), old_rows = recording.rows.size();
  add_rows(values, recording.values);
  add_rows(uses, recording.uses);
  add_rows(calls, recording.calls);
  if (before.begin == 0) {
    add_rows(rows, recording.rows);
    add_rows(prints, recording.prints);
  }
  const RowNumbers now(before, recording);
  for (size_t i = old_values; i < recording.values.size(); ++i) check_value(recording, now, recording.values[i]);
  for (size_t i = old_uses; i < recording.uses.size(); ++i) {
    const RecordedUse& use = recording.uses[i];
    require(use.place < recording.strings.size() && use.value < now.values, "a tensor's value that is not there");
  }
  for (size_t i = old_calls; i < recording.calls.size(); ++i) check_call(recording, now, recording.calls[i]);
  for (size_t i = old_rows; i < recording.rows.size(); ++i) check_rows(recording, recording.rows[i]);
}

// A block's payload; nothing where the file ends before the block does.
std::optional<std::string> next_block(Source& source, uint32_t* kind) {
  if (source.left() < sizeof(BlockHead)) {
    source.take(source.left());
    return std::nullopt;
  }
  BlockHead head;
  std::memcpy(&head, source.take(sizeof head).data(), sizeof head);
  require(head.mark == kBlockMark, "no block begins here");
  if (head.bytes > source.left()) {
    source.take(source.left());
    return std::nullopt;
  }
  std::string payload = source.take(head.bytes);
  require(head.checksum == checksum(head, payload), "the checksum of a block is wrong");
  *kind = head.kind;
  return payload;
}

void set_fact(Value& header, const std::string& name, Value fact) {
  std::vector<std::pair<Value, Value>> items = *header.get_if<Dict>()->items;
  std::erase_if(items, [&](const auto& item) {
    const auto* const key = item.first.template get_if<std::string>();
    return key && *key == name;
  });
  items.emplace_back(name, std::move(fact));
  header = make_dict(std::move(items));
}

// More of the header.
void add_note(const std::string& payload, Recording& recording) {
  try {
    const Value note = value_of_json(payload);
    require(note.is<Dict>(), "a note is no JSON object");
    for (const auto& [key, fact] : *note.get_if<Dict>()->items)
      set_fact(recording.header, *key.get_if<std::string>(), fact);
  } catch (const Error&) {
    throw Damage{"a note is no JSON"};
  }
}

// Values that a device has computed which was found to compute some wrong, have none.
void leave_out_doubts(Recording& recording) {
  const Value* const on_host = find_key(recording.header, kStatisticsOnHost);
  if (!on_host || !on_host->is<Dict>()) return;
  std::vector<bool> in_doubt(recording.strings.size());  // by the name of the device
  for (size_t i = 0; i < in_doubt.size(); ++i) {
    in_doubt[i] = find_key(*on_host, recording.strings[i].substr(0, recording.strings[i].find(':'))) != nullptr;
  }
  int64_t count = 0;
  for (RecordedValue& value : recording.values) {
    if (!value.by_device || !in_doubt[value.device]) continue;
    value.known = false;
    value.hash = 0;
    value.nan = value.inf = value.zero = -1;
    value.min = value.max = value.mean = value.norm = 0;
    value.projections.fill(std::numeric_limits<double>::quiet_NaN());
    ++count;
  }
  set_fact(recording.header, kStatisticsInDoubt, count);
}

void add_blocks(Source& source, Recording& recording) {
  const auto as_number = [](size_t rows) { return static_cast<uint32_t>(rows); };
  recording.complete = false;
  while (source.left() > 0) {
    const uint64_t begin = source.at();
    const size_t strings = recording.strings.size(), lists = recording.lists.size(), values = recording.values.size(),
                 uses = recording.uses.size(), calls = recording.calls.size(), rows = recording.rows.size(),
                 prints = recording.prints.size();
    try {
      uint32_t kind = 0;
      const std::optional<std::string> payload = next_block(source, &kind);
      if (!payload) {
        recording.complete = false;
        return;
      }
      require(kind == kRows || kind == kEnd || kind == kNote, "a block of an unknown kind");
      recording.complete = kind == kEnd;
      if (kind == kRows) {
        add_block(*payload, RowBlock(), recording);
        recording.blocks.push_back({begin, source.at(), as_number(strings), as_number(lists), as_number(values),
                                    as_number(uses), as_number(calls)});
      }
      if (kind == kNote) add_note(*payload, recording);
    } catch (const Damage& damage) {
      recording.complete = false;
      recording.damage = "byte " + std::to_string(begin) + ": " + damage.problem;
      recording.strings.resize(strings);
      recording.lists.resize(lists);
      recording.values.resize(values);
      recording.uses.resize(uses);
      recording.calls.resize(calls);
      recording.rows.resize(rows);
      recording.prints.resize(prints);
      return;
    }
  }
}

// Of equal objects, the number of the first; nothing where all are different.
template <class Object>
std::optional<std::vector<uint32_t>> firsts_of(const std::vector<Object>& objects) {
  if (objects.size() <= RowTables::kKnown) return std::nullopt;
  std::map<Object, uint32_t> known;
  std::vector<uint32_t> firsts;
  for (const Object& object : objects) {
    firsts.push_back(known.try_emplace(object, static_cast<uint32_t>(firsts.size())).first->second);
  }
  if (known.size() == objects.size()) return std::nullopt;
  return firsts;
}

// The writer of a long recording forgets strings and lists, and writes them again (row_tables.h): readers compare
// numbers.
void unify_numbers(Recording& recording) {
  if (const auto firsts = firsts_of(recording.strings)) {
    for (RecordedCall& call : recording.calls) {
      for (StringNumber* const number : {&call.scalars, &call.error, &call.random}) *number = (*firsts)[*number];
    }
  }
  if (const auto firsts = firsts_of(recording.lists)) {
    for (RecordedValue& value : recording.values) {
      for (ListNumber* const number : {&value.shape, &value.stride}) *number = (*firsts)[*number];
    }
  }
}

// "rank3-4711.oprec": 3. The greatest number where the name says none.
uint64_t rank_in(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  constexpr std::string_view kPrefix = "rank";
  constexpr size_t kMostDigits = 9;
  const size_t end = std::min(name.find_first_not_of("0123456789", kPrefix.size()), name.size());
  const bool has_rank = std::string_view(name).substr(0, kPrefix.size()) == kPrefix && end > kPrefix.size() &&
                        end <= kPrefix.size() + kMostDigits;
  return has_rank ? std::stoull(name.substr(kPrefix.size(), end - kPrefix.size()))
                  : std::numeric_limits<uint64_t>::max();
}

// The first block; nothing where the file has lines of JSON.
std::optional<Value> first_block(Source& source, const std::string& path) {
  const std::string magic = source.take(std::min<uint64_t>(source.left(), kMagic.size()));
  if (magic.starts_with('{')) return std::nullopt;
  if (magic != kMagic) {
    throw Error(path + ": byte 0: no recording of op_tools, or a recording of another version");
  }
  try {
    uint32_t kind = 0;
    const std::optional<std::string> header = next_block(source, &kind);
    require(header.has_value(), "the header is cut off");
    require(kind == kHeader, "the first block is no header");
    Value facts = value_of_json(*header);
    require(facts.is<Dict>(), "the header is no JSON object");
    return facts;
  } catch (const Damage& damage) {
    throw Error(path + ": byte " + std::to_string(kMagic.size()) + ": " + damage.problem);
  } catch (const Error& error) {
    throw Error(path + ": byte " + std::to_string(kMagic.size() + sizeof(BlockHead)) + ": " + error.what());
  }
}

Recording read_any(const std::string& path) {
  Source source(path);
  std::optional<Value> header = first_block(source, path);
  if (!header) {
    source.load_all();
    return read_json_lines(path);
  }
  Recording recording;
  recording.path = path;
  recording.header = *std::move(header);
  recording.strings.emplace_back();
  recording.lists.emplace_back();
  add_blocks(source, recording);
  leave_out_doubts(recording);
  unify_numbers(recording);
  return recording;
}

}  // namespace

Recording read_recording(const std::string& path) {
  Recording recording = read_any(path);
  if (!recording.complete && !find_key(recording.header, kEndedEarly)) {
    const EndedEarly reason = recording.damage.empty() ? EndedEarly::kNoEnd : EndedEarly::kDamaged;
    set_fact(recording.header, kEndedEarly, std::string(to_string(reason)));
  }
  return recording;
}

Recording read_rows(const std::string& path, const RowBlock& first, uint64_t end, Recording before) {
  Source source(path);
  source.go_to(first.begin);
  try {
    while (source.at() < end) {
      uint32_t kind = 0;
      const std::optional<std::string> payload = next_block(source, &kind);
      require(payload.has_value(), "the file became shorter");
      if (kind == kRows) add_block(*payload, first, before);
    }
    for (const RecordedCall& call : before.calls) {
      require(call.inputs + call.outputs == 0 || call.first_use >= first.uses,
              "a call's tensors are in an earlier block");
    }
  } catch (const Damage& damage) {
    throw Error(path + ": byte " + std::to_string(source.at()) + ": " + damage.problem + "; read again");
  }
  leave_out_doubts(before);
  unify_numbers(before);
  return before;
}

Value read_recording_header(const std::string& path) {
  Source source(path);
  std::optional<Value> header = first_block(source, path);
  if (header) return *std::move(header);
  source.load_all();
  return read_json_lines(path).header;
}

std::string_view to_string(EndedEarly reason) {
  switch (reason) {
    case EndedEarly::kFailure:
      return "failure";
    case EndedEarly::kDiskFull:
      return "disk_full";
    case EndedEarly::kNoEnd:
      return "no_end";
    case EndedEarly::kDamaged:
      return "damaged";
    case EndedEarly::kNo:
      break;
  }
  return "";
}

std::string device_name(c10::DeviceType type) {
  return c10::Device(type).str();
}

std::vector<std::string> find_recordings(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::is_regular_file(path, problem)) return {path};
  std::vector<std::string> paths;
  for (std::filesystem::directory_iterator entry(path, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    if (entry->path().extension() == kSuffix && entry->is_regular_file(problem))
      paths.push_back(entry->path().string());
  }
  if (problem) throw Error(path + ": cannot be read: " + problem.message());
  if (paths.empty()) throw Error(path + ": has no recordings (*" + std::string(kSuffix) + ")");
  std::sort(paths.begin(), paths.end(), [](const std::string& file, const std::string& other) {
    return std::pair(rank_in(file), file) < std::pair(rank_in(other), other);
  });
  return paths;
}

}  // namespace op_tools
