#include "run_op_from_data/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/text_table.h"
#include "compare/check_format.h"
#include "pth/pth.h"
#include "report/json_writer.h"
#include "run_op_from_data/summary.h"
#include "run_op_from_data/times.h"

namespace op_tools::replay {
namespace {

std::string line_of(const CallReport& report, const Check& check) {
  if (check.against == "saved") return check_line(report.name, check);
  Check named = check;
  named.subject += " (against " + check.against + ")";
  return check_line(report.name, named);
}

// SyncExecuteTimer: torch.Tensor.div forward  elapsed 69.61202621 ms
std::string time_line(const CallReport& report, const char* phase, double milliseconds) {
  return formatted("SyncExecuteTimer: %s %-8s %s %.8f ms", report.name.c_str(), phase,
                   compat_ditorch() ? "elasped" : "elapsed", milliseconds);
}

// Keeps the end, in which paths differ.
std::string shortened(const std::string& text, size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - (width - 3));
}

using nlohmann::json;

// The row that OpAutoCompare writes of such a check.
json json_check(const Check& check) {
  auto columns = check_columns(check);
  columns.emplace_back("against", check.against);
  columns.emplace_back("explained", explain(check.judgement));
  return json::parse(json_text(make_dict(std::move(columns))));
}

// By call: a list of its results.
Value expected_of(const std::vector<CallReport>& reports) {
  std::vector<std::pair<Value, Value>> calls;
  for (const CallReport& report : reports) {
    Values checks;
    for (const Check& check : report.checks) {
      const auto& expected = check.judgement.expected;
      checks.push_back(make_dict({{"part", std::string(to_string(check.part))},
                                  {"index", check.index ? Value(static_cast<int64_t>(*check.index)) : Value()},
                                  {"reason", check.judgement.reason},
                                  {"expected", expected ? to_value(*expected) : Value()}}));
    }
    calls.emplace_back(report.path, make_list(std::move(checks)));
  }
  return make_dict(std::move(calls));
}

void write_expected(const std::string& path, const std::vector<CallReport>& reports) {
  const EncodedPth encoded(expected_of(reports));
  std::ofstream file(path, std::ios::binary);
  for (const EncodedPth::Piece& piece : encoded.pieces()) {
    file.write(piece.data, static_cast<std::streamsize>(piece.size));
  }
  file.close();
  if (!file) throw FileError("--expected " + path + ": cannot be written");
}

}  // namespace

bool CallReport::differs() const {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; });
}

bool CallReport::comparable() const {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict != Verdict::kNotJudged; });
}

bool CallReport::bit_equal() const {
  return comparable() && std::all_of(checks.begin(), checks.end(), [](const Check& check) {
           return check.judgement.verdict == Verdict::kNotJudged ||
                  (check.judgement.verdict == Verdict::kAgrees && check.judgement.diff.bits_equal);
         });
}

Reporter::Reporter(const ReplayOptions& options, size_t calls, size_t of_all)
    : options_(options), of_all_(of_all), reports_(calls), arrived_(calls, false) {}

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
  if (options_.verbose) log::notice(report.path + ": " + report.target);
  if (options_.sync_time_measure) {
    // Runs have a single forward each, and the same number of backward passes each.
    const size_t passes = report.forward_ms.empty() ? 0 : report.backward_ms.size() / report.forward_ms.size();
    for (size_t run = 0; run < report.forward_ms.size(); ++run) {
      log::notice(time_line(report, "forward", report.forward_ms[run]));
      for (size_t pass = 0; pass < passes; ++pass) {
        log::notice(time_line(report, "backward", report.backward_ms[run * passes + pass]));
      }
    }
  }
  for (const Check& check : report.checks) log::notice(line_of(report, check));
}

void Reporter::show_progress(const CallReport& report) {
  ++done_;
  const size_t total = reports_.size();
  if (total < 2) return;
  constexpr size_t kWidth = 24;
  const size_t shown = done_ * kWidth / total;
  log::progress("[" + std::string(shown, '#') + std::string(kWidth - shown, ' ') + "] " + std::to_string(done_) + "/" +
                std::to_string(total) + " " + shortened(report.name, 40));
}

int Reporter::finish(std::vector<std::string> problems, double seconds) {
  log::progress("");
  Summary summary;
  summary.acc_check = options_.acc_check;
  summary.sync_time_measure = options_.sync_time_measure;
  summary.allow_unseen = options_.allow_unseen;
  summary.device = options_.device;
  summary.filter = options_.filter;
  summary.compare = options_.compare;
  summary.problems = std::move(problems);
  summary.seconds = seconds;
  for (const CallReport& report : reports_) {
    if (report.status == Status::kLeftOut) {
      ++summary.left_out;
      summary.left_out_names.insert(report.name);
      continue;
    }
    if (report.status == Status::kRan && !report.missing.empty()) {
      summary.problems.push_back(report.path + ": " + report.missing);
    }
    summary.calls.push_back(digest_of(report));
  }
  if (!options_.shard) note_filter(&summary);  // other parts may have such calls
  if (!options_.no_summary) print_summary(summary);
  const auto write_report = [&] {
    if (options_.json.empty()) return;
    json head = json_of(summary);
    if (options_.shard) head["summary"]["shard"] = {options_.shard->index, options_.shard->count, of_all_};
    write_json(options_.json, std::move(head), json_calls());
  };
  const int status = status_after(summary.exit_status(), [&] {
    if (!options_.expected.empty()) write_expected(options_.expected, reports_);
  });
  return status_after(status, write_report);
}

json Reporter::json_calls() const {
  json calls = json::array();
  for (const CallReport& report : reports_) {
    if (report.status == Status::kLeftOut) continue;
    json call = {{"path", report.path}, {"name", report.name}, {"status", to_string(status_of(report))}};
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
  return calls;
}

}  // namespace op_tools::replay
