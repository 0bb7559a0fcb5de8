#include "python_judge.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <utility>

#include "compare/check_format.h"
#include "compare/judge.h"
#include "compare/metrics/tolerance.h"
#include "python_values.h"
#include "tensor/internal_guard.h"

namespace op_tools::python {
namespace {

// All tensors on the CPU. `golden`, `perturbed` (of a sample's number and its coarseness): functions that give a tensor
// or None. Returns the columns of a row of OpAutoCompare, and `share`: of the limit that was reached.
py::object judge_tensors(const at::Tensor& result, const std::optional<at::Tensor>& reference, const py::object& golden,
                         const py::object& perturbed, const std::string& method, bool nan_equal, int64_t reduced) {
  // Neither the tools that are on nor autograd may see the judge's calls.
  const InternalGuard guard;
  const ToleranceTable tolerances = ToleranceTable::from_environment();
  JudgeContext context;
  context.method = method_from_string("method=", method);
  context.tolerances = &tolerances;
  context.nan_equal = nan_equal;
  context.reduced = reduced;
  if (!golden.is_none()) {
    context.golden = [&](std::string* why) {
      const py::object value = golden();
      if (value.is_none()) *why = "the float64 run has no such tensor";
      return value.is_none() ? at::Tensor() : value.cast<at::Tensor>();
    };
  }
  if (!perturbed.is_none()) {
    context.perturbed = [&](int sample, bool coarse) {
      const py::object value = perturbed(sample, coarse);
      return value.is_none() ? at::Tensor() : value.cast<at::Tensor>();
    };
  }
  Check check;
  check.form = TensorMeta::of(result);
  check.judgement = judge(result, reference.value_or(at::Tensor()), context);
  auto columns = check_columns(check);
  columns.emplace_back("share", share_of_limit(check.judgement));
  columns.emplace_back("explained", explain(check.judgement));
  return to_python(make_dict(std::move(columns)));
}

}  // namespace

void bind_judge(py::module_& module) {
  module.def("judge_tensors", &judge_tensors, py::arg("result"), py::arg("reference"), py::kw_only(), py::arg("golden"),
             py::arg("perturbed"), py::arg("method"), py::arg("nan_equal"), py::arg("reduced"));
}

}  // namespace op_tools::python
