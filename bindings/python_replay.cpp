#include "python_replay.h"

#include <pybind11/stl.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "error_text.h"
#include "interrupts.h"
#include "python_values.h"
#include "run_op_from_data/replay.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "torch_function_mode.h"

namespace op_tools::python {
namespace {

// Calls torch functions by name. `find` (op_tools/_torch/python_functions.py) decides which names there are: it gives
// the function or None. The engine calls from its own threads without the GIL.
class Caller final : public replay::PythonCaller {
 public:
  explicit Caller(py::object find) : find_(std::move(find)) {}

  bool knows(std::string_view name) override {
    return in_python([&] { return !find_(std::string(name)).is_none(); });
  }

  Value call(std::string_view name, const Value& args, const Value& kwargs) override {
    return in_python([&] {
      const py::object function = find_(std::string(name));
      // Replay passes the call to the tools that are on; intercepted again by the torch-function mode, it would count
      // twice.
      const WithoutTorchFunction once;
      return to_value(function(*py::tuple(to_python(args)), **py::dict(to_python(kwargs))));
    });
  }

  bool is_interrupted() override {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return interrupted_;
    forget_error();  // held: thrown where Python called
    return true;
  }

 private:
  template <class Code>
  auto in_python(Code&& code) -> decltype(code()) {
    const py::gil_scoped_acquire gil;
    try {
      return code();
    } catch (const py::error_already_set& error) {
      interrupted_ = hold_for_program(error) || interrupted_;
      // Its text only: the exception object must not die where there is no GIL.
      throw std::runtime_error(text_of_error(error));
    }
  }

  std::atomic<bool> interrupted_{false};  // an exception for the program ended a call
  py::object find_;  // lives as long as the Python call that made this, so it dies with the GIL held
};

}  // namespace

void bind_replay(py::module_& module) {
  module.def(
      "run_op_from_data",
      [](const std::vector<std::string>& arguments, py::object find) {
        Caller caller(std::move(find));
        int status = 0;
        {
          const py::gil_scoped_release no_gil;
          status = replay::run_command(arguments, &caller);
        }
        throw_held();
        return status;
      },
      py::arg("arguments"), py::arg("find"));
  // Whether a call makes a tensor on torch's default device: it names none.
  module.def(
      "leaves_device_open",
      [](const std::string& name, const py::object& args, const py::object& kwargs) {
        return replay::leaves_device_open(name, to_value(args), to_value(kwargs));
      },
      py::arg("name"), py::arg("args"), py::arg("kwargs"));
  // A call as the dispatcher's operator behind it: its name, and its arguments by schema position. `recorded`: the
  // tuple under "aten" in input.pth, or None. op_tools.Error: Python alone knows the function.
  module.def(
      "operator_of_call",
      [](const std::string& name, const py::object& args, const py::object& kwargs, const py::object& recorded) {
        const replay::Resolver resolver;
        const Value aten = to_value(recorded);
        const replay::BoundCall bound =
            aten.is<None>() ? resolver.bind(name, to_value(args), to_value(kwargs)) : resolver.bind_recorded(aten);
        return py::make_tuple(bound.target, to_python(make_list(replay::arguments_of(bound))));
      },
      py::arg("name"), py::arg("args"), py::arg("kwargs"), py::arg("recorded"));
}

}  // namespace op_tools::python
