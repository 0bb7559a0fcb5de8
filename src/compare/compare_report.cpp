#include "compare/compare_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "compare/check_format.h"

namespace op_tools {
namespace {

std::string message_of(const ComparedCall& call, const Check& check, const std::string& saved) {
  std::string text =
      call.name + (check.subject.empty() ? "" : " " + check.subject) + " is wrong: " + explain(check.judgement);
  if (!call.stack.empty()) text += "; called at " + call.stack.front();
  if (!saved.empty()) text += "; saved in " + shown_path(saved);
  return printable(text);
}

std::vector<std::string> columns() {
  std::vector<std::string> names{"op", "id", "step", "level", "phase"};
  for (std::string& name : check_column_names()) names.push_back(std::move(name));
  for (const char* name : {"device", "module", "source", "saved"}) names.emplace_back(name);
  return names;
}

std::string kind_of(const ComparedCall& call) {
  return call.name + '\n' + std::string(to_string(call.phase)) + '\n' + call.module;
}

constexpr uint64_t kCallsBetweenLines = 16;  // of the progress

// In the order of columns().
void put_row(const ComparedCall& call, const Check& check, const std::string& saved, RowSink& row) {
  row.put("op", call.name);
  row.put("id", static_cast<int64_t>(call.id));
  row.put("step", call.step);
  row.put("level", to_string(call.level));
  row.put("phase", to_string(call.phase));
  put_check(check, row);
  row.put("device", call.device);
  if (!call.module.empty()) row.put("module", call.module);
  if (!call.stack.empty()) row.put("source", call.stack.front());
  if (!saved.empty()) row.put("saved", saved);
}

}  // namespace

CompareReport::CompareReport(const ResolvedCompareOptions& options, int64_t rank) : options_(options), rank_(rank) {}

void CompareReport::print(const ComparedCall& call, const Check& check, const std::string& saved) {
  const TensorVerdict& judgement = check.judgement;
  if (log::enabled(log::Level::kInfo)) log::info(check_line(call.name, check));
  if (judgement.verdict != Verdict::kDiffers) return;
  if (!call.inputs.empty()) log::info(formatted("OpAutoCompareHook: %-50s input: ", call.name.c_str()) + call.inputs);
  if (!call.outputs.empty())
    log::info(formatted("OpAutoCompareHook: %-50s output: ", call.name.c_str()) + call.outputs);
  const std::string kind = kind_of(call);
  lines_.warn(kind, "OpAutoCompare: " + message_of(call, check, saved));
  if (wrong_kinds_.size() >= kMostReasons && !wrong_kinds_.contains(kind)) return;
  WrongKind& wrong = wrong_kinds_[kind];
  if (wrong.count++ == 0) {
    wrong = {call.name, std::string(to_string(call.phase)), call.module, call.line(), call.step, 1, 0};
  }
  wrong.worst = std::max(wrong.worst, share_of_limit(judgement));
}

void CompareReport::failed_to_write(const std::string& problem) {
  if (!totals_.failure.empty()) return;
  totals_.failure = problem;
  log::error("OpAutoCompare cannot write its files and goes on without: " + problem);
}

void CompareReport::open_files() {
  if (!totals_.root.empty() || !totals_.failure.empty()) return;
  try {
    totals_.root = claim_run_folder(options_.output_dir, "op_autocompare_result", rank_);
    csv_.emplace(totals_.root + "/autocompare.csv", columns());
    jsonl_.emplace(totals_.root + "/autocompare.jsonl");
    store_ = CallStore::in_folder(totals_.root);
  } catch (const std::exception& error) {
    failed_to_write(error.what());
  }
}

std::string CompareReport::claim_folder() {
  std::lock_guard<std::mutex> lock(mutex_);
  open_files();
  return totals_.root;
}

// The folder of the call; empty when it is not saved.
std::string CompareReport::save(const ComparedCall& call, const std::function<std::vector<SavedSide>()>& sides) {
  if (!store_ || !sides || !totals_.failure.empty()) return {};
  int64_t& count = saved_by_signature_[call.signature * 2 + (call.phase == Phase::kBackward)];
  if (count >= options_.max_saved || saved_bytes_ >= static_cast<size_t>(options_.max_saved_mb << 20)) {
    ++totals_.not_saved;
    return {};
  }
  try {
    std::string folder;
    for (const SavedSide& side : sides()) {
      folder = write_call(*store_, side.call, side.side);
      folder.erase(folder.rfind('/'));
      saved_bytes_ += side.bytes;
    }
    ++count;
    ++totals_.saved;
    return folder;
  } catch (const std::exception& error) {
    failed_to_write(error.what());
    return {};
  }
}

std::string CompareReport::add(const ComparedCall& call, const std::vector<Check>& checks,
                               const std::function<std::vector<SavedSide>()>& sides) {
  std::lock_guard<std::mutex> lock(mutex_);
  open_files();
  const bool fails = std::any_of(checks.begin(), checks.end(),
                                 [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; });
  const std::string saved = fails ? save(call, sides) : std::string();
  CompareResult::Op& op = ops_[call.name];
  op.op = call.name;
  ++(call.phase == Phase::kForward ? op.calls : op.backward);
  ++totals_.calls;
  if (!call.device.empty()) totals_.devices[call.device.substr(0, call.device.find(':'))] += checks.size();
  std::string first;
  for (const Check& check : checks) {
    const TensorVerdict& judgement = check.judgement;
    switch (judgement.verdict) {
      case Verdict::kCount:
        break;
      case Verdict::kAgrees:
        ++op.passed;
        ++totals_.passed;
        totals_.wide_limits += judgement.wide_limit;
        break;
      case Verdict::kNotJudged:
        ++op.not_judged;
        ++totals_.not_judged;
        ++totals_.unjudged[judgement.unjudged];
        if (op.reason.empty()) op.reason = judgement.reason;
        count_reason(judgement.reason);
        break;
      case Verdict::kDiffers:
        if (op.failed++ == 0) {
          op.reason = explain(judgement);
          op.source = call.stack.empty() ? "" : call.stack.front();
        }
        ++totals_.failed;
        totals_.raised += judgement.kind == "raised";
        if (first.empty()) {
          first = message_of(call, check, saved);
        }
        break;
    }
    op.worst = std::max(op.worst, share_of_limit(judgement));
    print(call, check, saved);
    write(call, check, saved);
  }
  if (totals_.calls % kCallsBetweenLines == 0) {
    log::progress("OpAutoCompare: " + std::to_string(totals_.calls) + " calls, " + std::to_string(totals_.failed) +
                  " results WRONG, " + std::to_string(totals_.passed) + " right");
  }
  return first;
}

void CompareReport::write(const ComparedCall& call, const Check& check, const std::string& saved) {
  const bool is_wrong = check.judgement.verdict == Verdict::kDiffers;
  if (csv_ && jsonl_ && totals_.failure.empty() && (is_wrong || (csv_->has_room() && jsonl_->has_room()))) {
    try {
      RowFiles files(*csv_, *jsonl_);
      put_row(call, check, saved, files);
      files.end_row();
      if (is_wrong) {  // a program that dies of the wrong result leaves its row
        csv_->hand_over();
        jsonl_->hand_over();
      }
    } catch (const std::exception& error) {
      failed_to_write(error.what());
    }
  }
  const bool is_full = rows_.size() >= kMostRows;
  if (is_full && (!is_wrong || more_wrong_++ >= kMostRows)) {
    ++totals_.rows_dropped;
    return;
  }
  put_row(call, check, saved, rows_);
  rows_.end_row();
}

void CompareReport::count_reason(const std::string& reason) {
  const bool known = totals_.reasons.contains(reason) || totals_.reasons.size() < kMostReasons;
  ++totals_.reasons[known ? reason : "other reasons"];
}

void CompareReport::left_out() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++totals_.left_out;
}

