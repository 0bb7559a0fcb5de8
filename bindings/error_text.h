// The text of Python's exceptions. GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace op_tools::python {

// As its what(); its type's name where Python has no room for the text. At the limit of Python's recursion what()
// itself recurses without end: it asks for the text of the RecursionError that asking for the text raised.
std::string text_of_error(const pybind11::error_already_set& error);

}  // namespace op_tools::python
