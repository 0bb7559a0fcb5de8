#include "runs/alignment.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "runs/call_keys.h"
#include "runs/key_alignment.h"
#include "runs/optimizer_steps.h"
#include "runs/shared_readers.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// The calls that are aligned in order, by their common properties.
using BlockName = std::tuple<int64_t, Phase, uint32_t>;  // step, phase, thread
using Blocks = std::map<BlockName, std::pair<CallNumbers, CallNumbers>>;

// A side of the alignment.
struct Side {
  explicit Side(const Recording& recording) : run(recording), keys(call_keys(recording)) {
    for (uint32_t i = 0; i < run.calls.size(); ++i) {
      if (run.calls[i].phase == Phase::kForward) forward.emplace(run.calls[i].id, i);
    }
  }
  // The forward call of a backward call; kNoCall: not known.
  uint32_t forward_of(const RecordedCall& call) const {
    const auto entry = call.forward_id == 0 ? forward.end() : forward.find(call.forward_id);
    return entry == forward.end() ? kNoCall : entry->second;
  }

  const Recording& run;
  const CallKeys keys;
  std::unordered_map<uint64_t, uint32_t> forward;  // by id
};

using KeyList = std::vector<uint64_t> CallKeys::*;

class Aligner {
 public:
  Aligner(const Recording& a, const Recording& b, const std::vector<Fusion>& fusions)
      : a_(a), b_(b), fusions_(fusions) {
    alignment_.b_of_a.assign(a.calls.size(), kNoCall);
    alignment_.a_of_b.assign(b.calls.size(), kNoCall);
    alignment_.group_of_a = alignment_.b_of_a;
    alignment_.group_of_b = alignment_.a_of_b;
    for (const RecordedCall& call : a.calls) alignment_.moves_a.push_back(only_moves(a, call));
    for (const RecordedCall& call : b.calls) alignment_.moves_b.push_back(only_moves(b, call));
  }

  Alignment align() {
    std::set<int64_t> steps_a, steps_b;
    for (const RecordedCall& call : a_.run.calls) steps_a.insert(call.step);
    for (const RecordedCall& call : b_.run.calls) steps_b.insert(call.step);
    std::set_difference(steps_a.begin(), steps_a.end(), steps_b.begin(), steps_b.end(),
                        std::back_inserter(alignment_.steps_only_a));
    std::set_difference(steps_b.begin(), steps_b.end(), steps_a.begin(), steps_a.end(),
                        std::back_inserter(alignment_.steps_only_b));
    group_optimizer_steps();
    Blocks blocks;
    for (uint32_t i = 0; i < a_.run.calls.size(); ++i) {
      if (!alignment_.moves_a[i] && alignment_.group_of_a[i] == kNoCall)
        add_to_block(a_, i, &blocks, &Blocks::mapped_type::first);
    }
    for (uint32_t i = 0; i < b_.run.calls.size(); ++i) {
      if (!alignment_.moves_b[i] && alignment_.group_of_b[i] == kNoCall)
        add_to_block(b_, i, &blocks, &Blocks::mapped_type::second);
    }
    for (const auto& [name, calls] : blocks) align_block(calls.first, calls.second);
    absorb_into_groups(a_.run, b_.run, &alignment_);
    align_backward();
    separate_chance_pairs();
    pair_moves();
    return std::move(alignment_);
  }

 private:
  static void add_to_block(const Side& side, uint32_t number, Blocks* blocks, CallNumbers Blocks::mapped_type::*calls) {
    const RecordedCall& call = side.run.calls[number];
    if (side.forward_of(call) != kNoCall && call.phase == Phase::kBackward) return;  // with its forward call's partner
    // Backward passes of a device run in a thread of the engine, those of the CPU in the program's own.
    const uint32_t thread = call.phase == Phase::kBackward ? 0 : call.thread;
    ((*blocks)[{call.step, call.phase, thread}].*calls).push_back(number);
  }

  void pair(uint32_t a, uint32_t b) {
    alignment_.b_of_a[a] = b;
    alignment_.a_of_b[b] = a;
  }

