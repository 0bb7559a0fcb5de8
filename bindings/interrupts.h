// Exceptions that end Python code of ours in the middle and are not of it: Ctrl-C, a handler of a signal that raises,
// an exception that another thread sends (base/stop_program.h). They reach the program, later. GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "base/stop_program.h"

namespace op_tools::python {

namespace py = pybind11;

// Host::is_of_program(). Without the GIL.
bool is_of_program(const std::exception& caught);

// Not of the code that it ended.
bool is_from_outside(const py::error_already_set& error);

// Python's error is set, and it is of no interest; an error from outside is held for the program.
void forget_error();

// At the end of a call by Python: throws the exception that was held meanwhile.
void throw_held();

// Runs Python code of ours that has to come to its end: again, if something from outside ended it, which is held.
template <class Code>
auto to_its_end(Code&& code) {
  for (;;) {
    try {
      return code();
    } catch (const py::error_already_set& error) {
      if (!hold_for_program(error)) throw;
    }
  }
}

}  // namespace op_tools::python
