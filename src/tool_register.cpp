// The register of tools: a line for each.
#include "blackbox/blackbox_hook.h"
#include "capture/capture_hook.h"
#include "compare/compare_hook.h"
#include "fallback/redirect_hook.h"
#include "hooks/tool.h"
#include "invariance/invariance_hook.h"
#include "memory/memory_hook.h"
#include "observe/observe_hook.h"
#include "observe/overflow_check.h"
#include "record/record_hook.h"
#include "timing/time_hook.h"

namespace op_tools {

std::vector<ToolKind> own_tools() {
  return {
      tool_kind<CaptureHook>(), tool_kind<CompareHook>(),   tool_kind<OverflowHook>(),   tool_kind<ObserveHook>(),
      tool_kind<TimeHook>(),    tool_kind<DtypeCastHook>(), tool_kind<FallbackHook>(),   tool_kind<BlackBoxHook>(),
      tool_kind<RecordHook>(),  tool_kind<MemoryHook>(),    tool_kind<InvarianceHook>(),
  };
}

}  // namespace op_tools
