// The Python extension: options in, scopes and results out. The only part that knows Python objects or the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "base/options.h"
#include "base/text_table.h"
#include "base/version.h"
#include "calls/call_store.h"
#include "compare/metrics/tolerance.h"
#include "hooks/conditional_hook.h"
#include "hooks/interceptor.h"
#include "hooks/scope.h"
#include "hooks/tool.h"
#include "python_hook.h"
#include "python_judge.h"
#include "python_modules.h"
#include "python_replay.h"
#include "python_stack.h"
#include "python_timing.h"
#include "python_tool_kinds.h"
#include "python_values.h"
#include "tensor/internal_guard.h"
#include "torch_function_mode.h"

namespace op_tools::python {
namespace {

// A HookScope that also keeps the torch-function mode of its thread.
class Scope {
 public:
  Scope(std::shared_ptr<Hook> hook, ResolvedOptions options)
      : level_(options.level), core_(std::move(hook), std::move(options)) {}

  void enter() {
    core_.enter();
    if (level_ == Level::kTorch) push_mode();
  }
  void leave() {
    const bool was_on = core_.is_on();
    {
      // Flushing takes as long as the disk takes; other threads of the program may run meanwhile.
      const py::gil_scoped_release no_gil;
      core_.leave();
    }
    if (was_on && level_ == Level::kTorch) pop_mode();
  }
  HookScope& core() { return core_; }

 private:
  const Level level_;
  HookScope core_;
};

void bind_scopes(py::module_& module) {
  py::class_<Scope>(module, "Scope")
      .def("enter", &Scope::enter)
      .def("leave", &Scope::leave)
      .def("step", [](Scope& scope) { scope.core().step(); })
      .def_property_readonly("is_on", [](Scope& scope) { return scope.core().is_on(); })
      .def_property_readonly("current_step", [](Scope& scope) { return scope.core().current_step(); })
      .def_property_readonly("calls_seen", [](Scope& scope) { return scope.core().calls_seen(); })
      .def_property_readonly("hook_failures", [](Scope& scope) { return scope.core().hook_failures(); });

  // The tool of that name (or feature) and its options: (hook, scope). `condition`: None, or asked for each call.
  module.def(
      "open_tool",
      [](const std::string& name, const py::dict& options, const py::object& condition) {
        Tool tool = find_tool(name).open(to_value(options));
        if (!condition.is_none()) tool.hook = std::make_shared<ConditionalHook>(tool.hook, python_condition(condition));
        return py::make_tuple(tool.hook, std::make_unique<Scope>(tool.hook, std::move(tool.options)));
      },
      py::arg("name"), py::arg("options"), py::arg("condition") = py::none());
  // The name of the tool with that name or feature.
  module.def("find_tool", [](const std::string& name) { return find_tool(name).name; });
  // A hook of the program's own.
  module.def("hook_scope", [](std::shared_ptr<Hook> hook, const py::dict& given) {
    HookOptions options;
    read_settings(to_value(given), options);
    return std::make_unique<Scope>(std::move(hook), resolve(options).scope);
  });
}

void bind_files(py::module_& module) {
  module.def("read_pth", [](const std::string& path) { return to_python(read_call_file(path)); });
  // (input, output, grad_inputs, grad_outputs, text of meta.json); None for a file that the call does not have.
  module.def("read_call", [](const std::string& path) {
    const std::unique_ptr<StoredCall> call = open_call(path);
    const auto optional = [&](CallFile file) -> py::object {
      return call->has(file) ? to_python(call->read(file)) : py::none();
    };
    const py::object meta =
        call->has(CallFile::kMeta) ? py::object(py::str(call->read_text(CallFile::kMeta))) : py::none();
    return py::make_tuple(to_python(call->read(CallFile::kInput)), optional(CallFile::kOutput),
                          optional(CallFile::kGradInputs), optional(CallFile::kGradOutputs), meta);
  });
  module.def("export_calls", [](const std::string& from, const std::string& to) {
    std::vector<std::string> problems;
    const size_t exported = export_calls(from, to, &problems);
    return py::make_tuple(exported, problems);
  });
}

// Names of operators and functions, and which of them a filter admits.
void bind_names(py::module_& module) {
  module.def("describe", [](py::handle object) { return describe(to_value(object)); });
  module.def("function_name", &function_name);
  module.def("tolerance_text", &tolerance_text);
  module.def("metadata_ops", [] {
    py::list names;
    for (const std::string_view name : metadata_ops()) names.append(std::string(name));
    return names;
  });
  module.def("admitted", [](const std::vector<std::string>& names, const std::string& only, const std::string& skip) {
    const OpFilter filter(only, skip, "--ops", "--skip");
    std::vector<std::string> admitted;
    for (const std::string& name : names) {
      if (filter.admits(name) && (!is_metadata_op(name) || filter.names(name))) admitted.push_back(name);
    }
    return admitted;
  });
  module.def("known_ops", [] {
    interceptor::install();
    py::list ops;
    for (const interceptor::KnownOp& op : interceptor::known_ops()) ops.append(py::make_tuple(op.name, op.composite));
    return ops;
  });
}

}  // namespace
}  // namespace op_tools::python

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  using namespace op_tools;          // NOLINT: one module function
  using namespace op_tools::python;  // NOLINT

  module.doc() = "The C++ core of op_tools. Use the package op_tools, not this module.";
  module.attr("__version__") = std::string(version());
  module.attr("built_with_torch") = std::string(built_with_torch());
  py::register_exception<Error>(module, "Error", PyExc_RuntimeError);

  init_stack_source();
  bind_hook(module);
  bind_replay(module);
  bind_judge(module);
  bind_modules(module);
  bind_timing(module);
  bind_tool_kinds(module);
  bind_scopes(module);
  bind_files(module);
  bind_names(module);

  module.def("set_torch_function_mode", &set_torch_function_mode);
  module.def("interceptor_key", [] { return c10::toString(kInterceptorKey); });
  module.def("text_table", [](const std::vector<std::pair<std::string, bool>>& columns,
                              const std::vector<std::vector<std::string>>& rows, size_t width) {
    std::vector<TableColumn> titled;
    for (const auto& [title, is_number] : columns) titled.push_back({title, is_number});
    return text_table(titled, rows, width);
  });
  module.def("kernel_entries", &interceptor::kernel_entries);
  module.def("set_rank", &set_rank);
  module.def("reload_log_level", &log::reload_level);
  module.def("log_warn", [](const std::string& text) { log::warn(text); });
}
