#include "python_modules.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/looked_up.h"
#include "hooks/module_path.h"
#include "interrupts.h"
#include "python_frames.h"
#include "python_host.h"
#include "record/named_tensors.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

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

// Paths by the stack of modules. Modules are held weakly: an address that lives again is another module. Under the GIL.
class Paths {
 public:
  struct Known {
    std::vector<py::object> alive;  // weak references, in the order of the modules
    const std::string* path;        // lives until the process ends
  };

  static Paths& get() {
    static auto* const paths = new Paths;  // leaked: asked until the process ends
    return *paths;
  }

  const Known& of(const std::vector<PyObject*>& modules) {
    const auto entry = known_.find(modules);
    if (entry != known_.end()) {
      if (is_of(entry->second, modules)) return entry->second;
      known_.erase(entry);
    }
    Known fresh{{}, nullptr};
    py::tuple stack(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      fresh.alive.push_back(py::weakref(modules[i]));
      stack[modules.size() - 1 - i] = py::reinterpret_borrow<py::object>(modules[i]);
    }
    {
      const NotCompiled not_compiled;
      fresh.path =
          &*paths_.insert(to_its_end([&] { return host_functions().module_path(stack).cast<std::string>(); })).first;
    }
    if (known_.size() >= kMost) known_.clear();  // a program that makes modules for ever
    return known_.insert_or_assign(modules, std::move(fresh)).first->second;
  }

  static size_t hash(Modules modules) {
    size_t hash = modules.size();
    for (const PyObject* module : modules) hash = hash * 1000003 ^ std::hash<const void*>()(module);
    return hash;
  }
  // Not under the GIL, too, if all modules live.
  static bool refers_to(const PyObject* reference, const PyObject* module) {
    return reinterpret_cast<const PyWeakReference*>(reference)->wr_object == module;
  }

 private:
  static constexpr size_t kMost = 100'000;
  struct Hash {
    size_t operator()(const std::vector<PyObject*>& modules) const { return hash(modules); }
  };
  static bool is_of(const Known& known, Modules modules) {
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!refers_to(known.alive[i].ptr(), modules[i])) return false;
    }
    return true;
  }

  std::unordered_set<std::string> paths_;  // as many as the program has names
  std::unordered_map<std::vector<PyObject*>, Known, Hash> known_;
};

// The paths that this thread asked for last, found without the GIL. Two places for each hash.
class LastPaths {
 public:
  const std::string* find(Modules modules) {
    if (last_ && holds(*last_, modules)) return last_->path;
    for (const Slot& slot : slots_[pair_of(modules)]) {
      if (!holds(slot, modules)) continue;
      last_ = &slot;
      return slot.path;
    }
    return nullptr;
  }
  // Under the GIL.
  void put(Modules modules, const Paths::Known& known) {
    if (modules.size() > kMostDepth) return;
    auto& pair = slots_[pair_of(modules)];
    std::swap(pair[0], pair[1]);  // the older slot makes room
    Slot& slot = pair[0];
    for (size_t i = 0; i < slot.depth; ++i) Py_DECREF(slot.references[i]);
    slot.depth = modules.size();
    slot.path = known.path;
    last_ = &slot;
    for (size_t i = 0; i < modules.size(); ++i) {
      slot.modules[i] = modules[i];
      slot.references[i] = known.alive[i].inc_ref().ptr();
    }
  }

 private:
  static constexpr size_t kMostDepth = 12, kPairs = 64, kSpread = 16;
  struct Slot {
    size_t depth;
    const std::string* path;
    PyObject* modules[kMostDepth];
    PyObject* references[kMostDepth];  // owned; those of a thread that has ended stay
  };
  static size_t pair_of(Modules modules) { return Paths::hash(modules) / kSpread % kPairs; }
  static bool holds(const Slot& slot, Modules modules) {
    if (slot.depth != modules.size()) return false;
    for (size_t i = 0; i < modules.size(); ++i) {
      // A module dies, and its references with it, before its address can be that of a module which lives here.
      if (slot.modules[i] != modules[i] || !Paths::refers_to(slot.references[i], modules[i])) return false;
    }
    return true;
  }
  Slot slots_[kPairs][2];
  const Slot* last_;  // that was found; nullptr: none yet
};
thread_local LastPaths last_paths = {};

const std::string* path_of(Modules modules) {
  if (modules.empty()) return nullptr;
  LastPaths& last = looked_up_once(last_paths);
  if (const std::string* const known = last.find(modules)) return known;
  const py::gil_scoped_acquire gil;
  const py::error_scope restored;                    // the program's own Python error may be set
  const std::vector<PyObject*> own = modules.vec();  // Python code runs now, which may ask for its own
  const Paths::Known& known = Paths::get().of(own);
  last.put(own, known);
  return known.path;
}

}  // namespace

Place place_in_python(bool line, bool module) {
  const Surroundings here = Surroundings::of_this_thread(line, module);
  return {here.line, path_of(here.modules)};
}

void named_tensors_in_python(uint64_t recording, std::vector<NamedTensor>* named) {
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return;
  const py::gil_scoped_acquire gil;
  const py::error_scope restored;
  const Modules modules = Surroundings::of_this_thread(/*line=*/false, /*modules=*/true).modules;
  py::object args = py::none(), kwargs = py::none();  // of the outermost module
  size_t left = modules.size();
  for (PythonFrames frame; left > 0; frame.back()) {
    if (frame.code().kind != CodeKind::kModule || !frame.self() || --left > 0) continue;
    args = frame.local("args");
    kwargs = frame.local("kwargs");
  }
  const py::object model =
      modules.empty() ? py::object(py::none()) : py::reinterpret_borrow<py::object>(modules.back());
  const NotCompiled not_compiled;
  const py::object tensors = to_its_end([&] { return host_functions().named_tensors(model, args, kwargs, recording); });
  for (const py::handle tensor : tensors) {
    const auto [name, origin, value] = tensor.cast<std::tuple<std::string, std::string_view, at::Tensor>>();
    const auto* const known = std::find(kOriginNames.begin(), kOriginNames.end(), origin);
    named->push_back({name, static_cast<Origin>(known - kOriginNames.begin()), value});
  }
}

void bind_modules(py::module_& module) {
  module.def("admits_module", [](const std::string& path, const std::string& only) {
    const OpFilter filter(only, "", "modules=", "");
    return !filter.has_only() || admits_module(filter, path);
  });
}

}  // namespace op_tools::python