void CompareReport::flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (csv_ && totals_.failure.empty()) csv_->flush();
    if (jsonl_ && totals_.failure.empty()) jsonl_->flush();
  } catch (const std::exception& error) {
    failed_to_write(error.what());
  }
}

CompareResult CompareReport::result() const {
  std::lock_guard<std::mutex> lock(mutex_);
  CompareResult result = totals_;
  for (const auto& [name, op] : ops_) result.ops.push_back(op);
  return result;
}

Value CompareReport::rows() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return make_list(rows_.values());
}

std::string CompareResult::unjudged_text() const {
  const uint64_t seen = passed + failed + not_judged;
  if (2 * not_judged <= seen) return {};
  std::vector<std::pair<uint64_t, std::string>> by_count;
  for (const auto& [reason, count] : reasons) by_count.emplace_back(count, reason);
  std::sort(by_count.rbegin(), by_count.rend());
  constexpr size_t kMost = 5;
  std::string text =
      "MOST WAS NOT JUDGED: " + std::to_string(not_judged) + " of " + std::to_string(seen) + " results have no verdict";
  for (size_t i = 0; i < by_count.size() && i < kMost; ++i) {
    text += (i ? "; " : ": ") + std::to_string(by_count[i].first) + " x " + by_count[i].second;
  }
  if (by_count.size() > kMost) text += "; " + std::to_string(by_count.size() - kMost) + " more reasons";
  return text;
}

