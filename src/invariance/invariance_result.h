// The findings of OpInvariance and their report: rows (CSV, JSON lines, for programs), a line for the first of each
// kind, the closing table. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/finding_lines.h"
#include "calls/call_store.h"
#include "compare/rerun/saved_run.h"
#include "coverage/coverage.h"
#include "hooks/call_info.h"
#include "invariance/call_invariance.h"
#include "invariance/invariance_options.h"
#include "report/columns.h"
#include "report/row_file.h"
#include "tensor/value.h"

namespace op_tools {

struct InvarianceResult {
  // A relation that did not keep the bits of a call's result.
  struct Finding {
    CallInfo call;
    std::string device;
    Relation relation{};
    Variation variation;
    std::string saved;  // the call's folder, for op-tools repro; empty: it was not saved

    static const Columns<Finding>& columns();
  };
  // The relations of an operator's calls.
  struct Op {
    std::string op;
    uint64_t calls = 0, backward = 0;  // that were run again
    CountsBy<Relation> kept, varied;   // by relation
    uint64_t not_judged = 0, transient = 0;
    double max_ulp = 0;
    std::string reason;  // of the first that was not judged
    std::string source;  // the user's line of the first finding

    static const Columns<Op>& columns();
  };
  // Calls of a device that did not repeat their bits: a sick device makes a single run wrong, at a bit of its own.
  struct Faults {
    using Counts = std::map<int64_t, uint64_t>;

    int64_t rank = 0;
    uint64_t transient = 0, persistent = 0;  // findings: a single run of all, or several
    std::array<uint64_t, 64> by_bit{};       // findings in which the bit differs, of an element, from the lowest
    // Elements of single runs, the first of each call: their address within 64 bytes (a line of the cache), and within
    // 4096 (a page). Both are those of the physical memory, too.
    Counts by_line, by_page;

    void add(const Variation& variation);
  };
  std::vector<Finding> findings;  // in the order of the calls, the first kMostFindings
  std::vector<Op> ops;            // by name
  uint64_t calls = 0;             // and backward passes
  CountsBy<Relation> kept, varied;
  CountsBy<Unjudged> unjudged;
  uint64_t transient = 0;  // of the findings: a single run had other bits
  uint64_t left_out = 0;   // calls passed over by the limits
  uint64_t rows_dropped = 0;
  std::map<std::string, uint64_t> reasons;  // of relations that were not judged
  std::map<std::string, uint64_t> devices;  // relations by the type of the device
  std::map<std::string, Faults> faults;     // of `repeat`, by device: "sim:0"
  std::string root;                         // the folder; empty when no call was run again
  std::string failure;                      // the first failed write

  static constexpr size_t kMostFindings = 10'000;
};

Value to_value(const InvarianceResult& result);
// "torch.mm is not invariant: ...", for people.
std::string sentence_of(const InvarianceResult::Finding& finding);

class InvarianceReport {
 public:
  InvarianceReport(const ResolvedInvarianceOptions& options, int64_t rank) : options_(options), rank_(rank) {}

  // `saved`: the contents of the call's files, asked for where a finding is to be saved.
  void add(const CallInfo& call, const std::string& device, std::vector<RelationVerdict> verdicts,
           const std::function<SavedRun()>& saved = {});
  // A call that is passed over: most of a program's. Without a lock.
  void left_out() { left_out_.fetch_add(1, std::memory_order_relaxed); }
  void flush();
  void summarize() const;  // the closing lines
  InvarianceResult result() const;

 private:
  std::string untold_text() const;
  void open_files();
  std::string save(const InvarianceResult::Finding& finding, const std::string& kind,
                   const std::function<SavedRun()>& saved);
  void write(const InvarianceResult::Finding& finding);
  void failed_to_write(const std::string& problem);

  static constexpr size_t kMostReasons = 100;

  const ResolvedInvarianceOptions options_;
  const int64_t rank_;
  std::atomic<uint64_t> left_out_{0};
  mutable std::mutex mutex_;  // guards the members below
  InvarianceResult totals_;
  std::map<std::string, InvarianceResult::Op, std::less<>> ops_;
  std::optional<RowFile> csv_, jsonl_;
  std::unique_ptr<CallStore> store_;
  std::map<std::string, int64_t> saved_by_kind_;
  size_t saved_bytes_ = 0;
  FindingLines lines_;
};

}  // namespace op_tools