  static std::vector<uint64_t> keys_of(const Side& side, KeyList list, const CallNumbers& calls) {
    std::vector<uint64_t> keys;
    keys.reserve(calls.size());
    for (const uint32_t call : calls) keys.push_back((side.keys.*list)[call]);
    return keys;
  }

  // Positions in the block of all pairs so far; calls `visit` for each part between two of them that both sides have.
  template <class Visit>
  static void for_each_gap(const Matches& matches, size_t size_a, size_t size_b, Visit&& visit) {
    uint32_t from_a = 0, from_b = 0;
    const auto gap = [&](uint32_t to_a, uint32_t to_b) {
      if (from_a < to_a && from_b < to_b) visit(from_a, to_a, from_b, to_b);
      from_a = to_a + 1, from_b = to_b + 1;
    };
    for (const auto& [at_a, at_b] : matches) gap(at_a, at_b);
    gap(static_cast<uint32_t>(size_a), static_cast<uint32_t>(size_b));
  }

  void group_optimizer_steps();
  void align_block(const CallNumbers& a, const CallNumbers& b);
  void drop_chance_matches(const CallNumbers& a, const CallNumbers& b, Matches* matches) const;
  void pair_moved(const CallNumbers& a, const CallNumbers& b, KeyList list);
  void group(const CallNumbers& a, const CallNumbers& b, const CallPairs& alike);
  void add_group(CallGroup calls);
  void align_backward();
  void pair_moves();
  void separate_replaced_calls();
  void separate_chance_pairs();
  bool met_by_chance(uint32_t a, uint32_t b) const;
  bool tensors_agree(uint32_t a, uint32_t b) const;

  CallNumbers alone(const CallNumbers& calls, const std::vector<uint32_t>& partners) const {
    CallNumbers left;
    for (const uint32_t call : calls) {
      if (partners[call] == kNoCall) left.push_back(call);
    }
    return left;
  }

  Side a_, b_;
  const std::vector<Fusion>& fusions_;
  Alignment alignment_;
};

// Two forms of an optimizer have other calls; their common calls at the begin (new states) are paired as any.
void Aligner::group_optimizer_steps() {
  const auto of_a = optimizer_steps(a_.run), of_b = optimizer_steps(b_.run);
  for (const auto& [place, steps] : of_a) {
    const auto others = of_b.find(place);
    if (others == of_b.end() || others->second.size() != steps.size()) continue;
    for (size_t i = 0; i < steps.size(); ++i) {
      const OptimizerStep &step = steps[i], &other = others->second[i];
      if (step.same_form(other)) continue;
      const auto keys_a = keys_of(a_, &CallKeys::plain, step.calls),
                 keys_b = keys_of(b_, &CallKeys::plain, other.calls);
      const auto differ = std::mismatch(keys_a.begin(), keys_a.end(), keys_b.begin(), keys_b.end());
      CallGroup group;
      group.a.assign(step.calls.begin() + (differ.first - keys_a.begin()), step.calls.end());
      group.b.assign(other.calls.begin() + (differ.second - keys_b.begin()), other.calls.end());
      group.is_optimizer_step = true;
      if (!group.a.empty() && !group.b.empty()) add_group(std::move(group));
    }
  }
}

