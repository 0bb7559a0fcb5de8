// A check as people and programs read it: a line, a row. The same for OpAutoCompare and run_op_from_data. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "compare/call_judge.h"
#include "report/row_file.h"
#include "tensor/value.h"

namespace op_tools {

// OpAutoCompareHook: torch.Tensor.div 0th input grad                    allclose: True    max_diff: 0.000000954
OP_TOOLS_API std::string check_line(const std::string& op, const Check& check);

// The difference, in words; empty where there is none.
OP_TOOLS_API std::string explain(const TensorVerdict& judgement);

// How much of its limit a verdict reached: at least 1 where it differs, infinite where there is no limit to reach.
OP_TOOLS_API double share_of_limit(const TensorVerdict& judgement);

// The columns of a row that come from the check: what, verdict, ..., worst_reference.
OP_TOOLS_API void put_check(const Check& check, RowSink& row);
OP_TOOLS_API std::vector<std::pair<Value, Value>> check_columns(const Check& check);
OP_TOOLS_API std::vector<std::string> check_column_names();

}  // namespace op_tools
