#include "python_timing.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "python_values.h"
#include "tensor/internal_guard.h"
#include "tensor/profiler.h"
#include "timing/time_report.h"

namespace op_tools::python {
namespace {

// count(op, is_backward, args, kwargs) -> int
void set_flop_counter(const py::object& count) {
  // Never freed: tools ask until the process ends.
  PyObject* const function = py::object(count).release().ptr();
  set_flop_source([function](std::string_view op, Phase phase, const Value& sample) -> int64_t {
    if (!Py_IsInitialized()) return -1;
    const py::gil_scoped_acquire gil;
    // Formulas are asked by running the operator on meta tensors: neither a tool nor a profiler may see
    // that.
    const c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
    const ProfilerPause unprofiled;
    try {
      const auto values = to_python(sample).cast<py::tuple>();
      return py::handle(function)(py::str(op.data(), op.size()), phase == Phase::kBackward, values[0], values[1])
          .cast<int64_t>();
    } catch (const std::exception& error) {
      log::debug("no operation count of " + std::string(op) + ": " + error.what());
      return -1;
    }
  });
}

}  // namespace

void bind_timing(py::module_& module) {
  module.def("set_flop_counter", &set_flop_counter);
}

}  // namespace op_tools::python
