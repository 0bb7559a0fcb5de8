// The Python extension: options in, scopes and results out. The only part that knows Python objects or the GIL.
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "base/options.h"
#include "base/range_loader.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "base/version.h"
#include "blackbox/blackbox_content.h"
#include "called_modules.h"
#include "calls/call_store.h"
#include "calls/saved_call.h"
#include "calls/snapshot.h"
#include "compare/metrics/tolerance.h"
#include "compare/rerun/unwritten_fill.h"
#include "device_names.h"
#include "exit_status.h"
#include "graph_nodes.h"
#include "hooks/chain.h"
#include "hooks/interceptor.h"
#include "hooks/op_traits.h"
#include "hooks/tool.h"
#include "hooks/written_inputs.h"
#include "interrupts.h"
#include "memory/memory_hook.h"
#include "mode_off_stack.h"
#include "python_coverage.h"
#include "python_handlers.h"
#include "python_hook.h"
#include "python_host.h"
#include "python_judge.h"
#include "python_modules.h"
#include "python_record.h"
#include "python_replay.h"
#include "python_runs.h"
#include "python_switch.h"
#include "python_timing.h"
#include "python_tool_kinds.h"
#include "python_values.h"
#include "quiet_warnings.h"
#include "tensor/internal_guard.h"
#include "tensor/memory_watch.h"
#include "termination.h"
#include "torch_function_mode.h"

#ifdef Py_GIL_DISABLED
#error "op_tools reads frames, modules and caches under the GIL: build it for a Python that has it"
#endif

