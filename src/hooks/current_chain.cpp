#include "hooks/current_chain.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/internal_guard.h"

namespace op_tools {
namespace {

using ActiveHooks = std::vector<std::shared_ptr<ActiveHook>>;

constexpr size_t index_of(Level level) {
  return static_cast<size_t>(level);
}

ActiveHooks hooks_of(const Chain* chain) {
  return chain ? chain->hooks() : ActiveHooks();
}

std::shared_ptr<const Chain> make_chain(ActiveHooks hooks) {
  return hooks.empty() ? nullptr : std::make_shared<const Chain>(std::move(hooks));
}

void erase(ActiveHooks& hooks, const std::shared_ptr<ActiveHook>& hook) {
  hooks.erase(std::remove(hooks.begin(), hooks.end(), hook), hooks.end());
}

// The chains of one thread, one for each level. Only that thread changes them; threads that work for it (autograd's)
// read them.
class ThreadChains {
 public:
  // For other threads.
  std::shared_ptr<const Chain> share(Level level) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return chains_[index_of(level)];
  }

  // For the owner, which reads without the lock: a change takes it only against the others.
  const Chain* get(Level level) const { return chains_[index_of(level)].get(); }

  // For the owner. Returns the previous chain: a call may be running in it.
  std::shared_ptr<const Chain> replace(Level level, ActiveHooks hooks) {
    std::shared_ptr<const Chain> chain = make_chain(std::move(hooks));
    std::lock_guard<std::mutex> lock(mutex_);
    chains_[index_of(level)].swap(chain);
    return chain;
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const Chain>, 2> chains_;
};

// How a thread that works for another one finds that one's chains: torch copies thread-local record-function callbacks
// to such threads (ThreadLocalState), so a callback that never runs carries a number. ThreadLocalDebugInfo would be the
// simpler carrier, but it is a strict stack: leaving a scope after the profiler started inside it would break the
// profiler.
class Inheritance {
 public:
  static Inheritance& get() {
    static Inheritance* inheritance = new Inheritance;  // leaked: threads may outlive static destruction
    return *inheritance;
  }

  at::CallbackHandle offer(std::shared_ptr<ThreadChains> chains) {
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          return nullptr;
        }).scopes({at::RecordScope::CUSTOM_CLASS}));
    std::lock_guard<std::mutex> lock(mutex_);
    offered_[handle] = std::move(chains);
    return handle;
  }

  void withdraw(at::CallbackHandle handle) {
    at::removeCallback(handle);
    std::lock_guard<std::mutex> lock(mutex_);
    offered_.erase(handle);
  }

  std::shared_ptr<ThreadChains> find() {
    const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
    if (callbacks.empty()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : callbacks) {
      const auto found = offered_.find(entry.handle_);
      if (found != offered_.end()) return found->second;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<at::CallbackHandle, std::shared_ptr<ThreadChains>> offered_;
};

// Hooks with all_threads, for threads that entered no scope. A record-function callback turns interception on when such
// a thread starts its first operator (that one is missed: it is running already); the interceptor's kernel turns it off
// in threads where it is still on after the last of these scopes was left.
class AllThreads {
 public:
  static AllThreads& get() {
    static AllThreads* all = new AllThreads;  // leaked: threads may outlive static destruction
    return *all;
  }

  void add(const std::shared_ptr<ActiveHook>& hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    ActiveHooks hooks = hooks_of(chain_.get());
    hooks.push_back(hook);
    set_locked(std::move(hooks));
    if (callback_ != at::INVALID_CALLBACK_HANDLE) return;
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          set_intercepting(true);
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }

  void remove(const std::shared_ptr<ActiveHook>& hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    ActiveHooks hooks = hooks_of(chain_.get());
    erase(hooks, hook);
    if (hooks.empty()) {
      at::removeCallback(callback_);
      callback_ = at::INVALID_CALLBACK_HANDLE;
    }
    set_locked(std::move(hooks));
  }

  std::shared_ptr<const Chain> chain() {
    if (!any_.load(std::memory_order_relaxed)) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    return chain_;
  }

 private:
  void set_locked(ActiveHooks hooks) {
    any_.store(!hooks.empty());
    chain_ = make_chain(std::move(hooks));
  }

  std::mutex mutex_;
  std::shared_ptr<const Chain> chain_;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
  std::atomic<bool> any_{false};
};

using ReplacedChains = std::vector<std::shared_ptr<const Chain>>;

// The chains of the calling thread, while it has hooks. Not destroyed with the thread: kernels may run during its
// teardown.
struct OwnChains {
  std::shared_ptr<ThreadChains> chains;
  at::CallbackHandle offer = 0;
};
thread_local OwnChains* tl_own = nullptr;

}  // namespace

