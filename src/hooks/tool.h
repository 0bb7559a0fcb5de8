// The tools by name, for those that know them by nothing else: the Python package, the launcher, apply_feature.
//
// A tool is a Hook with
//   using Options = ToyOptions;                        its options (base/options.h)
//   static constexpr ToolNames kNames{...};
//   using Row = ToyRow;                                of its report(), with static columns() (report/columns.h)
//   static std::vector<RowDescription> further_rows();   where its report has rows of other kinds, too
//   explicit ToyHook(const Resolved<ToyOptions>&);
// and is registered with a line: those of this library in tool_register.cpp, others with a ToolRegistration.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/options.h"
#include "hooks/hook.h"
#include "report/columns.h"
#include "tensor/value.h"

namespace op_tools {

struct ToolNames {
  std::string_view tool;     // of the class: "OpCapture"
  std::string_view feature;  // its word in apply_feature: "op_capture"
  std::string_view flag;     // its word on the command line and in OP_TOOLS: "capture"
};

// A hook that is ready to be put in a scope.
struct Tool {
  std::shared_ptr<Hook> hook;
  ResolvedOptions options;
};

struct ToolKind {
  std::string name, feature, flag;
  // `settings`: a Dict of options by name as a user wrote them; None means "not set". Error that names the fault.
  std::function<Tool(const Value& settings)> open;
  std::function<std::unique_ptr<ToolOptions>()> make_options;
  std::function<std::vector<RowDescription>()>
      rows;  // of report(), then those that these hold or that stand beside them
};

// Gives the options that a Dict names their values. Error that names option and value when it is of another type, and
// another that names a setting which is no option.
OP_TOOLS_API void read_settings(const Value& settings, OptionSet& options);

template <class HookType>
ToolKind tool_kind() {
  using Options = typename HookType::Options;
  const ToolNames& names = HookType::kNames;
  return {std::string(names.tool),
          std::string(names.feature),
          std::string(names.flag),
          [](const Value& settings) {
            Options options;
            read_settings(settings, options);
            const Resolved<Options> resolved = resolve(options);
            return Tool{std::make_shared<HookType>(resolved), resolved.scope};
          },
          [] { return std::make_unique<Options>(); },
          [] {
            std::vector<RowDescription> rows{HookType::Row::columns().describe()};
            if constexpr (requires { HookType::further_rows(); }) {
              for (RowDescription& row : HookType::further_rows()) rows.push_back(std::move(row));
            }
            return rows;
          }};
}

// All tools, in the order in which they were registered. They are never removed. Any thread.
OP_TOOLS_API std::vector<const ToolKind*> tool_kinds();
// Of this name or feature. Error that lists the names when there is none.
OP_TOOLS_API const ToolKind& find_tool(std::string_view name);
// Error when there is a tool of that name, feature or flag.
OP_TOOLS_API void register_tool(ToolKind kind);

// Registers a tool when a library is loaded:  static const ToolRegistration registration(tool_kind<ToyHook>());
struct ToolRegistration {
  explicit ToolRegistration(ToolKind kind) { register_tool(std::move(kind)); }
};

// The tools of this library (tool_register.cpp).
std::vector<ToolKind> own_tools();

// Reads settings and environment as ToolKind::open does, and makes no hook. Error likewise.
OP_TOOLS_API void check_settings(ToolOptions& options, const Value& settings);

// Every environment variable that something of ours reads.
OP_TOOLS_API std::vector<Variable> known_variables();
// Those of the environment that begin as one of ours does (OP_CAPTURE_...), and that nothing reads: misspelled.
OP_TOOLS_API std::vector<std::string> unread_variables();
// A warning that names them, once in a process.
void warn_of_unread_variables();
// A sentence for each variable whose value a tool refuses.
OP_TOOLS_API std::vector<std::string> refused_variables();

}  // namespace op_tools