namespace op_tools::python {
namespace {

py::list texts_of(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(text_of(text));
  return list;
}

// Runs `read`, whose failures are Errors that name the path. A damaged file may hold contents that Python has no value
// for: strings that are no UTF-8, lists as keys, a generator's state of the wrong size. KeyboardInterrupt passes.
template <class Read>
auto read_file(const std::string& path, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string shown = path.c_str();  // to a NUL, where what() ends as well
    throw text.find(shown) == std::string::npos ? Error(shown + ": " + text) : error;
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    throw Error(path + ": damaged: " + std::string(py::str(error.value())));
  } catch (const c10::Error& error) {
    throw Error(path + ": damaged: " + error.what_without_backtrace());
  }
}

// A saved call; None for parts that it does not have. Gradients are those of its first backward pass.
py::dict call_dict(const SavedCall& call) {
  py::dict dict;
  dict["name"] = call.name;
  dict["args"] = saved_to_python(call.args);
  dict["kwargs"] = saved_to_python(call.kwargs);
  dict["result"] = call.output ? saved_to_python(call.output->result) : py::none();
  const bool went_backward = !call.backward.empty();
  dict["grad_inputs"] = went_backward ? saved_to_python(call.backward.front().grad_inputs) : py::none();
  dict["grad_outputs"] = went_backward ? saved_to_python(call.backward.front().grad_outputs) : py::none();
  dict["meta"] = call.has_meta ? py::object(py::str(call.meta_text)) : py::none();
  return dict;
}

py::tuple call_summary(const StoredCall& call) {
  uint64_t bytes = 0;
  uint32_t passes = 0;
  const auto add = [&](CallFile file, uint32_t pass) {
    const bool has = call.has(file, pass);
    if (has) bytes += call.size(file, pass);
    return has;
  };
  for (const CallFile file : {CallFile::kInput, CallFile::kOutput, CallFile::kMeta}) add(file, 0);
  for (; add(CallFile::kGradOutputs, passes); ++passes) add(CallFile::kGradInputs, passes);
  const py::object meta = call.has(CallFile::kMeta) ? py::object(text_of(call.read_text(CallFile::kMeta))) : py::none();
  return py::make_tuple(text_of(call.path()), meta, bytes, passes);
}

// A sequence of gradients, or None, as a saved call has it.
Value gradients_from(py::handle gradients) {
  return take_snapshot(to_value(gradients), "").value;
}

// Writes a call that was made elsewhere (an import) to folders in `root`, as OpCapture writes its own: `call` has the
// entries of call_dict(), `mutated` ({tensor index: the tensor after the call}), `node_gradients` and `lacks` (names),
// and `meta` the fields of meta.json that do not follow from the values.
std::string write_saved_call(const std::string& root, const py::dict& call, const std::string& meta) {
  SavedCall saved;
  saved.meta = CallMeta::from_json(meta);
  saved.name = saved.meta.name;
  saved.id = saved.meta.id;
  saved.set_inputs(take_snapshot(make_tuple({to_value(call["args"]), to_value(call["kwargs"])}), ""));
  if (!call["result"].is_none()) {
    saved.set_output(take_snapshot(make_tuple({to_value(call["result"]), to_value(call["mutated"])}), ""));
  }
  saved.node_gradients = call["node_gradients"].cast<bool>();
  saved.lacks = lacks_of(to_value(call["lacks"]));
  if (!call["grad_outputs"].is_none()) {
    saved.backward.push_back({gradients_from(call["grad_outputs"]), gradients_from(call["grad_inputs"])});
  }
  make_folders(root);
  return write_call(*CallStore::in_folder(root), saved);
}

void bind_files(py::module_& module) {
  // `load(path, begin, end)` is called with the GIL held, by threads that may hold it or not.
  module.def("set_range_loader", [](const py::str& folder, const py::function& load) {
    set_range_loader(path_of(folder), [load](const std::string& path, uint64_t begin, uint64_t end) {
      const py::gil_scoped_acquire gil;
      try {
        load(text_of(path), begin, end);
      } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        throw Error(std::string(py::str(error.value())));
      }
    });
  });
  module.def("read_pth", [](const std::string& path) {
    return read_file(path, [&] { return saved_to_python(read_call_file(path)); });
  });
  module.def("read_call", [](const std::string& path) {
    return read_file(path, [&] {
      const SavedCall call = read_call(*open_call(path));
      if (!call.cut_off.empty()) throw Error(path + ": " + call.cut_off);
      return call_dict(call);
    });
  });
  // Of every call at or below a path (its path, text of meta.json or None, bytes of its files, backward passes),
  // its faults, bytes of tensors that calls share.
  module.def("find_calls", [](const std::string& path) {
    FoundCalls stored = find_calls(path);
    stored.name_missing();
    py::list calls;
    for (const auto& call : stored.calls) calls.append(call_summary(*call));
    return py::make_tuple(calls, texts_of(stored.problems), stored.shared_bytes);
  });
  module.def("shown_path", [](const std::string& path) { return shown_path(path); });
  module.def("claim_run_folder", [](const std::string& output_dir, const std::string& name) {
    return claim_run_folder(output_dir, name, distributed_rank());
  });
  module.def("export_calls", [](const std::string& from, const std::string& to) {
    std::vector<std::string> problems;
    const size_t exported = export_calls(from, to, &problems);
    return py::make_tuple(exported, texts_of(problems));
  });
  // The rows as dicts, the rest as fields of BlackBox.
  module.def("read_black_box", [](const std::string& path) {
    const BlackBoxContent content = read_black_box(path);
    const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
    return to_python(make_dict({{"pid", content.pid},
                                {"rank", content.rank},
                                {"parent", content.parent},
                                {"host", content.host},
                                {"program", content.program},
                                {"started", content.started},
                                {"closed", content.closed},
                                {"left_out", number(content.left_out)},
                                {"names_lost", number(content.names_lost)},
                                {"damaged", number(content.damaged)},
                                {"copied", content.copied ? Value(*content.copied) : Value()},
                                {"rows", BlackBoxRow::columns().values(content.rows)}}));
  });
  module.def("save_kept_calls", [](const std::string& path, const std::string& folder) {
    return texts_of(save_kept_calls(path, folder));
  });
  module.def("write_call", [](const std::string& root, const py::dict& call, const std::string& meta) {
    return text_of(read_file(root, [&] { return write_saved_call(root, call, meta); }));
  });
}

