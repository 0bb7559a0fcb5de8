// Runs an operator of the dispatcher elsewhere than where its tensors are (on the CPU) or in other dtypes, and makes it
// look as if it had run in its place: results on the device with the strides they were given, dtypes narrowed back, an
// input that is returned is that input, a view of an input is that view, in-place and out= arguments written back (and
// resized), random numbers from the device's generator. Moves are part of the autograd graph, so gradients flow through
// them and the backward of the operator runs elsewhere too. Executors are made of this. Thread-safe.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

#include "base/export.h"
#include "fallback/moved_tensors.h"
#include "hooks/interceptor.h"

namespace op_tools {

struct Elsewhere {
  bool to_cpu = true;       // false: on the tensors' own device
  bool on_copies = false;   // there: on copies of the tensors, with the device idle before and after
  DtypeMap cast = nullptr;  // empty: dtypes as they are
};

struct Redirected {
  enum class Outcome : uint8_t { kRan, kNothingToDo, kRefused } outcome = Outcome::kRan;
  std::string why;   // kRefused
  size_t bytes = 0;  // moved, both ways
};

// Why an operator is never redirected (a view, a factory, a collective, ...); empty when it can be.
OP_TOOLS_API const std::string& why_not_redirected(const c10::OperatorHandle& op);

// The answer of redirect() before it runs anything.
OP_TOOLS_API Redirected would_redirect(const c10::OperatorHandle& op, const interceptor::OperatorFrame& frame,
                                       const Elsewhere& elsewhere);

// Nothing of the program has changed when it did not run: the caller then runs the operator where it belongs. Throws
// the operator's exceptions.
OP_TOOLS_API Redirected redirect(const c10::OperatorHandle& op, interceptor::OperatorFrame& frame,
                                 const Elsewhere& elsewhere);

// Does the operator change inputs in place? (An out= argument is no input: its old values do not matter.)
OP_TOOLS_API bool changes_inputs(const c10::OperatorHandle& op);

// The inputs that an operator changes in place, saved so that an attempt that failed half-way can be undone. Without
// history and without being noticed by autograd: for an attempt that autograd has not recorded.
class OP_TOOLS_API InPlaceBackup {
 public:
  InPlaceBackup(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;  // the program's tensor, its values
};

}  // namespace op_tools
