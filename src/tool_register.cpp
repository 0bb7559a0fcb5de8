// The register of tools: one line for each.
#include "capture/capture_hook.h"
#include "compare/compare_hook.h"
#include "fallback/redirect_hook.h"
#include "hooks/tool.h"
#include "observe/observe_hook.h"
#include "observe/overflow_check.h"
#include "timing/time_hook.h"

namespace op_tools {

const std::vector<ToolKind>& tool_kinds() {
  static const auto* kinds = new std::vector<ToolKind>{
      {"OpCapture", "op_capture", &open_tool<CaptureHook>},
      {"OpAutoCompare", "autocompare", &open_tool<CompareHook>},
      {"OpOverflowCheck", "overflow_check", &open_tool<OverflowHook>},
      {"OpObserve", "dump_op_args", &open_tool<ObserveHook>},
      {"OpTimeMeasure", "measure_op_time", &open_tool<TimeHook>},
      {"OpDtypeCast", "cast_dtype", &open_tool<DtypeCastHook>},
      {"OpFallback", "fallback", &open_tool<FallbackHook>},
  };
  return *kinds;
}

}  // namespace op_tools
