// The operator's schema as torch prints it, for meta.json.
#pragma once

#include <string>
#include <string_view>

namespace c10 {
class OperatorHandle;
}

namespace op_tools {

// Empty when there is none (torch level). Cached by the operator's name until the process ends: printing takes longer
// than a small call. Any thread.
const std::string& schema_text(const c10::OperatorHandle* op, std::string_view name);

}  // namespace op_tools
