#include "python_modules.h"

#include <c10/util/SmallVector.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/module_path.h"
#include "interrupts.h"
#include "record/named_tensors.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

enum class CodeKind : uint8_t { kOther, kModule, kEngine };

// torch.nn.Module.__call__, and the function through which backward starts. A compiled frame has a code object of its
// own, of the same file and name. Objects are never freed: a reused address would give a wrong answer.
CodeKind kind_of(PyCodeObject* code) {
  static auto* known = new std::unordered_map<PyCodeObject*, CodeKind>;
  const auto found = known->find(code);
  if (found != known->end()) return found->second;
  static PyObject* const module_file =
      py::object(py::module_::import("torch.nn.modules.module").attr("__file__")).release().ptr();
  static PyObject* const engine_file =
      py::object(py::module_::import("torch.autograd.graph").attr("__file__")).release().ptr();
  const auto is = [&](PyObject* file, const char* name) {
    return PyUnicode_CompareWithASCIIString(code->co_name, name) == 0 &&
           PyUnicode_Compare(code->co_filename, file) == 0;
  };
  CodeKind kind = CodeKind::kOther;
  if (is(module_file, "_wrapped_call_impl")) kind = CodeKind::kModule;
  if (is(engine_file, "_engine_run_backward")) kind = CodeKind::kEngine;
  Py_INCREF(code);
  return known->emplace(code, kind).first->second;
}

// A local variable of a frame; nothing where it has none of that name.
py::object local_of(PyFrameObject* frame, const char* name) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* const found = PyFrame_GetVarString(frame, name);
#else
#if PY_VERSION_HEX >= 0x030B0000
  const auto locals = py::reinterpret_steal<py::object>(PyFrame_GetLocals(frame));
#else
  const auto locals =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals"));
#endif
  PyObject* const found = locals ? PyMapping_GetItemString(locals.ptr(), name) : nullptr;
#endif
  if (!found) forget_error();
  return py::reinterpret_steal<py::object>(found);
}

using Modules = c10::SmallVector<py::object, 8>;

// The modules in whose forward this thread is, innermost first: what stands before a backward pass that this thread
// runs does not contain the operators of that pass.
// `outermost`, where it is given, becomes the frame of the last of them.
Modules modules_on_stack(py::object* outermost = nullptr) {
  Modules modules;
  auto frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* const code = PyFrame_GetCode(raw);
    const CodeKind kind = kind_of(code);
    Py_DECREF(code);
    if (kind == CodeKind::kEngine) break;
    if (kind == CodeKind::kModule) {
      if (py::object self = local_of(raw, "self")) {
        modules.push_back(std::move(self));
        if (outermost) *outermost = frame;
      }
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return modules;
}

// Code that torch.compile runs hands the frames below it to the compiler; ours are not its business.
class NotCompiled {
 public:
  NotCompiled()
      : set_(py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")), before_(set_(py::none())) {}
  ~NotCompiled() {
    try {
      set_(before_);
    } catch (const py::error_already_set&) {  // it was there before
    }
  }

 private:
  const py::object set_, before_;
};

// Paths by the stack of modules. Modules are held weakly: an address that lives again is another module.
class Paths {
 public:
  explicit Paths(const py::object& name) : name_(py::object(name).release().ptr()) {}

  std::string path(const Modules& modules) {
    Key key;
    for (const py::object& module : modules) key.push_back(module.ptr());
    const auto found = known_.find(key);
    if (found != known_.end()) {
      if (std::all_of(found->second.alive.begin(), found->second.alive.end(), &is_alive)) return found->second.path;
      known_.erase(found);
    }
    Known made;
    for (const py::object& module : modules) made.alive.push_back(py::weakref(module));
    py::tuple stack(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) stack[i] = modules[modules.size() - 1 - i];
    {
      const NotCompiled not_compiled;
      made.path = to_its_end([&] { return py::handle(name_)(stack).cast<std::string>(); });
    }
    if (known_.size() >= kMost) known_.clear();  // a program that makes modules for ever
    return known_.emplace(std::move(key), std::move(made)).first->second.path;
  }

 private:
  static constexpr size_t kMost = 100'000;
  using Key = c10::SmallVector<PyObject*, 8>;
  struct Hash {
    size_t operator()(const Key& key) const {
      size_t hash = key.size();
      for (const PyObject* one : key) hash = hash * 1000003 ^ std::hash<const void*>()(one);
      return hash;
    }
  };
  struct Known {
    std::vector<py::object> alive;  // weak references, in the order of the key
    std::string path;
  };
  static bool is_alive(const py::object& reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* object = nullptr;
    const bool alive = PyWeakref_GetRef(reference.ptr(), &object) == 1;
    Py_XDECREF(object);
    return alive;
#else
    return PyWeakref_GET_OBJECT(reference.ptr()) != Py_None;
#endif
  }

  PyObject* const name_;  // never freed, like this object
  std::unordered_map<Key, Known, Hash> known_;
};

// Asked until the process ends; all under the GIL.
void set_module_namer(const py::object& name) {
  auto* paths = new Paths(name);
  set_module_source([paths]() -> std::string {
    // Threads that Python does not know have no stack; a dying interpreter is not to be asked.
    if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return {};
    const py::gil_scoped_acquire gil;
    const py::error_scope restored;  // the program's own Python error may be set
    const Modules modules = modules_on_stack();
    return modules.empty() ? std::string() : paths->path(modules);
  });
}

// `find(model, args, kwargs)`: the outermost module that runs and what it was called with, or three times None. Gives
// (name, origin, tensor) of what it knows.
void set_tensor_namer(const py::object& find) {
  PyObject* const never_freed = py::object(find).release().ptr();
  set_named_tensor_source([never_freed] {
    std::vector<NamedTensor> named;
    if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return named;
    const py::gil_scoped_acquire gil;
    const py::error_scope restored;
    py::object frame;
    const Modules modules = modules_on_stack(&frame);
    const auto local = [&](const char* name) {
      const py::object found =
          frame ? local_of(reinterpret_cast<PyFrameObject*>(frame.ptr()), name) : py::object(py::none());
      return found ? found : py::object(py::none());
    };
    const py::object model = modules.empty() ? py::object(py::none()) : modules.back();
    const NotCompiled not_compiled;
    const py::object found = to_its_end([&] { return py::handle(never_freed)(model, local("args"), local("kwargs")); });
    for (const py::handle one : found) {
      const auto [name, origin, tensor] = one.cast<std::tuple<std::string, int, at::Tensor>>();
      named.push_back({name, static_cast<Origin>(origin), tensor});
    }
    return named;
  });
}

}  // namespace

void bind_modules(py::module_& module) {
  module.def("set_module_namer", &set_module_namer);
  module.def("set_tensor_namer", &set_tensor_namer);
  module.def("admits_module", [](const std::string& path, const std::string& only) {
    const OpFilter filter(only, "", "modules=", "");
    return !filter.has_only() || admits_module(filter, path);
  });
}

}  // namespace op_tools::python
