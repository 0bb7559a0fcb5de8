// A hook that is on: from enter() to leave(), on the thread that entered, for the operators that its filter admits.
// Scopes of several tools nest and overlap freely; leaving in another order than entering is fine. Leaving on another
// thread is an Error, unless the thread that entered has ended: then any thread may, with a warning. Autograd threads
// that work for the thread inherit its scopes; a forked child has those whose hook begins anew in it
// (Hook::begin_in_child) and no others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/export.h"
#include "base/options.h"
#include "coverage/coverage.h"
#include "hooks/hook.h"

namespace op_tools {

class OP_TOOLS_API HookScope {
 public:
  HookScope(std::shared_ptr<Hook> hook, ResolvedOptions options);
  ~HookScope();  // leaves, if it is on and on its own thread; says so otherwise
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  void enter();  // Error when it is on already, or the interceptor cannot be installed
  void leave();
  bool is_on() const;
  // The thread that entered has done its last work, as its language says: waits until the system is done with it, too.
  // leave() then knows that it is gone.
  void await_end_of_thread();

  // While it is on: its thread's calls go past it, until resume(), which is for the calls of the thread that resumes.
  // The hook's records stay. For code that is suspended (a generator) while others run.
  void suspend();  // Error as leave()
  void resume();

  // Marks a training step; calls are numbered by it and the `steps` option counts in it. Any thread.
  void step();
  int64_t current_step() const;

  uint64_t calls_seen() const;     // calls that the filter admitted
  uint64_t hook_failures() const;  // 1 after the hook failed and was disabled

  // The calls that the run examined so far, and those that it did not. Any thread.
  Coverage coverage() const;
  // report() of the hook and, as "coverage", the account. Any thread.
  Value report() const;
  // Other work in the process that only the language of the program knows: asked for each account. Before
  // enter(). It throws nothing.
  void look_beside(std::function<void(Coverage&)> add);
  const std::shared_ptr<Hook>& hook() const;
  // Writes the account anew beside the hook's files, as leave() did: a backward pass may have added rows since.
  void write_account() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace op_tools
