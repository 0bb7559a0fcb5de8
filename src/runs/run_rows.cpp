#include "runs/run_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "hooks/op_call.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// The place of a value among the outputs of a call, else among its inputs.
std::string place_of(const Recording& run, const RecordedCall& call, uint32_t value) {
  for (const auto& uses : {run.outputs(call), run.inputs(call)}) {
    for (const RecordedUse& use : uses) {
      if (use.value == value) return std::string(run.string(use.place));
    }
  }
  return {};
}

std::string hash_text(uint64_t hash) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) text[i] = kDigits[hash & 15];
  return text;
}

Value tensor_value(const Recording& run, const RecordedCall& call, uint32_t number) {
  if (number == kNoCall) return {};
  const RecordedValue& value = run.values[number];
  std::vector<std::pair<Value, Value>> facts = {{"place", place_of(run, call, number)},
                                                {"shape", Size{run.lists[value.shape]}},
                                                {"dtype", torch_name(value.dtype)},
                                                {"device", run.strings[value.device]}};
  if (value.name != 0) facts.emplace_back("name", run.strings[value.name]);
  if (value.known) {
    for (const auto& [name, count] :
         {std::tuple("nan", value.nan), std::tuple("inf", value.inf), std::tuple("zero", value.zero)}) {
      if (count >= 0) facts.emplace_back(name, count);
    }
    for (const auto& [name, number] : {std::tuple("min", value.min), std::tuple("max", value.max),
                                       std::tuple("mean", value.mean), std::tuple("norm", value.norm)}) {
      facts.emplace_back(name, number);
    }
  }
  if (value.hash != 0) facts.emplace_back("hash", hash_text(value.hash));
  if (value.origin == Origin::kCall) {
    const RecordedCall& writer = run.calls[value.producer];
    facts.emplace_back("written_by", std::string(run.string(writer.op)));
    facts.emplace_back("written_by_id", static_cast<int64_t>(writer.id));
  }
  return make_dict(std::move(facts));
}

// The operators of a call, or of a group: "mul + add".
std::string ops_text(const Recording& run, const CallNumbers& calls) {
  std::string text;
  std::set<StringNumber> ops;
  for (const uint32_t call : calls) {
    if (!ops.insert(run.calls[call].op).second) continue;
    text += text.empty() ? "" : " + ";
    text += run.string(run.calls[call].op);
  }
  return text;
}

// The tensor that is shown: that of the finding, else the first output.
uint32_t shown_value(const Recording& run, const RecordedCall& call, uint32_t value) {
  if (value != kNoCall) return value;
  return call.outputs > 0 ? run.outputs(call)[0].value : kNoCall;
}

}  // namespace

const Columns<RunRow>& RunRow::columns() {
  static const Columns<RunRow> all{
      "RunRow",
      "A pair of calls of two runs, a pair of groups of calls, or a call of a single run.",
      {
          {"row", &RunRow::row, "its number"},
          {"rank", &RunRow::rank, "of the distributed launch"},
          {"step", &RunRow::step, "the training step"},
          {"verdict", &RunRow::verdict,
           "`agrees`; `born here`: its inputs agree, its results do not; `carried`; `healed`; `only in A`; `only in "
           "B`; `differs, cause not found`: a loss, gradient or parameter of the call is another one; `not compared`: "
           "a "
           "result has no statistics in one of the runs"},
          {"finding", &RunRow::finding, "how the results differ, where a difference was born; else empty"},
          {"phase", &RunRow::phase, "`forward` or `backward`"},
          {"level", &RunRow::level, "`torch` or `aten`"},
          {"op", &RunRow::op, "the operator; of a group: each once, joined by ` + `"},
          {"module", &RunRow::module, "the module that made the call"},
          {"line", &RunRow::line, "the program's line"},
          {"op_b", &RunRow::op_b, "the same of run B; empty: only A has the call"},
          {"module_b", &RunRow::module_b, "the same of run B"},
          {"line_b", &RunRow::line_b, "the same of run B"},
          {"id_a", &RunRow::id_a, "the number of the call in A, as in the folders of OpCapture; of a group the last"},
          {"id_b", &RunRow::id_b, "that in B"},
          {"calls_a", &RunRow::calls_a, "how many calls of A stand here: more than 1 in a group"},
          {"calls_b", &RunRow::calls_b, "how many of B"},
          {"other", &RunRow::other, "other differences: `op`, `dtype`, `shape`, `scalars`"},
          {"input_difference", &RunRow::input_difference,
           "the largest difference of an input, as a share of the norm of the tensor"},
          {"output_difference", &RunRow::output_difference,
           "that of the output which is nearest to its limit, or over it"},
          {"limit", &RunRow::limit, "how large that may be for these inputs, this dtype and this operator"},
          {"noise", &RunRow::noise, "how large it is between A and the noise recording"},
          {"tensor_a", &RunRow::tensor_a,
           "that output in A: place, shape, dtype, statistics, and the call that wrote its memory last",
           "dict[str, Any] | None"},
          {"tensor_b", &RunRow::tensor_b, "that output in B", "dict[str, Any] | None"},
          {"source", &RunRow::source, "the row in which the difference was born"},
          {"via", &RunRow::via, "the row that handed it on to this row"},
      }};
  return all;
}

