#include "run_op_from_data/summary.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/own_command.h"
#include "base/text_table.h"
#include "compare/check_format.h"
#include "run_op_from_data/times.h"

namespace op_tools::replay {
namespace {

using nlohmann::json;

std::string number_text(double value) {
  return formatted("%.9g", value);
}

constexpr size_t kMaxListed = 10;

constexpr std::pair<CallStatus, const char*> kStatuses[] = {
    {CallStatus::kCouldNotRun, "could not run"}, {CallStatus::kDiffers, "differs"}, {CallStatus::kAgrees, "agrees"},
    {CallStatus::kNotJudged, "not judged"},      {CallStatus::kRan, "ran"},
};

CallStatus status_from(const std::string& text) {
  for (const auto& [status, name] : kStatuses) {
    if (text == name) return status;
  }
  throw Error("'" + text + "' is no status of a call");
}

void print_disagreements(const std::vector<CallDigest>& calls) {
  std::vector<const CallDigest*> worst;
  for (const CallDigest& call : calls) {
    if (call.worst) worst.push_back(&call);
  }
  if (worst.empty()) return;
  std::stable_sort(worst.begin(), worst.end(),
                   [](const auto* a, const auto* b) { return a->worst->max_abs > b->worst->max_abs; });
  std::cout << "\nDiffer (worst first)\n";
  for (size_t i = 0; i < worst.size() && i < kMaxListed; ++i) {
    const CallDigest& call = *worst[i];
    const CallDigest::Worst& check = *call.worst;
    std::cout << formatted("  max_diff %-12s max_rel %-12s ", number_text(check.max_abs).c_str(),
                           number_text(check.max_rel).c_str())
              << call.name << (check.tensor.empty() ? "" : " " + check.tensor)
              << (check.against == "saved" ? "" : " (against " + check.against + ")") << "\n      " << check.explained
              << "\n      " << call.path << "\n";
  }
  if (worst.size() > kMaxListed) {
    std::cout << "  ... and " << worst.size() - kMaxListed << " more; --json FILE lists all\n";
  }
}

void print_not_run(const Summary& summary) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const CallDigest& call : summary.calls) {
    if (call.status == CallStatus::kCouldNotRun) by_reason[call.reason].push_back(call.path);
  }
  if (by_reason.empty() && summary.problems.empty()) return;
  std::cout << "\nCould not be run or read\n";
  for (const auto& [reason, paths] : by_reason) {
    std::cout << "  " << count_text(paths.size(), "call") << ": " << reason << "\n";
    for (const std::string& path : paths) std::cout << "      " << path << "\n";
  }
  for (const std::string& problem : summary.problems) std::cout << "  " << problem << "\n";
}

