// How far a result may be from its reference: the one table of numbers (version kToleranceVersion)
// and its overrides from the environment. Code, documentation and tests read the numbers here.
//
//   AUTOCOMPARE_ERROR_TOLERANCE="1e-3,1e-3"                  every inexact dtype: "atol,rtol"
//   AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16="1e-2,1e-2"         one dtype (FLOAT16, BFLOAT16, FLOAT32,
//   FLOAT64) LINEAR_AUTOCOMPARE_ERROR_TOLERANCE[_FLOAT16]="1e-3,0"    one op, by the last part of
//   its name in capitals
//
// The more exact name wins: op and dtype, op, dtype, all. Immutable after construction: any thread
// may ask.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <string_view>

#include "hooks/export.h"

namespace op_tools {

constexpr int kToleranceVersion = 1;

struct Tolerance {
  double atol = 0;
  double rtol = 0;  // of the golden value: |result - golden| <= atol + rtol * |golden|
};

class OP_TOOLS_API ToleranceTable {
 public:
  // Throws Error that names variable and value when one of the variables above is not "atol,rtol".
  static ToleranceTable from_environment();
  ToleranceTable() = default;  // the table alone

  // `dtype`: of the golden tensor. Complex dtypes are judged as their parts; integers and bool are
  // exact always.
  Tolerance allclose(std::string_view op_name, c10::ScalarType dtype) const;

 private:
  std::map<std::string, Tolerance, std::less<>> overrides_;  // by the variable's name
};

}  // namespace op_tools
