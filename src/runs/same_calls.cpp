#include "runs/same_calls.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "runs/call_keys.h"
#include "runs/conclusion.h"
#include "runs/gradient_makers.h"
#include "runs/module_rows.h"
#include "runs/optimizer_steps.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

bool has_same_form(const RecordedValue& value, const RecordedValue& other) {
  return value.known == other.known && value.origin == other.origin && value.dtype == other.dtype &&
         value.producer == other.producer && value.output == other.output && value.name == other.name &&
         value.device == other.device && value.shape == other.shape && value.stride == other.stride;
}

bool has_same_bits(const RecordedValue& value, const RecordedValue& other) {
  return value.hash == other.hash && (value.hash != 0 || !value.known);
}

bool has_same_form(const RecordedCall& call, const RecordedCall& other) {
  return call.op == other.op && call.module == other.module && call.line == other.line && call.error == other.error &&
         call.scalars == other.scalars && call.random == other.random && call.step == other.step &&
         call.thread == other.thread && call.module_call == other.module_call && call.pass == other.pass &&
         call.first_use == other.first_use && call.inputs == other.inputs && call.outputs == other.outputs &&
         call.level == other.level && call.phase == other.phase;
}

// The first id of a process depends on what it did before.
uint64_t place_of(uint64_t id, const Recording& run) {
  return id == 0 ? 0 : id - run.calls.front().id + 1;
}

}  // namespace

bool have_same_form(const Recording& a, const Recording& b) {
  if (a.calls.empty() || a.calls.size() != b.calls.size() || a.uses.size() != b.uses.size() ||
      a.values.size() != b.values.size() || a.strings.size() != b.strings.size() || a.lists != b.lists)
    return false;
  std::vector<bool> is_same_text(a.strings.size());
  for (size_t i = 0; i < a.strings.size(); ++i) is_same_text[i] = a.strings[i] == b.strings[i];
  const bool same_values =
      std::equal(a.values.begin(), a.values.end(), b.values.begin(), [&](const auto& value, const auto& other) {
        return has_same_form(value, other) && is_same_text[value.name] && is_same_text[value.device];
      });
  if (!same_values) return false;
  const bool same_uses =
      std::equal(a.uses.begin(), a.uses.end(), b.uses.begin(), [&](const auto& use, const auto& other) {
        return use.place == other.place && use.value == other.value && is_same_text[use.place];
      });
  if (!same_uses) return false;
  for (uint32_t i = 0; i < a.calls.size(); ++i) {
    const RecordedCall &call = a.calls[i], &other = b.calls[i];
    if (!has_same_form(call, other) || place_of(call.id, a) != place_of(other.id, b) ||
        place_of(call.forward_id, a) != place_of(other.forward_id, b))
      return false;
    for (const StringNumber text : {call.op, call.module, call.line, call.error, call.random}) {
      if (!is_same_text[text]) return false;
    }
  }
  return true;
}

bool have_same_calls(const Recording& a, const Recording& b) {
  if (a.strings != b.strings || !have_same_form(a, b)) return false;
  if (!std::equal(a.values.begin(), a.values.end(), b.values.begin(), has_same_bits)) return false;
  for (uint32_t i = 0; i < a.calls.size(); ++i) {
    if (compare_module_steps(a, i, b, i)) return false;
  }
  return true;
}

Alignment alignment_of_same(const Recording& run) {
  Alignment alignment;
  const size_t count = run.calls.size();
  alignment.b_of_a.resize(count);
  std::iota(alignment.b_of_a.begin(), alignment.b_of_a.end(), 0);
  alignment.move_b_of_a.assign(count, kNoCall);
  for (uint32_t i = 0; i < count; ++i) {
    alignment.moves_a.push_back(only_moves(run, run.calls[i]));
    if (alignment.moves_a.back()) std::swap(alignment.b_of_a[i], alignment.move_b_of_a[i]);
  }
  alignment.a_of_b = alignment.b_of_a;
  alignment.moves_b = alignment.moves_a;
  alignment.group_of_a.assign(count, kNoCall);
  alignment.group_of_b = alignment.group_of_a;
  return alignment;
}

Divergence divergence_of_same(const Recording& a, const Recording& b, const Alignment& alignment) {
  const std::vector<bool> unwritten = unwritten_values(a);
  Divergence divergence;
  divergence.rows.reserve(a.calls.size());
  divergence.row_of_a.assign(a.calls.size(), kNoRow);
  const ModuleRows modules(a);
  for (const uint32_t number : behind_makers(a, sources_of(a), alignment, modules.order())) {
    if (alignment.moves_a[number]) continue;
    const auto outputs = a.outputs(a.calls[number]);
    const auto is_unwritten = [&](const RecordedUse& use) { return unwritten[use.value]; };
    const auto is_unknown = [&](const RecordedUse& use) {
      return !unwritten[use.value] && a.values[use.value].hash == 0 && numel_of(a, a.values[use.value]) != 0;
    };
    const bool all_unwritten = !outputs.empty() && std::all_of(outputs.begin(), outputs.end(), is_unwritten);
    ComparedCalls row;
    row.a = row.b = number;
    if (all_unwritten || std::any_of(outputs.begin(), outputs.end(), is_unknown))
      row.verdict = CallVerdict::kNotCompared;
    divergence.row_of_a[number] = static_cast<uint32_t>(divergence.rows.size());
    divergence.rows.push_back(row);
  }
  divergence.row_of_b = divergence.row_of_a;
  divergence.is_judged = is_enough(a, b, divergence);
  return divergence;
}

}  // namespace op_tools
