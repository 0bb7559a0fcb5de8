#include "run_op_from_data/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "compare/check_text.h"
#include "hooks/error.h"
#include "hooks/log.h"
#include "hooks/options.h"
#include "hooks/row_file.h"
#include "run_op_from_data/times.h"

namespace op_tools::replay {
namespace {

template <class... Parts>
std::string formatted(const char* format, Parts... parts) {
  const int size = std::snprintf(nullptr, 0, format, parts...);
  std::string text(static_cast<size_t>(size), '\0');
  std::snprintf(text.data(), text.size() + 1, format, parts...);
  return text;
}

std::string number_text(double value) {
  return formatted("%.9g", value);
}

std::string line_of(const CallReport& report, const Check& check) {
  if (check.against == "saved") return check_line(report.name, check);
  op_tools::Check named = check;
  named.what += " (against " + check.against + ")";
  return check_line(report.name, named);
}

// SyncExecuteTimer: torch.Tensor.div forward  elapsed 69.61202621 ms
std::string time_line(const CallReport& report, const char* phase, double milliseconds) {
  return formatted("SyncExecuteTimer: %s %-8s %s %.8f ms", report.name.c_str(), phase,
                   compat_ditorch() ? "elasped" : "elapsed", milliseconds);
}

std::string count_text(size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// The text's end is what tells paths apart.
std::string shortened(const std::string& text, size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - (width - 3));
}

constexpr size_t kMaxListed = 10;

struct Counts {
  size_t calls = 0, ran = 0, agreed = 0, bit_equal = 0, disagreed = 0, not_comparable = 0, could_not_run = 0,
         left_out = 0;
};

Counts count(const std::vector<CallReport>& reports) {
  Counts counts;
  for (const CallReport& report : reports) {
    if (report.status == Status::kLeftOut) {
      ++counts.left_out;
      continue;
    }
    ++counts.calls;
    if (report.status == Status::kCouldNotRun) {
      ++counts.could_not_run;
      continue;
    }
    ++counts.ran;
    if (report.differs())
      ++counts.disagreed;
    else if (report.comparable())
      ++counts.agreed;
    else
      ++counts.not_comparable;
    if (report.bit_equal()) ++counts.bit_equal;
  }
  return counts;
}

void print_disagreements(const std::vector<CallReport>& reports) {
  std::vector<std::pair<const CallReport*, const Check*>> worst;
  for (const CallReport& report : reports) {
    const Check* worst_check = nullptr;
    for (const Check& check : report.checks) {
      if (check.judgement.verdict != Verdict::kDiffers) continue;
      if (!worst_check || check.judgement.diff.max_abs > worst_check->judgement.diff.max_abs) worst_check = &check;
    }
    if (worst_check) worst.emplace_back(&report, worst_check);
  }
  if (worst.empty()) return;
  std::stable_sort(worst.begin(), worst.end(), [](const auto& a, const auto& b) {
    return a.second->judgement.diff.max_abs > b.second->judgement.diff.max_abs;
  });
  std::cout << "\nDisagreed (worst first)\n";
  for (size_t i = 0; i < worst.size() && i < kMaxListed; ++i) {
    const auto& [report, check] = worst[i];
    std::cout << formatted("  max_diff %-12s max_rel %-12s ", number_text(check->judgement.diff.max_abs).c_str(),
                           number_text(check->judgement.diff.max_rel).c_str())
              << report->name << (check->what.empty() ? "" : " " + check->what)
              << (check->against == "saved" ? "" : " (against " + check->against + ")") << "\n      "
              << explain(check->judgement) << "\n      " << report->path << "\n";
  }
  if (worst.size() > kMaxListed) {
    std::cout << "  ... and " << worst.size() - kMaxListed << " more; --json FILE lists all\n";
  }
}

void print_not_run(const std::vector<CallReport>& reports, const std::vector<std::string>& problems) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const CallReport& report : reports) {
    if (report.status == Status::kCouldNotRun) by_reason[report.reason].push_back(report.path);
  }
  if (by_reason.empty() && problems.empty()) return;
  std::cout << "\nCould not be run or read\n";
  for (const auto& [reason, paths] : by_reason) {
    std::cout << "  " << count_text(paths.size(), "call") << ": " << reason << "\n";
    for (const std::string& path : paths) std::cout << "      " << path << "\n";
  }
  for (const std::string& problem : problems) std::cout << "  " << problem << "\n";
}