void Aligner::align_block(const CallNumbers& a, const CallNumbers& b) {
  if (a.empty() || b.empty()) return;
  if (a.size() == 1 && b.size() == 1 && a_.keys.plain[a[0]] == b_.keys.plain[b[0]]) return pair(a[0], b[0]);
  Matches matches = unique_matches(keys_of(a_, &CallKeys::exact, a), keys_of(b_, &CallKeys::exact, b));
  drop_chance_matches(a, b, &matches);
  for (const KeyList list : {&CallKeys::placed, &CallKeys::plain, &CallKeys::loose}) {
    const std::vector<uint64_t> of_a = keys_of(a_, list, a), of_b = keys_of(b_, list, b);
    Matches positions;
    for_each_gap(matches, a.size(), b.size(), [&](uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1) {
      for (const auto& [at_a, at_b] : align_keys(Keys(of_a).subspan(a0, a1 - a0), Keys(of_b).subspan(b0, b1 - b0))) {
        positions.emplace_back(a0 + at_a, b0 + at_b);
      }
    });
    const auto middle = static_cast<int64_t>(matches.size());
    matches.insert(matches.end(), positions.begin(), positions.end());
    std::inplace_merge(matches.begin(), matches.begin() + middle, matches.end());
    // A call that was only moved must not be taken for another call that the next, vaguer key finds in its place.
    if (list == &CallKeys::placed) {
      for (const auto& [at_a, at_b] : matches) pair(a[at_a], b[at_b]);
      pair_moved(a, b, &CallKeys::exact);
      pair_moved(a, b, &CallKeys::placed);
    }
  }
  for (const auto& [at_a, at_b] : matches) {
    const bool moved = (alignment_.b_of_a[a[at_a]] != kNoCall && alignment_.b_of_a[a[at_a]] != b[at_b]) ||
                       (alignment_.a_of_b[b[at_b]] != kNoCall && alignment_.a_of_b[b[at_b]] != a[at_a]);
    if (!moved) pair(a[at_a], b[at_b]);
  }
  const CallPairs alike = read_by_pairs(a_.run, b_.run, alignment_, a);
  for_each_gap(matches, a.size(), b.size(), [&](uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1) {
    group(alone({a.begin() + a0, a.begin() + a1}, alignment_.b_of_a),
          alone({b.begin() + b0, b.begin() + b1}, alignment_.a_of_b), alike);
  });
}

// Two parameters may have the same gradient (biases beside a residual connection): where rounding parts the calls that
// belong together, equal bits are those of others. Calls whose tensors agree in their places belong together, bits or
// not.
void Aligner::drop_chance_matches(const CallNumbers& a, const CallNumbers& b, Matches* matches) const {
  if (matches->empty()) return;
  const Matches in_place = align_keys(keys_of(a_, &CallKeys::placed, a), keys_of(b_, &CallKeys::placed, b));
  std::vector<uint32_t> partner_of_a(a.size(), kNoCall);
  for (const auto& [at_a, at_b] : in_place) partner_of_a[at_a] = at_b;
  std::erase_if(*matches, [&](const auto& match) {
    const uint32_t partner = partner_of_a[match.first];
    return partner != kNoCall && partner != match.second && tensors_agree(a[match.first], b[partner]);
  });
}

// All that the two calls read and made is equal but for rounding.
bool Aligner::tensors_agree(uint32_t a, uint32_t b) const {
  const RecordedCall &call = a_.run.calls[a], &other = b_.run.calls[b];
  if (call.inputs != other.inputs || call.outputs != other.outputs) return false;
  for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
    const uint32_t value_a = a_.run.uses[call.first_use + i].value, value_b = b_.run.uses[other.first_use + i].value;
    const ValueDifference difference = difference_of(a_.run, value_a, b_.run, value_b);
    if (difference.kind == ValueDifference::Kind::kUnknown || difference.relative > kSameResult) return false;
  }
  return true;
}

// Calls of which none of the results agree, though calls that are paired read such a result as equal to that of another
// call of the other run: that call stands in its place.
void Aligner::separate_replaced_calls() {
  const auto agree = [&](uint32_t value_a, uint32_t value_b) {
    const ValueDifference difference = difference_of(a_.run, value_a, b_.run, value_b);
    return difference.kind != ValueDifference::Kind::kUnknown && difference.relative <= kSameResult;
  };
  const auto results_agree = [&](uint32_t a, uint32_t b) {
    const auto of_a = a_.run.outputs(a_.run.calls[a]), of_b = b_.run.outputs(b_.run.calls[b]);
    for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
      if (agree(of_a[i].value, of_b[i].value)) return true;
    }
    return false;
  };
  const auto separate = [&](uint32_t a, uint32_t b) {
    if (a == kNoCall || b == kNoCall || results_agree(a, b)) return;
    alignment_.b_of_a[a] = alignment_.a_of_b[b] = kNoCall;
  };
  for (uint32_t reader = 0; reader < alignment_.b_of_a.size(); ++reader) {
    const uint32_t partner = alignment_.b_of_a[reader];
    if (partner == kNoCall || a_.run.calls[reader].phase != Phase::kForward) continue;
    const auto of_a = a_.run.inputs(a_.run.calls[reader]), of_b = b_.run.inputs(b_.run.calls[partner]);
    if (of_a.size() != of_b.size()) continue;
    for (size_t i = 0; i < of_a.size(); ++i) {
      const RecordedValue &value = a_.run.values[of_a[i].value], &other = b_.run.values[of_b[i].value];
      if (value.origin != Origin::kCall || other.origin != Origin::kCall ||
          alignment_.b_of_a[value.producer] == other.producer)
        continue;
      // Constants are equal wherever they come from.
      if (value.min == value.max || !agree(of_a[i].value, of_b[i].value)) continue;
      separate(value.producer, alignment_.b_of_a[value.producer]);
      separate(alignment_.a_of_b[other.producer], other.producer);
    }
  }
}