void print_not_judged(const std::vector<CallDigest>& calls) {
  std::map<std::string, std::set<std::string>> names;
  std::map<std::string, size_t> counts;
  for (const CallDigest& call : calls) {
    if (call.status != CallStatus::kNotJudged) continue;
    names[call.reason].insert(call.name);
    ++counts[call.reason];
  }
  if (names.empty()) return;
  std::cout << "\nNot judged\n";
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

double number_in(const json& row, const char* key) {
  // An infinity has no form in JSON and is null there.
  const auto entry = row.find(key);
  return entry != row.end() && entry->is_number() ? entry->get<double>() : 0;
}

CallDigest digest_of(const json& call) {
  CallDigest digest;
  digest.path = call.at("path");
  digest.name = call.at("name");
  digest.status = status_from(call.at("status"));
  digest.reason = call.value("reason", "");
  digest.bit_equal = call.value("bit_equal", false);
  digest.forward_ms = call.value("forward_ms", std::vector<double>());
  digest.backward_ms = call.value("backward_ms", std::vector<double>());
  for (const json& check : call.value("checks", json::array())) {
    if (digest.status == CallStatus::kNotJudged && digest.reason.empty()) digest.reason = check.at("reason");
    if (check.at("verdict") != token_of(Verdict::kDiffers).name) continue;
    const std::string tensor = check.at("what");
    CallDigest::Worst worst{tensor == "output" ? "" : tensor, check.at("against"), check.value("explained", ""),
                            number_in(check, "max_abs"), number_in(check, "max_rel")};
    if (!digest.worst || worst.max_abs > digest.worst->max_abs) digest.worst = std::move(worst);
  }
  return digest;
}

struct Part {
  int64_t index = 0, count = 1, of_all = 0;
  std::string file;
};

// The settings that parts of a replay must share.
void take_settings(const json& settings, const Part& part, bool first, Summary* all) {
  const bool acc_check = settings.at("acc_check"), times = settings.at("sync_time_measure");
  // Each part may have a device of its own, but of the same kind.
  const std::string named = settings.at("device"), device = named.substr(0, named.find(':'));
  const std::string filter = settings.at("filter");
  if (first) {
    all->acc_check = acc_check;
    all->sync_time_measure = times;
    all->device = device;
    all->filter = filter;
  } else if (acc_check != all->acc_check || times != all->sync_time_measure || device != all->device ||
             filter != all->filter) {
    throw Error(part.file +
                ": was made with other options than the first part (--acc_check, --sync_time_measure, "
                "--device or --filter)");
  }
}

void check_parts(const std::vector<Part>& parts) {
  std::map<int64_t, std::string> seen;
  for (const Part& part : parts) {
    if (part.count != parts.front().count) {
      throw Error(part.file + ": belongs to " + std::to_string(part.count) + " parts, " + parts.front().file + " to " +
                  std::to_string(parts.front().count));
    }
    if (part.of_all != parts.front().of_all) {
      throw Error(part.file + ": its part was of " + std::to_string(part.of_all) + " calls, " + parts.front().file +
                  " of " + std::to_string(parts.front().of_all) + "; do all parts see the same folders?");
    }
    const auto [known, is_new] = seen.emplace(part.index, part.file);
    if (!is_new) throw Error(part.file + ": the same part as " + known->second);
  }
  for (int64_t index = 0; index < parts.front().count; ++index) {
    if (!seen.count(index)) {
      throw Error("--merge: part " + std::to_string(index) + "/" + std::to_string(parts.front().count) + " is missing");
    }
  }
}

}  // namespace

const char* to_string(CallStatus status) {
  return kStatuses[static_cast<size_t>(status)].second;  // in the order of the enumeration
}

size_t Summary::count(CallStatus status) const {
  return static_cast<size_t>(
      std::count_if(calls.begin(), calls.end(), [&](const CallDigest& call) { return call.status == status; }));
}

size_t Summary::bit_equal() const {
  return static_cast<size_t>(
      std::count_if(calls.begin(), calls.end(), [](const CallDigest& call) { return call.bit_equal; }));
}

int Summary::exit_status() const {
  if (count(CallStatus::kDiffers) > 0) return kDiffers;
  return !allow_unseen && (not_run() > 0 || most_unjudged()) ? kIncomplete : kAgrees;
}

size_t Summary::not_judged() const {
  return acc_check ? count(CallStatus::kNotJudged) + count(CallStatus::kRan) : 0;
}

bool Summary::most_unjudged() const {
  return not_judged() > count(CallStatus::kAgrees) + count(CallStatus::kDiffers);
}

CallStatus status_of(const CallReport& report) {
  if (report.status == Status::kCouldNotRun) return CallStatus::kCouldNotRun;
  if (report.differs()) return CallStatus::kDiffers;
  if (report.comparable()) return CallStatus::kAgrees;
  return report.checks.empty() ? CallStatus::kRan : CallStatus::kNotJudged;
}

