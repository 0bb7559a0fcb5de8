// The frames of this thread's Python stack, innermost first, as tools ask for them at each call. While a thread is in
// an operator its frames do not change, and their objects stay alive.
//
// On Python 3.11 to 3.13 they are read where they lie (raw_frames.h): no frame object is made, no dictionary of
// locals, and the GIL, which the operators of torch have released, is taken only for code that this thread has not
// seen. Other versions have them in other forms: there Python's own functions are asked, under the GIL.
#pragma once

#include <c10/util/ArrayRef.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define OP_TOOLS_RAW_FRAMES 1
#endif
struct _PyInterpreterFrame;

namespace op_tools::python {

enum class CodeKind : uint8_t {
  kOther,
  kModule,  // torch.nn.Module.__call__
  kEngine,  // through which a backward pass starts
};

// A code object. Never freed, nor is the object: a reused address would give a wrong answer.
struct KnownCode {
  CodeKind kind;
  bool of_user;  // not torch's, op_tools' or Python's own
  std::string file, function;
};

constexpr int kMostFrames = 128;  // that are searched for a line of the user's

class PythonFrames {
 public:
  PythonFrames();  // at the innermost frame; at none in threads that Python does not know, and when it is shut down
  explicit operator bool() const { return static_cast<bool>(frame_); }
  void back();

  const KnownCode& code() const;
  const std::string& line() const;                 // "file:line function"; lives until the process ends
  PyObject* self() const;                          // of a method: borrowed; nullptr where it has none
  pybind11::object local(const char* name) const;  // None where it has none. Under the GIL

  struct Seen;  // of a single thread
  struct SeenCode;
  struct Walk;

 private:
  friend struct Surroundings;
  // For walks: at the innermost frame, which may be incomplete, as the next() ones may be.
  explicit PythonFrames(Seen& seen);
  void next();
  const SeenCode& seen() const;
  bool is_complete(const SeenCode& code) const;  // has locals: a frame that has just begun has none
  // Both begin here, for what is `wanted` of SeenCode::is. repeats(): the frames are those that `walk` read, and its
  // findings are right. walk() reads them; false: another walk of this thread began meanwhile, which used the same
  // place.
  bool repeats(Walk& walk, uint32_t wanted) const;
  bool walk(Walk& walk, uint32_t wanted);
  void note(Walk& walk, const SeenCode& code, uint32_t is) const;
  Seen& seen_;  // this thread's: looked up once for all frames
#ifdef OP_TOOLS_RAW_FRAMES
  _PyInterpreterFrame* frame_ = nullptr;
#else
  std::optional<pybind11::gil_scoped_acquire> gil_;
  pybind11::object frame_;
#endif
};

// The modules in whose forward this thread is, innermost first, borrowed: the module before a backward pass that this
// thread runs does not contain the operators of that pass. Up to 512: those around them are left out.
using Modules = c10::ArrayRef<PyObject*>;

// The questions of tools at each call, in a single pass: whichever of both is wanted.
struct Surroundings {
  const std::string* line = nullptr;  // the innermost line of the user's; lives until the process ends
  Modules modules;                    // until this thread asks again

  static Surroundings of_this_thread(bool line, bool modules);
};

}  // namespace op_tools::python