void print_not_comparable(const std::vector<CallReport>& reports) {
  std::map<std::string, std::set<std::string>> names;
  std::map<std::string, size_t> counts;
  for (const CallReport& report : reports) {
    if (report.status != Status::kRan || report.comparable() || report.checks.empty()) continue;
    const std::string& note = report.checks.front().judgement.reason;
    names[note].insert(report.name);
    ++counts[note];
  }
  if (names.empty()) return;
  std::cout << "\nNot comparable\n";
  for (const auto& [note, which] : names) {
    std::cout << "  " << count_text(counts[note], "call") << " (" << note << "):";
    size_t listed = 0;
    for (const std::string& name : which) {
      if (listed++ == kMaxListed) break;
      std::cout << " " << name;
    }
    std::cout << (which.size() > kMaxListed ? " ..." : "") << "\n";
  }
}

using nlohmann::json;

// The row that OpAutoCompare writes of such a check.
json json_check(const Check& check) {
  auto columns = check_columns(check);
  columns.emplace_back("against", check.against);
  return json::parse(json_text(make_dict(std::move(columns))));
}

const char* status_text(const CallReport& report) {
  if (report.status == Status::kCouldNotRun) return "could not run";
  if (report.differs()) return "disagreed";
  if (report.comparable()) return "agreed";
  return report.checks.empty() ? "ran" : "not comparable";
}

}  // namespace

bool CallReport::differs() const {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; });
}

bool CallReport::comparable() const {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict != Verdict::kNotComparable; });
}

bool CallReport::bit_equal() const {
  return comparable() && std::all_of(checks.begin(), checks.end(), [](const Check& check) {
           return check.judgement.verdict == Verdict::kNotComparable ||
                  (check.judgement.verdict == Verdict::kAgrees && check.judgement.diff.bits_equal);
         });
}

Reporter::Reporter(const ReplayOptions& options, size_t calls)
    : options_(options), reports_(calls), arrived_(calls, false) {}

void Reporter::add(size_t index, CallReport report) {
  const std::lock_guard<std::mutex> lock(mutex_);
  show_progress(report);
  reports_[index] = std::move(report);
  arrived_[index] = true;
  while (printed_ < reports_.size() && arrived_[printed_]) print_lines(reports_[printed_++]);
}

void Reporter::print_lines(const CallReport& report) const {
  if (report.status == Status::kLeftOut) return;
  if (options_.quiet) return;
  if (report.status == Status::kCouldNotRun) {
    if (options_.verbose) log::warn(report.path + ": " + report.reason);
    return;  // the summary lists it
  }
  if (options_.verbose) log::info(report.path + ": " + report.target);
  if (options_.sync_time_measure) {
    // Runs have one forward each, and the same number of backward passes each.
    const size_t passes = report.forward_ms.empty() ? 0 : report.backward_ms.size() / report.forward_ms.size();
    for (size_t run = 0; run < report.forward_ms.size(); ++run) {
      log::info(time_line(report, "forward", report.forward_ms[run]));
      for (size_t pass = 0; pass < passes; ++pass) {
        log::info(time_line(report, "backward", report.backward_ms[run * passes + pass]));
      }
    }
  }
  for (const Check& check : report.checks) log::info(line_of(report, check));
}

void Reporter::show_progress(const CallReport& report) {
  ++done_;
  const size_t total = reports_.size();
  if (total < 2) return;
  constexpr size_t kWidth = 24;
  const size_t filled = done_ * kWidth / total;
  log::progress("[" + std::string(filled, '#') + std::string(kWidth - filled, ' ') + "] " + std::to_string(done_) +
                "/" + std::to_string(total) + " " + shortened(report.name, 40));
}

