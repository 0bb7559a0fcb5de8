#pragma once

// Does a Python object stand for a tensor? Asked under the GIL.
// Gap: PyObjectSlot::load_pyobj() since torch 2.13; check_pyobj() before, which asks for the interpreter up to 2.8.

#include <c10/core/impl/PyInterpreter.h>

namespace op_tools::compat {

template <typename Slot>
bool has_python_object(const Slot& slot, c10::impl::PyInterpreter* interpreter) {
  if constexpr (requires { slot.load_pyobj(); }) {
    return slot.load_pyobj() != nullptr;
  } else if constexpr (requires { slot.check_pyobj(); }) {
    return slot.check_pyobj().has_value();
  } else {
    return slot.check_pyobj(interpreter).has_value();
  }
}

}  // namespace op_tools::compat
