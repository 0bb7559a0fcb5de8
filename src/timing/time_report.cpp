#include "timing/time_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "base/text_table.h"

namespace op_tools {
namespace {

constexpr double kPerMs = 1e6;  // nanoseconds

struct Group {
  TimeRow row;
  Durations times;
  int64_t self = 0;
  std::map<std::string, int64_t> ops;  // by name: self time
};

std::string number(double value, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return {text, end.ptr};
}

FlopSource& flop_source() {
  static FlopSource* source = new FlopSource;  // leaked: tools may end while the process exits
  return *source;
}

}  // namespace

std::vector<TimeRow> time_rows(const TimeRecords::Snapshot& records, TimeGroup by, const std::vector<int64_t>& flops) {
  std::map<std::tuple<std::string, Phase, std::string, std::string>, Group> groups;
  int64_t all = 0;
  for (size_t i = 0; i < records.entries.size(); ++i) {
    const TimeEntry& entry = records.entries[i];
    if (entry.times.count() == 0) continue;
    const CallPlace& place = records.places[entry.place];
    const CallDetails& details = entry.details;
    std::tuple<std::string, Phase, std::string, std::string> key{"", entry.phase, "", ""};
    if (by == TimeGroup::kOp || by == TimeGroup::kShape) std::get<0>(key) = entry.op;
    if (by == TimeGroup::kShape) {
      std::get<2>(key) = details.shapes;
      std::get<3>(key) = details.dtypes + details.device;
    }
    if (by == TimeGroup::kLine) std::get<2>(key) = place.line();
    if (by == TimeGroup::kModule) std::get<2>(key) = place.module;

    const auto [found, fresh] = groups.try_emplace(key);
    Group& group = found->second;
    TimeRow& row = group.row;
    const auto same = [fresh = fresh](std::string& mine, const std::string& other) {
      if (fresh) mine = other;
      if (mine != other) mine.clear();
    };
    same(row.shapes, details.shapes);
    same(row.dtypes, details.dtypes);
    same(row.device, details.device);
    same(row.line, place.line());
    same(row.module, place.module);
    row.phase = entry.phase == Phase::kForward ? "forward" : "backward";
    row.failed += entry.failed;
    row.bytes_read += entry.bytes.read;
    row.bytes_written += entry.bytes.written;
    row.allocated_bytes += entry.bytes.allocated;
    row.peak_bytes = std::max(row.peak_bytes, entry.bytes.peak);
    if (i < flops.size() && flops[i] > 0) row.flops += flops[i] * static_cast<int64_t>(entry.times.count());
    group.times.add(entry.times);
    group.self += entry.self;
    group.ops[entry.op] += entry.self;
    all += entry.self;
  }

  std::vector<TimeRow> rows;
  rows.reserve(groups.size());
  for (auto& [key, group] : groups) {
    TimeRow& row = group.row;
    const auto most = std::max_element(group.ops.begin(), group.ops.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    row.op = most->first;
    if (group.ops.size() > 1) row.op += " + " + std::to_string(group.ops.size() - 1);
    const Durations& times = group.times;
    row.calls = times.count();
    row.total_ms = static_cast<double>(times.total()) / kPerMs;
    row.self_ms = static_cast<double>(group.self) / kPerMs;
    row.mean_ms = times.mean() / kPerMs;
    row.p50_ms = static_cast<double>(times.quantile(0.5)) / kPerMs;
    row.p99_ms = static_cast<double>(times.quantile(0.99)) / kPerMs;
    row.min_ms = static_cast<double>(times.least()) / kPerMs;
    row.max_ms = static_cast<double>(times.most()) / kPerMs;
    row.share = all > 0 ? static_cast<double>(group.self) / static_cast<double>(all) : 0;
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TimeRow& a, const TimeRow& b) { return a.self_ms > b.self_ms; });
  return rows;
}

std::string time_table(const std::vector<TimeRow>& rows, size_t limit) {
  std::vector<TableColumn> columns = {{"op", false}, {"phase", false}};
  for (const char* title : {"calls", "total ms", "self ms", "mean ms", "p50 ms", "p99 ms", "share"}) {
    columns.push_back({title, true});
  }
  std::vector<std::vector<std::string>> lines;
  for (size_t i = 0; i < rows.size() && i < limit; ++i) {
    const TimeRow& row = rows[i];
    std::vector<std::string> line = {row.op, row.phase, std::to_string(row.calls)};
    for (const double value : {row.total_ms, row.self_ms, row.mean_ms, row.p50_ms, row.p99_ms}) {
      line.push_back(number(value, 3));
    }
    line.push_back(number(100 * row.share, 1) + " %");
    lines.push_back(std::move(line));
  }
  std::string text = text_table(columns, lines);
  if (rows.size() > limit) text += "\n... and " + std::to_string(rows.size() - limit) + " more rows";
  return text;
}

Value to_value(const TimeRow& row) {
  const auto whole = [](auto value) { return Value(static_cast<int64_t>(value)); };
  std::vector<std::pair<Value, Value>> items = {{"op", row.op},
                                                {"phase", row.phase},
                                                {"shapes", row.shapes},
                                                {"dtypes", row.dtypes},
                                                {"device", row.device},
                                                {"line", row.line},
                                                {"module", row.module},
                                                {"calls", whole(row.calls)},
                                                {"failed", whole(row.failed)},
                                                {"total_ms", row.total_ms},
                                                {"self_ms", row.self_ms},
                                                {"mean_ms", row.mean_ms},
                                                {"p50_ms", row.p50_ms},
                                                {"p99_ms", row.p99_ms},
                                                {"min_ms", row.min_ms},
                                                {"max_ms", row.max_ms},
                                                {"share", row.share},
                                                {"bytes_read", whole(row.bytes_read)},
                                                {"bytes_written", whole(row.bytes_written)},
                                                {"gb_per_s", row.gb_per_s()},
                                                {"flops", whole(row.flops)},
                                                {"gflop_per_s", row.gflop_per_s()},
                                                {"allocated_bytes", whole(row.allocated_bytes)},
                                                {"peak_bytes", whole(row.peak_bytes)}};
  return make_dict(std::move(items));
}

const std::vector<std::string>& time_row_columns() {
  static const auto* columns = [] {
    auto* names = new std::vector<std::string>;
    const Value row = to_value(TimeRow());
    for (const auto& [name, value] : *row.get_if<Dict>()->items) names->push_back(*name.get_if<std::string>());
    return names;
  }();
  return *columns;
}

void set_flop_source(FlopSource source) {
  flop_source() = std::move(source);
}

std::vector<int64_t> FlopCounts::of(const std::vector<TimeEntry>& entries) {
  std::vector<int64_t> flops;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flops = known_;
  }
  if (!flop_source()) return {};
  // The source may wait for an interpreter whose holder waits for us: not under the lock. An operator whose first
  // shapes have no formula has none for others.
  std::map<std::string, bool> has_formula;
  for (size_t i = 0; i < flops.size(); ++i) has_formula[entries[i].op] |= flops[i] >= 0;
  for (size_t i = flops.size(); i < entries.size(); ++i) {
    const TimeEntry& entry = entries[i];
    int64_t count = -1;
    const auto known = has_formula.find(entry.op);
    if (!entry.details.sample.is<None>() && (known == has_formula.end() || known->second)) {
      count = flop_source()(entry.op, entry.phase, entry.details.sample);
      has_formula[entry.op] |= count >= 0;
    }
    flops.push_back(count);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (flops.size() > known_.size()) known_ = flops;
  return flops;
}

}  // namespace op_tools
