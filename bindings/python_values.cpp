#include "python_values.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/QScheme.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interrupts.h"
#include "python_objects.h"

namespace op_tools::python {
namespace {

// Deeper nesting is either a cycle or nothing that an operator takes.
constexpr int kMaxDepth = 64;

std::string type_name(py::handle object) {
  const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  const auto module = py::str(type.attr("__module__")).cast<std::string>();
  const auto name = py::str(type.attr("__qualname__")).cast<std::string>();
  return module == "builtins" ? name : module + "." + name;
}

// Not PyObject_IsInstance(), as torch asks: it looks for Python code to ask, for each number, and believes an object
// that pretends to be a tensor.
bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

Value text_value(py::handle object) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text) return std::string(text, static_cast<size_t>(size));
  forget_error();
  return Unsupported{"str", "it holds code points that have no UTF-8 form"};
}

Value int_value(py::handle object) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0) return Unsupported{"int", "it does not fit in 64 bits"};
  return static_cast<int64_t>(number);
}

Value generator_value(py::handle object) {
  at::Generator generator = reinterpret_cast<THPGenerator*>(object.ptr())->cdata;
  std::lock_guard<std::mutex> lock(generator.mutex());
  return Generator{generator.device(), generator.get_state()};
}

Value convert(py::handle object, int depth);

Values convert_items(PyObject* const* items, Py_ssize_t count, int depth) {
  Values values;
  values.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) values.push_back(convert(items[i], depth + 1));
  return values;
}

Value tuple_value(py::handle object, int depth) {
  PyObject* const tuple = object.ptr();
  Values values = convert_items(&PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_SIZE(tuple), depth);
  if (PyTuple_CheckExact(tuple)) return make_tuple(std::move(values));
  // torch.return_types.* and collections.namedtuple.
  return NamedTuple{std::make_shared<const Values>(std::move(values)), type_name(object)};
}

Value dict_value(py::handle object, int depth) {
  std::vector<std::pair<Value, Value>> items;
  items.reserve(static_cast<size_t>(PyDict_GET_SIZE(object.ptr())));
  PyObject* key = nullptr;
  PyObject* item = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(object.ptr(), &position, &key, &item)) {
    items.emplace_back(convert(key, depth + 1), convert(item, depth + 1));
  }
  return make_dict(std::move(items));
}

Value set_value(py::handle object, int depth) {
  Values values;
  for (const py::handle item : py::iter(object)) values.push_back(convert(item, depth + 1));
  return Set{std::make_shared<const Values>(std::move(values))};
}

// A numpy.float32 as Python's own number, to which torch turns it; nullopt: it is none. Not a numpy.complex64 or
// numpy.bool: torch's reading of them depends on the function.
std::optional<py::object> numpy_number(py::handle object) {
  static constexpr std::string_view kNumpy = "numpy.";
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !std::string_view(type->tp_name).starts_with(kNumpy)) {
    return std::nullopt;
  }
  if (!py::isinstance(object, py::module_::import("numpy").attr("floating"))) return std::nullopt;
  py::object number = object.attr("item")();
  return PyFloat_Check(number.ptr()) ? std::optional(std::move(number)) : std::nullopt;  // a longdouble is itself again
}

// Numbers of other libraries (numpy.int64, numpy.bool_): by their own word. Only types that are written in C
// are asked: a class's __index__ is the program's own code, and a torch.SymInt that is asked for its value is symbolic
// no longer.
Value other_value(py::handle object, int depth) {
  const PyTypeObject* const type = Py_TYPE(object.ptr());
  const bool is_array =
      std::string_view(type->tp_name) == "numpy.ndarray";  // an array without dimensions can be an index
  if (!is_array && PyIndex_Check(object.ptr()) && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
    if (number) return int_value(number);
    forget_error();
  }
  if (const auto number = numpy_number(object)) return convert(*number, depth + 1);
  const py::object form = form_of(object);
  if (PyDict_Check(form.ptr())) return convert(form, depth + 1);
  return Unsupported{type_name(object), py::str(form)};
}