void CompareReport::summarize() {
  const CompareResult summary = result();
  if (summary.calls == 0) return;
  log::progress("");
  size_t judged = 0;
  for (const CompareResult::Op& op : summary.ops) judged += op.passed + op.failed > 0;
  std::string text = "OpAutoCompare: " + std::to_string(summary.calls) + " calls, " + std::to_string(summary.failed) +
                     " results WRONG, " + std::to_string(summary.passed) + " right, " +
                     std::to_string(summary.not_judged) + " not judged; " + std::to_string(judged) + " of " +
                     std::to_string(summary.ops.size()) + " ops seen were judged";
  if (summary.left_out) text += "; " + std::to_string(summary.left_out) + " calls left out by the limits";
  if (summary.not_saved) text += "; " + std::to_string(summary.not_saved) + " failures not saved (the limits)";
  if (!summary.root.empty()) text += "; files in " + shown_path(summary.root);
  (summary.failed ? log::warn : log::notice)(text + wrong_table() + right_table(summary));
  if (const std::string unjudged = summary.unjudged_text(); !unjudged.empty()) log::warn("OpAutoCompare: " + unjudged);
}

// A row for each operator, phase and module with wrong results, those of the earliest step first.
std::string CompareReport::wrong_table() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (wrong_kinds_.empty()) return {};
  std::vector<WrongKind> kinds;
  for (const auto& [key, kind] : wrong_kinds_) kinds.push_back(kind);
  std::stable_sort(kinds.begin(), kinds.end(), [](const WrongKind& a, const WrongKind& b) {
    return a.first_step != b.first_step ? a.first_step < b.first_step : a.worst > b.worst;
  });
  constexpr size_t kMost = 10;
  std::vector<std::vector<std::string>> lines;
  for (const WrongKind& kind : kinds) {
    if (lines.size() == kMost) break;
    lines.push_back({kind.op, kind.phase, kind.module, std::to_string(kind.count), std::to_string(kind.first_step),
                     std::isinf(kind.worst) ? "-" : formatted("%.4g", kind.worst), kind.source});
  }
  std::string text =
      "\n" +
      text_table({{"op"}, {"phase"}, {"module"}, {"wrong", true}, {"first step", true}, {"of limit", true}, {"line"}},
                 lines);
  if (kinds.size() > kMost) text += "\n... and " + std::to_string(kinds.size() - kMost) + " more kinds";
  return text;
}

// With -v: the operators that have no wrong result.
std::string CompareReport::right_table(const CompareResult& summary) const {
  if (!log::enabled(log::Level::kInfo)) return {};
  std::vector<std::vector<std::string>> lines;
  for (const CompareResult::Op& op : summary.ops) {
    if (op.failed) continue;
    lines.push_back({op.op, std::to_string(op.calls), std::to_string(op.backward), std::to_string(op.passed),
                     std::to_string(op.not_judged), formatted("%.2f", op.worst), op.passed ? "" : op.reason});
  }
  if (lines.empty()) return {};
  return "\n" + text_table({{"op"},
                            {"calls", true},
                            {"backward", true},
                            {"right", true},
                            {"not judged", true},
                            {"of limit", true},
                            {"reason"}},
                           lines);
}

}  // namespace op_tools
