#include "python_frames.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "base/looked_up.h"
#include "interrupts.h"
#include "python_values.h"

#ifdef OP_TOOLS_RAW_FRAMES
#include "raw_frames.h"
#endif

namespace op_tools::python {
namespace {

namespace py = pybind11;

// Code of torch and of op_tools is not the user's: lines in it don't help to find the call. Nor do frames that Python
// itself puts between (copy.deepcopy, contextlib, typing_extensions' mark of deprecated functions).
class OwnFolders {
 public:
  OwnFolders() {
    for (const char* package : {"torch", "op_tools"}) {
      const auto file = shown_text(py::module_::import(package).attr("__file__"));
      folders_.push_back(file.substr(0, file.rfind('/') + 1));
    }
    const auto file = shown_text(py::module_::import("os").attr("__file__"));
    python_ = file.substr(0, file.rfind('/') + 1);
  }
  bool hold(const std::string& file) const {
    for (const std::string& folder : folders_) {
      if (file.compare(0, folder.size(), folder) == 0) return true;
    }
    // A package that is not always there. To look for it would give up the GIL, while other threads wait for this
    // object.
    if (file.find("/op_tools_compat/") != std::string::npos) return true;
    if (file.find("/typing_extensions.py") != std::string::npos) return true;
    return file.compare(0, python_.size(), python_) == 0 &&
           file.find("-packages/", python_.size()) == std::string::npos;
  }