Value convert(py::handle object, int depth) {
  PyObject* const raw = object.ptr();
  if (depth > kMaxDepth) return Unsupported{type_name(object), "nested too deeply, or it contains itself"};
  if (is_tensor(raw)) return THPVariable_Unpack(raw);
  if (raw == Py_None) return None{};
  if (PyBool_Check(raw)) return raw == Py_True;
  if (PyLong_Check(raw)) return int_value(object);
  if (PyFloat_Check(raw)) return PyFloat_AS_DOUBLE(raw);
  if (PyUnicode_Check(raw)) return text_value(object);
  if (THPSize_Check(raw)) {
    Size size;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(raw); ++i) {
      const Value item = convert(PyTuple_GET_ITEM(raw, i), depth + 1);
      const int64_t* number = item.get_if<int64_t>();
      if (!number) return Unsupported{"torch.Size", "it holds a symbolic size"};
      size.sizes.push_back(*number);
    }
    return size;
  }
  if (PyTuple_Check(raw)) return tuple_value(object, depth);
  if (PyList_Check(raw)) {
    return make_list(convert_items(reinterpret_cast<PyListObject*>(raw)->ob_item, PyList_GET_SIZE(raw), depth));
  }
  if (PyDict_Check(raw)) return dict_value(object, depth);
  if (raw == Py_Ellipsis) return Ellipsis{};
  if (PySlice_Check(raw)) {
    auto* slice = reinterpret_cast<PySliceObject*>(raw);
    return Slice{std::make_shared<const Values>(
        Values{convert(slice->start, depth + 1), convert(slice->stop, depth + 1), convert(slice->step, depth + 1)})};
  }
  if (THPDtype_Check(raw)) return reinterpret_cast<THPDtype*>(raw)->scalar_type;
  if (THPDevice_Check(raw)) return reinterpret_cast<THPDevice*>(raw)->device;
  if (THPLayout_Check(raw)) return reinterpret_cast<THPLayout*>(raw)->layout;
  if (THPMemoryFormat_Check(raw)) return reinterpret_cast<THPMemoryFormat*>(raw)->memory_format;
  if (THPQScheme_Check(raw)) return reinterpret_cast<THPQScheme*>(raw)->qscheme;
  if (THPGenerator_Check(raw)) return generator_value(object);
  if (PyComplex_Check(raw)) return c10::complex<double>(PyComplex_RealAsDouble(raw), PyComplex_ImagAsDouble(raw));
  if (PyAnySet_Check(raw)) return set_value(object, depth);
  if (PyBytes_Check(raw)) return Bytes{std::string(PyBytes_AS_STRING(raw), static_cast<size_t>(PyBytes_GET_SIZE(raw)))};
  if (PyByteArray_Check(raw)) {
    return Bytes{std::string(PyByteArray_AS_STRING(raw), static_cast<size_t>(PyByteArray_GET_SIZE(raw)))};
  }
  return other_value(object, depth);
}

template <class T>
py::object stolen(T* object) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
}
template <class T>
py::object borrowed(T* object) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
}

py::str decoded(std::string_view bytes, const char* errors) {
  PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), errors);
  if (!text) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

// Rows by the thousand have the same keys: a single string object for all of them.
py::object shared_key(py::object key) {
  constexpr Py_ssize_t kMost = 1000;
  static PyObject* const known = PyDict_New();
  if (!PyUnicode_CheckExact(key.ptr())) return key;
  if (PyDict_GET_SIZE(known) >= kMost) {
    PyObject* const same = PyDict_GetItemWithError(known, key.ptr());
    return same ? py::reinterpret_borrow<py::object>(same) : key;
  }
  PyObject* const same = PyDict_SetDefault(known, key.ptr(), key.ptr());
  if (!same) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(same);
}

struct ToPython {
  const char* errors;  // of text that is no UTF-8, as str.decode() takes it

  py::object item(const Value& value) const { return std::visit(*this, value.variant()); }
  py::tuple tuple_of(const Values& values) const {
    py::tuple tuple(values.size());
    for (size_t i = 0; i < values.size(); ++i) tuple[i] = item(values[i]);
    return tuple;
  }

