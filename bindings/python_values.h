// Between Python objects and Value trees. Everything here needs the GIL.
#pragma once

#include <functional>

#include "hooks/argument_key.h"
#include "tensor/value.h"

#include <c10/util/FunctionRef.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace op_tools::python {

namespace py = pybind11;

// Never raises: an object that has no form becomes Unsupported. Tensors in the tree are the program's own, not copies.
Value to_value(py::handle object);

// Adds the value of to_value(object). False: it has no form in a key.
bool add_to_key(py::handle object, ArgumentKey& key);

// Slices, Ellipsis, dtypes and so on become the Python objects that they stand for, Unsupported becomes None.
// Text that is no UTF-8 (paths) becomes the result of text_of().
py::object to_python(const Value& value);
// The same for the contents of a .pth file, where such text is damage: UnicodeDecodeError, as torch.load has it.
py::object saved_to_python(const Value& value);

// A path, or text from a file: bytes that are no UTF-8 are as os.fsdecode() has them.
py::str text_of(std::string_view bytes);
// Of a path, as os.fsencode() has them.
std::string path_of(const py::str& text);
// For people, and for files of text: text without UTF-8 form is spelled out ("\\udcb2").
std::string shown_text(py::handle text);

// Every tensor in it, in the order of for_each_tensor over to_value(object).
void visit_tensors(py::handle object, c10::function_ref<void(const at::Tensor&)> visit);
// A device in it: a torch.device, or the text after device=; nullopt when there is none.
std::optional<c10::Device> named_device(py::handle args, py::handle kwargs);

}  // namespace op_tools::python