 private:
  std::vector<std::string> folders_;
  std::string python_;  // of its standard library, which site-packages lie in as well
};

// A compiled frame has a code object of its own, of the same file and name.
CodeKind kind_of(PyCodeObject* code) {
  static PyObject* const module_file =
      py::object(py::module_::import("torch.nn.modules.module").attr("__file__")).release().ptr();
  static PyObject* const engine_file =
      py::object(py::module_::import("torch.autograd.graph").attr("__file__")).release().ptr();
  const auto is = [&](PyObject* file, const char* name) {
    return PyUnicode_CompareWithASCIIString(code->co_name, name) == 0 &&
           PyUnicode_Compare(code->co_filename, file) == 0;
  };
  if (is(module_file, "_wrapped_call_impl")) return CodeKind::kModule;
  return is(engine_file, "_engine_run_backward") ? CodeKind::kEngine : CodeKind::kOther;
}

// Under the GIL.
struct CodeEntry : KnownCode {
  // By position in the code (its last instruction): finding the number of a line reads the whole table of lines.
  std::unordered_map<int, std::string> lines;
};
CodeEntry& entry_of(PyCodeObject* code) {
  static auto* known = new std::unordered_map<PyCodeObject*, CodeEntry>;
  const auto entry = known->find(code);
  if (entry != known->end()) return entry->second;
  static const auto* own = new OwnFolders;
  CodeEntry fresh{{kind_of(code), false, shown_text(code->co_filename), shown_text(code->co_name)}, {}};
  // torch.fx writes code into files that do not exist.
  const auto begins = [&](const char* text) { return fresh.file.rfind(text, 0) == 0; };
  fresh.of_user = !own->hold(fresh.file) && !begins("<frozen ") && !begins("<eval_with_key>");
  Py_INCREF(code);
  return known->emplace(code, std::move(fresh)).first->second;
}

}  // namespace

// The part of each frame that a walk reads.
struct PythonFrames::SeenCode {
  PyCodeObject* code;
  const void* begin;  // the first instruction that a frame with locals can be at
  const KnownCode* known;
  uint32_t is;  // the bits below, together: a walk asks all at once
  static constexpr uint32_t kOfUser = 1, kModule = 2, kEngine = 4;
};

// The findings of a walk, and the frames that it read. A program makes most calls in the frames in which it made the
// one before: the next line of a function, the next operator of a backward pass. Frames at the same addresses, in the
// same code, have the same modules around them if those are still their first local variables.
struct PythonFrames::Walk {
  static constexpr size_t kMostFrames = 256, kMostModules = 512;
  struct Read {
    const _PyInterpreterFrame* frame;
    const PyCodeObject* code;
    const void* begin;  // where it is complete from; nullptr: that does not matter
  };
  uint64_t begun;   // walks of this thread
  uint32_t wanted;  // 0: it cannot be repeated
  bool to_the_end;  // there were no other frames
  int instruction;  // of line_in
  const std::string* line;
  const _PyInterpreterFrame* line_in;
  size_t frames, modules;
  Read read[kMostFrames];
  PyObject* module[kMostModules];
  const _PyInterpreterFrame* module_in[kMostModules];
};

// The frames that this thread has seen, so that it need not ask under the GIL. Two places for each key; those of a code
// object lie in a single line of the processor's cache.
struct PythonFrames::Seen {
  static constexpr int kPairBits = 8;
  static constexpr size_t kPairs = size_t{1} << kPairBits;
  alignas(64) SeenCode codes[kPairs][2];
  struct Line {
    PyCodeObject* code;
    int instruction;
    const std::string* line;
  } lines[kPairs][2];
  Walk walk;
};

namespace {

using Seen = PythonFrames::Seen;
using SeenCode = PythonFrames::SeenCode;
thread_local Seen tl_seen = {};

static_assert(sizeof(Seen().codes[0]) == 64);

size_t pair_of(const PyCodeObject* code) {
  return reinterpret_cast<uintptr_t>(code) * 0x9E3779B97F4A7C15u >> (64 - Seen::kPairBits);
}
size_t pair_of(const PyCodeObject* code, int instruction) {
  return (pair_of(code) + static_cast<size_t>(instruction) * 0x9E3779B1u) % Seen::kPairs;
}

// The older entry makes room.
template <class Slot>
const Slot& put(Slot (&pair)[2], const Slot& slot) {
  pair[1] = pair[0];
  return pair[0] = slot;
}

#ifdef OP_TOOLS_RAW_FRAMES
const void* begin_of(PyCodeObject* code) {
  return _PyCode_CODE(code) + code->_co_firsttraceable;
}
#else
const void* begin_of(PyCodeObject*) {
  return nullptr;
}
#endif

C10_NOINLINE const SeenCode& new_code(SeenCode (&pair)[2], PyCodeObject* code) {
  const py::gil_scoped_acquire gil;
  const py::error_scope restored;  // the program's own Python error may be set
  const KnownCode& known = entry_of(code);
  const uint32_t kind = known.kind == CodeKind::kModule   ? SeenCode::kModule
                        : known.kind == CodeKind::kEngine ? SeenCode::kEngine
                                                          : 0;
  return put(pair, {code, begin_of(code), &known, kind | (known.of_user ? SeenCode::kOfUser : 0)});
}

C10_ALWAYS_INLINE const SeenCode& seen_code(Seen& seen, PyCodeObject* code) {
  auto& pair = seen.codes[pair_of(code)];
  if (C10_LIKELY(pair[0].code == code)) return pair[0];
  if (pair[1].code == code) return pair[1];
  return new_code(pair, code);
}

C10_NOINLINE const std::string& new_line(Seen::Line (&pair)[2], PyCodeObject* code, int instruction) {
  const py::gil_scoped_acquire gil;
  CodeEntry& entry = entry_of(code);
  std::string& line = entry.lines[instruction];
  if (line.empty()) {
    line = entry.file + ":" + std::to_string(PyCode_Addr2Line(code, instruction)) + " " + entry.function;
  }
  return *put(pair, {code, instruction, &line}).line;
}

C10_ALWAYS_INLINE const std::string& known_line(Seen& seen, PyCodeObject* code, int instruction) {
  auto& pair = seen.lines[pair_of(code, instruction)];
  for (const Seen::Line& slot : pair) {
    if (slot.code == code && slot.instruction == instruction) return *slot.line;
  }
  return new_line(pair, code, instruction);
}

PyThreadState* thread_of_python() {
  return Py_IsInitialized() ? PyGILState_GetThisThreadState() : nullptr;
}

}  // namespace

#ifdef OP_TOOLS_RAW_FRAMES

C10_ALWAYS_INLINE PythonFrames::PythonFrames(Seen& seen) : seen_(seen) {
  if (PyThreadState* const thread = thread_of_python()) frame_ = current_frame(thread);
}

C10_ALWAYS_INLINE void PythonFrames::next() {
  frame_ = caller_of(*frame_);
}

C10_ALWAYS_INLINE const PythonFrames::SeenCode& PythonFrames::seen() const {
  return seen_code(seen_, code_of(*frame_));
}

C10_ALWAYS_INLINE bool PythonFrames::is_complete(const SeenCode& code) const {
  return static_cast<const void*>(position_of(*frame_)) >= code.begin || frame_->owner == FRAME_OWNED_BY_GENERATOR;
}

namespace {

int instruction_of(const _PyInterpreterFrame& frame) {
  return static_cast<int>(position_of(frame) - _PyCode_CODE(code_of(frame))) * static_cast<int>(sizeof(_Py_CODEUNIT));
}

PyObject* self_of(const _PyInterpreterFrame& frame) {
  PyObject* const first = code_of(frame)->co_argcount > 0 ? frame.localsplus[0] : nullptr;
  return first && PyCell_Check(first) ? PyCell_GET(first) : first;
}

}  // namespace

const std::string& PythonFrames::line() const {
  return known_line(seen_, code_of(*frame_), instruction_of(*frame_));
}

PyObject* PythonFrames::self() const {
  return self_of(*frame_);
}

C10_ALWAYS_INLINE bool PythonFrames::repeats(Walk& walk, uint32_t wanted) const {
  if (walk.wanted != wanted) return false;
  const _PyInterpreterFrame* frame = frame_;
  for (const Walk::Read *read = walk.read, *end = read + walk.frames; read != end; ++read, frame = caller_of(*frame)) {
    if (frame != read->frame || code_of(*frame) != read->code) return false;
    if (static_cast<const void*>(position_of(*frame)) < read->begin) return false;
  }
  if (walk.to_the_end && frame) return false;
  for (size_t i = 0; i < walk.modules; ++i) {
    if (self_of(*walk.module_in[i]) != walk.module[i]) return false;
  }
  if (!walk.line_in) return true;
  const int instruction = instruction_of(*walk.line_in);
  if (instruction != walk.instruction) {
    walk.line = &known_line(seen_, code_of(*walk.line_in), instruction);
    walk.instruction = instruction;
  }
  return true;
}

C10_ALWAYS_INLINE void PythonFrames::note(Walk& walk, const SeenCode& code, uint32_t is) const {
  if (walk.frames++ >= Walk::kMostFrames) return;
  const bool matters = is != 0 && frame_->owner != FRAME_OWNED_BY_GENERATOR;
  walk.read[walk.frames - 1] = {frame_, code.code, matters ? code.begin : nullptr};
  if (is & SeenCode::kOfUser) {
    walk.line_in = frame_;
    walk.instruction = instruction_of(*frame_);
  }
  if (is & SeenCode::kModule) walk.module_in[walk.modules - 1] = frame_;
}

py::object PythonFrames::local(const char* name) const {
  PyObject* const names = code_of(*frame_)->co_localsplusnames;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), name) != 0) continue;
    PyObject* const local_value = frame_->localsplus[i];
    PyObject* const value = local_value && PyCell_Check(local_value) ? PyCell_GET(local_value) : local_value;
    return value ? py::reinterpret_borrow<py::object>(value) : py::object(py::none());
  }
  return py::none();
}

