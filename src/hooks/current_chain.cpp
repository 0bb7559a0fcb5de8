#include "hooks/current_chain.h"

#include <ATen/PythonTorchFunctionTLS.h>
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

#include "base/host.h"
#include "hooks/unseen_calls.h"
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

}  // namespace

// The chains of a thread, a chain for each level. Only that thread changes them, and after its end the thread that
// leaves its scopes; threads that work for it (autograd's) read them.
class ThreadChains {
 public:
  // For other threads.
  std::shared_ptr<const Chain> share(Level level) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return chains_[index_of(level)];
  }

  // For the owner, which reads without the lock: a change takes it only against the others.
  const Chain* get(Level level) const { return chains_[index_of(level)].get(); }
  bool empty() const { return !get(Level::kAten) && !get(Level::kTorch); }

  // For the owner. Returns the previous chain: a call may be running in it.
  std::shared_ptr<const Chain> replace(Level level, ActiveHooks hooks) {
    std::shared_ptr<const Chain> chain = make_chain(std::move(hooks));
    std::lock_guard<std::mutex> lock(mutex_);
    chains_[index_of(level)].swap(chain);
    return chain;
  }

  at::CallbackHandle offer = at::INVALID_CALLBACK_HANDLE;  // Inheritance
  std::atomic<bool> ended{false};                          // the thread is gone

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const Chain>, 2> chains_;
};

namespace {

// How a thread that works for another finds that thread's chains: torch copies thread-local record-function callbacks
// to such threads (ThreadLocalState), so a callback that never runs carries a number. ThreadLocalDebugInfo would be the
// simpler carrier, but it is a strict stack: leaving a scope after the profiler started inside it would break the
// profiler.
class Inheritance {
 public:
  static Inheritance& get() { return *instance(); }
  // In a forked child, where another thread of the parent may have held the lock: nothing was offered there.
  static void begin_anew() { instance() = new Inheritance; }

  at::CallbackHandle offer(std::shared_ptr<ThreadChains> chains) {
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          return nullptr;
        }).scopes({at::RecordScope::CUSTOM_CLASS}));
    std::lock_guard<std::mutex> lock(mutex_);
    offered_[handle] = std::move(chains);
    return handle;
  }

  // The callback itself is the thread's, and ends with it.
  void withdraw(at::CallbackHandle handle, bool by_its_thread) {
    if (by_its_thread) at::removeCallback(handle);
    std::lock_guard<std::mutex> lock(mutex_);
    offered_.erase(handle);
  }

  std::shared_ptr<ThreadChains> find() {
    const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
    if (callbacks.empty()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : callbacks) {
      const auto offer = offered_.find(entry.handle_);
      if (offer != offered_.end()) return offer->second;
    }
    return nullptr;
  }

 private:
  static Inheritance*& instance() {
    static Inheritance* inheritance = new Inheritance;  // leaked: threads may outlive static destruction
    return inheritance;
  }

  std::mutex mutex_;
  std::unordered_map<at::CallbackHandle, std::shared_ptr<ThreadChains>> offered_;
};

// Hooks with all_threads, for threads that entered no scope. Interception is turned on in such a thread when it begins,
// if it tells (thread_begins()), else by a record-function callback when it calls an operator (that call is missed: it
// is running already); the interceptor's kernel turns it off in threads where it is still on after the last of these
// scopes was left.
//
// torch asks its callbacks at every operator of every thread, at half the price of OpBlackBox's work in a call. Where
// threads tell that they begin, few others are left, and the callback is asked at 1 of 16 operators of a thread.
class AllThreads {
 public:
  static AllThreads& get() { return *instance(); }
  // Around a fork: no other thread changes the hooks meanwhile. In the child begin_anew() follows.
  static void hold() { get().mutex_.lock(); }
  static void release() { get().mutex_.unlock(); }
  ActiveHooks held() const { return hooks_of(chain_.get()); }
  static void begin_anew(ActiveHooks hooks) {
    auto* const anew = new AllThreads;
    anew->callback_ = get().callback_;  // torch has it still
    anew->set_locked(std::move(hooks));
    instance() = anew;
  }

