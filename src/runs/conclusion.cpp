#include "runs/conclusion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "runs/end_results.h"

namespace op_tools {
namespace {

void forgive(ComparedCalls* row) {
  row->finding = Finding::kNone;
  row->source = row->via = row->seen_in = kNoRow;
  if (row->verdict == CallVerdict::kBorn || row->verdict == CallVerdict::kCarried) row->verdict = CallVerdict::kHealed;
}

// Where the runs have different calls (a network that is a single operator there) calls are paired by chance.
// A call named for that alone is forgiven where all results of the runs are equal, and nothing but they are made of
// it.
void forgive_other_calls(const Recording& a, const Recording& b, Divergence* judged) {
  const auto may_be_chance = [](const ComparedCalls& row) { return !row.is_birth() || row.is_by_calls_alone(); };
  if (judged->first == kNoRow || !std::all_of(judged->rows.begin(), judged->rows.end(), may_be_chance)) return;
  if (!all_results_agree(a, b, *judged)) return;
  const std::vector<bool> behind_a = calls_behind_results(a), behind_b = calls_behind_results(b);
  const bool all_behind = std::all_of(judged->rows.begin(), judged->rows.end(), [&](const ComparedCalls& row) {
    return !row.is_birth() || (row.a != kNoCall && behind_a[row.a]) || (row.b != kNoCall && behind_b[row.b]);
  });
  if (!all_behind) return;
  for (ComparedCalls& row : judged->rows) forgive(&row);
  judged->first = kNoRow;
}

// By value: the results for which a program is run: losses, gradients of leaves, parameters, and values that no call
// reads. The parts of gradients are read by the engine.
std::vector<bool> ends_of(const Recording& run) {
  std::vector<bool> ends = end_values(run), is_read(run.values.size(), false);
  for (const RecordedCall& call : run.calls) {
    for (const RecordedUse& use : run.inputs(call)) is_read[use.value] = true;
  }
  for (const RecordedCall& call : run.calls) {
    if (call.phase == Phase::kBackward) continue;
    for (const RecordedUse& use : run.outputs(call)) ends[use.value] = ends[use.value] || !is_read[use.value];
  }
  return ends;
}

// A call named for the pairing alone is forgiven, too, where its successors are equal again before any
// result is made of it.
void forgive_healed_births(const Recording& a, const Recording& b, Divergence* judged) {
  std::vector<bool> reaches_end(judged->rows.size(), false);  // by row: of births
  const auto follow = [&](const Recording& run, const std::vector<uint32_t>& row_of) {
    const std::vector<bool> ends = ends_of(run);
    for (uint32_t call = 0; call < run.calls.size(); ++call) {
      const uint32_t number = row_of[call];
      if (number == kNoRow || judged->rows[number].source == kNoRow) continue;
      const ComparedCalls& row = judged->rows[number];
      if (row.verdict == CallVerdict::kHealed) continue;
      const auto outputs = run.outputs(run.calls[call]);
      if (std::any_of(outputs.begin(), outputs.end(), [&](const auto& use) { return ends[use.value]; })) {
        reaches_end[row.source] = true;
      }
    }
  };
  follow(a, judged->row_of_a);
  follow(b, judged->row_of_b);
  const auto is_forgiven = [&](uint32_t source) {
    return judged->rows[source].is_by_calls_alone() && !reaches_end[source];
  };
  std::vector<uint32_t> forgiven;
  for (uint32_t i = 0; i < judged->rows.size(); ++i) {
    if (judged->rows[i].source != kNoRow && is_forgiven(judged->rows[i].source)) forgiven.push_back(i);
  }
  for (const uint32_t number : forgiven) forgive(&judged->rows[number]);
  judged->first = kNoRow;
  for (uint32_t i = 0; i < judged->rows.size(); ++i) {
    const bool is_earlier = judged->first == kNoRow || judged->rows[i].seen_in < judged->rows[judged->first].seen_in;
    if (judged->rows[i].is_birth() && is_earlier) judged->first = i;
  }
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
  row.source = row.seen_in = row_number;
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

}  // namespace

bool is_enough(const Recording& a, const Recording& b, const Divergence& judged) {
  const auto not_compared =
      static_cast<size_t>(std::count_if(judged.rows.begin(), judged.rows.end(), [](const ComparedCalls& row) {
        return row.verdict == CallVerdict::kNotCompared;
      }));
  const size_t silent =
      not_compared + calls_apart(a, judged.row_of_a, judged.rows) + calls_apart(b, judged.row_of_b, judged.rows);
  return 2 * silent <= judged.rows.size();
}

void conclude(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged) {
  forgive_other_calls(a, b, judged);
  if (judged->first != kNoRow) forgive_healed_births(a, b, judged);
  if (judged->first == kNoRow) name_end_result(a, b, noise, judged);
  judged->is_judged = judged->first != kNoRow || is_enough(a, b, *judged);
  std::map<int64_t, uint32_t> births, carriers;
  for (uint32_t i = 0; i < judged->rows.size(); ++i) {
    const ComparedCalls& row = judged->rows[i];
    const int64_t step = row.a != kNoCall ? a.calls[row.a].step : b.calls[row.b].step;
    if (row.is_birth()) {
      const auto [first, is_new] = births.emplace(step, i);
      if (!is_new && row.seen_in < judged->rows[first->second].seen_in) first->second = i;
    }
    if (row.source != kNoRow) carriers.emplace(step, i);
  }
  for (const auto& [step, row] : births) carriers[step] = row;
  judged->first_by_step.assign(carriers.begin(), carriers.end());
}

}  // namespace op_tools
