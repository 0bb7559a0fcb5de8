// A compared call between its run and its verdict: its state before the call, the device's results, and the parts that
// its backward passes and the files of a failure need later. Made by compare_hook.cpp in the program's thread; a
// PendingComparison is judged by a single thread, a ComparedState is shared by the call's passes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "calls/call_meta.h"
#include "calls/snapshot.h"
#include "compare/call_facts.h"
#include "compare/compare_report.h"
#include "compare/rerun/replayable_call.h"
#include "compare/rerun/saved_run.h"
#include "tensor/tensor_bits.h"

namespace op_tools {

// Forward runs of ours, cached with their graphs for the program's backward, which then need not run forward again. The
// caches of all calls hold about kMost bytes; beyond that nothing is cached, and backward runs forward again.
class CachedRuns {
 public:
  static constexpr size_t kMost = size_t{128} << 20;

  CachedRuns() = default;
  ~CachedRuns();
  CachedRuns(const CachedRuns&) = delete;
  CachedRuns& operator=(const CachedRuns&) = delete;

  void add(const RunVariant& variant, const RunOutcome& run, size_t input_bytes);
  std::optional<RunOutcome> take(const RunVariant& variant);  // for a single backward pass; nothing for the next
  bool has(RunVariant::Kind precision);

 private:
  static std::atomic<size_t> held_;  // by all
  std::mutex mutex_;
  std::map<RunVariant::Kind, RunOutcome> runs_;
  size_t bytes_ = 0;
};

// A call before it ran; shared with its backward passes.
struct ComparedState {
  CachedRuns cached_runs;
  std::unique_ptr<ReplayableCall> replayable;
  ComparedCall call;
  CallMeta meta;
  bool is_graph = false;  // OpCall::is_graph
  GraphTraits graph;
  bool random = false;
  Value random_state;         // Dict {device: state before the call} of the generators that moved
  uint32_t saved_passes = 0;  // backward passes in the files; used by one thread at a time, in the order of the calls
};

// The device's results, to be judged here or on another thread.
struct PendingComparison {
  std::shared_ptr<ComparedState> state;
  ComparedCall call;
  RunOutcome run;
  CallFacts facts;
  std::vector<at::Tensor> output_gradients;     // backward only
  std::vector<TensorFingerprint> fingerprints;  // likewise
  std::string written_beside;            // where the call wrote beside its inputs (memory_beside.h); empty: nowhere
  std::vector<size_t> overwritten;       // a graph: results of the call before that this call wrote, by number
  bool at_once = false;                  // judged before the program goes on: `run` has the program's own tensors
  Snapshot snapshot;                     // else: owns the values of `run`
  std::vector<at::Tensor> same_results;  // the CPU's, where they have the bits of the program's
  size_t bytes = 0;
};

// Tensors that backward may read: the forward call's results and inputs.
std::vector<TensorFingerprint> remember(const PendingComparison& observed, const std::vector<at::Tensor>& results,
                                        const std::vector<at::Tensor>& live);

// The files of a failure, as run_op_from_data reads them. `reference`: the CPU's run; nullptr: there is none.
std::vector<SavedSide> sides_of(const PendingComparison& observed, const RunOutcome* reference);

}  // namespace op_tools