#else

namespace {

PyFrameObject* raw(const py::object& frame) {
  return reinterpret_cast<PyFrameObject*>(frame.ptr());
}

struct OwnCode {
  explicit OwnCode(const py::object& frame) : code(PyFrame_GetCode(raw(frame))) {}
  ~OwnCode() { Py_DECREF(code); }
  OwnCode(const OwnCode&) = delete;
  OwnCode& operator=(const OwnCode&) = delete;
  PyCodeObject* const code;
};

}  // namespace

PythonFrames::PythonFrames(Seen& seen) : seen_(seen) {
  if (!thread_of_python()) return;
  gil_.emplace();
  frame_ = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
}

void PythonFrames::next() {
  frame_ = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw(frame_))));
}

const PythonFrames::SeenCode& PythonFrames::seen() const {
  return seen_code(seen_, OwnCode(frame_).code);
}

bool PythonFrames::is_complete(const SeenCode&) const {
  return true;  // others are not given
}

bool PythonFrames::repeats(Walk&, uint32_t) const {
  return false;
}

void PythonFrames::note(Walk&, const SeenCode&, uint32_t) const {}

const std::string& PythonFrames::line() const {
#if PY_VERSION_HEX >= 0x030B0000
  const int instruction = PyFrame_GetLasti(raw(frame_));
#else
  const int instruction = raw(frame_)->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
#endif
  return known_line(seen_, OwnCode(frame_).code, instruction);
}

