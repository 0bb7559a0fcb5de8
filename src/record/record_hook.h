// OpRecord: the whole course of a run in a small file, to be compared with another's: a row per call, forward and
// backward, and per tensor its values and their source (recording.h; recording_file.h has the file).
//
// A tensor is read once, as long as it is not written: on the CPU at once, on a device by its own operators, whose
// answers are read together at the end of a step. Nothing of the program's memory is held.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "record/record_options.h"
#include "report/columns.h"

namespace op_tools {

class Recorder;

// Calls of an operator.
struct RecordRow {
  std::string op;
  int64_t calls = 0, backward = 0, failed = 0;
  static const Columns<RecordRow>& columns();
};

struct RecordResult {
  std::vector<RecordRow> rows;  // most calls first
  std::string path;             // the file; empty where there was nothing to write
  std::string failure;          // why no more is recorded; empty: nothing is wrong
  std::string ended_early;      // to_string(EndedEarly)
  uint64_t calls = 0, values = 0, bytes = 0;
  uint64_t read_backs = 0;                      // transfers of statistics from a device
  std::vector<std::string> statistics_on_host;  // devices that were found to compute statistics wrong
  uint64_t statistics_in_doubt = 0;             // values that these had computed before
};

class OP_TOOLS_API RecordHook final : public Hook {
 public:
  using Options = RecordOptions;
  using Row = RecordRow;
  static constexpr ToolNames kNames{"OpRecord", "op_record", "record"};

  explicit RecordHook(const ResolvedRecordOptions& options);
  ~RecordHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override;
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void step_begins(int64_t step) override;
  void run_ends(const std::function<Coverage()>& account) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  void add_coverage(Coverage& account) const override;

  RecordResult result() const;

 private:
  std::unique_ptr<HookState> take(OpCall& call);
  void note(OpCall& call, HookState* state);
  template <class Work>
  auto contained(Work&& work) -> decltype(work());

  std::unique_ptr<Recorder> recorder_;
  Value account_;  // of the run, for the header of its file, once it ends
};

using OpRecord = ToolScope<RecordHook>;

}  // namespace op_tools
