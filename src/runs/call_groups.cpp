#include "runs/call_groups.h"

#include <algorithm>
#include <set>
#include <span>

#include "runs/call_keys.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// A larger group is another program, not a fused operator: the calls of A times those of B. A
// recurrent network is a single operator on one side and some for each step on the other.
constexpr size_t kMostInGroup = 64 * 64;

using Part = std::span<const uint32_t>;

bool spells(const Recording& run, Part calls, const std::vector<std::string>& ops) {
  return calls.size() >= ops.size() &&
         std::equal(ops.begin(), ops.end(), calls.begin(),
                    [&](const auto& op, auto call) { return plain_name(run.string(run.calls[call].op)) == op; });
}

bool same_form(const Recording& run_a, uint32_t a, const Recording& run_b, uint32_t b) {
  const RecordedValue &value = run_a.values[a], &other = run_b.values[b];
  return run_a.list(value.shape) == run_b.list(other.shape) && dtype_class(value.dtype) == dtype_class(other.dtype);
}

// The results of two calls that are equal but for rounding, whatever operators made them.
bool results_agree(const Recording& run_a, uint32_t a, const Recording& run_b, uint32_t b) {
  for (const RecordedUse& use_of_a : run_a.outputs(run_a.calls[a])) {
    for (const RecordedUse& other : run_b.outputs(run_b.calls[b])) {
      const RecordedValue& value = run_a.values[use_of_a.value];
      if (dtype_class(value.dtype) != dtype_class(run_b.values[other.value].dtype)) continue;
      const ValueDifference difference = difference_of(run_a, use_of_a.value, run_b, other.value);
      if (difference.kind == ValueDifference::Kind::kShape || difference.kind == ValueDifference::Kind::kUnknown) {
        continue;
      }
      if (difference.relative <= kSameResult && numel_of(run_a, value) > 1 && rms_of(run_a, value) > 0) return true;
    }
  }
  return false;
}

class GroupFinder {
 public:
  GroupFinder(const Recording& run_a, const Recording& run_b, const std::vector<Fusion>& fusions,
              const CallPairs& alike)
      : run_a_(run_a), run_b_(run_b), fusions_(fusions), alike_(alike) {}

  std::vector<CallGroup> find(Part a, Part b) {
    split_by_fusions(a, b);
    return std::move(groups_);
  }

 private:
  void split_by_fusions(Part a, Part b) {
    for (const Fusion& fusion : fusions_) {
      for (size_t i = 0; i < a.size(); ++i) {
        for (size_t j = 0; j < b.size(); ++j) {
          for (const auto& [of_a, of_b] : {std::tie(fusion.left, fusion.right), std::tie(fusion.right, fusion.left)}) {
            if (!spells(run_a_, a.subspan(i), of_a) || !spells(run_b_, b.subspan(j), of_b)) continue;
            split_by_fusions(a.first(i), b.first(j));
            add(a.subspan(i, of_a.size()), b.subspan(j, of_b.size()));
            split_by_fusions(a.subspan(i + of_a.size()), b.subspan(j + of_b.size()));
            return;
          }
        }
      }
    }
    split_by_results(a, b);
  }

  // A group ends where both sides have the same result, or a result that the same calls read.
  void split_by_results(Part a, Part b) {
    if (a.size() * b.size() > kMostInGroup) return;
    size_t from_a = 0, from_b = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = from_b; j < b.size(); ++j) {
        if (!alike_.contains({a[i], b[j]}) && !results_agree(run_a_, a[i], run_b_, b[j])) continue;
        add(a.subspan(from_a, i + 1 - from_a), b.subspan(from_b, j + 1 - from_b));
        from_a = i + 1, from_b = j + 1;
        break;
      }
    }
    a = a.subspan(from_a), b = b.subspan(from_b);
    if (a.size() == 1 && b.size() == 1 && same_shapes(a[0], b[0]) && share_an_input(a[0], b[0])) add(a, b);
  }

  bool share_an_input(uint32_t a, uint32_t b) const {
    const auto of_a = run_a_.inputs(run_a_.calls[a]), of_b = run_b_.inputs(run_b_.calls[b]);
    return std::any_of(of_a.begin(), of_a.end(), [&](const RecordedUse& use) {
      return std::any_of(of_b.begin(), of_b.end(), [&](const RecordedUse& other) {
        const ValueDifference difference = difference_of(run_a_, use.value, run_b_, other.value);
        return difference.kind != ValueDifference::Kind::kUnknown && difference.relative <= kSameResult;
      });
    });
  }

  bool same_shapes(uint32_t a, uint32_t b) const {
    const auto of_a = run_a_.outputs(run_a_.calls[a]), of_b = run_b_.outputs(run_b_.calls[b]);
    return !of_a.empty() &&
           std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [&](const auto& use, const auto& other) {
             return run_a_.list(run_a_.values[use.value].shape) == run_b_.list(run_b_.values[other.value].shape);
           });
  }

  void add(Part a, Part b) { groups_.push_back({{a.begin(), a.end()}, {b.begin(), b.end()}}); }

  const Recording &run_a_, &run_b_;
  const std::vector<Fusion>& fusions_;
  const CallPairs& alike_;
  std::vector<CallGroup> groups_;
};

}  // namespace

