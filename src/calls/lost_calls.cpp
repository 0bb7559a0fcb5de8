#include "calls/lost_calls.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text_table.h"
#include "calls/capture_paths.h"
#include "coverage/coverage_file.h"
#include "coverage/coverage_text.h"

namespace op_tools {
namespace {

constexpr std::string_view kTool = "OpCapture";
constexpr size_t kMostOps = 10;  // in a sentence

// Of the gaps of a capture those that leave out calls against the user's will. The others are about the program beside
// them; limits are the user's own.
std::vector<std::string> texts_of_gaps(const Coverage& account) {
  std::vector<std::string> texts;
  const std::vector<Gap> all = gaps(account);
  const std::vector<std::string> said = reasons(account);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == Gap::kToolOff) texts.push_back(said[i] + ": calls after that were not saved");
  }
  if (const uint64_t lost = account.lost[Loss::kNotWritten]; lost > 0) {
    texts.push_back(count_text(lost, "call") + " or gradients could not be written to the disk");
  }
  return texts;
}

std::string text_of_missing(const std::vector<const AccountedCalls*>& of_run) {
  uint64_t saved = 0, missing = 0;
  size_t listed = 0;
  std::string ops;
  for (const AccountedCalls* const calls : of_run) {
    saved += calls->saved;
    if (calls->present == calls->saved) continue;
    missing += calls->saved - calls->present;
    if (++listed > kMostOps) continue;
    ops += (ops.empty() ? "" : ", ") + std::to_string(calls->saved - calls->present) + " of " + visible(calls->op);
  }
  if (missing == 0) return {};
  if (listed > kMostOps) ops += ", ...";
  return of_run.front()->run + ": " + std::to_string(missing) + " of " + count_text(saved, "saved call") +
         " are missing (" + ops +
         "): not judged; if they were removed on purpose, give the others by name: " + of_run.front()->calls;
}

// "rank 1", "ranks 1, 2, 4 to 7"; of many ranges the first.
std::string text_of_ranks(const std::vector<int64_t>& ranks) {
  constexpr size_t kMostRanges = 8;
  std::string text;
  size_t ranges = 0;
  for (size_t first = 0, next = 0; first < ranks.size(); first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1;) ++next;
    if (++ranges > kMostRanges) return "ranks " + text + ", ... (" + std::to_string(ranks.size()) + " ranks)";
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[first]);
    if (next - first > 1) text += (next - first > 2 ? " to " : ", ") + std::to_string(ranks[next - 1]);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

void RanksOfLaunches::add(const std::string& run, int64_t launched) {
  const size_t time = run.rfind('/');
  const size_t rank = time == std::string::npos || time == 0 ? std::string::npos : run.rfind('/', time - 1);
  if (rank == std::string::npos) return;
  int64_t number = 0;
  const char* const end = run.data() + time;
  const auto [stopped, error] = std::from_chars(run.data() + rank + 1, end, number);
  if (error != std::errc() || stopped != end || number < 0) return;
  Launch& launch = launches_[run.substr(0, rank)];
  launch.ranks.insert(number);
  launch.launched = std::max(launch.launched, launched);
}

void RanksOfLaunches::name_missing(const std::string& top, std::vector<std::string>& problems) const {
  constexpr int64_t kMost = 100'000;  // a number beyond comes from a damaged file
  for (const auto& [folder, launch] : launches_) {
    if (folder.size() < top.size() || launch.launched == 0) continue;
    const int64_t count = std::min(std::max(launch.launched, *launch.ranks.rbegin() + 1), kMost);
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < count; ++rank) {
      if (!launch.ranks.contains(rank)) missing.push_back(rank);
    }
    if (missing.empty()) continue;
    problems.push_back(folder + ": " + text_of_ranks(missing) + ": no results here, of " + std::to_string(count) +
                       " ranks: not judged; if only others were captured, give their folders: " + folder + "/" +
                       std::to_string(*launch.ranks.begin()));
  }
}

void FoundCalls::name_missing() {
  std::map<std::string, std::vector<const AccountedCalls*>> by_run;
  for (const AccountedCalls& calls : accounted) by_run[calls.run].push_back(&calls);
  for (const auto& [run, of_run] : by_run) {
    if (std::string text = text_of_missing(of_run); !text.empty()) problems.push_back(std::move(text));
  }
}

int64_t judge_by_account(const std::string& run, CallsByFolder here, FoundCalls& listing) {
  std::optional<ReadAccount> read;
  try {
    read = read_coverage(run);
  } catch (const Error& error) {
    // A file of that name may be another program's, where there are no calls.
    if (!here.empty())
      listing.problems.push_back(std::string(error.what()) + "; how many calls were saved is not known");
    return 0;
  }
  if (!read || read->facts.tool != kTool) return 0;
  for (const std::string& text : texts_of_gaps(read->account)) listing.problems.push_back(run + ": " + text);
  struct stat status = {};
  const std::string container = run + "/" + kContainerName;
  const std::string calls = (::stat(container.c_str(), &status) == 0 ? container + "!" : run + "/") + "OP/ID";
  for (const auto& [op, saved] : read->facts.rows) {
    uint64_t& left = here[operator_folder(op)];  // that of two operators may be the same
    const uint64_t still = std::min(saved, left);
    left -= still;
    listing.accounted.push_back({run, calls, op, saved, still});
  }
  return read->facts.ranks;
}

}  // namespace op_tools
