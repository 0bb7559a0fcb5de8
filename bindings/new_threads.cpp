#include "new_threads.h"

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "hooks/current_chain.h"
#include "hooks/unseen_calls.h"
#include "interrupts.h"
#include "torch_function_mode.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

PyObject* g_start = nullptr;      // threading.Thread.start
PyObject* g_bootstrap = nullptr;  // threading.Thread._bootstrap: a new thread calls it first

// Of threads that are being started: the scopes of the thread that starts them. Under the GIL; leaked.
std::unordered_map<PyObject*, std::shared_ptr<ThreadChains>>& starting() {
  static auto* const threads = new std::unordered_map<PyObject*, std::shared_ptr<ThreadChains>>;
  return *threads;
}

// start() returns when the thread has begun.
PyObject* start(PyObject*, PyObject* thread) {
  std::shared_ptr<ThreadChains> scopes = FollowedThread::scopes();
  if (!scopes || is_of_data_loader(thread)) return PyObject_CallOneArg(g_start, thread);
  starting()[thread] = std::move(scopes);
  PyObject* const result = PyObject_CallOneArg(g_start, thread);
  starting().erase(thread);
  return result;
}

PyObject* bootstrap(PyObject*, PyObject* thread) {
  thread_begins();
  const auto starter = starting().find(thread);
  // By pointers: Python ends a daemon's thread by unwinding its stack without the GIL, where nothing may be done.
  if (starter == starting().end()) {
    auto* const counted = CountedThread::is_wanted() ? new CountedThread(!is_of_data_loader(thread)) : nullptr;
    PyObject* const result = PyObject_CallOneArg(g_bootstrap, thread);
    delete counted;
    return result;
  }
  auto* const followed = new FollowedThread(std::move(starter->second));
  auto* const mode = followed->has(Level::kTorch) ? new ModeOnStack : nullptr;
  PyObject* const result = PyObject_CallOneArg(g_bootstrap, thread);
  const py::error_scope restored;
  delete mode;
  delete followed;
  return result;
}

PyMethodDef kStart = {"start", &start, METH_O, "Start the thread's activity."};
PyMethodDef kBootstrap = {"_bootstrap", &bootstrap, METH_O, "A new thread calls this first."};

// In C, so that no frame of ours is in the stacks of the program's threads.
PyObject* replace(const py::object& type, const char* name, PyMethodDef* by) {
  py::object original = type.attr(name);
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(by, nullptr));
  const auto method = py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
  type.attr(name) = method;
  return original.release().ptr();
}

}  // namespace

// The replacements stay when the tools are off: who else took their places meanwhile calls them.
bool watch_threads() {
  if (!Py_IsInitialized()) return false;
  const py::gil_scoped_acquire gil;
  if (g_bootstrap) return true;
  const py::error_scope restored;  // the program's own Python error may be set
  try {
    const py::object thread = py::module_::import("threading").attr("Thread");
    g_bootstrap = replace(thread, "_bootstrap", &kBootstrap);  // no thread begins in between: this thread has the GIL
    g_start = replace(thread, "start", &kStart);
    return true;
  } catch (const py::error_already_set&) {  // a Python whose threads begin otherwise
    return g_bootstrap != nullptr;
  }
}

// A thread of a loader's moves batches to pinned memory, in an order that chance decides.
bool is_of_data_loader(py::handle started) {
  const py::error_scope restored;
  try {
    const py::object target = py::getattr(started, "_target", py::none());
    const py::object module = py::getattr(target, "__module__", py::none());
    return py::isinstance<py::str>(module) && module.cast<std::string>().starts_with("torch.utils.data.");
  } catch (const py::error_already_set&) {
    return false;
  }
}

}  // namespace op_tools::python
