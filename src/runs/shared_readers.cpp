#include "runs/shared_readers.h"

#include <algorithm>
#include <vector>

namespace op_tools {
namespace {

constexpr uint32_t kSeveral = kNoCall - 1;  // several groups read it, or a call in none

// The only group that reads all of them; kNoCall: nothing reads them.
uint32_t combined(uint32_t group, uint32_t other) {
  if (group == kNoCall || group == other) return other;
  return other == kNoCall ? group : kSeveral;
}

// By group: the calls that nothing but the group reads. `is_alone`: by number of the call.
template <class IsAlone>
std::vector<CallNumbers> read_by_groups(const Recording& run, const std::vector<uint32_t>& group_of, size_t groups,
                                        const IsAlone& is_alone) {
  std::vector<CallNumbers> calls(groups);
  std::vector<uint32_t> readers(run.values.size(), kNoCall);
  for (auto i = static_cast<uint32_t>(run.calls.size()); i-- > 0;) {
    const RecordedCall& call = run.calls[i];
    uint32_t group = group_of[i];
    // Backward calls are with those of their forward calls.
    if (group == kNoCall && call.phase == Phase::kForward && is_alone(i)) {
      for (const RecordedUse& use : run.outputs(call)) group = combined(group, readers[use.value]);
      if (group != kNoCall && group != kSeveral) calls[group].push_back(i);
    }
    for (const RecordedUse& use : run.inputs(call)) {
      readers[use.value] = combined(readers[use.value], group == kNoCall ? kSeveral : group);
    }
  }
  return calls;
}

void add_calls(CallNumbers more, uint32_t group, CallNumbers* calls, std::vector<uint32_t>* group_of) {
  for (const uint32_t call : more) (*group_of)[call] = group;
  calls->insert(calls->end(), more.begin(), more.end());
  std::sort(calls->begin(), calls->end());
}

}  // namespace

CallPairs read_by_pairs(const Recording& a, const Recording& b, const Alignment& pairs, const CallNumbers& readers) {
  CallPairs makers;
  for (const uint32_t reader : readers) {
    const uint32_t partner = pairs.b_of_a[reader];
    if (partner == kNoCall) continue;
    const auto of_a = a.inputs(a.calls[reader]), of_b = b.inputs(b.calls[partner]);
    if (of_a.size() != of_b.size()) continue;
    for (size_t i = 0; i < of_a.size(); ++i) {
      const RecordedValue &value = a.values[of_a[i].value], &other = b.values[of_b[i].value];
      const bool are_made = value.origin == Origin::kCall && other.origin == Origin::kCall;
      if (!are_made || a.list(value.shape) != b.list(other.shape)) continue;
      if (pairs.alone_in_a(value.producer) && pairs.alone_in_b(other.producer)) {
        makers.emplace(value.producer, other.producer);
      }
    }
  }
  return makers;
}

void absorb_into_groups(const Recording& a, const Recording& b, Alignment* alignment) {
  const size_t count = alignment->groups.size();
  if (count == 0) return;
  std::vector<CallNumbers> of_a =
      read_by_groups(a, alignment->group_of_a, count, [&](uint32_t call) { return alignment->alone_in_a(call); });
  std::vector<CallNumbers> of_b =
      read_by_groups(b, alignment->group_of_b, count, [&](uint32_t call) { return alignment->alone_in_b(call); });
  for (uint32_t group = 0; group < count; ++group) {
    const bool is_step = alignment->groups[group].is_optimizer_step;  // its inputs are known
    if (is_step || of_a[group].empty() || of_b[group].empty()) continue;
    add_calls(std::move(of_a[group]), group, &alignment->groups[group].a, &alignment->group_of_a);
    add_calls(std::move(of_b[group]), group, &alignment->groups[group].b, &alignment->group_of_b);
  }
}

}  // namespace op_tools
