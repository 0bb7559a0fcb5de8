// Calls of a run that stand for calls of the other together: the work of a fused operator's single call takes others
// several calls. A group is compared by the tensors that go into it and come out of it. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

using CallNumbers = std::vector<uint32_t>;  // in Recording::calls, rising

struct CallGroup {
  CallNumbers a, b;
  bool is_optimizer_step = false;  // two forms of a step: optimizer_steps.h
};

// Two lists of operators, by plain names (call_keys.h), of which each may stand for the other.
struct Fusion {
  std::vector<std::string> left, right;
};

// By number of the value: the last call that read it, and the last forward call; kNoCall: none did.
struct LastReaders {
  std::vector<uint32_t> any, forward;
};
LastReaders last_readers(const Recording& run);

// Numbers of values.
struct Ports {
  std::vector<uint32_t> inputs;  // read in the group, not made in it
  // Made in the group, and read after it; of a forward group by forward calls, or a parameter: a value that gradients
  // alone read belongs to the formula. Where there is none of these, all that is read after it or never.
  std::vector<uint32_t> outputs;
};
Ports ports_of(const Recording& run, const CallNumbers& calls, const LastReaders& readers);

using ValuePairs = std::vector<std::pair<uint32_t, uint32_t>>;
// Which of these values belong together: by name, by equal bits, and those of the same shape that differ least. Those
// without a partner are left out.
ValuePairs pair_values(const Recording& run_a, const std::vector<uint32_t>& a, const Recording& run_b,
                       const std::vector<uint32_t>& b);

// A call of A and a call of B.
using CallPairs = std::set<std::pair<uint32_t, uint32_t>>;

// An intermediate result that is as close is the same result.
constexpr double kSameResult = 1e-3;

// Cuts the calls between two pairs of calls into groups: by known fusions, and where results agree or
// stand for each other (`alike`, shared_readers.h). A call that stands in the place of a single other is a group, too,
// when its results have the shapes of the other's.
std::vector<CallGroup> find_groups(const Recording& run_a, const CallNumbers& a, const Recording& run_b,
                                   const CallNumbers& b, const std::vector<Fusion>& fusions, const CallPairs& alike);

}  // namespace op_tools