  py::object operator()(const None&) const { return py::none(); }
  py::object operator()(bool value) const { return py::bool_(value); }
  py::object operator()(int64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(const c10::complex<double>& value) const {
    return stolen(PyComplex_FromDoubles(value.real(), value.imag()));
  }
  py::object operator()(const std::string& value) const { return decoded(value, errors); }
  py::object operator()(const at::Tensor& value) const { return stolen(THPVariable_Wrap(value)); }
  py::object operator()(at::ScalarType value) const { return borrowed(torch::getTHPDtype(value)); }
  py::object operator()(const c10::Device& value) const { return stolen(THPDevice_New(value)); }
  py::object operator()(at::Layout value) const { return borrowed(torch::getTHPLayout(value)); }
  py::object operator()(at::MemoryFormat value) const { return borrowed(torch::utils::getTHPMemoryFormat(value)); }
  py::object operator()(at::QScheme value) const {
    return py::module_::import("torch").attr(c10::toString(value).c_str());
  }
  py::object operator()(const Size& value) const {
    py::tuple sizes(value.sizes.size());
    for (size_t i = 0; i < value.sizes.size(); ++i) sizes[i] = value.sizes[i];
    return py::handle(reinterpret_cast<PyObject*>(&THPSizeType))(sizes);
  }
  py::object operator()(const Slice& value) const {
    const py::tuple parts = tuple_of(*value.items);
    return stolen(PySlice_New(parts[0].ptr(), parts[1].ptr(), parts[2].ptr()));
  }
  py::object operator()(const Ellipsis&) const { return py::ellipsis(); }
  py::object operator()(const List& value) const { return py::list(tuple_of(*value.items)); }
  py::object operator()(const Tuple& value) const { return tuple_of(*value.items); }
  py::object operator()(const NamedTuple& value) const { return named_tuple(value.type, tuple_of(*value.items)); }
  py::object operator()(const Dict& value) const {
    py::dict dict;
    for (const auto& [key, content] : *value.items) dict[shared_key(item(key))] = item(content);
    return from_form(std::move(dict));
  }
  py::object operator()(const Set& value) const { return py::set(tuple_of(*value.items)); }
  py::object operator()(const Bytes& value) const { return py::bytes(value.bytes); }
  py::object operator()(const Generator& value) const {
    const py::object generator = py::module_::import("torch").attr("Generator")(value.device.str());
    generator.attr("set_state")(item(value.state));
    return generator;
  }
  py::object operator()(const Unsupported&) const { return py::none(); }
};

void visit_at(py::handle object, c10::function_ref<void(const at::Tensor&)> visit, int depth) {
  PyObject* const raw = object.ptr();
  if (depth > kMaxDepth) return;
  if (is_tensor(raw)) {
    const at::Tensor& tensor = THPVariable_Unpack(raw);
    if (tensor.defined()) visit(tensor);
  } else if (PyTuple_Check(raw)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(raw); ++i) visit_at(PyTuple_GET_ITEM(raw, i), visit, depth + 1);
  } else if (PyList_Check(raw)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(raw); ++i) visit_at(PyList_GET_ITEM(raw, i), visit, depth + 1);
  } else if (PyDict_Check(raw)) {
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(raw, &position, &key, &item);) visit_at(item, visit, depth + 1);
  } else if (PySlice_Check(raw)) {
    auto* slice = reinterpret_cast<PySliceObject*>(raw);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) visit_at(part, visit, depth + 1);
  } else if (PyAnySet_Check(raw)) {
    for (const py::handle item : py::iter(object)) visit_at(item, visit, depth + 1);
  } else if (is_dataclass(raw)) {
    const py::object form = form_of(object);
    if (PyDict_Check(form.ptr())) visit_at(form, visit, depth + 1);
  }
}

bool add_at(PyObject* raw, ArgumentKey& key, int depth);

bool add_items(PyObject* const* items, Py_ssize_t count, ArgumentKey::Part part, ArgumentKey& key, int depth) {
  key.add_group(part, static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!add_at(items[i], key, depth + 1)) return false;
  }
  return true;
}

bool add_text(PyObject* raw, ArgumentKey::Part part, ArgumentKey& key) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(raw, &size);
  if (!text) return forget_error(), false;
  key.add_text(part, {text, static_cast<size_t>(size)});
  return true;
}

bool add_dict(PyObject* dict, ArgumentKey& key, int depth) {
  key.add_group(ArgumentKey::Part::kKeyword, static_cast<size_t>(PyDict_GET_SIZE(dict)));
  PyObject* name = nullptr;
  PyObject* item = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &name, &item);) {
    if (!PyUnicode_Check(name) || !add_text(name, ArgumentKey::Part::kKeyword, key) || !add_at(item, key, depth + 1)) {
      return false;
    }
  }
  return true;
}