  void add(const std::shared_ptr<ActiveHook>& hook) {
    const bool threads_tell = host().watch_threads();
    std::lock_guard<std::mutex> lock(mutex_);
    ActiveHooks hooks = hooks_of(chain_.get());
    hooks.push_back(hook);
    set_locked(std::move(hooks));
    if (callback_ != at::INVALID_CALLBACK_HANDLE) return;
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          set_intercepting(true);
          return nullptr;
        })
            .scopes({at::RecordScope::FUNCTION})
            .samplingProb(threads_tell ? 1.0 / 16 : 1.0));
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

  ActiveHooks hooks() {
    std::lock_guard<std::mutex> lock(mutex_);
    return hooks_of(chain_.get());
  }

  bool any() const { return any_.load(std::memory_order_relaxed); }

  std::shared_ptr<const Chain> chain() {
    if (!any()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    return chain_;
  }

 private:
  static AllThreads*& instance() {
    static AllThreads* all = new AllThreads;  // leaked: threads may outlive static destruction
    return all;
  }

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

}  // namespace

// Trivial to construct: reading it costs a load.
struct CurrentChain::Thread {
  ThreadChains* chains;      // nullptr: the thread has entered no scope, or is about to end
  const void* last_chains;   // the same, and its value when the thread ended: not to be read through
  int calls;                 // CurrentChains on its stack
  bool entered;              // it has entered a scope
  ReplacedChains* replaced;  // while calls > 0; owned
};

namespace {

thread_local CurrentChain::Thread tl = {};

// The thread's own reference to its chains. Kernels may run while the thread's other objects are destroyed: they find
// no chain any more.
class OwnChains {
 public:
  ~OwnChains() {
    if (!chains_) return;
    tl.chains = nullptr;
    set_intercepting(false);
    chains_->ended.store(true);
  }

  void begin() {
    if (chains_) return;
    chains_ = std::make_shared<ThreadChains>();
    chains_->offer = Inheritance::get().offer(chains_);
    tl.last_chains = tl.chains = chains_.get();
    tl.entered = true;
  }

  // The thread has no hooks any more.
  void end() {
    tl.last_chains = tl.chains = nullptr;
    Inheritance::get().withdraw(chains_->offer, /*by_its_thread=*/true);
    chains_.reset();
  }

  // In a forked child: they are the parent's. Not freed: the child may be inside a call of it.
  void forget() {
    tl.last_chains = tl.chains = nullptr;
    static_cast<void>(new std::shared_ptr<ThreadChains>(std::move(chains_)));  // NOLINT
    chains_.reset();
  }
  const std::shared_ptr<ThreadChains>& chains() const { return chains_; }

 private:
  std::shared_ptr<ThreadChains> chains_;
};
thread_local OwnChains tl_own;

void set_hooks(Level level, ActiveHooks hooks) {
  std::shared_ptr<const Chain> previous = tl.chains->replace(level, std::move(hooks));
  if (!previous || tl.calls == 0) return;
  if (!tl.replaced) tl.replaced = new ReplacedChains;
  tl.replaced->push_back(std::move(previous));
}

// A forked child has this thread only and none of the writer threads, and may be inside scopes of its parent: they are
// off in it, and leaving them does nothing, but for hooks that begin anew.
void after_fork_in_child() {
  ActiveHooks of_all = AllThreads::get().held(), asked;
  std::array<ActiveHooks, 2> of_thread;
  for (const Level level : {Level::kAten, Level::kTorch}) {
    if (tl.chains) of_thread[index_of(level)] = hooks_of(tl.chains->get(level));
  }
  std::vector<bool> goes_on;  // of `asked`
  const auto keep = [&](ActiveHooks& hooks) {
    const auto is_off = [&](const std::shared_ptr<ActiveHook>& hook) {
      const auto place = std::find(asked.begin(), asked.end(), hook);
      if (place != asked.end()) return !goes_on[static_cast<size_t>(place - asked.begin())];
      asked.push_back(hook);
      goes_on.push_back(!hook->off.load() && !hook->items && hook->hook->begin_in_child());  // the items have a lock
      return !goes_on.back();
    };
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(), is_off), hooks.end());
  };
  keep(of_all);
  for (ActiveHooks& hooks : of_thread) keep(hooks);

  tl_own.forget();
  Inheritance::begin_anew();
  const bool any_went_on = !of_all.empty() || !of_thread[0].empty() || !of_thread[1].empty();
  unseen_process_begins(any_went_on);
  set_intercepting(!of_all.empty() || !of_thread[index_of(Level::kAten)].empty());
  AllThreads::begin_anew(std::move(of_all));
  for (const Level level : {Level::kAten, Level::kTorch}) {
    if (of_thread[index_of(level)].empty()) continue;
    tl_own.begin();
    set_hooks(level, std::move(of_thread[index_of(level)]));
  }
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
  }
  if (!inherited_ && level == Level::kAten) inherited_ = AllThreads::get().chain();
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

