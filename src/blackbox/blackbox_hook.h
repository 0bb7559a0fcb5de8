// OpBlackBox: which call a process was in when it died, or hangs in, and the last ones before it (blackbox_file.h).
//
// A call's place in the file is written before the operator runs and again after it: nothing has to happen at a crash,
// and no signal handler is set. Where `stall` asks for it, a thread of the tool's own watches whether calls begin and
// end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "blackbox/blackbox_content.h"
#include "blackbox/blackbox_options.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"

namespace op_tools {

struct BlackBoxResult {
  std::vector<BlackBoxRow> rows;  // this process's, in the order in which they began
  std::string path;               // the file; empty where it could not be made
  uint64_t left_out = 0;          // calls that had no place in it
};

class OP_TOOLS_API BlackBoxHook final : public Hook {
 public:
  using Options = BlackBoxOptions;
  using Row = BlackBoxRow;
  static constexpr ToolNames kNames{"OpBlackBox", "op_blackbox", "blackbox"};

  explicit BlackBoxHook(const ResolvedBlackBoxOptions& options);
  ~BlackBoxHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override { return {.graphs = true, .progress = true}; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  bool begin_in_child() override;  // with a file of its own
  Value report() const override;
  void add_coverage(Coverage& account) const override;

  BlackBoxResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpBlackBox = ToolScope<BlackBoxHook>;

}  // namespace op_tools
