#include "python_switch.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/stop_program.h"
#include "coverage/coverage.h"
#include "hooks/conditional_hook.h"
#include "hooks/tool.h"
#include "hooks/unseen_calls.h"
#include "interrupts.h"
#include "new_threads.h"
#include "python_hook.h"
#include "python_values.h"
#include "termination.h"
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
    put_mode();
  }
  // `ended`: the thread that entered.
  void leave(bool ended) {
    {
      // Flushing takes as long as the disk takes; other threads of the program may run meanwhile.
      const py::gil_scoped_release no_gil;
      if (ended) core_.await_end_of_thread();
      core_.leave();
    }
    mode_.reset();
  }
  void suspend() {
    core_.suspend();
    mode_.reset();
  }
  void resume() {
    core_.resume();
    put_mode();
  }
  HookScope& core() { return core_; }
  Level level() const { return level_; }

 private:
  void put_mode() {
    if (level_ == Level::kTorch && core_.is_on()) mode_.emplace();
  }

  const Level level_;
  HookScope core_;
  std::optional<ModeOnStack> mode_;  // after the scope: the mode goes first
};

// The scope that a tool of the Python package has on. Python can be interrupted between any two of its instructions,
// which C++ cannot: all changes are made in here, so that a tool is on or off, whatever comes when. GIL held.
class Switch {
 public:
  int depth() const { return depth_; }
  const py::object& hook() const { return hook_; }
  const py::object& scope() const { return scope_; }

  // `open` gives hook and scope of a new run, or None: nothing is to be recorded now.
  void on(const py::object& self, const py::function& open) {
    const py::object opened = depth_ == 0 ? py::object(open()) : py::none();
    if (depth_ == 0) {
      begin(opened);
      running().push_back(self);
    } else if (asleep_ == depth_ && is_running()) {
      attach();
    }
    ++depth_;
  }

  void off(const py::object& self) {
    if (depth_ == 0) return;
    if (depth_ == 1) {
      end_run();
      std::vector<py::object>& all = running();
      all.erase(std::remove_if(all.begin(), all.end(), [&](const py::object& holder) { return holder.is(self); }),
                all.end());
    }
    depth_ = std::max(depth_ - 1, 0);  // while a run ends, other threads may come here
    if (depth_ == 0) asleep_ = 0;
    if (depth_ > 0 && asleep_ == depth_ && is_running()) core().suspend();
  }

  // Within a single on() and off(): runs may follow each other.
  void begin_run(const py::function& open) {
    if (depth_ > 0 && !is_running()) begin(open());
  }
  void end_run() {
    if (!is_running()) return;
    // Python joins a thread before the system has ended it.
    core().leave(!to_its_end([&] { return thread_.attr("is_alive")().cast<bool>(); }));
  }
  bool is_running() const { return !scope_.is_none() && core().core().is_on(); }

  // A caller who switched it on does not run for now (a generator between two values).
  void pause() {
    if (++asleep_ == depth_ && is_running()) core().suspend();
  }
  void resume() {
    if (asleep_ == 0) return;  // it was switched off meanwhile
    if (asleep_-- == depth_ && is_running()) attach();
  }

  static std::vector<py::object>& running() {
    static auto* all = new std::vector<py::object>;  // never freed: it holds the tools until the process ends
    return *all;
  }

 private:
  void begin(const py::object& opened) {
    if (opened.is_none()) return;
    const auto parts = opened.cast<py::tuple>();
    thread_ = this_thread();
    parts[1].cast<Scope&>().enter();
    hook_ = parts[0];
    flush_at_termination(hook_.cast<std::shared_ptr<Hook>>());
    scope_ = parts[1];
  }
  void attach() {
    thread_ = this_thread();
    core().resume();
  }
  static py::object this_thread() {
    static PyObject* const current =
        py::object(py::module_::import("threading").attr("current_thread")).release().ptr();
    return to_its_end([] { return py::handle(current)(); });
  }
  Scope& core() const { return scope_.cast<Scope&>(); }

  int depth_ = 0;                                      // how often it was switched on
  int asleep_ = 0;                                     // of those
  py::object hook_ = py::none(), scope_ = py::none();  // of the last run
  py::object thread_ = py::none();                     // whose calls it sees
};

// The with statement. In C++ because Python looks for arrived exceptions at the begin of a function of its own, and
// after each call in it: the statement would then not call __exit__, or __exit__ not stop.
py::object enter(const py::object& self) {
  const auto& own = self.cast<const Switch&>();
  const int before = own.depth();
  try {
    self.attr("start")();
  } catch (const py::error_already_set&) {
    to_its_end([&] {
      while (own.depth() > before) self.attr("stop")();
    });
    take_held();  // the program gets the first
    throw;
  }
  return self;
}