std::shared_ptr<ThreadChains> ThreadHooks::add(const std::shared_ptr<ActiveHook>& hook) {
  static const int registered = pthread_atfork(&AllThreads::hold, &AllThreads::release, &after_fork_in_child);
  static_cast<void>(registered);
  const Level level = hook->options.level;
  host().watch_threads();
  tl_own.begin();
  ActiveHooks hooks = hooks_of(tl.chains->get(level));
  hooks.push_back(hook);
  set_hooks(level, std::move(hooks));
  if (level == Level::kAten) {
    set_intercepting(true);
    if (hook->options.all_threads) AllThreads::get().add(hook);
  }
  return tl_own.chains();
}

void ThreadHooks::remove(ThreadChains& thread, const std::shared_ptr<ActiveHook>& hook) {
  const Level level = hook->options.level;
  if (level == Level::kAten && hook->options.all_threads) AllThreads::get().remove(hook);
  ActiveHooks hooks = hooks_of(thread.get(level));
  erase(hooks, hook);
  if (tl.chains != &thread) {  // its thread has ended: no call of its runs
    thread.replace(level, std::move(hooks));
    if (thread.empty()) Inheritance::get().withdraw(thread.offer, /*by_its_thread=*/false);
    return;
  }
  const bool last = hooks.empty();
  set_hooks(level, std::move(hooks));
  if (last && level == Level::kAten) set_intercepting(false);
  if (thread.empty()) tl_own.end();
}

bool ThreadHooks::is_on_in_child(const ActiveHook& hook) {
  const auto has = [&](const ActiveHooks& hooks) {
    return std::any_of(hooks.begin(), hooks.end(), [&](const auto& active) { return active.get() == &hook; });
  };
  return has(AllThreads::get().hooks()) || (tl.chains && has(hooks_of(tl.chains->get(hook.options.level))));
}

void ThreadHooks::remove_in_child(const std::shared_ptr<ActiveHook>& hook) {
  if (tl.chains) {
    remove(*tl.chains, hook);
  } else {
    AllThreads::get().remove(hook);
  }
}

ThreadHooks::Owner ThreadHooks::owner(const ThreadChains& thread) {
  // Also while the thread ends: objects of its may still have scopes to leave.
  if (tl.last_chains == &thread) return Owner::kThis;
  return thread.ended.load() ? Owner::kEnded : Owner::kOther;
}

std::shared_ptr<ThreadChains> FollowedThread::scopes() {
  return tl.chains ? tl_own.chains() : Inheritance::get().find();
}

FollowedThread::FollowedThread(std::shared_ptr<ThreadChains> scopes)
    : scopes_(std::move(scopes)), offer_(Inheritance::get().offer(scopes_)) {
  if (has(Level::kAten)) set_intercepting(true);
}

FollowedThread::~FollowedThread() {
  set_intercepting(false);
  Inheritance::get().withdraw(offer_, /*by_its_thread=*/true);
}

bool follows_scopes() {
  return tl.entered || Inheritance::get().find();
}

bool is_outside_torch_functions() {
  using at::impl::PythonTorchFunctionTLS;
  using at::impl::TorchFunctionDisabledState;
  if (tl.calls > 0 || PythonTorchFunctionTLS::get_disabled_state() == TorchFunctionDisabledState::ALL_DISABLED) {
    return false;
  }
  if (tl.chains) return tl.chains->get(Level::kTorch) != nullptr;
  const std::shared_ptr<ThreadChains> owner = Inheritance::get().find();
  return owner && owner->share(Level::kTorch);
}

bool FollowedThread::has(Level level) const {
  return scopes_->share(level) != nullptr;
}

void thread_begins() noexcept {
  if (AllThreads::get().any()) set_intercepting(true);
}

void set_intercepting(bool on) {
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, on);
}

}  // namespace op_tools
