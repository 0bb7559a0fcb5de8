#include "runs/conclusion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "runs/end_results.h"

namespace op_tools {
namespace {

// Where one run has other calls than the other one (a network that is one operator there) calls are paired by chance.
// What was named for that alone is nothing where all results of the runs are equal, and nothing but they are made of
// it.
void forgive_other_calls(const Recording& a, const Recording& b, Divergence* judged) {
  const auto by_calls_alone = [](const ComparedCalls& row) {
    return !row.is_birth() || row.finding == Finding::kExtraCall || row.finding == Finding::kOtherInput ||
           row.finding == Finding::kShape || row.group != kNoCall;
  };
  if (judged->first == kNoRow || !std::all_of(judged->rows.begin(), judged->rows.end(), by_calls_alone)) return;
  if (!all_results_agree(a, b, *judged)) return;
  const std::vector<bool> behind_a = calls_behind_results(a), behind_b = calls_behind_results(b);
  const bool all_behind = std::all_of(judged->rows.begin(), judged->rows.end(), [&](const ComparedCalls& row) {
    return !row.is_birth() || (row.a != kNoCall && behind_a[row.a]) || (row.b != kNoCall && behind_b[row.b]);
  });
  if (!all_behind) return;
  for (ComparedCalls& row : judged->rows) {
    row.finding = Finding::kNone;
    row.source = row.via = kNoRow;
    if (row.verdict == CallVerdict::kBorn || row.verdict == CallVerdict::kCarried) row.verdict = CallVerdict::kHealed;
  }
  judged->first = kNoRow;
}

// Runs that have other results do not agree, though no call was found in which that was born.
void name_end_result(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged) {
  const std::optional<EndDifference> result = differing_result(a, b, *judged, noise);
  if (!result) return;
  const uint32_t row_number =
      result->call_a != kNoCall ? judged->row_of_a[result->call_a] : judged->row_of_b[result->call_b];
  if (row_number == kNoRow) return;
  ComparedCalls& row = judged->rows[row_number];
  row.verdict = CallVerdict::kCauseNotFound;
  row.finding = Finding::kEndResult;
  row.value_a = result->value_a, row.value_b = result->value_b;
  row.output_difference = result->difference, row.limit = result->limit;
  row.source = row_number;
  judged->first = row_number;
}

// Forward calls that only this run makes, and whose results go into no call that both make.
size_t calls_apart(const Recording& run, const std::vector<uint32_t>& row_of, const std::vector<ComparedCalls>& rows) {
  size_t apart = 0;
  std::vector<bool> is_read(run.values.size(), false);
  for (auto i = static_cast<uint32_t>(run.calls.size()); i-- > 0;) {
    const RecordedCall& call = run.calls[i];
    const auto outputs = run.outputs(call);
    const bool is_alone = row_of[i] != kNoRow && (rows[row_of[i]].a == kNoCall || rows[row_of[i]].b == kNoCall);
    const bool matters = (row_of[i] != kNoRow && !is_alone) ||
                         std::any_of(outputs.begin(), outputs.end(), [&](auto& use) { return is_read[use.value]; });
    apart += is_alone && !matters && call.phase == Phase::kForward;
    if (!matters) continue;
    for (const RecordedUse& use : run.inputs(call)) is_read[use.value] = true;
  }
  return apart;
}

bool is_enough(const Recording& a, const Recording& b, const Divergence& judged) {
  const auto not_compared =
      static_cast<size_t>(std::count_if(judged.rows.begin(), judged.rows.end(), [](const ComparedCalls& row) {
        return row.verdict == CallVerdict::kNotCompared;
      }));
  const size_t silent =
      not_compared + calls_apart(a, judged.row_of_a, judged.rows) + calls_apart(b, judged.row_of_b, judged.rows);
  return 2 * silent <= judged.rows.size();
}

}  // namespace

void conclude(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged) {
  forgive_other_calls(a, b, judged);
  if (judged->first == kNoRow) name_end_result(a, b, noise, judged);
  judged->is_judged = judged->first != kNoRow || is_enough(a, b, *judged);
  std::map<int64_t, uint32_t> births, carriers;
  for (uint32_t i = 0; i < judged->rows.size(); ++i) {
    const ComparedCalls& row = judged->rows[i];
    const int64_t step = row.a != kNoCall ? a.calls[row.a].step : b.calls[row.b].step;
    if (row.is_birth()) births.emplace(step, i);
    if (row.source != kNoRow) carriers.emplace(step, i);
  }
  for (const auto& [step, row] : births) carriers[step] = row;
  judged->first_by_step.assign(carriers.begin(), carriers.end());
}

}  // namespace op_tools
