// The class that a tool implements. One Hook serves many calls on many threads at once, so it holds options and results
// only: the data of a call travels in OpCall and in the state that before() returns.
//
// Order for a call: before() of each observer in the order of their scopes, the executor (or the operator itself),
// after() in reverse order; innermost hooks (a stopwatch) stand between the others and the operator. A call that raised
// comes to after() with call.error set. Backward of a torch-level call is a second OpCall (same id, phase kBackward)
// through the same hooks, after the gradients are known. A Hook may throw: the chain logs it once, counts it and
// switches that hook off; the operator is not affected. While a hook runs, neither interceptor sees the operators that
// it calls, and autograd records nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"
#include "hooks/op_call.h"

namespace op_tools {

struct Coverage;

// The needs of a hook from sources and the chain. Work that no hook wants is not done.
struct Wants {
  bool inputs_after = false;  // OpCall::args() and kwargs() are read in after(): the operator consumes its arguments
  bool gradients = false;     // torch level: before() and after() are called for the backward passes of each call, too
  // With gradients: they are read in after() only, or stored beside their versions. If all hooks of a call want it so,
  // the engine's own gradients are passed without a copy (CallGradients in autograd/gradients.h).
  bool borrows_gradients = false;
  bool failed_backward =
      false;               // with gradients: after() is called for passes that raised in the call, too, with an error
  bool aten_call = false;  // torch level: Frame::aten_call() is read in after()
  bool aten_ops = false;   // torch level: the hook intercepts the aten operators of its calls itself (Detour)
  bool gradient_sums =
      false;             // torch level: also the additions of gradients between calls (gradient_sums.h), as aten calls
  bool nodes = false;    // torch level: after() calls OpCall::watch_nodes()
  bool modules = false;  // torch level: calls of modules (is_module_call), and no functions
  bool graphs = false;   // torch level: a graph of torch.compile is a call of the hook, too (CompiledGraphs::kCheck)
  // Reads values of the device's tensors, or waits for them: takes no part in calls that are recorded into a graph.
  bool device_values = false;
  bool progress = false;  // a line on a terminal says how many calls it saw; not for a tool that draws its own
};

class OP_TOOLS_API HookState {
 public:
  virtual ~HookState() = default;

  // Of a state that OpCall::save_for_backward() was given: the part that must stay alive while a backward pass over the
  // call runs. Autograd frees a node's saved tensors as soon as the node has run, which is before the hook is called.
  // Called by the engine's thread before the call's first node runs; freed when the pass was reported. May throw
  // StopProgram only.
  virtual std::shared_ptr<void> hold_during_backward() const { return nullptr; }
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

  // The records of the tool so far: a Dict with at least "rows", a List of Dicts with string keys. None: it records
  // nothing. Any thread.
  virtual Value report() const { return {}; }
  // Adds the tool's counts to the account of its run (coverage/coverage.h): results judged and not judged, losses,
  // devices. Any thread.
  virtual void add_coverage(Coverage& account) const;
  // Where the files of the run are; empty: it has no folder of its own. Its account is written there. Any thread.
  virtual std::string folder() const { return {}; }
  // The run ends, before scope_left(): for a hook that writes the account to a place of its own, which asks for it
  // here. Not under locks of the hook: it asks the program's language.
  virtual void run_ends(const std::function<Coverage()>& account);
  // Waits until everything recorded so far is where it belongs (on disk). Any thread.
  virtual void flush() {}

  // The scope's step() was called: `step` has begun. Any thread.
  virtual void step_begins(int64_t step);

  // In a forked child of the process, before anything else is done there: true if the hook made itself new, and sees
  // the calls of the child, too; else it is off there. The state of the parent's threads, and locks that they
  // may have held, are to be left as they are.
  virtual bool begin_in_child() { return false; }

  // The scope that holds the hook was left; all calls of this thread have ended. May be followed by more calls of
  // other threads, or by backward passes of calls made inside the scope. Flush here.
  virtual void scope_left() {}
};

}  // namespace op_tools
