// OpCapture: the real inputs, outputs and gradients of operator calls, to files (call_store.h has the layout,
// docs/architecture.md their contents).
//
// Inputs are copied before the call, outputs after it, in the program's thread; encoding and writing happen on a
// thread of the scope's own. Leaving the scope waits until everything is on disk. Gradients of calls made inside the
// scope are captured even when backward runs after it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.h"
#include "capture/capture_options.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"

namespace op_tools {

// The counts of a run of a capture. Numbers only: its size does not grow with the number of calls.
struct CaptureResult {
  struct Row {
    std::string op;
    uint64_t calls = 0;        // forward calls recorded
    uint64_t backward = 0;     // backward passes recorded
    uint64_t bytes = 0;        // of tensors, in memory
    uint64_t unsupported = 0;  // values that could not be saved (meta.json says which and why)
    uint64_t failed = 0;       // calls whose operator raised: their inputs are saved

    static const Columns<Row>& columns();
  };
  std::vector<Row> rows;  // by name
  std::string root;       // the folder; empty when nothing was recorded
  uint64_t bytes_on_disk = 0;
  uint64_t skipped = 0;               // admitted calls left out by max_calls, max_per_signature, or by `limit`
  uint64_t lost = 0;                  // recorded calls that could not be written
  uint64_t waits = 0;                 // times that the program waited because the queue was full
  uint64_t incomplete_gradients = 0;  // backward passes that ended before all parts of a call's gradient had come
  std::string failure;                // the first failed write
  std::string limit;                  // the reason for the end of the capture: max_gb, or too little free space
};

class OP_TOOLS_API CaptureHook final : public Hook {
 public:
  using Options = CaptureOptions;
  using Row = CaptureResult::Row;
  static constexpr ToolNames kNames{"OpCapture", "op_capture", "capture"};

  explicit CaptureHook(const ResolvedCaptureOptions& options);
  ~CaptureHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override { return {.gradients = true, .aten_call = true, .device_values = true}; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  std::string folder() const override;
  void add_coverage(Coverage& account) const override;

  CaptureResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpCapture = ToolScope<CaptureHook>;

}  // namespace op_tools