LastReaders last_readers(const Recording& run) {
  LastReaders readers;
  readers.any.assign(run.values.size(), kNoCall);
  readers.forward = readers.any;
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    for (const RecordedUse& use : run.inputs(run.calls[i])) {
      readers.any[use.value] = i;
      if (run.calls[i].phase == Phase::kForward) readers.forward[use.value] = i;
    }
  }
  return readers;
}

Ports ports_of(const Recording& run, const CallNumbers& calls, const LastReaders& readers) {
  const bool is_forward = run.calls[calls.back()].phase == Phase::kForward;
  const std::vector<uint32_t>& later = is_forward ? readers.forward : readers.any;
  Ports ports;
  std::vector<uint32_t> others;  // unread, or read by gradients alone
  std::set<uint32_t> results, seen;
  for (const uint32_t number : calls) {
    for (const RecordedUse& use : run.outputs(run.calls[number])) results.insert(use.value);
  }
  for (const uint32_t number : calls) {
    for (const RecordedUse& use : run.inputs(run.calls[number])) {
      if (!results.contains(use.value) && seen.insert(use.value).second) ports.inputs.push_back(use.value);
    }
    for (const RecordedUse& use : run.outputs(run.calls[number])) {
      if (!seen.insert(use.value).second) continue;
      const bool is_read = later[use.value] != kNoCall && later[use.value] > calls.back();
      const bool is_unread = readers.any[use.value] == kNoCall;
      if (is_read || (is_unread && (!is_forward || run.values[use.value].name != 0))) {
        ports.outputs.push_back(use.value);
      } else if (is_unread || readers.any[use.value] > calls.back()) {
        others.push_back(use.value);
      }
    }
  }
  if (ports.outputs.empty()) ports.outputs = std::move(others);
  return ports;
}

ValuePairs pair_values(const Recording& run_a, const std::vector<uint32_t>& a, const Recording& run_b,
                       const std::vector<uint32_t>& b) {
  ValuePairs pairs;
  std::vector<bool> taken_a(a.size()), taken_b(b.size());
  const auto pair_by = [&](const auto& equal) {
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < b.size() && !taken_a[i]; ++j) {
        if (taken_b[j] || !equal(run_a.values[a[i]], run_b.values[b[j]])) continue;
        taken_a[i] = taken_b[j] = true;
        pairs.emplace_back(a[i], b[j]);
      }
    }
  };
  pair_by([&](const RecordedValue& value, const RecordedValue& other) {
    return value.name != 0 && value.origin == other.origin && run_a.string(value.name) == run_b.string(other.name);
  });
  pair_by([&](const RecordedValue& value, const RecordedValue& other) {
    return value.hash != 0 && value.hash == other.hash && value.dtype == other.dtype &&
           run_a.list(value.shape) == run_b.list(other.shape);
  });
  std::vector<std::tuple<double, size_t, size_t>> candidates;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      if (taken_a[i] || taken_b[j] || !same_form(run_a, a[i], run_b, b[j])) continue;
      candidates.emplace_back(difference_of(run_a, a[i], run_b, b[j]).relative, i, j);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [difference, i, j] : candidates) {
    if (taken_a[i] || taken_b[j]) continue;
    taken_a[i] = taken_b[j] = true;
    pairs.emplace_back(a[i], b[j]);
  }
  return pairs;
}

std::vector<CallGroup> find_groups(const Recording& run_a, const CallNumbers& a, const Recording& run_b,
                                   const CallNumbers& b, const std::vector<Fusion>& fusions, const CallPairs& alike) {
  return GroupFinder(run_a, run_b, fusions, alike).find(a, b);
}

}  // namespace op_tools
