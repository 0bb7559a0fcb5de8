// What a tool implements. One Hook serves many calls on many threads at once, so it holds options and results only:
// what belongs to one call travels in OpCall and in the state that before() returns.
//
// Order for one call: before() of each observer in the order of their scopes, the executor (or the operator itself),
// after() in reverse order; innermost hooks (a stopwatch) stand between the others and the operator. A call that raised
// comes to after() with call.error set. Backward of a torch-level call is a second OpCall (same id, phase kBackward)
// through the same hooks, after the gradients are known. A Hook may throw: the chain logs it once, counts it and
// switches that hook off; the operator is not affected. While a hook runs, neither interceptor sees the operators that
// it calls, and autograd records nothing.
#pragma once

#include <memory>
#include <string_view>

#include "base/export.h"
#include "hooks/op_call.h"

namespace op_tools {

// What a hook needs a source to keep or to do for it; nothing unasked is done.
struct Wants {
  bool gradients = false;  // torch level: call me for the backward pass of each call too
  bool aten_call = false;  // torch level: find the aten call behind the call (Frame::aten_call)
  bool nodes = false;      // torch level: after() calls OpCall::watch_nodes()
};

class OP_TOOLS_API HookState {
 public:
  virtual ~HookState() = default;
};

class OP_TOOLS_API Hook {
 public:
  virtual ~Hook() = default;
  virtual std::string_view name() const = 0;  // "OpCapture": appears in messages
  virtual Wants wants() const { return {}; }

  virtual std::unique_ptr<HookState> before(OpCall& call);
  virtual void after(OpCall& call, HookState* state);

  // Its before() is the last and its after() the first: nothing of other hooks comes between it and the operator.
  virtual bool is_innermost() const { return false; }

  // An executor runs the operator in place of the source: it must call frame().proceed() (on whatever inputs it put
  // there) or throw. Of several executors that admit a call the innermost scope's wins.
  virtual bool is_executor() const { return false; }
  virtual void execute(OpCall& call) { call.frame().proceed(); }

  // What the tool recorded so far: a Dict with at least "rows", a List of Dicts with string keys. None: it records
  // nothing. Any thread.
  virtual Value report() const { return {}; }
  // Waits until everything recorded so far is where it belongs (on disk). Any thread.
  virtual void flush() {}

  // The scope's step() was called: `step` has begun. Any thread.
  virtual void step_begins(int64_t step);

  // The scope that holds the hook was left; all calls of this thread are through. May be followed by more calls of
  // other threads, or by backward passes of calls made inside the scope. Flush here.
  virtual void scope_left() {}
};

}  // namespace op_tools
