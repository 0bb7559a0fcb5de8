#include "run_op_from_data/times.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text_table.h"

namespace op_tools::replay {
namespace {

using OpKey = std::pair<std::string, std::string>;  // name, phase

// Between two values where the position lies between them.
double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

struct Sums {
  OpTime time;
  std::vector<double> spreads;

  void add(const std::vector<double>& runs) {
    if (runs.empty()) return;
    ++time.calls;
    time.runs += runs.size();
    time.median_ms += median_of(runs);
    time.least_ms += *std::min_element(runs.begin(), runs.end());
    spreads.push_back(spread_of(runs));
  }
};

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

double spread_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double median = quantile(values, 0.5);
  return median > 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / median : 0;
}

std::vector<OpTime> op_times(const std::vector<CallDigest>& calls) {
  std::map<OpKey, Sums> sums;
  for (const CallDigest& call : calls) {
    sums[{call.name, "forward"}].add(call.forward_ms);
    sums[{call.name, "backward"}].add(call.backward_ms);
  }
  std::vector<OpTime> times;
  for (auto& [key, sum] : sums) {
    if (sum.time.calls == 0) continue;
    std::tie(sum.time.name, sum.time.phase) = key;
    sum.time.spread = median_of(std::move(sum.spreads));
    times.push_back(std::move(sum.time));
  }
  std::stable_sort(times.begin(), times.end(),
                   [](const OpTime& a, const OpTime& b) { return a.median_ms > b.median_ms; });
  return times;
}

std::vector<OpTime> read_times(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError("--compare " + path + ": " + std::strerror(errno));
  std::vector<OpTime> times;
  try {
    const nlohmann::json report = nlohmann::json::parse(file);
    for (const auto& entry : report.at("times")) {
      times.push_back({entry.at("name"), entry.at("phase"), entry.at("calls"), entry.at("runs"), entry.at("median_ms"),
                       entry.at("least_ms"), entry.at("spread")});
    }
  } catch (const nlohmann::json::exception&) {
    throw FileError("--compare " + path + ": holds no times; make it with --sync_time_measure --json " + path);
  }
  return times;
}

std::string times_table(const std::vector<OpTime>& times) {
  // A single run of each call spreads nowhere.
  const bool repeated =
      std::any_of(times.begin(), times.end(), [](const OpTime& time) { return time.runs > time.calls; });
  std::vector<TableColumn> columns{{"operator"},   {"phase"},           {"calls", true},
                                   {"runs", true}, {"median ms", true}, {"fastest ms", true}};
  if (repeated) columns.push_back({"spread", true});
  std::vector<std::vector<std::string>> rows;
  for (const OpTime& time : times) {
    rows.push_back({time.name, time.phase, std::to_string(time.calls), std::to_string(time.runs),
                    formatted("%.6f", time.median_ms), formatted("%.6f", time.least_ms)});
    if (repeated) rows.back().push_back(formatted("%.1f %%", 100 * time.spread));
  }
  return text_table(columns, rows);
}

std::string comparison_table(const std::vector<OpTime>& times, const std::vector<OpTime>& others,
                             const std::string& other_name) {
  std::map<OpKey, const OpTime*> known;
  for (const OpTime& other : others) known[{other.name, other.phase}] = &other;
  std::vector<std::pair<double, std::vector<std::string>>> rows;
  std::string only_here, only_there;
  for (const OpTime& time : times) {
    const auto entry = known.find({time.name, time.phase});
    if (entry == known.end()) {
      only_here += " " + time.name + " " + time.phase;
      continue;
    }
    const OpTime& other = *entry->second;
    const double ratio = other.median_ms > 0 ? time.median_ms / other.median_ms : 0;
    std::string note = time.calls == other.calls ? "" : std::to_string(other.calls) + " calls there";
    rows.push_back(
        {ratio,
         {time.name, time.phase, std::to_string(time.calls), formatted("%.6f", time.median_ms),
          formatted("%.6f", other.median_ms), other.median_ms > 0 ? formatted("%.3f", ratio) : "", std::move(note)}});
    known.erase(entry);
  }
  for (const auto& [key, other] : known) only_there += " " + key.first + " " + key.second;
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<std::string>> cells;
  for (auto& row : rows) cells.push_back(std::move(row.second));
  std::string text = "Ratio of medians to " + other_name + "\n" +
                     text_table({{"operator", false},
                                 {"phase", false},
                                 {"calls", true},
                                 {"ms", true},
                                 {"other ms", true},
                                 {"ratio", true},
                                 {"", false}},
                                cells);
  if (!only_here.empty()) text += "\nnot in " + other_name + ":" + only_here;
  if (!only_there.empty()) text += "\nonly in " + other_name + ":" + only_there;
  return text;
}

}  // namespace op_tools::replay
