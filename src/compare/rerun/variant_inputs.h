// What a float64 run is made of: the dtypes, and inputs that are changed a little to see how exactly a result can be
// known.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "base/export.h"
#include "compare/rerun/run_outcome.h"
#include "tensor/value.h"

namespace op_tools {

// float64 for every inexact dtype, complex128 for complex ones, others as they are.
OP_TOOLS_API c10::ScalarType golden_dtype(c10::ScalarType dtype);

// Changes copies of a call's inputs, storage by storage, below every operator: aliases stay aliases, and neither
// expanded dimensions nor versions are in the way. Copies in float64 change by less than the rounding of the originals
// (`kind` says which), those in their own dtypes (kShaken) by about one unit. `originals`: in their own dtypes, in the
// same order; `autocast`: the dtype to which the call rounds them, where it does.
OP_TOOLS_API void perturb(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals,
                          const RunVariant& variant, std::optional<c10::ScalarType> autocast);

// Numbers among a call's arguments as float32 holds them, which is how an operator on float32 tensors reads them: x //
// 0.1 steps where float32's 0.1 goes into x. False where that changes nothing, or where a tensor is in float64.
OP_TOOLS_API bool round_scalars_to_float32(Value& args, Value& kwargs, const std::vector<at::Tensor>& tensors);

}  // namespace op_tools
