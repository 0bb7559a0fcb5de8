// The calls of OpOverflowCheck that wait to be judged, the judging, and its results: findings, rows of the file,
// saved calls. On a device the answers about many calls are read in a single transfer; the calls are then judged in
// their order, so that the producer of a value is the call that made it.
//
// Used under the hook's lock.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/finding_lines.h"
#include "calls/retained_call.h"
#include "observe/finite_cache.h"
#include "observe/nonfinite.h"
#include "observe/overflow_options.h"
#include "observe/overflow_result.h"
#include "report/row_file.h"

namespace op_tools {

// A call whose inputs and outputs are asked.
struct OverflowRecord {
  RetainedCall call;  // the parts needed to save it, where that is wanted
  bool backward = false, allows_neg_inf = false;
  std::vector<FlagPtr> inputs;
  bool reads_unseen = false;     // some of its inputs could not be asked
  Specials scalars;              // among the arguments: fill_(nan)
  std::vector<FlagPtr> outputs;  // by tensor of the result; nullptr: not asked
};

class OverflowWindow {
 public:
  OverflowWindow(const ResolvedOverflowOptions& options, int64_t rank);

  bool saves_any() const { return !archive_.is_full(); }
  bool saves(std::string_view op, Phase phase) const { return archive_.wants(op, phase); }
  // A call is about to write these tensors: the window's tensors in their memory are copied, or judged now.
  void before_write(const std::vector<std::pair<size_t, at::Tensor>>& written);
  void add(OverflowRecord record);
  bool is_full() const;
  void judge();
  void flush_file();
  // Counts that no row has, when the run ends: summary.jsonl.
  void write_summary();
  // For the closing line: findings that have no line.
  std::string untold_text() const;

  OverflowResult& result() { return result_; }
  // The first producer since this was asked, in words; empty: none.
  std::string take_first_producer() { return std::exchange(first_producer_, {}); }

 private:
  void hold(const VersionedTensor& retained);
  // Special values that a call wrote, and that were judged there, may come as an input through another tensor: the
  // result of a factory, the base of a view that was written.
  void note_memory(const Flag& flag);
  bool is_of_call(const Flag& flag) const;
  Specials that_count(const Specials& values) const;
  void judge(OverflowRecord& record);
  OverflowResult::Finding finding_of(const OverflowRecord& record, size_t output, bool producer) const;
  void save(const RetainedCall& call, std::string* saved, std::string* not_saved);
  void open_file();
  template <class Work>
  void write(const Work& work);  // of files: where it fails it is said once, and the check goes on without files
  void report(OverflowResult::Finding finding);

  const ResolvedOverflowOptions& options_;
  const int64_t rank_;
  std::vector<OverflowRecord> records_;
  int64_t held_bytes_ = 0;                                                   // that the records hold
  std::unordered_set<const c10::StorageImpl*> held_storages_;                // of inputs and outputs, counted once
  std::unordered_map<const c10::StorageImpl*, Flag::WeakStorage> of_calls_;  // memory of such values
  CallArchive archive_;
  OverflowResult result_;
  std::string first_producer_;
  FindingLines lines_;
  std::unique_ptr<RowFile> file_;
};

}  // namespace op_tools
