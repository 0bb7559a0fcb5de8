// Between the dispatcher's values (IValue + schema type) and ours. An IValue alone does not say whether an int is a
// dtype, a layout or a number: the schema's type decides.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/function_schema.h>

#include <string>

#include "hooks/export.h"
#include "hooks/value.h"

namespace op_tools {

// `type`: the schema's type of this argument or return (Argument::real_type()). Never throws for a valid IValue: what
// has no form becomes Unsupported.
OP_TOOLS_API Value to_value(const c10::IValue& ivalue, const c10::Type& type);

// The IValue for an argument of `type`, with the conversions that Python's argument parser makes: int -> float, int ->
// complex, number -> Scalar, tuple -> list, int -> int[N] (repeated), Tensor of one element -> Scalar where the parser
// does, str -> dtype/layout/memory format/device, None -> undefined tensor for Tensor?.
// false when the value does not fit; *why then says so in words.
OP_TOOLS_API bool to_ivalue(const Value& value, const c10::Argument& argument, c10::IValue* out, std::string* why);

}  // namespace op_tools