CallDigest digest_of(const CallReport& report) {
  CallDigest digest;
  digest.path = report.path;
  digest.name = report.name;
  digest.status = status_of(report);
  digest.reason = report.reason;
  digest.bit_equal = report.status == Status::kRan && report.bit_equal();
  digest.forward_ms = report.forward_ms;
  digest.backward_ms = report.backward_ms;
  if (digest.status == CallStatus::kNotJudged) digest.reason = report.checks.front().judgement.reason;
  for (const Check& check : report.checks) {
    if (check.judgement.verdict != Verdict::kDiffers) continue;
    const TensorDiff& diff = check.judgement.diff;
    if (digest.worst && diff.max_abs <= digest.worst->max_abs) continue;
    digest.worst = {check.subject, check.against, explain(check.judgement), diff.max_abs, diff.max_rel};
  }
  return digest;
}

void print_summary(const Summary& summary) {
  const size_t could_not_run = summary.count(CallStatus::kCouldNotRun);
  std::cout << formatted("%s in %.1f s: ", count_text(summary.calls.size(), "call").c_str(), summary.seconds)
            << summary.calls.size() - could_not_run << " ran";
  if (summary.acc_check) {
    std::cout << ", " << summary.count(CallStatus::kAgrees) << " agree (" << summary.bit_equal() << " bit for bit), "
              << summary.count(CallStatus::kDiffers) << " differ, " << summary.not_judged() << " not judged";
  }
  std::cout << ", " << summary.not_run() << " could not be run or read";
  if (summary.left_out > 0) std::cout << "; " << summary.left_out << " left out by --filter";
  std::cout << "\n";
  if (summary.sync_time_measure || !summary.compare.empty()) {
    const std::vector<OpTime> times = op_times(summary.calls);
    if (summary.sync_time_measure && !times.empty()) std::cout << "\n" << times_table(times) << "\n";
    if (!summary.compare.empty()) {
      std::cout << "\n" << comparison_table(times, read_times(summary.compare), summary.compare) << "\n";
    }
  }
  if (summary.most_unjudged()) std::cout << "NOT JUDGED: most calls have no verdict\n";
  print_disagreements(summary.calls);
  print_not_judged(summary.calls);
  print_not_run(summary);
  std::cout.flush();
}

json json_of(const Summary& summary) {
  json times = json::array();
  for (const OpTime& time : op_times(summary.calls)) {
    times.push_back({{"name", time.name},
                     {"phase", time.phase},
                     {"calls", time.calls},
                     {"runs", time.runs},
                     {"median_ms", time.median_ms},
                     {"least_ms", time.least_ms},
                     {"spread", time.spread}});
  }
  const size_t could_not_run = summary.count(CallStatus::kCouldNotRun);
  return {{"format", 1},
          {"summary",
           {{"calls", summary.calls.size()},
            {"ran", summary.calls.size() - could_not_run},
            {"agrees", summary.count(CallStatus::kAgrees)},
            {"bit_equal", summary.bit_equal()},
            {"differs", summary.count(CallStatus::kDiffers)},
            {"not_judged", summary.not_judged()},
            {"could_not_run", could_not_run},
            {"left_out", summary.left_out},
            {"seconds", summary.seconds},
            {"exit_status", summary.exit_status()},
            {"device", summary.device},
            {"filter", summary.filter},
            {"acc_check", summary.acc_check},
            {"sync_time_measure", summary.sync_time_measure}}},
          {"problems", summary.problems},
          {"times", std::move(times)}};
}

void check_writable(const std::string& option, const std::string& name) {
  if (name.empty()) return;
  const size_t slash = name.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : name.substr(0, slash + 1);
  struct stat status = {};
  const bool is_there = ::stat(name.c_str(), &status) == 0;
  const char* const problem = is_there && S_ISDIR(status.st_mode) ? "is a folder"
                              : ::access(is_there ? name.c_str() : folder.c_str(), W_OK) == 0 ? nullptr
                                                                                              : std::strerror(errno);
  if (problem) throw FileError(option + " " + name + ": cannot be written: " + problem);
}

int status_after(int status, const std::function<void()>& write) {
  try {
    write();
  } catch (const FileError& error) {
    std::cerr << "run_op_from_data: " << error.what() << "\n";
    return status == kAgrees ? kIncomplete : status;
  }
  return status;
}

namespace {

// Letters to change, add or take away.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of(".:") + 1);  // from the start, where there is none
}