// Where the sides have different calls (a network that is a single operator there), operators of the same name
// and shapes meet by chance.
// Only now that all pairs are made it is known which calls have no partners.
void Aligner::separate_chance_pairs() {
  separate_replaced_calls();
  for (uint32_t call = 0; call < alignment_.b_of_a.size(); ++call) {
    const uint32_t partner = alignment_.b_of_a[call];
    const bool in_order = a_.run.calls[call].phase == Phase::kForward;  // else paired by its forward call
    if (partner == kNoCall || !in_order || !met_by_chance(call, partner)) continue;
    alignment_.b_of_a[call] = alignment_.a_of_b[partner] = kNoCall;
  }
}

// All that they read was made by calls without partners, and neither that nor their results agree. Where their results
// have other shapes a single such input will do.
bool Aligner::met_by_chance(uint32_t a, uint32_t b) const {
  const RecordedCall &call = a_.run.calls[a], &other = b_.run.calls[b];
  if (call.inputs == 0 || call.inputs != other.inputs || call.outputs != other.outputs) return false;
  uint32_t made_alone = 0;
  bool other_shape = false;
  for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
    const uint32_t value_a = a_.run.uses[call.first_use + i].value, value_b = b_.run.uses[other.first_use + i].value;
    const ValueDifference difference = difference_of(a_.run, value_a, b_.run, value_b);
    const bool agrees = difference.relative <= kSameResult;
    if (i >= call.inputs) {
      if (agrees) return false;
      other_shape = other_shape || difference.kind == ValueDifference::Kind::kShape;
      continue;
    }
    const RecordedValue &in_a = a_.run.values[value_a], &in_b = b_.run.values[value_b];
    made_alone += !agrees && in_a.origin == Origin::kCall && in_b.origin == Origin::kCall &&
                  alignment_.alone_in_a(in_a.producer) && alignment_.alone_in_b(in_b.producer);
  }
  return made_alone == call.inputs || (other_shape && made_alone > 0);
}

// Behind the same pair of calls, with the same key, as many on both sides: in order.
void Aligner::pair_moves() {
  using Place = std::tuple<BlockName, uint32_t, uint64_t>;  // the pair's call of B, the key
  std::map<Place, Blocks::mapped_type> moves;
  const auto add = [&](const Side& side, const std::vector<bool>& is_move, const auto& pair_of,
                       CallNumbers Blocks::mapped_type::*list) {
    std::map<BlockName, uint32_t> last;
    for (uint32_t i = 0; i < side.run.calls.size(); ++i) {
      const RecordedCall& call = side.run.calls[i];
      const BlockName block{call.step, call.phase, call.thread};
      uint32_t& pair = last.try_emplace(block, kNoCall).first->second;
      if (is_move[i]) {
        (moves[{block, pair, side.keys.placed[i]}].*list).push_back(i);
      } else if (const uint32_t number = pair_of(i); number != kNoCall) {
        pair = number;
      }
    }
  };
  const auto& b_of_a = alignment_.b_of_a;
  const auto& a_of_b = alignment_.a_of_b;
  add(
      a_, alignment_.moves_a, [&](uint32_t i) { return b_of_a[i]; }, &Blocks::mapped_type::first);
  add(
      b_, alignment_.moves_b, [&](uint32_t i) { return a_of_b[i] == kNoCall ? kNoCall : i; },
      &Blocks::mapped_type::second);
  alignment_.move_b_of_a.assign(a_.run.calls.size(), kNoCall);
  for (const auto& [place, calls] : moves) {
    const auto& [a, b] = calls;
    if (a.size() != b.size()) continue;
    for (size_t i = 0; i < a.size(); ++i) alignment_.move_b_of_a[a[i]] = b[i];
  }
}

