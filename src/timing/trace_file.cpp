#include "timing/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/run_folder.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

// Track numbers that torch.profiler does not use, so that a trace which is merged with its trace shows both.
constexpr int64_t kHostTracks = 1'000'000'000;    // + process id
constexpr int64_t kDeviceTracks = 1'500'000'000;  // + number of the device in the file
constexpr int64_t kStepTrack = 0;

class TraceFile {
 public:
  TraceFile(const std::string& path, int64_t origin) : path_(path), origin_(origin) {
    const std::string part = path + ".part";
    if (make_file(part)) out_.open(part, std::ios::binary | std::ios::trunc);
  }

  void head(int64_t base_unix, const TimeRecords::Snapshot& records, TimeMode mode) {
    out_ << "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" << base_unix
         << ",\"op_tools\":{\"mode\":\"" << to_string(mode) << "\",\"calls\":" << records.calls
         << ",\"backward\":" << records.backward << ",\"not_in_trace\":" << records.overflowed << "},\"traceEvents\":[";
  }

  void name_track(const char* kind, int64_t pid, int64_t tid, const std::string& name) {
    next() << "{\"ph\":\"M\",\"name\":\"" << kind << "\",\"pid\":" << pid << ",\"tid\":" << tid
           << ",\"args\":{\"name\":" << json_text(name) << "}}";
  }

  void bar(int64_t pid, int64_t tid, const std::string& name_json, int64_t start, int64_t nanoseconds,
           const std::string& args_json) {
    next() << "{\"ph\":\"X\",\"cat\":\"op_tools\",\"name\":" << name_json << ",\"pid\":" << pid << ",\"tid\":" << tid
           << ",\"ts\":" << microseconds(start - origin_) << ",\"dur\":" << microseconds(nanoseconds) << ",\"args\":{"
           << args_json << "}}";
  }

  // An end of an arrow: "s" where it starts, "f" where it ends.
  void arrow(const char* end, int64_t number, int64_t pid, int64_t tid, int64_t time) {
    next() << "{\"ph\":\"" << end << "\",\"cat\":\"op_tools_backward\",\"name\":\"backward\",\"id\":" << number
           << ",\"pid\":" << pid << ",\"tid\":" << tid << ",\"ts\":" << microseconds(time - origin_)
           << (*end == 'f' ? ",\"bp\":\"e\"}" : "}");
  }

  void finish() {
    out_ << "\n]}\n";
    out_.close();
    if (!out_ || std::rename((path_ + ".part").c_str(), path_.c_str()) != 0) {
      throw Error(path_ + ": cannot be written: " + std::strerror(errno));
    }
  }

 private:
  std::ofstream& next() {
    out_ << (std::exchange(first_, false) ? "\n" : ",\n");
    return out_;
  }

  // "12.345": exact, as a double of microseconds since 1970 would not be.
  std::string_view microseconds(int64_t nanoseconds) {
    const char* sign = nanoseconds < 0 ? "-" : "";
    const auto whole = static_cast<unsigned long long>(std::abs(nanoseconds));
    const int size = std::snprintf(number_, sizeof number_, "%s%llu.%03llu", sign, whole / 1000, whole % 1000);
    return {number_, static_cast<size_t>(size)};
  }

  const std::string path_;
  const int64_t origin_;
  std::ofstream out_;
  bool first_ = true;
  char number_[48];
};

struct EntryText {
  std::string name, args;  // JSON; args without braces
};

EntryText entry_text(const EntryLabel& label) {
  EntryText text;
  text.name = json_text(label.op + (label.phase == Phase::kBackward ? " backward" : ""));
  const std::pair<const char*, const std::string*> items[] = {{"shapes", &label.shapes},
                                                              {"dtypes", &label.dtypes},
                                                              {"device", &label.device},
                                                              {"line", &label.line},
                                                              {"module", &label.module}};
  for (const auto& [key, value] : items) {
    if (!value->empty()) text.args.append(",\"").append(key).append("\":").append(json_text(*value));
  }
  return text;
}

// A track for each device that calls ran on.
class DeviceTracks {
 public:
  explicit DeviceTracks(TraceFile& file) : file_(file) {}

