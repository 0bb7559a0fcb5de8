#include "python_tool_kinds.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "base/options.h"
#include "hooks/tool.h"
#include "runs/call_verdict.h"
#include "runs/run_rows.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::list described(const OptionSet& options) {
  py::list all;
  for (const OptionDescription& option : options.describe()) {
    all.append(py::dict("name"_a = option.text.name, "type"_a = option.text.type, "variable"_a = option.text.variable,
                        "default"_a = option.text.default_text, "help"_a = option.text.help,
                        "choices"_a = option.choices));
  }
  return all;
}

py::list described(const std::vector<RowDescription>& rows) {
  py::list all;
  for (const RowDescription& row : rows) {
    py::list columns;
    for (const ColumnDescription& column : row.columns) {
      columns.append(py::dict("name"_a = column.name, "type"_a = column.type, "help"_a = column.help));
    }
    all.append(py::dict("name"_a = row.name, "help"_a = row.help, "columns"_a = columns));
  }
  return all;
}

}  // namespace

void bind_tool_kinds(py::module_& module) {
  module.def("tool_kinds", [] {
    py::list kinds;
    for (const ToolKind* kind : tool_kinds()) {
      const std::unique_ptr<ToolOptions> options = kind->make_options();
      kinds.append(py::dict("name"_a = kind->name, "feature"_a = kind->feature, "flag"_a = kind->flag,
                            "prefix"_a = options->prefix, "options"_a = described(*options),
                            "rows"_a = described(kind->rows())));
    }
    return kinds;
  });
  // The enumerations whose strings rows have: token and string of each member, by the name of the class.
  module.def("enumerations", [] {
    const auto members = [](const std::vector<NamedText>& all) {
      py::list listed;
      for (const NamedText& kind : all) listed.append(py::make_tuple(kind.token, kind.text));
      return listed;
    };
    return py::dict("CallVerdict"_a = members(call_verdicts()), "Finding"_a = members(findings()));
  });
  // Of results that are no tool's.
  module.def("further_rows", [] { return described({RunRow::columns().describe()}); });
  module.def("hook_options", [] { return described(HookOptions()); });
  // Error where the tool of that name ("": a hook of the program's own) would not start with these settings and this
  // environment.
  module.def("check_settings", [](const std::string& name, const py::dict& settings) {
    if (!name.empty()) return check_settings(*find_tool(name).make_options(), to_value(settings));
    HookOptions of_hook;
    check_settings(of_hook, to_value(settings));
  });
  module.def("unread_variables", &unread_variables);
  module.def("refused_variables", &refused_variables);
  module.def("variables", [] {
    py::list variables;
    for (const Variable& variable : known_variables()) {
      variables.append(
          py::dict("name"_a = variable.name, "help"_a = variable.help, "per_operator"_a = variable.per_operator));
    }
    return variables;
  });
}

}  // namespace op_tools::python
