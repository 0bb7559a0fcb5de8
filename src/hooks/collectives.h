// Operators of torch.distributed that all ranks of a process group call together: which group a call belongs to. With
// the number of a call in its group, the files of several ranks say which rank is behind, and where they disagree. And
// when the results of such a call have arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hooks/op_call.h"

namespace op_tools {

// In after(): the collective's results may not have arrived yet; the program waits for its Work, or calls wait_tensor,
// before it reads it. A call that the program itself waits for (async_op=False) has been waited for, unless it is put
// together with others and begins later.
OP_TOOLS_API bool brings_later(OpCall& call);
// wait_tensor: the results of an earlier call have arrived after it, and not before.
OP_TOOLS_API bool waits_for_collective(const OpCall& call);

// By the schema: the operator takes a process group, and all of its ranks call it.
bool is_collective(const OpCall& call);
struct ProcessGroupOfCall {
  std::string name;             // "0, 4 ranks": the same on all ranks; empty: not known
  std::optional<int64_t> rank;  // of this process among all: where it is the default group
};
// Of a call that is_collective(), in before().
ProcessGroupOfCall process_group_of(OpCall& call);
// How it reduces the ranks' inputs, where an object says that: "sum"; empty: not known, or it does not.
std::string reduction_of(OpCall& call);
// What the ranks must agree on beside their tensors: "sum", "root 2", "sum, root 0"; empty: nothing, or it is not
// known.
std::string reduction_and_root_of(OpCall& call);

}  // namespace op_tools
