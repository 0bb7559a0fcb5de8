// The Python extension op_tools._sim: the simulated accelerator, for op_tools/sim_device. Loads nothing by itself.
#include <ATen/Context.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph_program.h"
#include "sim_device/sim_device.h"

namespace py = pybind11;

namespace {

at::Generator generator(int device) {
  return at::globalContext().defaultGenerator(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
}

// Waiting for the device lets other threads run: a kernel of a custom operator may be written in Python.
using NoGil = py::call_guard<py::gil_scoped_release>;

py::dict statistics_dict(int device) {
  const op_tools::sim_device::Statistics all = op_tools::sim_device::statistics(device);
  py::dict numbers;
  numbers["calls"] = all.calls;
  numbers["asynchronous"] = all.asynchronous;
  numbers["views"] = all.views;
  numbers["allocations"] = all.allocations;
  numbers["live_allocations"] = all.live_allocations;
  numbers["allocated_bytes"] = all.allocated_bytes;
  numbers["peak_bytes"] = all.peak_bytes;
  return numbers;
}

}  // namespace

PYBIND11_MODULE(_sim, module) {
  using namespace op_tools::sim_device;  // NOLINT: a single module function
  module.doc() = "The simulated accelerator. Use op_tools.sim_device, not this module.";
  module.attr("DEVICES") = kDevices;
  module.def("load", &load);
  module.def("is_loaded", &is_loaded);
  module.def("set_asynchronous", &set_asynchronous, NoGil());
  module.def("is_asynchronous", &is_asynchronous);
  module.def("set_rounding", &set_rounding, NoGil());
  module.def("is_rounding", &is_rounding);
  module.def("manual_seed", &manual_seed);
  module.def("initial_seed", [](int device) { return generator(device).current_seed(); });
  module.def("get_rng_state", [](int device) { return generator(device).get_state(); });
  module.def("set_rng_state", [](int device, const at::Tensor& state) { generator(device).set_state(state); });
  module.def("in_forked_child", &in_forked_child);
  module.def("finish", &finish, NoGil());
  module.def("synchronize", &synchronize, NoGil());
  module.def("reset_peak", &reset_peak);
  module.def("fault_kinds", &fault_kinds);
  module.def("faults_clear", &faults_clear);
  module.def("statistics", &statistics_dict);

  py::class_<Fault>(module, "Fault")
      .def(py::init([](std::string kind, std::string ops, std::optional<std::tuple<int64_t, int64_t, int64_t>> calls,
                       double probability, uint64_t seed, std::optional<double> scale, std::optional<int64_t> size,
                       std::optional<double> microseconds) {
        FaultOptions options;
        options.kind = std::move(kind);
        options.ops = std::move(ops);
        if (calls) options.calls = CallRange{std::get<0>(*calls), std::get<1>(*calls), std::get<2>(*calls)};
        options.probability = probability;
        options.seed = seed;
        options.scale = scale;
        options.size = size;
        options.microseconds = microseconds;
        return std::make_unique<Fault>(std::move(options), /*started=*/false);
      }))
      .def("start", &Fault::start)
      .def("stop", &Fault::stop)
      .def_property_readonly("matched", &Fault::matched)
      .def_property_readonly("hits", &Fault::hits)
      .def_property_readonly("log", &Fault::log);

  py::class_<Latency>(module, "Latency")
      .def(py::init([](const std::vector<std::pair<std::string, double>>& microseconds) {
        return std::make_unique<Latency>(microseconds, /*started=*/false);
      }))
      .def("start", &Latency::start)
      .def("stop", &Latency::stop);
  op_tools::python::bind_graph_program(module);
}
