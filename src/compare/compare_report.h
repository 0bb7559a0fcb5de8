// The output of OpAutoCompare: lines, rows (CSV, JSON lines, for programs), saved failures, the summary. Rows come in
// the order of the calls; one thread at a time may add, any thread may ask.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/finding_lines.h"
#include "calls/call_store.h"
#include "calls/saved_call.h"
#include "compare/call_judge.h"
#include "compare/compare_options.h"
#include "coverage/coverage.h"
#include "hooks/call_info.h"
#include "hooks/op_call.h"
#include "report/columns.h"
#include "report/packed_rows.h"
#include "report/row_file.h"
#include "tensor/value.h"

namespace op_tools {

// The contents of a call's rows besides the verdicts.
struct ComparedCall : CallInfo {
  uint64_t signature = 0;
  std::string device;           // of the call
  std::string inputs, outputs;  // in words, for the lines of a failure
};

// A side of a failure: the device, the CPU.
struct SavedSide {
  std::string side;
  SavedCall call;
  size_t bytes = 0;
};

struct CompareResult {
  struct Op {
    std::string op;
    uint64_t calls = 0, backward = 0;
    uint64_t passed = 0, failed = 0, not_judged = 0;  // things judged
    double worst = 0;                                 // largest share of a limit that was reached (1: the limit)
    std::string reason;                               // of the first failure, else of a result that is not judged
    std::string source;                               // the user's line of the first failure

    static const Columns<Op>& columns();
  };
  std::vector<Op> ops;  // by name
  uint64_t calls = 0, passed = 0, failed = 0, not_judged = 0;
  uint64_t left_out = 0;                    // calls passed over by the limits
  uint64_t raised = 0;                      // calls that raised on the device
  uint64_t saved = 0;                       // failures whose values are in files
  uint64_t not_saved = 0;                   // failures whose values are not: the limits
  uint64_t rows_dropped = 0;                // rows that are in the files only
  std::map<std::string, uint64_t> reasons;  // of results that were not judged, and how often; the first kMostReasons
  std::string root;                         // the folder; empty when nothing was judged
  std::string failure;                      // the first failed write
  CountsBy<Unjudged> unjudged;              // of not_judged
  uint64_t wide_limits = 0;                 // of passed: zeros would have passed, too
  std::map<std::string, uint64_t> devices;  // comparisons by the type of the device

  // Where most results have no verdict: that, and why. Empty otherwise.
  std::string unjudged_text() const;
};

class CompareReport {
 public:
  CompareReport(const ResolvedCompareOptions& options, int64_t rank);

  // `sides` is asked for when the call failed and is to be saved. Returns the message about the first failure;
  // empty when nothing failed.
  std::string add(const ComparedCall& call, const std::vector<Check>& checks,
                  const std::function<std::vector<SavedSide>()>& sides);
  std::string claim_folder();
  void left_out();
  void flush();
  // The closing lines.
  void summarize();

  CompareResult result() const;
  Value rows() const;  // List of Dicts: in the order of the calls, the first kMostRows, and as many more that are wrong

 private:
  static constexpr size_t kMostRows = 10'000;
  static constexpr size_t kMostReasons = 100;  // they may have numbers of the call in them

  // Wrong results of an operator, a phase and a module.
  struct WrongKind {
    std::string op, phase, module, source;  // the user's line of the first
    int64_t first_step = 0;
    uint64_t count = 0;
    double worst = 0;  // of its limit
  };

  void open_files();
  void write(const ComparedCall& call, const Check& check, const std::string& saved);
  void print(const ComparedCall& call, const Check& check, const std::string& saved);
  std::string wrong_table() const;
  std::string right_table(const CompareResult& summary) const;
  std::string save(const ComparedCall& call, const std::function<std::vector<SavedSide>()>& sides);
  void failed_to_write(const std::string& problem);
  void count_reason(const std::string& reason);

  const ResolvedCompareOptions options_;
  const int64_t rank_;
  mutable std::mutex mutex_;  // guards the members below
  CompareResult totals_;
  std::map<std::string, CompareResult::Op, std::less<>> ops_;
  std::map<std::string, WrongKind> wrong_kinds_;  // at most kMostReasons
  FindingLines lines_;
  std::unordered_map<uint64_t, int64_t> saved_by_signature_;
  size_t saved_bytes_ = 0;
  std::optional<RowFile> csv_, jsonl_;
  std::unique_ptr<CallStore> store_;
  PackedRows rows_;
  size_t more_wrong_ = 0;  // rows after the first kMostRows
};

}  // namespace op_tools
