#include "graph_program.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim_device/graph_program.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;
using sim_device::GraphProgram;
using sim_device::ProgramArgument;
using sim_device::ProgramCall;

struct Register {
  size_t number;
};

// Inputs and results of a graph: tensors, sizes, numbers. (torch's function for any value is not exported.)
c10::IValue value_of(const py::handle value) {
  if (value.is_none()) return {};
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  throw py::type_error("a graph takes and gives tensors and numbers, not " + py::repr(value).cast<std::string>());
}

bool has_registers(const py::handle value) {
  if (py::isinstance<Register>(value)) return true;
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) return false;
  return std::any_of(py::iter(value), py::iterator::sentinel(), has_registers);
}

ProgramArgument argument_of(const py::handle value, const c10::TypePtr& type) {
  if (py::isinstance<Register>(value)) return ProgramArgument::of_register(value.cast<Register>().number, type);
  if (!has_registers(value)) return ProgramArgument::of_constant(torch::jit::toIValue(value, type));
  c10::TypePtr list = type;
  if (const auto optional = list->cast<c10::OptionalType>()) list = optional->getElementType();
  const c10::TypePtr element = list->expectRef<c10::ListType>().getElementType();
  std::vector<ProgramArgument> items;
  for (const py::handle item : value) items.push_back(argument_of(item, element));
  return ProgramArgument::of_list(std::move(items), element);
}

// `args` and `kwargs` as a program gives them to the operator; the defaults of the schema are filled in.
ProgramCall call_of(const std::string& name, const std::string& overload, const py::tuple& args, const py::dict& kwargs,
                    std::vector<size_t> results, std::vector<size_t> dead) {
  const auto known = torch::jit::findOperatorFor({name, overload});
  if (!known) throw std::invalid_argument("torch has no operator " + name + "." + overload);
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  ProgramCall call{known->getOperation(), {}, std::move(results), std::move(dead)};
  const auto& parameters = known->schema().arguments();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const py::str key(parameters[i].name());
    if (i < args.size()) {
      call.arguments.push_back(argument_of(args[i], parameters[i].type()));
    } else if (kwargs.contains(key)) {
      call.arguments.push_back(argument_of(kwargs[key], parameters[i].type()));
    } else if (parameters[i].default_value()) {
      call.arguments.push_back(ProgramArgument::of_constant(*parameters[i].default_value()));
    } else {
      throw std::invalid_argument(name + " lacks its argument " + parameters[i].name());
    }
  }
  return call;
}

// calls: (name, overload, args, kwargs, results, dead) each.
std::unique_ptr<GraphProgram> program_of(size_t inputs, size_t registers, const py::list& calls,
                                         const py::list& outputs) {
  std::vector<ProgramCall> all;
  for (const py::handle item : calls) {
    const auto call = item.cast<py::tuple>();
    all.push_back(call_of(call[0].cast<std::string>(), call[1].cast<std::string>(), call[2], call[3],
                          call[4].cast<std::vector<size_t>>(), call[5].cast<std::vector<size_t>>()));
  }
  std::vector<ProgramArgument> results;
  for (const py::handle output : outputs) {
    const bool is_register = py::isinstance<Register>(output);
    results.push_back(is_register ? ProgramArgument::of_register(output.cast<Register>().number, nullptr)
                                  : ProgramArgument::of_constant(value_of(output)));
  }
  return std::make_unique<GraphProgram>(inputs, registers, std::move(all), std::move(results));
}

py::tuple run(const GraphProgram& program, const py::args& inputs) {
  std::vector<c10::IValue> values;
  values.reserve(inputs.size());
  for (const py::handle input : inputs) values.push_back(value_of(input));
  try {
    {
      const py::gil_scoped_release others;
      values = program.run(std::move(values));
    }
  } catch (py::error_already_set&) {
    throw;  // of an operator in Python
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());  // IndexError stays IndexError
    throw py::error_already_set();
  }
  py::tuple results(values.size());
  for (size_t i = 0; i < values.size(); ++i) results[i] = torch::jit::toPyObject(std::move(values[i]));
  return results;
}

}  // namespace

void bind_graph_program(py::module_& module) {
  py::class_<Register>(module, "Register", "The value of a register, in the arguments of a call.")
      .def(py::init([](size_t number) { return Register{number}; }))
      .def_property_readonly("number", [](const Register& self) { return self.number; })
      .def("__repr__", [](const Register& self) { return "r" + std::to_string(self.number); });
  py::class_<GraphProgram>(module, "GraphProgram", "Calls of operators on registers, run by a single call.")
      .def(py::init(&program_of), py::arg("inputs"), py::arg("registers"), py::arg("calls"), py::arg("outputs"))
      .def("run", &run);
}

}  // namespace op_tools::python
