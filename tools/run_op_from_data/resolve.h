// From a captured call's name and arguments to something that runs: an operator of the dispatcher
// with its arguments bound by schema, as Python's argument parser would bind them.
//
// Three kinds of names: aten names (aten::add.Tensor, mylib::op), arguments by schema; torch names
// (torch.Tensor.add, torch.nn.functional.linear), where Python's parameter names and forms count
// (python_names.h holds those that differ); and the recorded aten call, which needs no rules at
// all. A call that cannot be resolved is an Error with the reason. A Resolver is const after construction:
// any thread may ask.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tensor/value.h"

namespace op_tools::replay {

// The function is none of the dispatcher's: Python may be able to call it.
class PythonOnly final : public Error {
 public:
  using Error::Error;
};

// A call with its arguments in place. Runs once: operators may keep or change the values on their
// stack.
struct BoundCall {
  std::string target;            // aten::add.Tensor
  bool random = false;           // the operator draws random numbers (torch's tag nondeterministic_seeded)
  bool uninitialized = false;    // the result has undefined values (empty, new_empty, ...)
  std::function<Value()> run;    // throws the operator's exceptions
  bool returns_nothing = false;  // an in-place operator over lists: its result is in its inputs
  int workspace = -1;            // the result at this place is scratch memory whose padding is never written
  std::shared_ptr<torch::jit::Stack> stack = {};  // the arguments of run(); null: no operator of the dispatcher
};

// The arguments of a call that has not run, by schema position. Throws Error when it is none of the dispatcher's
// operators.
Values arguments_of(const BoundCall& call);

class Resolver {
 public:
  // Reads the names of all operators registered now: load libraries with further operators first.
  Resolver();
  ~Resolver();

  // `recorded`: the tuple (name, args by schema position) under "aten" in input.pth.
  BoundCall bind_recorded(const Value& recorded) const;
  // `args`: a Tuple or List, `kwargs`: a Dict with string keys.
  BoundCall bind(std::string_view name, const Value& args, const Value& kwargs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace op_tools::replay