// Trivial to construct: reading it costs a load.
struct CurrentChain::Thread {
  ThreadChains* chains;      // nullptr: the thread has entered no scope
  int calls;                 // CurrentChains on its stack
  ReplacedChains* replaced;  // while calls > 0; owned
};

namespace {

thread_local CurrentChain::Thread tl = {};

void begin_own_chains() {
  if (tl.chains) return;
  if (!tl_own) tl_own = new OwnChains;
  tl_own->chains = std::make_shared<ThreadChains>();
  tl_own->offer = Inheritance::get().offer(tl_own->chains);
  tl.chains = tl_own->chains.get();
}

void end_own_chains() {
  tl.chains = nullptr;
  Inheritance::get().withdraw(tl_own->offer);
  delete std::exchange(tl_own, nullptr);
}

void set_hooks(Level level, ActiveHooks hooks) {
  std::shared_ptr<const Chain> previous = tl.chains->replace(level, std::move(hooks));
  if (!previous || tl.calls == 0) return;
  if (!tl.replaced) tl.replaced = new ReplacedChains;
  tl.replaced->push_back(std::move(previous));
}

// A forked child has this thread only and none of the writer threads, and may be inside scopes of its parent: they are
// all off in it, and leaving them does nothing.
void after_fork_in_child() {
  tl.chains = nullptr;
  set_intercepting(false);
}

}  // namespace

CurrentChain::Thread& CurrentChain::this_thread() {
  return tl;
}

CurrentChain::CurrentChain(Level level, Thread& thread) : thread_(thread) {
  ++thread.calls;
  if (thread.chains) {
    chain_ = thread.chains->get(level);
    return;
  }
  if (const std::shared_ptr<ThreadChains> owner = Inheritance::get().find()) {
    inherited_ = owner->share(level);
  } else if (level == Level::kAten) {
    inherited_ = AllThreads::get().chain();
  }
  chain_ = inherited_.get();
}

CurrentChain::~CurrentChain() {
  if (--thread_.calls == 0 && thread_.replaced) {
    const std::unique_ptr<ReplacedChains> freed(std::exchange(thread_.replaced, nullptr));  // may run operators
  }
}

size_t ThreadHooks::count(Level level) {
  return tl.chains ? hooks_of(tl.chains->get(level)).size() : 0;
}

void ThreadHooks::add(const std::shared_ptr<ActiveHook>& hook) {
  static const int registered = pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  static_cast<void>(registered);
  const Level level = hook->options.level;
  begin_own_chains();
  ActiveHooks hooks = hooks_of(tl.chains->get(level));
  hooks.push_back(hook);
  set_hooks(level, std::move(hooks));
  if (level == Level::kTorch) return;
  set_intercepting(true);
  if (hook->options.all_threads) AllThreads::get().add(hook);
}

void ThreadHooks::remove(const std::shared_ptr<ActiveHook>& hook) {
  const Level level = hook->options.level;
  if (level == Level::kAten && hook->options.all_threads) AllThreads::get().remove(hook);
  ActiveHooks hooks = hooks_of(tl.chains->get(level));
  erase(hooks, hook);
  const bool last = hooks.empty();
  set_hooks(level, std::move(hooks));
  if (!last) return;
  if (level == Level::kAten) set_intercepting(false);
  if (!tl.chains->get(Level::kAten) && !tl.chains->get(Level::kTorch)) end_own_chains();
}

void set_intercepting(bool on) {
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, on);
}

}  // namespace op_tools