// The names that the filter may mean, the nearest first: by their last part, then as a whole.
std::vector<std::string> nearest(const std::string& filter, const std::set<std::string>& names) {
  constexpr size_t kShown = 3, kMostLetters = 200;
  using Rank = std::tuple<size_t, size_t, std::string>;
  std::vector<Rank> ranked;
  const std::string item = filter.substr(0, std::min(filter.find(','), kMostLetters));
  for (const std::string& name : names) {
    ranked.emplace_back(distance(last_part(item), last_part(name)), distance(item, name), name);
  }
  std::sort(ranked.begin(), ranked.end());
  ranked.resize(std::min(ranked.size(), kShown));
  std::vector<std::string> near;
  for (auto& [by_last, by_all, name] : ranked) near.push_back(std::move(name));
  return near;
}

}  // namespace

void note_filter(Summary* summary) {
  if (summary->filter.empty() || !summary->calls.empty() || summary->left_out == 0) return;
  std::string text =
      "--filter " + summary->filter + ": none of the " + count_text(summary->left_out, "call") + " has such a name";
  std::string near;
  for (const std::string& name : nearest(summary->filter, summary->left_out_names)) {
    near += (near.empty() ? "; did you mean " : " or ") + name;
  }
  const std::string show = op_tools_line({"show"});
  text += near.empty() ? "; " + show + " lists their names" : near + "? (" + show + " lists all)";
  summary->problems.push_back(std::move(text));
}

void write_json(const std::string& name, json summary, json calls) {
  summary["calls"] = std::move(calls);
  std::ofstream file(name, std::ios::trunc);
  file << summary.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  file.close();
  if (!file) throw FileError("--json " + name + ": cannot be written");
}

int merge_reports(const ReplayOptions& options) {
  check_writable("--json", options.json);
  Summary merged;
  merged.compare = options.compare;
  merged.allow_unseen = options.allow_unseen;
  std::vector<Part> parts;
  struct MergedCall {
    CallDigest digest;
    json report;  // with --json
  };
  std::map<int64_t, MergedCall> calls;  // by their place among those of all parts: a part has every count-th
  for (const std::string& name : options.paths) {
    std::ifstream file(name);
    if (!file) throw FileError(name + ": " + std::strerror(errno));
    try {
      json report = json::parse(file);
      const json& numbers = report.at("summary");
      Part part;
      part.file = name;
      if (const auto shard = numbers.find("shard"); shard != numbers.end()) {
        part.index = shard->at(0);
        part.count = shard->at(1);
        part.of_all = shard->at(2);
        if (part.index < 0 || part.index >= part.count) {
          throw FileError(name + ": is no report that --json wrote (part " + std::to_string(part.index) + " of " +
                          std::to_string(part.count) + ")");
        }
      }
      take_settings(numbers, part, parts.empty(), &merged);
      parts.push_back(part);
      merged.left_out += numbers.at("left_out").get<size_t>();
      // The parts ran side by side.
      merged.seconds = std::max(merged.seconds, numbers.at("seconds").get<double>());
      for (const json& problem : report.at("problems")) merged.problems.push_back(problem);
      int64_t place = part.index;
      for (json& call : report.at("calls")) {
        calls.emplace(place, MergedCall{digest_of(call), options.json.empty() ? json() : std::move(call)});
        place += part.count;
      }
    } catch (const json::exception& error) {
      throw FileError(name + ": is no report that --json wrote (" + error.what() + ")");
    } catch (const std::ios_base::failure&) {  // a folder
      throw FileError(name + ": is no file");
    }
  }
  check_parts(parts);
  json reports = json::array();
  for (auto& [place, call] : calls) {
    merged.calls.push_back(std::move(call.digest));
    if (!options.json.empty()) reports.push_back(std::move(call.report));
  }
  note_filter(&merged);
  print_summary(merged);
  return status_after(merged.exit_status(), [&] {
    if (!options.json.empty()) write_json(options.json, json_of(merged), std::move(reports));
  });
}

}  // namespace op_tools::replay
