// The aten level: intercepts operators in torch's dispatcher and passes them to the chain of the calling thread.
// Used by scopes (OpenOps) and by the torch-level source (AtenWatch). How and why: docs/architecture.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "hooks/op_call.h"
#include "tensor/value.h"

namespace c10 {
struct IValue;
class KernelFunction;
}  // namespace c10

namespace op_tools::interceptor {

// Puts the boxed kernel in place, once per process. Error when another library owns the dispatch key.
OP_TOOLS_API void install();

// Operators that a scope intercepts: their dispatch entries lead to our kernel while this object lives. Entries of the
// other operators become fallthroughs, but only while no other scope is on (see architecture.md).
class OpenOps {
 public:
  // `wants(name, composite)` is asked for every operator known now; operators registered later are always intercepted.
  explicit OpenOps(const std::function<bool(std::string_view name, bool composite)>& wants);
  ~OpenOps();
  OpenOps(const OpenOps&) = delete;
  OpenOps& operator=(const OpenOps&) = delete;

 private:
  std::vector<bool> wanted_;  // by operator index
};

// Stands around Python's handler of a call (bindings/python_handlers.h): the handler's calls are intercepted if the
// call itself was let pass, and is a part of a hooked call if not.
class OP_TOOLS_API InsidePythonHandler {
 public:
  InsidePythonHandler();
  ~InsidePythonHandler();
  InsidePythonHandler(const InsidePythonHandler&) = delete;
  InsidePythonHandler& operator=(const InsidePythonHandler&) = delete;

 private:
  const bool sees_, passes_;
};

// Watches the aten operators that this thread calls while an object lives, outermost operators only: a torch-level call
// that is a single aten operator can then be replayed without Python. The scope must have opened all operators.
class OP_TOOLS_API AtenWatch {
 public:
  AtenWatch();
  ~AtenWatch();
  AtenWatch(const AtenWatch&) = delete;
  AtenWatch& operator=(const AtenWatch&) = delete;

  // Tuple(name, Tuple(arguments by schema position)) when exactly one operator ran and its value is `result`;
  // None otherwise.
  Value whole_call(const Value& result) const;

 private:
  friend class WatchedOp;
  AtenWatch* const outer_;
  const bool was_intercepting_;
  bool inside_ = false;  // an operator is running: its inner calls are part of it
  int count_ = 0;
  bool has_effect_ = false;  // the operator writes arguments, or returns nothing
  Value name_, args_;
  Value returned_;
};

// OpCall::frame() at the aten level, for executors: the operator's values as torch holds them, which a Value
// tree cannot give (a live generator, a list's element type).
class OP_TOOLS_API OperatorFrame : public Frame {
 public:
  virtual std::vector<c10::IValue> arguments() const = 0;  // by schema position; not after proceed()
  // Makes args() and kwargs() available after the operator ran, as they were before, at less cost than building them.
  // False, and nothing is stored, where an argument may change by then (a generator) or is anything else than tensors,
  // scalars, strings and lists of them.
  virtual bool copy_arguments() = 0;
  // In place of proceed(), or after it raised: the operator's results, by schema position.
  virtual void set_returns(std::vector<c10::IValue> returns) = 0;
  // After proceed() raised: the arguments are unchanged, it may be called again.
  virtual void set_arguments(std::vector<c10::IValue> arguments) = 0;
};

// Runs the operator on other arguments, past the interceptor.
OP_TOOLS_API std::shared_ptr<const OpRunner> runner_of(const c10::OperatorHandle& op);

// Hands the operators that this thread calls to an executor while an object lives, outermost operators only: how an
// executor of torch-level calls works on the operators that a call makes, where autocast has cast, views are views and
// every argument is in the schema. Composite operators are handed over as a whole, except under autocast where it would
// cast inside them. The hook must want aten_ops (hook.h).
class OP_TOOLS_API Detour {
 public:
  using Takes = std::function<bool(const c10::OperatorHandle&)>;  // false: intercept the operator's inner calls instead
  using Execute = std::function<void(OpCall&)>;                   // as Hook::execute(); its frame is an OperatorFrame
  Detour(Takes takes, Execute execute);
  ~Detour();
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;

  const Takes takes;
  const Execute execute;
  const bool inside_call;  // made inside an intercepted operator: no other hook sees its calls

 private:
  Detour* const outer_;
  const bool was_intercepting_;
};

// Names of all operators that the dispatcher knows now, sorted; `composite`: CompositeImplicitAutograd.
struct KnownOp {
  std::string name;
  bool composite;
};
OP_TOOLS_API std::vector<KnownOp> known_ops();

// How often this thread entered the kernel, for operators admitted or not: tests prove with it that left-out operators
// never reach us.
OP_TOOLS_API uint64_t kernel_entries();

}  // namespace op_tools::interceptor
