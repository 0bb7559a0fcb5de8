// The account of a run: the calls that a tool examined, those that it did not, and the conclusion: "nothing
// wrong" holds for the examined calls. A scope makes the account (HookScope::coverage()), its hook adds its
// counts, and the language of the program the work beside it. Verdicts, reports and the Python package read it.
// Plain data; no locks: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

enum class Verdict : uint8_t { kAgrees, kDiffers, kNotJudged, kCount };

// Why it is not known that nothing is wrong.
enum class Gap : uint8_t {
  kToolOff,
  kNothingSeen,
  kMostUnjudged,
  kMostLost,
  kNotOnAccelerator,
  kThreads,
  kNativeCalls,
  kProcesses,
  kChildren,
  kGraphs,
  kWideLimits,
  kCount
};

// Why a result has no verdict.
enum class Unjudged : uint8_t {
  kRandom,
  kUninitialized,
  kUndetermined,
  kNoReference,
  kNoFloat64,
  kRaised,
  kNoForm,
  kNotSaved,
  kNoBatch,
  kJudgeFailed,
  kCount
};

// Why a call that was seen is not in the tool's result.
enum class Loss : uint8_t { kLimits, kNoRoom, kNotWritten, kInGraph, kJagged, kCount };

// A number for each value of an enumeration whose last value is kCount.
template <class Kind>
class CountsBy {
 public:
  static constexpr size_t kKinds = static_cast<size_t>(Kind::kCount);

  uint64_t& operator[](Kind kind) { return counts_[static_cast<size_t>(kind)]; }
  uint64_t operator[](Kind kind) const { return counts_[static_cast<size_t>(kind)]; }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t count : counts_) sum += count;
    return sum;
  }
  bool operator==(const CountsBy&) const = default;

 private:
  std::array<uint64_t, kKinds> counts_{};
};

struct Coverage {
  uint64_t seen = 0;  // calls that came to the tool
  uint64_t steps = 0;
  uint64_t judged = 0;                      // results with a verdict
  CountsBy<Unjudged> not_judged;            // results without a verdict
  CountsBy<Loss> lost;                      // calls
  uint64_t bytes = 0;                       // of the tensors that were looked at, where the tool counts them
  uint64_t wide_limits = 0;                 // results that agree where zeros would have agreed, too
  std::string accelerator;                  // the type of this process's accelerator; empty: none
  std::map<std::string, uint64_t> devices;  // results by the type of their device, where the tool notes it
  // A call that came to the tool gave a tensor on another device than the host; nullopt: not asked.
  std::optional<bool> on_device;
  uint64_t threads = 0;                 // that ran operators unseen
  uint64_t thread_calls = 0;            // theirs
  uint64_t thread_calls_on_device = 0;  // of these: gave tensors on an accelerator
  // Level torch: operators that the tool's thread ran outside of any torch function, and of backward passes.
  uint64_t native_calls = 0;
  uint64_t native_calls_on_device = 0;  // of these: gave tensors on an accelerator
  uint64_t children = 0;            // processes that the program started and that had the tool: theirs is counted here
  uint64_t children_wrong = 0;      // of these: something is wrong in them
  uint64_t children_with_gaps = 0;  // of these: not all there was to look at was looked at
  uint64_t processes = 0;           // that the program started to compute, without a tool
  uint64_t loaders = 0;             // processes that load data
  uint64_t graphs = 0;              // compiled graphs, each of which came to the tool as a call
  uint64_t compiled = 0;            // compiled graphs that the tool did not look into
  uint64_t compiled_nodes = 0;      // operators in them, where they are known
  std::map<std::string, uint64_t> backends;  // those graphs by their compiler, where it is known
  uint64_t eager = 0;                        // compiled functions that ran as without torch.compile
  bool off = false;                          // the tool failed and was switched off

  bool operator==(const Coverage&) const = default;
};

// In the order of the enumeration; empty where everything was examined. Unseen work that cannot matter
// (operators on the host beside a run on a device, processes that load data) is no gap.
OP_TOOLS_API std::vector<Gap> gaps(const Coverage& account);
// Some work was not examined, whether it matters or not; people ask this of a tool that gives no verdict.
OP_TOOLS_API bool has_unseen(const Coverage& account);

// Wrong stays wrong.
OP_TOOLS_API Verdict verdict_of(bool wrong, bool has_gaps);
OP_TOOLS_API Verdict verdict_of(bool wrong, const Coverage& account);
// Of several: `differs` comes before `not judged`.
OP_TOOLS_API Verdict worst(const std::vector<Verdict>& verdicts);
// Of a program: 0 all that was to be judged agrees, 1 something differs, 2 not judged (0 where that is allowed).
OP_TOOLS_API int exit_status(Verdict verdict, bool allow_unseen);

// The type of the accelerator that this process has; empty: none, or its runtime is broken. Asks the runtime.
OP_TOOLS_API std::string accelerator();

}  // namespace op_tools
