#include "python_host.h"

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host.h"
#include "error_text.h"
#include "interrupts.h"
#include "new_threads.h"
#include "python_frames.h"
#include "python_modules.h"
#include "python_timing.h"
#include "python_values.h"
#include "quiet_warnings.h"

namespace op_tools::python {
namespace {

HostFunctions g_functions;

// What faulthandler writes, without Python's lock: another thread may hold it for ever. Python exports the function and
// declares it for itself alone.
using DumpThreads = const char* (*)(int, PyInterpreterState*, PyThreadState*);

void dump_stacks(int descriptor) {
  static const auto dump = reinterpret_cast<DumpThreads>(dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  if (dump && Py_IsInitialized()) dump(descriptor, nullptr, nullptr);
}

class PythonHost final : public Host {
 public:
  Place place(bool line, bool module) override { return place_in_python(line, module); }

  size_t stack(std::span<const std::string*> lines) override {
    size_t count = 0;
    PythonFrames frame;
    for (int depth = 0; frame && depth < kMostFrames && count < lines.size(); ++depth, frame.back()) {
      if (frame.code().of_user) lines[count++] = &frame.line();
    }
    return count;
  }

  StackDump stack_dump() override { return &dump_stacks; }

  const OwnCommands& own_commands() override { return own_commands_; }
  void set_own_commands(OwnCommands commands) { own_commands_ = std::move(commands); }

  bool is_of_program(const std::exception& caught) override { return python::is_of_program(caught); }

  std::string text_of(const std::exception& caught) override {
    const auto* const error = dynamic_cast<const py::error_already_set*>(&caught);
    if (!error || !Py_IsInitialized()) return Host::text_of(caught);
    const py::gil_scoped_acquire gil;
    return text_of_error(*error);
  }

  std::shared_ptr<void> quiet() override {
    if (!Py_IsInitialized()) return nullptr;
    const py::gil_scoped_acquire gil;
    return {new QuietWarnings, [](void* quiet) {
              const py::gil_scoped_acquire again;
              delete static_cast<QuietWarnings*>(quiet);
            }};
  }

  bool watch_threads() override { return python::watch_threads(); }

  std::string advice(const std::string& item, const std::string& level) override {
    if (!Py_IsInitialized()) return {};
    const py::gil_scoped_acquire gil;
    try {
      return g_functions.advice(python::text_of(item), level).cast<std::string>();
    } catch (const std::exception&) {  // what a warning says besides must not end the scope otherwise
      return {};
    }
  }

  int64_t flops(std::string_view op, Phase phase, const Value& sample) override {
    return flops_in_python(op, phase, sample);
  }

  bool program_facts(Value* facts) override { return answer(g_functions.program_facts, facts); }
  bool program_start(Value* start) override { return answer(g_functions.program_start, start); }

  void named_tensors(uint64_t recording, std::vector<NamedTensor>* named) override {
    named_tensors_in_python(recording, named);
  }

  bool gathers_collectives() override { return is_true(g_functions.gathers_collectives); }
  bool packs_saved_tensors() override { return is_true(g_functions.packs_saved_tensors); }

 private:
  OwnCommands own_commands_;  // before the host is installed; nothing changes it afterwards

  static bool answer(const py::handle& function, Value* value) {
    if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return false;
    const py::gil_scoped_acquire gil;
    const py::error_scope restored;
    *value = to_value(to_its_end([&] { return function(); }));
    return true;
  }

  static bool is_true(const py::handle& question) {
    Value value;
    const bool is_answered = answer(question, &value);
    const auto* const flag = value.get_if<bool>();
    return is_answered && flag && *flag;
  }
};

}  // namespace

const HostFunctions& host_functions() {
  return g_functions;
}

void bind_host(py::module_& module) {
  module.def(
      "install_host",
      [](py::function is_from_outside, py::function module_path, py::function named_tensors, py::function program_facts,
         py::function program_start, py::function count_flops, py::function advice, py::function gathers_collectives,
         py::function packs_saved_tensors, std::string op_tools_command, std::string replay_command) {
        g_functions = {is_from_outside.release(), module_path.release(),         named_tensors.release(),
                       program_facts.release(),   program_start.release(),       count_flops.release(),
                       advice.release(),          gathers_collectives.release(), packs_saved_tensors.release()};
        static auto* const host = new PythonHost;  // leaked, like the functions
        host->set_own_commands({std::move(op_tools_command), std::move(replay_command)});
        install_host(host);
      },
      py::kw_only(), py::arg("is_from_outside"), py::arg("module_path"), py::arg("named_tensors"),
      py::arg("program_facts"), py::arg("program_start"), py::arg("count_flops"), py::arg("advice"),
      py::arg("gathers_collectives"), py::arg("packs_saved_tensors"), py::arg("op_tools_command"),
      py::arg("replay_command"));
}

}  // namespace op_tools::python
