// The Python extension: options in, scopes and results out. The only part that knows Python objects or the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/call_store.h"
#include "capture/capture_hook.h"
#include "capture/pth.h"
#include "hooks/error.h"
#include "hooks/interceptor.h"
#include "hooks/log.h"
#include "hooks/op_filter.h"
#include "hooks/options.h"
#include "hooks/scope.h"
#include "hooks/version.h"
#include "python_hook.h"
#include "python_replay.h"
#include "python_stack.h"
#include "python_values.h"
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

template <class T>
void read(const py::dict& from, const char* key, std::optional<T>& to) {
  if (from.contains(key) && !from[key].is_none()) to = from[key].cast<T>();
}

// The arguments that every tool has; names are those of op_tools/_tools.py.
void read_tool_options(const py::dict& from, ToolOptions& to) {
  read(from, "ops", to.ops);
  read(from, "skip", to.skip);
  read(from, "output_dir", to.output_dir);
  read(from, "steps", to.steps);
  read(from, "skip_cpu", to.skip_cpu);
  read(from, "all_threads", to.all_threads);
  if (from.contains("level") && !from["level"].is_none())
    to.level = level_from_string(from["level"].cast<std::string>());
}

CaptureOptions capture_options(const py::dict& from) {
  CaptureOptions options;
  read_tool_options(from, options);
  read(from, "format", options.format);
  read(from, "max_calls", options.max_calls);
  read(from, "max_per_signature", options.max_per_signature);
  read(from, "max_pending_mb", options.max_pending_mb);
  return options;
}

py::dict result_dict(const CaptureResult& result) {
  py::list rows;
  for (const CaptureResult::Row& row : result.rows) {
    py::dict item;
    item["op"] = row.op;
    item["calls"] = row.calls;
    item["backward"] = row.backward;
    item["bytes"] = row.bytes;
    item["unsupported"] = row.unsupported;
    item["failed"] = row.failed;
    rows.append(std::move(item));
  }
  py::dict all;
  all["rows"] = std::move(rows);
  all["root"] = result.root;
  all["bytes_on_disk"] = result.bytes_on_disk;
  all["skipped"] = result.skipped;
  all["lost"] = result.lost;
  all["waits"] = result.waits;
  all["incomplete_gradients"] = result.incomplete_gradients;
  all["failure"] = result.failure;
  return all;
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

  init_torch_function_mode();
  init_stack_source();
  bind_hook(module);
  bind_replay(module);

  py::class_<Scope>(module, "Scope")
      .def("enter", &Scope::enter)
      .def("leave", &Scope::leave)
      .def("step", [](Scope& scope) { scope.core().step(); })
      .def_property_readonly("is_on", [](Scope& scope) { return scope.core().is_on(); })
      .def_property_readonly("current_step", [](Scope& scope) { return scope.core().current_step(); })
      .def_property_readonly("calls_seen", [](Scope& scope) { return scope.core().calls_seen(); })
      .def_property_readonly("hook_failures", [](Scope& scope) { return scope.core().hook_failures(); });

  py::class_<CaptureHook, Hook, std::shared_ptr<CaptureHook>>(module, "CaptureHook")
      .def("set_step", &CaptureHook::set_step)
      .def("flush", &CaptureHook::flush, py::call_guard<py::gil_scoped_release>())
      .def("result", [](const CaptureHook& hook) { return result_dict(hook.result()); });

  module.def("capture_scope", [](const py::dict& arguments) {
    const ResolvedCaptureOptions options = resolve(capture_options(arguments));
    auto hook = std::make_shared<CaptureHook>(options);
    return py::make_tuple(hook, std::make_unique<Scope>(hook, options));
  });
  module.def("hook_scope", [](std::shared_ptr<Hook> hook, const py::dict& arguments, const std::string& prefix) {
    ToolOptions options;
    read_tool_options(arguments, options);
    return std::make_unique<Scope>(std::move(hook), resolve(options, prefix));
  });

  module.def("read_pth", [](const std::string& path) { return to_python(read_pth(path)); });
  module.def("describe", [](py::handle object) { return describe(to_value(object)); });
  module.def("function_name", &function_name);
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
  module.def("kernel_entries", &interceptor::kernel_entries);
  module.def("set_rank", &set_rank);
  module.def("reload_log_level", &log::reload_level);
  module.def("log_warn", [](const std::string& text) { log::warn(text); });
}
