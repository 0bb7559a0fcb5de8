// Operators of torch.distributed that all ranks of a process group call together: which group a call belongs to. With
// the number of a call in its group, the files of several ranks say which rank is behind, and where they disagree.
#pragma once

#include <string>

#include "hooks/op_call.h"

namespace op_tools {

// By the schema: the operator takes a process group, and all of its ranks call it.
bool is_collective(const OpCall& call);
// "0, 4 ranks": the name is the same on all ranks. Of a call that is_collective(), in before(). Empty: not known.
std::string process_group_of(OpCall& call);

}  // namespace op_tools
