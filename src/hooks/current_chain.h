// Which chain is on for the calling thread. Sources ask CurrentChain for each call; HookScope adds and removes hooks
// through ThreadHooks. Scopes belong to the thread that entered them; threads that autograd or TorchScript start for
// that thread find its scopes, too. A forked child has those of their hooks that began anew in it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/export.h"
#include "base/options.h"
#include "hooks/chain.h"

namespace op_tools {

// The hooks that are on for this thread at this level, alive while this object is on the stack: a scope may be left
// inside the call. A thread's own chains are read without counting references: a chain that a scope replaces meanwhile
// is freed when the thread's last CurrentChain is gone.
class OP_TOOLS_API CurrentChain {
 public:
  struct Thread;
  static Thread& this_thread();  // for sources that cache it: a thread-local lookup is a function call

  explicit CurrentChain(Level level, Thread& thread = this_thread());
  ~CurrentChain();
  CurrentChain(const CurrentChain&) = delete;
  CurrentChain& operator=(const CurrentChain&) = delete;

  const Chain* get() const { return chain_; }  // nullptr: no hook is on

 private:
  Thread& thread_;
  const Chain* chain_ = nullptr;
  std::shared_ptr<const Chain> inherited_;  // of another thread, for which this thread works
};

// A thread that has entered scopes. As long as a scope holds the object it is no other thread's, which a number of the
// system's may be once its thread has ended.
class ThreadChains;

// The hooks of the scopes that threads have entered.
class ThreadHooks {
 public:
  static size_t count(Level level);  // of the calling thread
  // To the calling thread, as the innermost hook of its level. Returns that thread.
  static std::shared_ptr<ThreadChains> add(const std::shared_ptr<ActiveHook>& hook);
  // In any order. Only where owner() is not kOther.
  static void remove(ThreadChains& thread, const std::shared_ptr<ActiveHook>& hook);

  // In a forked child: the hook began anew there and is on, in this thread or in all; it is taken out there.
  static bool is_on_in_child(const ActiveHook& hook);
  static void remove_in_child(const std::shared_ptr<ActiveHook>& hook);

  enum class Owner : uint8_t { kThis, kOther, kEnded };  // kEnded: a thread that is gone
  static Owner owner(const ThreadChains& thread);
};

// A thread that works for another: its calls find the scopes of that thread, as those of autograd's threads do, and so
// do the threads that autograd starts for it. Made in the thread that begins, destroyed there when it ends.
class OP_TOOLS_API FollowedThread {
 public:
  // The scopes that the calling thread has entered, or follows; nullptr: none.
  static std::shared_ptr<ThreadChains> scopes();
  explicit FollowedThread(std::shared_ptr<ThreadChains> scopes);
  ~FollowedThread();
  FollowedThread(const FollowedThread&) = delete;
  FollowedThread& operator=(const FollowedThread&) = delete;

  bool has(Level level) const;  // is a scope of this level on?

 private:
  const std::shared_ptr<ThreadChains> scopes_;
  const uint64_t offer_;
};

// The calling thread has entered a scope, or works for a thread that has. A scope that is suspended, or was left,
// counts: the calls of that thread are then not to be recorded.
bool follows_scopes();

// The thread has a scope of the torch level, or works for a thread that has, and is in no call that came to it: the
// operators that it runs are called by C++ code, or the program took the mode of the torch level off. False where the
// program switches torch functions off, as tools do for calls of their own.
bool is_outside_torch_functions();

// A thread that the program's language starts tells that it begins, once its host watches threads: from the first time
// on that a scope is entered. Not under locks of ours.
OP_TOOLS_API void thread_begins() noexcept;

// Operators that this thread calls go through the interceptor's kernel, or no longer. Threads of autograd inherit it.
void set_intercepting(bool on);

}  // namespace op_tools
