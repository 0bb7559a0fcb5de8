#include "timing/time_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "base/host.h"
#include "base/text_table.h"
#include "hooks/op_traits.h"

namespace op_tools {
namespace {

constexpr double kPerMs = 1e6;  // nanoseconds

// The entries that become a row.
struct Group {
  void add(const TimeEntry& entry, const CallPlace& place, int64_t flops) {
    const bool is_first = ops.empty();
    const auto common = [is_first](std::string& mine, const std::string& other) {
      if (is_first) mine = other;
      if (mine != other) mine.clear();
    };
    common(row.shapes, entry.details.shapes);
    common(row.dtypes, entry.details.dtypes);
    common(row.device, entry.details.device);
    common(row.line, place.line());
    common(row.module, place.module);
    row.phase = to_string(entry.phase);
    row.failed += entry.failed;
    row.bytes_read += entry.bytes.read;
    row.bytes_written += entry.bytes.written;
    row.allocated_bytes += entry.bytes.allocated;
    row.peak_bytes = std::max(row.peak_bytes, entry.bytes.peak);
    if (flops > 0) row.flops += flops * static_cast<int64_t>(entry.times.count());
    times.add(entry.times);
    self += entry.self;
    ops[entry.op] += entry.self;
  }

  // `all`: the self time of all rows.
  TimeRow finished(int64_t self_of_all) {
    const auto most =
        std::max_element(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    row.op = most->first;
    if (ops.size() > 1) row.op += " + " + std::to_string(ops.size() - 1);
    row.calls = times.count();
    row.total_ms = static_cast<double>(times.total()) / kPerMs;
    row.self_ms = static_cast<double>(self) / kPerMs;
    row.mean_ms = times.mean() / kPerMs;
    row.p50_ms = static_cast<double>(times.quantile(0.5)) / kPerMs;
    row.p99_ms = static_cast<double>(times.quantile(0.99)) / kPerMs;
    row.min_ms = static_cast<double>(times.least()) / kPerMs;
    row.max_ms = static_cast<double>(times.most()) / kPerMs;
    row.share = self_of_all > 0 ? static_cast<double>(self) / static_cast<double>(self_of_all) : 0;
    return std::move(row);
  }

  TimeRow row;
  Durations times;
  int64_t self = 0;
  std::map<std::string, int64_t> ops;  // by name: self time
};

// Entries of the same key are of one row: operator, phase, and the other keys of this grouping.
using GroupKey = std::tuple<std::string, Phase, std::string, std::string>;
GroupKey key_of(const TimeEntry& entry, const CallPlace& place, TimeGroup by) {
  switch (by) {
    case TimeGroup::kOp:
      return {entry.op, entry.phase, "", ""};
    case TimeGroup::kShape:
      return {entry.op, entry.phase, entry.details.shapes, entry.details.dtypes + entry.details.device};
    case TimeGroup::kLine:
      return {"", entry.phase, place.line(), ""};
    case TimeGroup::kModule:
      break;
  }
  return {"", entry.phase, place.module, ""};
}

std::string number(double value, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return {text, end.ptr};
}

}  // namespace

std::vector<TimeRow> time_rows(const TimeRecords::Snapshot& records, TimeGroup by, const std::vector<int64_t>& flops) {
  std::map<GroupKey, Group> groups;
  int64_t self_of_all = 0;
  for (size_t i = 0; i < records.entries.size(); ++i) {
    const TimeEntry& entry = records.entries[i];
    if (entry.times.count() == 0) continue;
    const CallPlace& place = records.places[entry.place];
    groups[key_of(entry, place, by)].add(entry, place, i < flops.size() ? flops[i] : 0);
    self_of_all += entry.self;
  }
  std::vector<TimeRow> rows;
  rows.reserve(groups.size());
  for (auto& [key, group] : groups) rows.push_back(group.finished(self_of_all));
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

const Columns<TimeRow>& TimeRow::columns() {
  static const Columns<TimeRow> all{
      "TimeRow",
      "Calls of an operator, or of an operator and shape, source line or module. Times in milliseconds.",
      {
          {"op", &TimeRow::op, "of several: the operator that took most, \"+ 3\" behind it"},
          {"phase", &TimeRow::phase, "forward or backward"},
          {"shapes", &TimeRow::shapes, "of the input tensors; empty where the row has several"},
          {"dtypes", &TimeRow::dtypes, "likewise"},
          {"device", &TimeRow::device, "likewise"},
          {"line", &TimeRow::line, "of the program, with with_stack"},
          {"module", &TimeRow::module, "of the model, with with_modules"},
          {"calls", &TimeRow::calls, "that were measured"},
          {"failed", &TimeRow::failed, "calls that raised; they count"},
          {"total_ms", &TimeRow::total_ms, "of all calls"},
          {"self_ms", &TimeRow::self_ms, "without measured calls that ran inside"},
          {"mean_ms", &TimeRow::mean_ms, "of a call"},
          {"p50_ms", &TimeRow::p50_ms, "median of the calls; quantiles are off by less than 0.8 %"},
          {"p99_ms", &TimeRow::p99_ms, "99 of 100 calls took less"},
          {"min_ms", &TimeRow::min_ms, "of the shortest call"},
          {"max_ms", &TimeRow::max_ms, "of the longest call"},
          {"share", &TimeRow::share, "of the self time of all rows"},
          {"bytes_read", &TimeRow::bytes_read, "of the tensors that went in"},
          {"bytes_written", &TimeRow::bytes_written, "of those that came out"},
          {"gb_per_s", &TimeRow::gb_per_s, "bytes read and written, by the total time"},
          {"flops", &TimeRow::flops, "floating point operations; 0: torch has no formula"},
          {"gflop_per_s", &TimeRow::gflop_per_s, "by the total time"},
          {"allocated_bytes", &TimeRow::allocated_bytes, "with memory"},
          {"peak_bytes", &TimeRow::peak_bytes, "the most of a single call, with memory"},
      }};
  return all;
}

std::vector<int64_t> FlopCounts::of(const std::vector<TimeEntry>& entries) {
  std::vector<int64_t> flops;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flops = known_;
  }
  // The host may wait for an interpreter whose holder waits for us: not under the lock. torch has formulas of products
  // alone. An operator whose first shapes have no formula has none for others.
  std::map<std::string, bool> has_formula;
  for (size_t i = 0; i < flops.size(); ++i) has_formula[entries[i].op] |= flops[i] >= 0;
  for (size_t i = flops.size(); i < entries.size(); ++i) {
    const TimeEntry& entry = entries[i];
    int64_t count = -1;
    const auto known = has_formula.find(entry.op);
    if (!entry.details.sample.is<None>() &&
        (known == has_formula.end() ? has_trait(base_name(entry.op), OpTrait::kSumsProducts) : known->second)) {
      count = host().flops(entry.op, entry.phase, entry.details.sample);
      has_formula[entry.op] |= count >= 0;
    }
    flops.push_back(count);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (flops.size() > known_.size()) known_ = flops;
  return flops;
}

}  // namespace op_tools