// The frame has it as long as the call is on.
PyObject* PythonFrames::self() const {
  const py::object self = local("self");
  return self.is_none() ? nullptr : self.ptr();
}

py::object PythonFrames::local(const char* name) const {
  const py::error_scope restored;  // the program's own Python error may be set
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* const item = PyFrame_GetVarString(raw(frame_), name);
#else
  const auto locals = py::reinterpret_steal<py::object>(PyObject_GetAttrString(frame_.ptr(), "f_locals"));
  PyObject* const item = locals ? PyMapping_GetItemString(locals.ptr(), name) : nullptr;
#endif
  if (!item) {
    forget_error();
    return py::none();
  }
  return py::reinterpret_steal<py::object>(item);
}

#endif

PythonFrames::PythonFrames() : PythonFrames(looked_up_once(tl_seen)) {
  if (*this && !is_complete(seen())) back();
}

void PythonFrames::back() {
  do next();
  while (*this && !is_complete(seen()));
}

const KnownCode& PythonFrames::code() const {
  return *seen().known;
}

bool PythonFrames::walk(Walk& walk, uint32_t wanted) {
  const uint64_t number = ++walk.begun;
  walk.wanted = 0;
  walk.line = nullptr;
  walk.line_in = nullptr;
  walk.frames = walk.modules = 0;
  bool repeatable = true;
  uint32_t left = wanted;
  for (; *this && left != 0; next()) {
    const SeenCode& code = seen();
    const uint32_t is = code.is & left;
    if (C10_UNLIKELY(is != 0 && !is_complete(code))) {
      repeatable = false;
      continue;
    }
    if (is & SeenCode::kOfUser) {
      walk.line = &line();
      left &= ~SeenCode::kOfUser;
    }
    if (is & SeenCode::kEngine) left &= SeenCode::kOfUser;
    if (is & SeenCode::kModule) {
      PyObject* const module = self();
      if (!module || walk.modules == Walk::kMostModules) {
        repeatable = false;
        continue;
      }
      walk.module[walk.modules++] = module;
    }
    note(walk, code, is);
  }
  walk.to_the_end = !*this;
  repeatable = repeatable && walk.frames <= Walk::kMostFrames && walk.begun == number;
  walk.wanted = repeatable ? wanted : 0;
  return walk.begun == number;
}

Surroundings Surroundings::of_this_thread(bool line, bool modules) {
  const uint32_t wanted = (line ? SeenCode::kOfUser : 0) | (modules ? SeenCode::kModule | SeenCode::kEngine : 0);
  Seen& seen = looked_up_once(tl_seen);
  PythonFrames::Walk& walk = seen.walk;
  for (;;) {
    PythonFrames frame(seen);
    if (!frame) return {};
    if (frame.repeats(walk, wanted) || frame.walk(walk, wanted)) return {walk.line, {walk.module, walk.modules}};
  }
}

}  // namespace op_tools::python
