#include "coverage/coverage.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <exception>

namespace op_tools {
namespace {

bool is_away_from_accelerator(const Coverage& account) {
  if (account.accelerator.empty() || account.seen == 0) return false;
  if (!account.devices.empty()) return !account.devices.contains(account.accelerator);
  return account.on_device == false;
}

bool has(Gap gap, const Coverage& account) {
  switch (gap) {
    case Gap::kToolOff:
      return account.off;
    case Gap::kNothingSeen:
      return account.seen == 0;
    case Gap::kMostUnjudged:
      return account.not_judged.total() > account.judged;
    case Gap::kMostLost:  // of a tool that judges nothing: more than it recorded
      return account.lost.total() > (account.judged > 0 ? account.judged : account.seen / 2);
    case Gap::kNotOnAccelerator:
      return is_away_from_accelerator(account);
    case Gap::kThreads:
      return account.thread_calls_on_device > 0 || account.thread_calls > account.seen;
    case Gap::kNativeCalls:
      return account.native_calls_on_device > 0 || account.native_calls > account.seen;
    case Gap::kProcesses:
      return account.processes > 0;
    case Gap::kChildren:
      return account.children_with_gaps > 0;
    case Gap::kGraphs:
      return account.compiled > 0;
    case Gap::kWideLimits:
      return account.wide_limits > account.judged / 2;
    case Gap::kCount:
      break;
  }
  return false;
}

}  // namespace

std::vector<Gap> gaps(const Coverage& account) {
  std::vector<Gap> gaps;
  for (size_t i = 0; i < static_cast<size_t>(Gap::kCount); ++i) {
    if (has(static_cast<Gap>(i), account)) gaps.push_back(static_cast<Gap>(i));
  }
  return gaps;
}

bool has_unseen(const Coverage& account) {
  return account.off || account.threads > 0 || account.native_calls > 0 || account.processes > 0 ||
         account.children_with_gaps > 0 || account.compiled > 0 ||
         account.lost.total() > account.lost[Loss::kLimits];  // calls that options leave out are the user's wish
}

Verdict verdict_of(bool wrong, bool has_gaps) {
  return wrong ? Verdict::kDiffers : has_gaps ? Verdict::kNotJudged : Verdict::kAgrees;
}

Verdict verdict_of(bool wrong, const Coverage& account) {
  return verdict_of(wrong || account.children_wrong > 0, !gaps(account).empty());
}

Verdict worst(const std::vector<Verdict>& verdicts) {
  for (const Verdict verdict : {Verdict::kDiffers, Verdict::kNotJudged}) {
    if (std::find(verdicts.begin(), verdicts.end(), verdict) != verdicts.end()) return verdict;
  }
  return Verdict::kAgrees;
}

int exit_status(Verdict verdict, bool allow_unseen) {
  if (verdict == Verdict::kDiffers) return 1;
  return verdict == Verdict::kNotJudged && !allow_unseen ? 2 : 0;
}

std::string accelerator() {
  try {
    const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
    if (type && at::accelerator::deviceCount() > 0) return c10::DeviceTypeName(*type, /*lower_case=*/true);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a device whose runtime is broken is none
  }
  return {};
}

}  // namespace op_tools