void exit(const py::object& self) {
  const auto& own = self.cast<const Switch&>();
  const int before = own.depth();
  try {
    self.attr("stop")();
  } catch (const py::error_already_set& error) {
    if (own.depth() < before || !hold_for_program(error)) throw;
    to_its_end([&] {
      if (own.depth() == before) self.attr("stop")();
    });
  }
  throw_held();
}

struct ToolHolder {
  explicit ToolHolder(py::object tool) : tool(std::move(tool)) {}
  py::object tool;
};

// Python's facts about a run, for the scope's account.
std::function<void(Coverage&)> added_by(const py::function& add) {
  return [add](Coverage& account) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    const py::error_scope restored;
    try {
      to_its_end([&] { add(py::cast(&account, py::return_value_policy::reference)); });
    } catch (const std::exception& error) {
      if (!hold_for_program(error))
        log::warn(std::string("the account of calls that a run did not examine is incomplete: ") + error.what());
    }
  };
}

void bind_scope(py::module_& module) {
  py::class_<Scope>(module, "Scope")
      .def("enter", &Scope::enter)
      .def("leave", [](Scope& scope) { scope.leave(/*ended=*/false); })
      .def("step", [](Scope& scope) { scope.core().step(), throw_held(); })
      .def_property_readonly("level", [](Scope& scope) { return to_string(scope.level()); })
      .def_property_readonly("is_on", [](Scope& scope) { return scope.core().is_on(); })
      .def_property_readonly("current_step", [](Scope& scope) { return scope.core().current_step(); })
      .def_property_readonly("calls_seen", [](Scope& scope) { return scope.core().calls_seen(); })
      .def_property_readonly("hook_failures", [](Scope& scope) { return scope.core().hook_failures(); })
      .def("coverage", [](Scope& scope) { return scope.core().coverage(); })
      .def("write_account", [](Scope& scope) { scope.core().write_account(); })
      .def("look_beside", [](Scope& scope, const py::function& add) { scope.core().look_beside(added_by(add)); });
}

}  // namespace

void bind_switch(py::module_& module) {
  bind_scope(module);
  py::class_<UnseenCalls>(module, "UnseenCalls")
      .def(py::init<>())
      .def("end", &UnseenCalls::end)
      .def("count", [](const UnseenCalls& unseen) {
        const UnseenCalls::Count count = unseen.count();
        return py::make_tuple(count.threads, count.calls, count.calls_on_device, count.processes, count.scripts,
                              count.native_calls, count.native_calls_on_device);
      });
  module.def("is_of_data_loader", &is_of_data_loader, py::arg("started"));
  module.def("start_known", [](const py::function& start, const py::object& process) {
    const KnownFork known;
    start(process);
  });
  py::class_<Switch>(module, "Switch")
      .def(py::init<>())
      .def("__enter__", &enter)
      .def("__exit__", [](const py::object& self, const py::args&) { exit(self); })
      .def("_switch_on",
           [](const py::object& self, const py::function& open) {
             self.cast<Switch&>().on(self, open);
             throw_held();
           })
      .def("_switch_off",
           [](const py::object& self) {
             self.cast<Switch&>().off(self);
             throw_held();
           })
      .def("_begin_run",
           [](Switch& self, const py::function& open) {
             self.begin_run(open);
             throw_held();
           })
      .def("_end_run",
           [](Switch& self) {
             self.end_run();
             throw_held();
           })
      .def("_pause", [](Switch& self) { self.pause(), throw_held(); })
      .def("_resume", [](Switch& self) { self.resume(), throw_held(); })
      .def_property_readonly("_is_running", &Switch::is_running)
      .def_property_readonly("_depth", &Switch::depth)
      .def_property_readonly("_hook", &Switch::hook)
      .def_property_readonly("_scope", &Switch::scope);
  // The object that stops a tool at the end of a with statement, without being the tool.
  py::class_<ToolHolder>(module, "ToolHolder")
      .def(py::init<py::object>())
      .def_readonly("tool", &ToolHolder::tool)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const ToolHolder& self, const py::args&) { exit(self.tool); });
  module.def("running_tools", [] { return Switch::running(); });

  // The tool of that name (or feature) and its options: (hook, scope). `condition`: None, or asked for each call.
  module.def(
      "open_tool",
      [](const std::string& name, const py::dict& options, const py::object& condition) {
        Tool tool = find_tool(name).open(to_value(options));
        if (!condition.is_none()) tool.hook = std::make_shared<ConditionalHook>(tool.hook, python_condition(condition));
        return py::make_tuple(tool.hook, std::make_unique<Scope>(tool.hook, std::move(tool.options)));
      },
      py::arg("name"), py::arg("options"), py::arg("condition") = py::none());
  // A hook of the program's own.
  module.def("hook_scope", [](std::shared_ptr<Hook> hook, const py::dict& settings) {
    HookOptions options;
    read_settings(to_value(settings), options);
    return std::make_unique<Scope>(std::move(hook), resolve(options).scope);
  });
}

}  // namespace op_tools::python
