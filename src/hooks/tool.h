// The tools by name, for those that know them by nothing else: the Python package, the launcher, apply_feature.
// A tool is a Hook, what it may be told (an options struct, options.h), and one line in tool_kinds().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/options.h"
#include "hooks/hook.h"
#include "tensor/value.h"

namespace op_tools {

// Named settings as a user wrote them: a Dict with string keys, None meaning "not set". Each is read once, by its name
// and type; Error that names setting and value when it is of another type.
class OP_TOOLS_API Settings {
 public:
  explicit Settings(const Value& dict);

  void read(std::string_view name, std::optional<bool>& to);
  void read(std::string_view name, std::optional<int64_t>& to);
  void read(std::string_view name, std::optional<double>& to);  // whole numbers too
  void read(std::string_view name, std::optional<std::string>& to);
  void read(std::string_view name, std::optional<std::vector<int64_t>>& to);
  void read(ToolOptions& to);  // what every tool may be told
  // Error that names a setting which nobody read.
  void finish() const;

 private:
  const Value* take(std::string_view name);

  const Value& dict_;
  std::set<std::string, std::less<>> read_;
};

// A hook that is ready to be put in a scope.
struct Tool {
  std::shared_ptr<Hook> hook;
  ResolvedOptions options;
};

struct ToolKind {
  std::string_view name;     // of the class: "OpCapture"
  std::string_view feature;  // its word in apply_feature: "op_capture"
  Tool (*open)(Settings& settings);
};

// Opens a tool from its options struct, which `read_into(Settings&, Options&)` fills: what ToolKind::open does for all
// of them.
template <class HookType>
Tool open_tool(Settings& settings) {
  typename HookType::Options options;
  settings.read(options);
  read_into(settings, options);
  settings.finish();
  auto hook = std::make_shared<HookType>(resolve(options));
  ResolvedOptions resolved = hook->options();
  return {std::move(hook), std::move(resolved)};
}

OP_TOOLS_API const std::vector<ToolKind>& tool_kinds();
// Error that lists the names when there is none.
OP_TOOLS_API const ToolKind& find_tool(std::string_view name);

}  // namespace op_tools
