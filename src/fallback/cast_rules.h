// Which dtypes an operator computes in instead of its own: CastSettings (options.h), parsed. Made once
// when a scope is entered; asking is const and thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/export.h"
#include "fallback/moved_tensors.h"
#include "fallback/redirect_options.h"

namespace op_tools {

class OP_TOOLS_API CastRules {
 public:
  // Error that names the variable (or argument) and the item when an item is no "dtype->dtype" of two known dtypes of
  // the same kind (floating, complex, integers), or a dtype is cast twice.
  explicit CastRules(const CastSettings& settings);

  // For torch.nn.functional.linear, aten::linear, torch.Tensor.add_: LINEAR_OP_DTYPE_CAST_DICT, ADD__OP_DTYPE_CAST_DICT
  // where they are set, else the dict for all. Empty when nothing is cast.
  DtypeMap for_op(std::string_view name) const;

 private:
  std::map<std::string, DtypeMap, std::less<>> by_op_;  // by the last part of the name in capitals
  DtypeMap all_;
};

}  // namespace op_tools
