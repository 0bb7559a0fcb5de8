// The arguments that a call writes: a common answer for captures, saved calls, executors, comparisons and the simulated
// device. In this order: those that the operator's schema declares; those that operators write although their schemas
// do not say so (the running statistics of batch_norm in training); at the torch level, which has no schemas, the
// schema of the operator with the function's name, and the forms of Python's calls (add_, __iadd__, out=,
// inplace=True).
//
// To detect undeclared writes after a call, compare the version counters as well.
// Any thread.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "hooks/op_call.h"

namespace c10 {
struct FunctionSchema;
class OperatorHandle;
}  // namespace c10

namespace op_tools {

// Positions among the arguments of an operator's schema.
struct WrittenArguments {
  std::vector<size_t> declared;     // by the schema: these move version counters
  std::vector<size_t> undeclared;   // written without the schema, or a version counter, saying so
  std::optional<size_t> condition;  // `undeclared` are written where this argument is true; none: always

  // Of a call with these arguments.
  OP_TOOLS_API bool writes_undeclared(c10::ArrayRef<c10::IValue> arguments) const;
};

// Reads the whole schema: callers that ask for each call remember the answer.
OP_TOOLS_API WrittenArguments written_arguments(const c10::OperatorHandle& op);

// By input tensor (of args, then of kwargs): does the call write it? Empty: it writes none.
OP_TOOLS_API std::vector<bool> written_inputs(OpCall& call);

// It works in place on lists of tensors. Not all of these move version counters (_fused_adam_ does not).
bool writes_lists(const OpCall& call);

// Its operator writes past the version counters: undeclared, or declared by a library that has no
// kernel of autograd's for it. Asked once for each operator or function.
bool writes_uncounted(const OpCall& call);
// Its operator's schema declares a write.
bool writes_declared(const OpCall& call);
// It shows an argument's elements in another way, and reads none of them: view, detach. Asked once for each name.
bool gives_views(const OpCall& call);
bool gives_views(const c10::FunctionSchema& schema);

// The writes beside schemas and forms, in words: "running_mean running_var where training". Empty: nothing.
OP_TOOLS_API std::string undeclared_writes_of(std::string_view op_name);

}  // namespace op_tools