// Pairs calls without a partner that the same key names on both sides, in whatever order they are.
void Aligner::pair_moved(const CallNumbers& a, const CallNumbers& b, KeyList list) {
  const auto by_key = [&](const Side& side, const CallNumbers& calls) {
    std::map<uint64_t, uint32_t> once;  // kNoCall: several
    for (const uint32_t call : calls) {
      const uint64_t key = (side.keys.*list)[call];
      const auto [entry, fresh] = once.emplace(key, call);
      if (!fresh || key == 0) entry->second = kNoCall;
    }
    return once;
  };
  const auto of_a = by_key(a_, alone(a, alignment_.b_of_a)), of_b = by_key(b_, alone(b, alignment_.a_of_b));
  for (const auto& [key, call] : of_a) {
    const auto other = of_b.find(key);
    if (call != kNoCall && other != of_b.end() && other->second != kNoCall) pair(call, other->second);
  }
}

void Aligner::group(const CallNumbers& a, const CallNumbers& b, const CallPairs& alike) {
  if (a.empty() || b.empty()) return;
  for (CallGroup& group : find_groups(a_.run, a, b_.run, b, fusions_, alike)) add_group(std::move(group));
}

void Aligner::add_group(CallGroup calls) {
  const auto number = static_cast<uint32_t>(alignment_.groups.size());
  for (const uint32_t call : calls.a) alignment_.group_of_a[call] = number;
  for (const uint32_t call : calls.b) alignment_.group_of_b[call] = number;
  alignment_.groups.push_back(std::move(calls));
}

// By the pair or group of their forward calls.
void Aligner::align_backward() {
  // First: 0 for a pair, 1 for a group; then the number of the call of A, or of the group.
  std::map<std::pair<int, uint32_t>, std::pair<CallNumbers, CallNumbers>> passes;
  for (uint32_t i = 0; i < a_.run.calls.size(); ++i) {
    const uint32_t forward = a_.forward_of(a_.run.calls[i]);
    if (a_.run.calls[i].phase != Phase::kBackward || forward == kNoCall || alignment_.moves_a[i]) continue;
    if (alignment_.group_of_a[forward] != kNoCall) {
      passes[{1, alignment_.group_of_a[forward]}].first.push_back(i);
    } else if (alignment_.b_of_a[forward] != kNoCall) {
      passes[{0, forward}].first.push_back(i);
    }
  }
  for (uint32_t i = 0; i < b_.run.calls.size(); ++i) {
    const uint32_t forward = b_.forward_of(b_.run.calls[i]);
    if (b_.run.calls[i].phase != Phase::kBackward || forward == kNoCall || alignment_.moves_b[i]) continue;
    if (alignment_.group_of_b[forward] != kNoCall) {
      passes[{1, alignment_.group_of_b[forward]}].second.push_back(i);
    } else if (alignment_.a_of_b[forward] != kNoCall) {
      passes[{0, alignment_.a_of_b[forward]}].second.push_back(i);
    }
  }
  for (const auto& [forward, calls] : passes) {
    const auto& [a, b] = calls;
    const bool of_group = forward.first == 1 && !a.empty() && !b.empty();
    if (of_group && keys_of(a_, &CallKeys::loose, a) != keys_of(b_, &CallKeys::loose, b)) {
      add_group({a, b});  // other formulas of a gradient: pairs inside them are chance
    } else {
      align_block(a, b);
    }
  }
}

}  // namespace

Alignment align_runs(const Recording& a, const Recording& b, const std::vector<Fusion>& fusions) {
  return Aligner(a, b, fusions).align();
}

}  // namespace op_tools
