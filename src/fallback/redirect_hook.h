// The executors: OpFallback runs the admitted operators on the CPU, OpDtypeCast runs them on their own device in other
// dtypes. At the torch level the operators that an admitted call makes are redirected singly (see architecture.md
// for why not the call as a whole). A call that cannot be redirected is logged once, with the reason, and
// it runs as it would have.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "fallback/redirect_options.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"

namespace op_tools {

struct RedirectResult {
  struct Row {
    std::string op;                          // as the filter admitted it
    uint64_t calls = 0;                      // operators of the dispatcher that were redirected
    std::map<std::string, uint64_t> ran;     // which: aten::addmm -> so often
    uint64_t bytes = 0;                      // moved or cast, both ways
    double milliseconds = 0;                 // moves and operator
    std::map<std::string, uint64_t> stayed;  // "aten::view: it gives a view ..." -> so often

    static const Columns<Row>& columns();
  };
  std::vector<Row> rows;  // by name
};

class OP_TOOLS_API RedirectHook : public Hook {
 public:
  using Row = RedirectResult::Row;

  ~RedirectHook() override;
  std::string_view name() const override;
  Wants wants() const override;
  bool is_executor() const override { return true; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void execute(OpCall& call) override;
  void scope_left() override;
  Value report() const override;

  RedirectResult result() const;

 protected:
  struct Plan {
    std::string_view name;
    CastSettings cast;
    bool to_cpu = true;
    bool on_copies = false;
    bool on_missing = false;
    std::string list;  // the file for the calls that could run elsewhere; empty: all of them do
    std::shared_ptr<const CallList> moved = nullptr;  // with `list`: those that do; nullptr: none
  };
  explicit RedirectHook(Plan plan);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class OP_TOOLS_API FallbackHook final : public RedirectHook {
 public:
  using Options = FallbackOptions;
  static constexpr ToolNames kNames{"OpFallback", "fallback", "fallback"};
  explicit FallbackHook(const ResolvedFallbackOptions& options);
};

class OP_TOOLS_API DtypeCastHook final : public RedirectHook {
 public:
  using Options = DtypeCastOptions;
  static constexpr ToolNames kNames{"OpDtypeCast", "cast_dtype", "dtype-cast"};
  explicit DtypeCastHook(const ResolvedDtypeCastOptions& options);
};

using OpFallback = ToolScope<FallbackHook>;
using OpDtypeCast = ToolScope<DtypeCastHook>;

}  // namespace op_tools
