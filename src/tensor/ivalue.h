// Between the dispatcher's values (IValue + schema type) and ours. An IValue alone does not say
// whether an int is a dtype, a layout or a number: the schema's type decides. Called by the
// interceptor (every hooked call, so to_value must be cheap and may not throw) and by replay.
// Thread-safe.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

// `type`: the schema's type of this argument or return (Argument::real_type()). Never throws for a
// valid IValue: a value that has no form becomes Unsupported. A "wrapped number" (the tensor that Python's
// `x + 2` makes of the 2) becomes the number: as a tensor it would lose the mark that keeps it out
// of type promotion.
OP_TOOLS_API Value to_value(const c10::IValue& ivalue, const c10::Type& type);

// Is it a "wrapped number"?
bool is_wrapped_number(const at::Tensor& tensor);

// Whose arguments are bound.
enum class Binding : uint8_t {
  // A Python call's: with the conversions of Python's argument parser, and refusing the values that it refuses
  // (replay chooses an overload by trying each). int and bool -> float; any number -> Scalar;
  // tuple, list, Size -> T[]; int -> int[N], repeated; tensor without dimensions that requires no
  // grad -> number; str and (where there is an accelerator) int -> Device; None -> any optional
  // type. A bool is no int, an int no bool, a str no dtype, a number no tensor.
  kPython,
  // The result of to_value() for a call of the same schema. Besides the above: number -> wrapped number
  // tensor where the schema says Tensor, None -> undefined tensor.
  kDispatcher,
};

// The IValue for `argument`. false when the value does not fit; *why then says so in words. A
// Generator becomes a new CPU generator in the saved state; for another device that device's
// default generator is cloned.
OP_TOOLS_API bool to_ivalue(const Value& value, const c10::Argument& argument, c10::IValue* out, std::string* why,
                            Binding binding = Binding::kPython);

}  // namespace op_tools
