// What is known of operators by name, as far as tools need it. Names of both levels count alike:
// aten::max.dim, torch.max and torch.Tensor.max are all "max". Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace c10 {
class OperatorHandle;
}

namespace op_tools {

// aten::add_.Tensor -> add_, torch.nn.functional.linear -> linear, torch.Tensor.real.__get__ -> real,
// torch.ops.aten.add.Tensor -> add
OP_TOOLS_API std::string_view base_name(std::string_view op_name);

// The result is memory as it was found: empty, new_empty, empty_like, ...
OP_TOOLS_API bool returns_uninitialized(std::string_view base_name);
// The result at this place is scratch memory whose padding is never written; -1: none.
OP_TOOLS_API int workspace_of(std::string_view base_name);
// The strides of the results are the backend's own choice.
OP_TOOLS_API bool backend_picks_strides(std::string_view base_name);
// It answers about the device, so the CPU answers otherwise.
OP_TOOLS_API bool asks_about_device(std::string_view base_name);
// The order of the results is not defined.
OP_TOOLS_API bool returns_unordered(std::string_view base_name);
// It decomposes a matrix: its vectors are known up to a sign, or a phase, that each backend is free to choose.
OP_TOOLS_API bool is_sign_ambiguous(std::string_view base_name);
// An integer result names elements of the first argument: equal elements may be named in any order. False: not so.
OP_TOOLS_API bool returns_indices(std::string_view base_name);

// Other processes take part in it, named as a whole: c10d::allreduce_, torch.distributed.distributed_c10d.all_reduce.
OP_TOOLS_API bool is_collective(std::string_view op_name);

// A factory (rand, ones_like): torch makes a variable of what it returned, afterwards. The program gets that tensor as
// long as nobody else has it, or its counter of versions; else a copy, which torch.jit.trace does not know.
OP_TOOLS_API bool makes_variable(const c10::OperatorHandle& op);

// About how many elements go into one element of the result.
OP_TOOLS_API int64_t reduced_elements(std::string_view base_name, const std::vector<at::Tensor>& inputs,
                                      const at::Tensor& result);

}  // namespace op_tools
