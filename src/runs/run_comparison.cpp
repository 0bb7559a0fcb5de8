#include "runs/run_comparison.h"

#include <algorithm>

#include "runs/call_verdict.h"
#include "runs/noise.h"
#include "runs/same_calls.h"

namespace op_tools {

RunComparison::RunComparison(SharedRecording a, SharedRecording b, const Recording* noise,
                             const std::vector<Fusion>& fusions)
    : a_(std::move(a)), b_(std::move(b)), has_noise_(noise != nullptr) {
  if (!noise && have_same_calls(*a_, *b_)) {
    alignment_ = alignment_of_same(*a_);
    divergence_ = divergence_of_same(*a_, *b_, alignment_);
    return;
  }
  alignment_ = align_runs(*a_, *b_, fusions);
  if (!noise) {
    divergence_ = find_divergence(*a_, *b_, alignment_);
    return;
  }
  const Noise known = noise_of(*a_, *noise, align_runs(*a_, *noise, fusions));
  divergence_ = find_divergence(*a_, *b_, alignment_, &known);
}

RunRow RunComparison::row(size_t number) const {
  static_cast<void>(divergence_.rows.at(number));
  return run_row(*a_, *b_, alignment_, divergence_, static_cast<uint32_t>(number), has_noise_);
}

std::pair<CallNumbers, CallNumbers> RunComparison::calls_of(size_t number) const {
  const ComparedCalls& row = divergence_.rows.at(number);
  if (row.group != kNoCall) return {alignment_.groups[row.group].a, alignment_.groups[row.group].b};
  const auto alone = [](uint32_t call) { return call == kNoCall ? CallNumbers() : CallNumbers{call}; };
  return {alone(row.a), alone(row.b)};
}

std::map<std::string, size_t> RunComparison::counts() const {
  std::map<std::string, size_t> counts;
  for (const ComparedCalls& row : divergence_.rows) ++counts[std::string(to_string(row.verdict))];
  return counts;
}

template <class Asked>
std::vector<uint32_t> RunComparison::rows_with(const Asked& asked) const {
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < divergence_.rows.size(); ++i) {
    if (asked(divergence_.rows[i])) rows.push_back(i);
  }
  return rows;
}

std::vector<uint32_t> RunComparison::worst(std::string_view verdict) const {
  std::vector<uint32_t> rows = rows_with([&](const ComparedCalls& row) { return to_string(row.verdict) == verdict; });
  std::stable_sort(rows.begin(), rows.end(), [&](uint32_t row, uint32_t other) {
    return divergence_.rows[row].share() > divergence_.rows[other].share();
  });
  return rows;
}

std::vector<uint32_t> RunComparison::chain(uint32_t source) const {
  std::vector<uint32_t> lengths(divergence_.rows.size(), 0), path;
  uint32_t end = kNoRow;
  for (uint32_t i = 0; i < divergence_.rows.size(); ++i) {
    const ComparedCalls& row = divergence_.rows[i];
    if (row.source != source || row.via == kNoRow) continue;
    lengths[i] = lengths[row.via] + 1;
    if (end == kNoRow || lengths[i] > lengths[end]) end = i;
  }
  for (uint32_t i = end; i != kNoRow; i = divergence_.rows[i].via) path.insert(path.begin(), i);
  return path;
}

std::vector<uint32_t> RunComparison::births() const {
  return rows_with([](const ComparedCalls& row) { return row.is_birth(); });
}

std::vector<uint32_t> RunComparison::other_dtypes() const {
  return rows_with([](const ComparedCalls& row) { return row.other_dtype; });
}

}  // namespace op_tools
