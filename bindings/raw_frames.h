// Python's own record of a frame, as python_frames.cpp reads it where it lies, on Python 3.11 to 3.13. Only
// python_frames.cpp includes this. For frames of the calling thread; no GIL is needed.
#pragma once

#include <Python.h>

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

namespace op_tools::python {

inline PyCodeObject* code_of(const _PyInterpreterFrame& frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<PyCodeObject*>(frame.f_executable);  // of a program's frame nothing else
#else
  return frame.f_code;
#endif
}

// At the last instruction that began, or (before 3.13) at its caches.
inline const _Py_CODEUNIT* position_of(const _PyInterpreterFrame& frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return frame.instr_ptr;
#else
  return frame.prev_instr;
#endif
}

// Since 3.12 each entry of C into the interpreter has a frame of its own, which is no frame of a program.
inline _PyInterpreterFrame* or_of_program(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  while (frame && frame->owner == FRAME_OWNED_BY_CSTACK) frame = frame->previous;
#endif
  return frame;
}

inline _PyInterpreterFrame* current_frame(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return or_of_program(thread->current_frame);
#else
  return or_of_program(thread->cframe->current_frame);
#endif
}

inline _PyInterpreterFrame* caller_of(const _PyInterpreterFrame& frame) {
  return or_of_program(frame.previous);
}

}  // namespace op_tools::python
