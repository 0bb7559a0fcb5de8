#include "device_names.h"

#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

struct NewSlot {
  PyTypeObject* type;  // never freed
  newfunc original;
};

constexpr size_t kMostMethods = 16;

// A function is called through its vectorcall, which torch's functions leave empty. Its definition must stay: the hash
// of a function comes from it, and torch keeps functions in sets.
struct FunctionSlot {
  PyCFunctionObject* function;  // never freed
  vectorcallfunc original;
};

// A method that is bound first is called through its definition. Definitions may lie in memory that cannot be written:
// the method's object gets a copy of its own, and the old definition back.
struct MethodSlot {
  PyMethodDef** place = nullptr;  // in the method's object, which is never freed
  PyMethodDef* original = nullptr;
  PyMethodDef renaming{};
};

struct AttributeSlot {
  PyGetSetDef** place = nullptr;  // in the attribute's object, which is never freed
  PyGetSetDef* original = nullptr;
  PyGetSetDef changed{};

  void change(py::handle type, const char* name, getter get) {
    const py::object attribute = type.attr("__dict__")[name];
    if (!Py_IS_TYPE(attribute.ptr(), &PyGetSetDescr_Type))
      throw Error(std::string(name) + " is no attribute in C in this torch");
    place = &reinterpret_cast<PyGetSetDescrObject*>(attribute.inc_ref().ptr())->d_getset;
    original = *place;
    changed = *original;
    changed.get = get;
    *place = &changed;
  }
  void restore() {
    if (place) *place = original;
    place = nullptr;
  }
};

struct Names {
  bool active = false;
  std::vector<std::string> from;
  std::string to;
  std::string shown;
  // Never emptied: a class that was derived from such a type in the meantime has inherited renaming_new.
  std::vector<NewSlot> slots;
  std::vector<FunctionSlot> functions;
  std::array<MethodSlot, kMostMethods> methods;
  size_t method_count = 0;
  AttributeSlot is_cuda, type;
  reprfunc original_repr = nullptr;
  reprfunc original_str = nullptr;
};

Names& names() {
  static auto* const all = new Names;  // a device may be printed while the process ends
  return *all;
}

// The name of the backend for a string that names a device of ours, alone or with an index; else the string itself.
py::object renamed(py::handle value) {
  if (!PyUnicode_CheckExact(value.ptr())) return py::reinterpret_borrow<py::object>(value);
  const auto text = value.cast<std::string>();
  const size_t colon = std::min(text.find(':'), text.size());
  const auto& from = names().from;
  const bool is_ours = std::find(from.begin(), from.end(), std::string_view(text).substr(0, colon)) != from.end();
  return is_ours ? py::str(names().to + text.substr(colon)) : py::reinterpret_borrow<py::object>(value);
}

bool has_text(PyObject* arguments, PyObject* keywords) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    if (PyUnicode_CheckExact(PyTuple_GET_ITEM(arguments, i))) return true;
  }
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; keywords && PyDict_Next(keywords, &at, nullptr, &value);) {
    if (PyUnicode_CheckExact(value)) return true;
  }
  return false;
}

// Calls `call` with the arguments of a C function, renamed. Arguments without a string are passed on as they are.
template <class Call>
PyObject* call_renamed(PyObject* arguments, PyObject* keywords, Call&& call) {
  if (!names().active || !has_text(arguments, keywords)) return call(arguments, keywords);
  try {
    const auto positional = py::reinterpret_borrow<py::tuple>(arguments);
    py::tuple taken(positional.size());
    for (size_t i = 0; i < positional.size(); ++i) taken[i] = renamed(positional[i]);
    if (!keywords) return call(taken.ptr(), nullptr);
    py::dict by_name;
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(keywords)) by_name[name] = renamed(value);
    return call(taken.ptr(), by_name.ptr());
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

PyCFunctionWithKeywords with_keywords(PyCFunction function) {
  return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(function));
}

// The function that a method's definition calls, by the number of its slot: a C function does not learn which method it
// is.
template <size_t kNumber>
PyObject* renaming_method(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return call_renamed(arguments, keywords, [self](PyObject* taken, PyObject* by_name) {
    return with_keywords(names().methods[kNumber].original->ml_meth)(self, taken, by_name);
  });
}

template <size_t... kNumbers>
constexpr std::array<PyCFunctionWithKeywords, sizeof...(kNumbers)> renaming_methods(std::index_sequence<kNumbers...>) {
  return {&renaming_method<kNumbers>...};
}
constexpr auto kRenaming = renaming_methods(std::make_index_sequence<kMostMethods>());

// As Python itself calls a function that has no vectorcall, with its arguments renamed.
PyObject* renaming_vectorcall(PyObject* function, PyObject* const* arguments, size_t flags, PyObject* keywords) {
  try {
    const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
    py::tuple taken(count);
    for (size_t i = 0; i < count; ++i) taken[i] = renamed(arguments[i]);
    py::dict by_name;
    const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; ++i) {
      by_name[PyTuple_GET_ITEM(keywords, i)] = renamed(arguments[count + static_cast<size_t>(i)]);
    }
    return Py_TYPE(function)->tp_call(function, taken.ptr(), named > 0 ? by_name.ptr() : nullptr);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

newfunc original_of(PyTypeObject* type) {
  for (; type; type = type->tp_base) {
    for (const NewSlot& slot : names().slots) {
      if (slot.type == type) return slot.original;
    }
  }
  return nullptr;
}

PyObject* renaming_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  const newfunc original = original_of(type);
  if (!original) return PyErr_Format(PyExc_TypeError, "op_tools: %s cannot be made", type->tp_name);
  return call_renamed(arguments, keywords,
                      [&](PyObject* taken, PyObject* by_name) { return original(type, taken, by_name); });
}