// Names of operators and functions, and which of them a filter admits.
void bind_names(py::module_& module) {
  module.def("describe", [](py::handle object) { return describe(to_value(object)); });
  module.def("function_name", [](py::handle function) {
    std::string name = function_name(function);
    throw_held();
    return name;
  });
  // The name of the tool with that name or feature.
  module.def("find_tool", [](const std::string& name) { return find_tool(name).name; });
  module.def("tolerance_text", &tolerance_text);
  module.def("is_metadata_op", &is_metadata_op);
  module.def("has_trait", [](const std::string& name, const std::string& trait) {
    return has_trait(base_name(name), trait_from_name(trait));
  });
  // Of the result or argument that has the trait; -1: the operator does not have it.
  module.def("place_of_trait", [](const std::string& name, const std::string& trait) {
    const OpFamily* const family = family_of(base_name(name), trait_from_name(trait));
    return family ? family->place : -1;
  });
  module.def("op_families", [] {
    py::list families;
    for (const OpFamily& family : op_families()) {
      families.append(
          py::make_tuple(std::string(trait_name(family.trait)), std::string(family.why), std::string(family.names)));
    }
    return families;
  });
  module.def("base_name", [](const std::string& name) { return std::string(base_name(name)); });
  module.def("undeclared_writes", &undeclared_writes_of);
  module.def("admitted", [](const std::vector<std::string>& names, const std::string& only, const std::string& skip) {
    const OpFilter filter(only, skip, "--ops", "--skip");
    std::vector<std::string> admitted;
    for (const std::string& name : names) {
      if (filter.admits(name) && (!is_metadata_op(name) || filter.names(name))) admitted.push_back(name);
    }
    return admitted;
  });
  module.def("add_other_names", &add_other_names);
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
  using namespace op_tools;          // NOLINT: a single module function
  using namespace op_tools::python;  // NOLINT

  module.doc() = "The C++ core of op_tools. Use the package op_tools, not this module.";
  module.attr("__version__") = std::string(version());
  module.attr("built_with_torch") = std::string(built_with_torch());
  // Not by pybind11's register_exception(): a text that is no UTF-8 (a path, a name in a file) would be another error.
  static const py::handle error_class = py::exception<Error>(module, "Error", PyExc_RuntimeError).release();
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      std::rethrow_exception(std::move(raised));
    } catch (const Error& error) {
      PyErr_SetObject(error_class.ptr(), text_of(error.what()).ptr());
    }
  });

  bind_mode_off_stack(module);
  bind_quiet_warnings(module);
  bind_host(module);
  see_inside_python_handlers();
  init_termination(module);
  init_exit_status(module);
  bind_coverage(module);
  bind_hook(module);
  bind_replay(module);
  bind_runs(module);
  bind_judge(module);
  bind_called_modules(module);
  bind_modules(module);
  bind_record(module);
  bind_timing(module);
  bind_tool_kinds(module);
  bind_switch(module);
  bind_files(module);
  bind_device_names(module);
  bind_names(module);

  module.def("set_torch_function_mode", &set_torch_function_mode);
  module.def("run_engine", &run_engine);
  module.def("graph_choices", &graph_choices);
  module.def("run_graph", &run_graph);
  bind_graph_nodes(module);
  module.attr("GRAPH_CALLS") = py::str(std::string(kGraphCalls));
  module.def("unobserved", [](const py::function& function, const py::args& args, const py::kwargs& kwargs) {
    const Unobserved guard;
    return function(*args, **kwargs);
  });
  module.def("is_collective", [](std::string_view name) { return is_collective(name); });
  module.def("unwritten_is_nan", [] {
    const std::optional<UnwrittenFill> fill = unwritten_fill();
    return fill ? std::optional(*fill == UnwrittenFill::kNan) : std::nullopt;
  });
  module.def("interceptor_key", [] { return c10::toString(kInterceptorKey); });
  module.def("text_table", [](const std::vector<std::pair<std::string, bool>>& columns,
                              const std::vector<std::vector<std::string>>& rows, size_t width) {
    std::vector<TableColumn> titled;
    for (const auto& [title, is_number] : columns) titled.push_back({title, is_number});
    return text_table(titled, rows, width);
  });
  module.def("kernel_entries", &interceptor::kernel_entries);
  module.def("is_memory_judged_after", &is_memory_judged_after);
  module.def("set_in_optimizer", &set_in_optimizer);
  module.def("reports_memory", [](const std::string& device) { return reports_memory(c10::Device(device)); });
  module.def("set_rank", &set_rank);
  module.def("launched_ranks", &launched_ranks);
  module.def("reload_log_level", &log::reload_level);
  module.def("log_progress", &log::progress);
  module.def("log_warn", [](const py::str& text) { log::warn(shown_text(text)); });
}
