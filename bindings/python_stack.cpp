#include "python_stack.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blackbox/stall_reports.h"
#include "hooks/stack_source.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

constexpr int kMostFrames = 128;

// Code of torch and of op_tools is not the user's: lines in it don't help to find the call. Nor does what Python itself
// puts between (copy.deepcopy, contextlib, typing_extensions' mark of what is deprecated).
class OwnFolders {
 public:
  OwnFolders() {
    for (const char* package : {"torch", "op_tools"}) {
      const auto file = py::str(py::module_::import(package).attr("__file__")).cast<std::string>();
      folders_.push_back(file.substr(0, file.rfind('/') + 1));
    }
    const auto file = py::str(py::module_::import("os").attr("__file__")).cast<std::string>();
    python_ = file.substr(0, file.rfind('/') + 1);
  }
  bool hold(const std::string& file) const {
    for (const std::string& folder : folders_) {
      if (file.compare(0, folder.size(), folder) == 0) return true;
    }
    if (file.find("/typing_extensions.py") != std::string::npos) return true;
    return file.compare(0, python_.size(), python_) == 0 &&
           file.find("-packages/", python_.size()) == std::string::npos;
  }

 private:
  std::vector<std::string> folders_;
  std::string python_;  // of its standard library, which site-packages lie in as well
};

struct Code {
  bool of_user;
  std::string file, function;
  // By position in the code (its last instruction): finding the number of a line reads the whole table of lines. For
  // ever, and where they are.
  std::unordered_map<int, std::string> lines;

  const std::string& line(PyFrameObject* frame) {
    std::string& known = lines[PyFrame_GetLasti(frame)];
    if (known.empty()) known = file + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " " + function;
    return known;
  }
};

// By code object, which is never freed: a reused address would name the wrong file.
Code& known_code(PyCodeObject* code) {
  static auto* known = new std::unordered_map<PyCodeObject*, Code>;
  static const auto* own = new OwnFolders;
  const auto found = known->find(code);
  if (found != known->end()) return found->second;
  Py_INCREF(code);
  Code made{false, py::str(code->co_filename).cast<std::string>(), py::str(code->co_name).cast<std::string>(), {}};
  made.of_user = !own->hold(made.file) && made.file.compare(0, 8, "<frozen ") != 0;
  return known->emplace(code, std::move(made)).first->second;
}

StackLines user_lines(size_t most) {
  StackLines lines;
  // Threads that Python does not know (autograd's for devices) have no stack; a dying interpreter is not to be asked.
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return lines;
  const py::gil_scoped_acquire gil;
  py::object frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  for (int depth = 0; frame && depth < kMostFrames && lines.size() < most; ++depth) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* const code = PyFrame_GetCode(raw);
    Code& known = known_code(code);
    Py_DECREF(code);
    if (known.of_user) {
      lines.push_back(&known.line(raw));
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return lines;
}

// What faulthandler writes, without Python's lock: another thread may hold it for ever. Python exports the function and
// declares it for itself alone.
using DumpThreads = const char* (*)(int, PyInterpreterState*, PyThreadState*);

void dump_stacks(int descriptor) {
  static const auto dump = reinterpret_cast<DumpThreads>(dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  if (dump && Py_IsInitialized()) dump(descriptor, nullptr, nullptr);
}

}  // namespace

void init_stack_source() {
  set_stack_source(&user_lines);
  set_stack_dump(&dump_stacks);
}

}  // namespace op_tools::python
