// Host::flops(): torch's formulas for floating point operations, which only Python knows.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string_view>

#include "hooks/op_call.h"

namespace op_tools::python {

int64_t flops_in_python(std::string_view op, Phase phase, const Value& sample);

void bind_timing(pybind11::module_& module);

}  // namespace op_tools::python
