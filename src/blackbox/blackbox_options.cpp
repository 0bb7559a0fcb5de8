#include "blackbox/blackbox_options.h"

#include <cmath>
#include <string>

#include "base/op_filter.h"
#include "base/read_options.h"

namespace op_tools {

void BlackBoxOptions::resolve_all() {
  ToolOptions::resolve_all();
  // Whichever thread dies ends the process.
  if (!all_threads.is_set()) all_threads = level == Level::kAten;
  const OpFilter keeping(inputs_ops.get(), "", inputs_ops.source(), "");  // an Error names argument or variable
  if (!(stall >= 0) || !std::isfinite(stall)) refuse(stall.source(), std::to_string(stall), "give seconds, 0 or more");
}

}  // namespace op_tools