bool takes_keywords(const PyMethodDef& method) {
  constexpr int kKinds = METH_VARARGS | METH_KEYWORDS | METH_FASTCALL | METH_NOARGS | METH_O;
  return (method.ml_flags & kKinds) == (METH_VARARGS | METH_KEYWORDS);
}

PyCFunction as_stored(PyCFunctionWithKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyObject* is_cuda_or_accelerator(PyObject* tensor, void* closure) {
  if (THPVariable_Check(tensor) && THPVariable_Unpack(tensor).is_privateuseone()) Py_RETURN_TRUE;
  return names().is_cuda.original->get(tensor, closure);
}

bool is_shown(PyObject* device) {
  return reinterpret_cast<THPDevice*>(device)->device.is_privateuseone();
}

PyObject* shown_type(PyObject* device, void* closure) {
  if (!is_shown(device)) return names().type.original->get(device, closure);
  const std::string& shown = names().shown;
  return PyUnicode_FromStringAndSize(shown.data(), static_cast<Py_ssize_t>(shown.size()));
}

PyObject* shown_str(PyObject* device) {
  if (!is_shown(device)) return names().original_str(device);
  const c10::Device& of = reinterpret_cast<THPDevice*>(device)->device;
  const std::string text = of.has_index() ? names().shown + ":" + std::to_string(of.index()) : names().shown;
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* shown_repr(PyObject* device) {
  if (!is_shown(device)) return names().original_repr(device);
  const c10::Device& of = reinterpret_cast<THPDevice*>(device)->device;
  std::string text = "device(type='" + names().shown + "'";
  if (of.has_index()) text += ", index=" + std::to_string(of.index());
  text += ")";
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

void show() {
  names().type.change(reinterpret_cast<PyObject*>(&THPDeviceType), "type", shown_type);
  names().original_repr = std::exchange(THPDeviceType.tp_repr, shown_repr);
  names().original_str = std::exchange(THPDeviceType.tp_str, shown_str);
}

void show_no_more() {
  names().type.restore();
  THPDeviceType.tp_repr = names().original_repr;
  THPDeviceType.tp_str = names().original_str;
}

void swap_functions(const py::list& functions) {
  Names& state = names();
  for (const py::handle torch_function : functions) {
    PyObject* const function = torch_function.ptr();
    if (PyCFunction_CheckExact(function) && takes_keywords(*reinterpret_cast<PyCFunctionObject*>(function)->m_ml)) {
      auto* const object = reinterpret_cast<PyCFunctionObject*>(torch_function.inc_ref().ptr());
      state.functions.push_back({object, std::exchange(object->vectorcall, &renaming_vectorcall)});
    } else if (Py_IS_TYPE(function, &PyMethodDescr_Type) && state.method_count < kMostMethods &&
               takes_keywords(*reinterpret_cast<PyMethodDescrObject*>(function)->d_method)) {
      const size_t number = state.method_count++;
      MethodSlot& slot = state.methods[number];
      slot.place = &reinterpret_cast<PyMethodDescrObject*>(torch_function.inc_ref().ptr())->d_method;
      slot.original = *slot.place;
      slot.renaming = *slot.original;
      slot.renaming.ml_meth = as_stored(kRenaming[number]);
      *slot.place = &slot.renaming;
    } else {
      throw Error(std::string(py::repr(torch_function)) + " is no C function with keywords in this torch");
    }
  }
}

void restore_functions() {
  Names& state = names();
  for (const FunctionSlot& slot : state.functions) slot.function->vectorcall = slot.original;
  state.functions.clear();
  for (; state.method_count > 0; --state.method_count) {
    const MethodSlot& slot = state.methods[state.method_count - 1];
    *slot.place = slot.original;
  }
}

void start(std::vector<std::string> from, std::string to, std::string shown, const py::list& types,
           const py::list& functions) {
  Names& state = names();
  if (state.active) throw Error("the accelerator has another name already: stop() first");
  try {
    swap_functions(functions);
  } catch (...) {
    restore_functions();
    throw;
  }
  state.from = std::move(from);
  state.to = std::move(to);
  state.shown = std::move(shown);
  for (const py::handle torch_type : types) {
    auto* const type = reinterpret_cast<PyTypeObject*>(torch_type.inc_ref().ptr());
    const newfunc original = std::exchange(type->tp_new, renaming_new);
    const auto known =
        std::find_if(state.slots.begin(), state.slots.end(), [&](const NewSlot& s) { return s.type == type; });
    if (known == state.slots.end()) state.slots.push_back({type, original});
  }
  if (std::find(state.from.begin(), state.from.end(), "cuda") != state.from.end()) {
    state.is_cuda.change(py::module_::import("torch").attr("_C").attr("TensorBase"), "is_cuda", is_cuda_or_accelerator);
  }
  if (!state.shown.empty()) show();
  state.active = true;
}

void stop() {
  Names& state = names();
  if (!state.active) return;
  state.active = false;
  if (!state.shown.empty()) show_no_more();
  state.is_cuda.restore();
  for (const NewSlot& slot : state.slots) slot.type->tp_new = slot.original;
  restore_functions();
}

}  // namespace

void bind_device_names(py::module_& module) {
  module.def("device_names_start", &start, py::arg("names"), py::arg("backend"), py::arg("shown"), py::arg("types"),
             py::arg("functions"));
  module.def("device_names_stop", &stop);
}

}  // namespace op_tools::python