// The objects that convert() makes plain values of, in its order.
bool add_at(PyObject* raw, ArgumentKey& key, int depth) {
  using Part = ArgumentKey::Part;
  if (depth > kMaxDepth) return false;
  if (is_tensor(raw)) return key.add_tensor(THPVariable_Unpack(raw)), true;
  if (raw == Py_None) return key.add(Part::kNone), true;
  if (PyBool_Check(raw)) return key.add(Part::kBool, raw == Py_True), true;
  if (PyLong_Check(raw)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(raw, &overflow);
    key.add(Part::kInt, number);
    return overflow == 0;
  }
  if (PyFloat_Check(raw)) return key.add(Part::kFloat, PyFloat_AS_DOUBLE(raw)), true;
  if (PyUnicode_Check(raw)) return add_text(raw, Part::kText, key);
  if (PyTuple_CheckExact(raw) || THPSize_Check(raw)) {
    const Part part = PyTuple_CheckExact(raw) ? Part::kTuple : Part::kSize;
    return add_items(&PyTuple_GET_ITEM(raw, 0), PyTuple_GET_SIZE(raw), part, key, depth);
  }
  if (PyTuple_Check(raw)) return false;
  if (PyList_Check(raw)) {
    return add_items(reinterpret_cast<PyListObject*>(raw)->ob_item, PyList_GET_SIZE(raw), Part::kList, key, depth);
  }
  if (PyDict_Check(raw)) return add_dict(raw, key, depth);
  if (raw == Py_Ellipsis) return key.add(Part::kEllipsis), true;
  if (PySlice_Check(raw)) {
    auto* slice = reinterpret_cast<PySliceObject*>(raw);
    PyObject* const parts[] = {slice->start, slice->stop, slice->step};
    return add_items(parts, 3, Part::kSlice, key, depth);
  }
  if (THPDtype_Check(raw)) return key.add(Part::kDtype, reinterpret_cast<THPDtype*>(raw)->scalar_type), true;
  if (THPDevice_Check(raw)) return key.add_device(reinterpret_cast<THPDevice*>(raw)->device), true;
  if (THPLayout_Check(raw)) return key.add(Part::kLayout, reinterpret_cast<THPLayout*>(raw)->layout), true;
  if (THPMemoryFormat_Check(raw)) {
    return key.add(Part::kMemoryFormat, reinterpret_cast<THPMemoryFormat*>(raw)->memory_format), true;
  }
  return false;
}

}  // namespace

bool add_to_key(py::handle object, ArgumentKey& key) {
  return add_at(object.ptr(), key, 0);
}

py::str text_of(std::string_view bytes) {
  return decoded(bytes, "surrogateescape");
}

namespace {
std::string encoded(py::handle text, const char* otherwise) {
  const auto bytes = py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", otherwise));
  if (!bytes) throw py::error_already_set();
  return bytes;
}
}  // namespace

std::string path_of(const py::str& text) {
  return encoded(text, "surrogateescape");
}

std::string shown_text(py::handle text) {
  return encoded(text, "backslashreplace");
}

Value to_value(py::handle object) {
  try {
    return convert(object, 0);
  } catch (const std::exception& error) {
    hold_for_program(error);
    forget_error();
    return Unsupported{"object", std::string("it could not be read: ") + error.what()};
  }
}

py::object to_python(const Value& value) {
  return ToPython{"surrogateescape"}.item(value);
}

py::object saved_to_python(const Value& value) {
  return ToPython{"strict"}.item(value);
}

void visit_tensors(py::handle object, c10::function_ref<void(const at::Tensor&)> visit) {
  visit_at(object, visit, 0);
}

std::optional<c10::Device> named_device(py::handle args, py::handle kwargs) {
  const auto device = [](PyObject* raw) -> std::optional<c10::Device> {
    if (raw && THPDevice_Check(raw)) return reinterpret_cast<THPDevice*>(raw)->device;
    return std::nullopt;
  };
  if (kwargs) {
    PyObject* const named = PyDict_GetItemString(kwargs.ptr(), "device");
    if (named && PyUnicode_Check(named)) {
      try {
        return c10::Device(py::handle(named).cast<std::string>());
      } catch (const std::exception&) {
        return std::nullopt;  // no name of a device: the function itself will say so
      }
    }
    if (const auto target = device(named)) return target;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args.ptr()); ++i) {
    if (const auto target = device(PyTuple_GET_ITEM(args.ptr(), i))) return target;
  }
  return std::nullopt;
}

}  // namespace op_tools::python