RunRow run_row(const Recording& a, const Recording& b, const Alignment& alignment, const Divergence& divergence,
               uint32_t number, bool has_noise) {
  const ComparedCalls& calls = divergence.rows[number];
  const RecordedCall* const call_a = calls.a == kNoCall ? nullptr : &a.calls[calls.a];
  const RecordedCall* const call_b = calls.b == kNoCall ? nullptr : &b.calls[calls.b];
  const Recording& run = call_a ? a : b;
  const RecordedCall& call = call_a ? *call_a : *call_b;
  RunRow row;
  row.row = number;
  if (const Value* const rank = find_key(a.header, "rank")) {
    if (const auto* const number_of = rank->get_if<int64_t>()) row.rank = *number_of;
  }
  row.step = call.step;
  row.verdict = to_string(calls.verdict);
  row.finding = to_string(calls.finding);
  row.phase = to_string(call.phase);
  row.level = to_string(call.level);
  const CallGroup* const group = calls.group == kNoCall ? nullptr : &alignment.groups[calls.group];
  row.op = group ? ops_text(a, group->a) : std::string(run.string(call.op));
  row.module = run.string(call.module);
  row.line = run.string(call.line);
  if (call_a) row.id_a = static_cast<int64_t>(call_a->id);
  if (call_b) {
    row.op_b = group ? ops_text(b, group->b) : std::string(b.string(call_b->op));
    row.module_b = b.string(call_b->module);
    row.line_b = b.string(call_b->line);
    row.id_b = static_cast<int64_t>(call_b->id);
  }
  row.calls_a = group ? static_cast<int64_t>(group->a.size()) : call_a ? 1 : 0;
  row.calls_b = group ? static_cast<int64_t>(group->b.size()) : call_b ? 1 : 0;
  for (const auto& [differs, name] :
       {std::tuple(calls.other_op, "op"), std::tuple(calls.other_dtype, "dtype"),
        std::tuple(calls.other_shape, "shape"), std::tuple(calls.other_scalars, "scalars")}) {
    if (differs) row.other.emplace_back(name);
  }
  row.input_difference = calls.input_difference;
  row.output_difference = calls.output_difference;
  row.limit = calls.limit;
  if (has_noise) row.noise = calls.noise;
  if (call_a) row.tensor_a = tensor_value(a, *call_a, shown_value(a, *call_a, calls.value_a));
  if (call_b) row.tensor_b = tensor_value(b, *call_b, shown_value(b, *call_b, calls.value_b));
  if (calls.source != kNoRow) row.source = calls.source;
  if (calls.via != kNoRow) row.via = calls.via;
  return row;
}

std::vector<OpCounts> different_counts(const Recording& a, const Recording& b) {
  std::map<std::pair<std::string_view, Phase>, std::pair<int64_t, int64_t>> counts;
  for (const RecordedCall& call : a.calls) ++counts[{a.string(call.op), call.phase}].first;
  for (const RecordedCall& call : b.calls) ++counts[{b.string(call.op), call.phase}].second;
  std::vector<OpCounts> different;
  for (const auto& [name, calls] : counts) {
    if (calls.first == calls.second) continue;
    different.push_back({std::string(name.first), to_string(name.second), calls.first, calls.second});
  }
  std::stable_sort(different.begin(), different.end(), [](const OpCounts& counts, const OpCounts& other) {
    return std::abs(counts.a - counts.b) > std::abs(other.a - other.b);
  });
  return different;
}

}  // namespace op_tools