  void draw(const TimedCall& call, const EntryText& text, const std::string& device, const std::string& args) {
    const auto [entry, is_new] =
        tracks_.try_emplace(device, Track{kDeviceTracks + static_cast<int64_t>(tracks_.size())});
    Track& track = entry->second;
    if (is_new) {
      file_.name_track("process_name", track.pid, 0, "op_tools " + device);
      file_.name_track("thread_name", track.pid, 0, "operators");
    }
    // Viewers draw a bar that begins a rounded nanosecond before the last bar's end as nested in it.
    constexpr int64_t kRounding = 10;
    int64_t start = call.device_start ? call.device_start : call.start;
    if (start < track.end && track.end - start < kRounding) start = track.end;
    track.end = start + call.nanoseconds;
    file_.bar(track.pid, 0, text.name, start, call.nanoseconds, args);
  }

 private:
  struct Track {
    int64_t pid;
    int64_t end = 0;  // of its last bar
  };
  TraceFile& file_;
  std::map<std::string, Track> tracks_;
};

void draw_steps(TraceFile& file, const std::vector<StepMark>& steps, int64_t host, int64_t last) {
  if (!steps.empty()) file.name_track("thread_name", host, kStepTrack, "steps");
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepMark& mark = steps[i];
    if (mark.start > last) continue;  // nothing was measured in it
    const int64_t end = i + 1 < steps.size() ? steps[i + 1].start : std::max(last, mark.start);
    file.bar(host, kStepTrack, "\"step " + std::to_string(mark.step) + "\"", mark.start, end - mark.start,
             "\"step\":" + std::to_string(mark.step));
  }
}

// Bars of the calls, and an arrow from each forward call to the first bar of each of its backward passes.
void draw_calls(TraceFile& file, const std::vector<TimedCall>& calls, const std::vector<EntryLabel>& labels,
                int64_t host, TimeMode mode) {
  std::vector<EntryText> entries;
  entries.reserve(labels.size());
  for (const EntryLabel& label : labels) entries.push_back(entry_text(label));
  std::map<uint64_t, const TimedCall*> forwards;
  for (const TimedCall& call : calls) {
    if (labels[call.entry].phase == Phase::kForward) forwards[call.id] = &call;
  }
  DeviceTracks devices(file);
  std::set<uint32_t> threads;
  std::set<std::pair<uint64_t, uint32_t>> passes;
  int64_t arrows = 0;
  for (const TimedCall& call : calls) {
    const EntryLabel& label = labels[call.entry];
    if (label.phase == Phase::kBackward && !call.is_part && call.has_parts) continue;  // its parts are drawn
    if (threads.insert(call.thread).second) {
      file.name_track("thread_name", host, call.thread, "thread " + std::to_string(call.thread));
    }
    const EntryText& text = entries[call.entry];
    std::string args = "\"id\":" + std::to_string(call.id) + ",\"step\":" + std::to_string(call.step) + text.args;
    if (call.failed) args += ",\"failed\":1";
    file.bar(host, call.thread, text.name, call.start, call.host, args);
    const bool on_device = !label.device.empty() && label.device != "cpu" && mode != TimeMode::kHost;
    if (on_device) devices.draw(call, text, label.device, args);
    const auto forward = forwards.find(call.id);
    const bool is_backward = label.phase == Phase::kBackward && forward != forwards.end();
    if (is_backward && passes.emplace(call.id, call.pass).second) {
      file.arrow("s", ++arrows, host, forward->second->thread, forward->second->start);
      file.arrow("f", arrows, host, call.thread, call.start);
    }
  }
}

}  // namespace

void write_trace_file(const std::string& path, const TimeRecords& records, TimeMode mode, int64_t to_unix) {
  const std::vector<TimedCall> calls = records.calls(0);
  const TimeRecords::Snapshot snapshot = records.snapshot();
  int64_t first = 0, last = 0;
  for (const TimedCall& call : calls) {
    first = first == 0 ? call.start : std::min(first, call.start);
    last = std::max({last, call.start + call.host, call.device_start + call.nanoseconds});
  }
  // Full seconds: programs that merge traces compute with them.
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t base_unix = (first + to_unix) / kSecond * kSecond;
  TraceFile file(path, base_unix - to_unix);
  file.head(base_unix, snapshot, mode);

  const int64_t process = getpid();
  const int64_t host = kHostTracks + process;
  file.name_track("process_name", host, 0, "op_tools " + std::to_string(process));
  draw_calls(file, calls, records.labels(0), host, mode);
  draw_steps(file, snapshot.steps, host, last);
  file.finish();
}

}  // namespace op_tools
