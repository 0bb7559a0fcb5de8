// Functions that torch writes in Python as a few operators, in C++: the same operators in the same order, so that the
// same bits come out. The rules of python_names.cpp name them.
#pragma once

#include <string_view>

#include "run_op_from_data/python_names.h"
#include "tensor/value.h"

namespace op_tools::replay {

// `arguments` are in the order of the rule. nullptr: there is none of that name.
using Composition = Value (*)(const Keywords& arguments);
Composition composition(std::string_view name);

}  // namespace op_tools::replay