int Reporter::finish(std::vector<std::string> problems, double seconds) {
  log::progress("");
  for (const CallReport& report : reports_) {
    if (report.status == Status::kRan && !report.missing.empty())
      problems.push_back(report.path + ": " + report.missing);
  }
  const Counts counts = count(reports_);
  const size_t not_run = counts.could_not_run + problems.size();
  const int status = counts.disagreed > 0 ? kDisagreed : not_run > 0 ? kIncomplete : kAgreed;

  std::cout << formatted("%s in %.1f s: ", count_text(counts.calls, "call").c_str(), seconds) << counts.ran << " ran";
  if (options_.acc_check) {
    std::cout << ", " << counts.agreed << " agreed (" << counts.bit_equal << " bit for bit), " << counts.disagreed
              << " disagreed, " << counts.not_comparable << " not comparable";
  }
  std::cout << ", " << not_run << " could not be run or read";
  if (counts.left_out > 0) std::cout << "; " << counts.left_out << " left out by --filter";
  std::cout << "\n";
  if (options_.sync_time_measure || !options_.compare.empty()) {
    const std::vector<OpTime> times = op_times(reports_);
    if (options_.sync_time_measure && !times.empty()) std::cout << "\n" << times_table(times) << "\n";
    if (!options_.compare.empty()) {
      std::cout << "\n" << comparison_table(times, read_times(options_.compare), options_.compare) << "\n";
    }
  }
  print_disagreements(reports_);
  print_not_comparable(reports_);
  print_not_run(reports_, problems);
  std::cout.flush();
  if (!options_.json.empty()) write_json(problems, seconds, status);
  return status;
}

void Reporter::write_json(const std::vector<std::string>& problems, double seconds, int exit_status) const {
  const Counts counts = count(reports_);
  json calls = json::array();
  for (const CallReport& report : reports_) {
    if (report.status == Status::kLeftOut) continue;
    json call = {{"path", report.path}, {"name", report.name}, {"status", status_text(report)}};
    if (!report.target.empty()) call["operator"] = report.target;
    if (!report.reason.empty()) call["reason"] = report.reason;
    for (const auto& [key, runs] :
         {std::pair("forward_ms", &report.forward_ms), {"backward_ms", &report.backward_ms}}) {
      if (runs->empty()) continue;
      call[key] = *runs;
      call[std::string(key) + "_median"] = median_of(*runs);
      call[std::string(key) + "_spread"] = spread_of(*runs);
    }
    if (report.comparable()) call["bit_equal"] = report.bit_equal();
    if (!report.checks.empty()) {
      json checks = json::array();
      for (const Check& check : report.checks) checks.push_back(json_check(check));
      call["checks"] = std::move(checks);
    }
    calls.push_back(std::move(call));
  }
  json times = json::array();
  for (const OpTime& time : op_times(reports_)) {
    times.push_back({{"name", time.name},
                     {"phase", time.phase},
                     {"calls", time.calls},
                     {"runs", time.runs},
                     {"median_ms", time.median_ms},
                     {"least_ms", time.least_ms},
                     {"spread", time.spread}});
  }
  const json object = {{"format", 1},
                       {"summary",
                        {{"calls", counts.calls},
                         {"ran", counts.ran},
                         {"agreed", counts.agreed},
                         {"bit_equal", counts.bit_equal},
                         {"disagreed", counts.disagreed},
                         {"not_comparable", options_.acc_check ? counts.not_comparable : 0},
                         {"could_not_run", counts.could_not_run},
                         {"left_out", counts.left_out},
                         {"seconds", seconds},
                         {"exit_status", exit_status},
                         {"device", options_.device}}},
                       {"problems", problems},
                       {"times", std::move(times)},
                       {"calls", std::move(calls)}};
  std::ofstream file(options_.json, std::ios::trunc);
  file << object.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  file.close();
  if (!file) throw Error("--json " + options_.json + ": cannot be written");
}

}  // namespace op_tools::replay
