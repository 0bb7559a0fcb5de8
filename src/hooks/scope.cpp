#include "hooks/scope.h"

#include <ATen/record_function.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "hooks/chain.h"
#include "hooks/interceptor.h"

namespace op_tools {
namespace {

constexpr size_t index_of(Level level) {
  return static_cast<size_t>(level);
}

// The scopes that one thread has entered. Only that thread changes it; threads that work for it (autograd's) read it.
class ThreadScopes {
 public:
  // For other threads.
  std::shared_ptr<const Chain> lend(Level level) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return chains_[index_of(level)];
  }

  // The rest is for the owner, which reads without the lock: changing takes it only against the others.
  const Chain* chain(Level level) const { return chains_[index_of(level)].get(); }

  std::vector<std::shared_ptr<ActiveHook>> hooks(Level level) const {
    const Chain* const now = chain(level);
    return now ? now->hooks() : std::vector<std::shared_ptr<ActiveHook>>();
  }

  // Returns the chain that was there: a call may be under way in it.
  std::shared_ptr<const Chain> set_chain(Level level, std::vector<std::shared_ptr<ActiveHook>> hooks) {
    std::shared_ptr<const Chain> next;
    if (!hooks.empty()) next = std::make_shared<Chain>(std::move(hooks));
    std::lock_guard<std::mutex> lock(mutex_);
    chains_[index_of(level)].swap(next);
    return next;
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const Chain>, 2> chains_;
};

// How a thread that works for another finds that one's scopes: torch hands its thread-local record-function callbacks
// on (ThreadLocalState), so a callback that never fires carries a number. ThreadLocalDebugInfo would be the plainer
// carrier, but it is a strict stack: leaving a scope after the profiler had started inside it would break the profiler.
class Inheritance {
 public:
  static Inheritance& get() {
    static Inheritance* inheritance = new Inheritance;  // leaked: threads may outlive static destruction
    return *inheritance;
  }

  at::CallbackHandle lend(std::shared_ptr<ThreadScopes> scopes) {
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          return nullptr;
        }).scopes({at::RecordScope::CUSTOM_CLASS}));
    std::lock_guard<std::mutex> lock(mutex_);
    lent_[handle] = std::move(scopes);
    return handle;
  }

  void take_back(at::CallbackHandle handle) {
    at::removeCallback(handle);
    std::lock_guard<std::mutex> lock(mutex_);
    lent_.erase(handle);
  }

  std::shared_ptr<ThreadScopes> find() {
    const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
    if (callbacks.empty()) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : callbacks) {
      const auto found = lent_.find(entry.handle_);
      if (found != lent_.end()) return found->second;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<at::CallbackHandle, std::shared_ptr<ThreadScopes>> lent_;
};

// Scopes with all_threads, for threads that entered none themselves. A record-function callback arms such a thread when
// it starts its first operator (that one is missed: it is on its way already); a thread that is armed still after the
// last of these scopes was left disarms itself in the kernel.
class EveryThread {
 public:
  static EveryThread& get() {
    static EveryThread* every = new EveryThread;  // leaked: threads may outlive static destruction
    return *every;
  }

  void add(const std::shared_ptr<ActiveHook>& hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto hooks = chain_ ? chain_->hooks() : std::vector<std::shared_ptr<ActiveHook>>();
    hooks.push_back(hook);
    set_locked(std::move(hooks));
    if (callback_ != at::INVALID_CALLBACK_HANDLE) return;
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          interceptor::arm(true);
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }

  void remove(const std::shared_ptr<ActiveHook>& hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto hooks = chain_ ? chain_->hooks() : std::vector<std::shared_ptr<ActiveHook>>();
    hooks.erase(std::remove(hooks.begin(), hooks.end(), hook), hooks.end());
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
  void set_locked(std::vector<std::shared_ptr<ActiveHook>> hooks) {
    any_.store(!hooks.empty());
    chain_ = hooks.empty() ? nullptr : std::make_shared<const Chain>(std::move(hooks));
  }

  std::mutex mutex_;
  std::shared_ptr<const Chain> chain_;
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
  std::atomic<bool> any_{false};
};

using LetGo = std::vector<std::shared_ptr<const Chain>>;

}  // namespace

// Trivial to construct: reading it costs a load.
struct CurrentChain::Thread {
  ThreadScopes* scopes;  // while it has entered any
  int calls;             // CurrentChains that stand
  LetGo* let_go;         // chains that were replaced while calls stood; owned
};

namespace {

thread_local CurrentChain::Thread tl = {};

struct OwnScopes {
  std::shared_ptr<ThreadScopes> scopes;
  at::CallbackHandle lent = 0;

  void begin() {
    if (tl.scopes) return;
    scopes = std::make_shared<ThreadScopes>();
    lent = Inheritance::get().lend(scopes);
    tl.scopes = scopes.get();
  }
  void end() {
    if (!tl.scopes) return;
    tl.scopes = nullptr;
    Inheritance::get().take_back(lent);
    scopes.reset();
  }
};
void set_chain(Level level, std::vector<std::shared_ptr<ActiveHook>> hooks) {
  auto before = tl.scopes->set_chain(level, std::move(hooks));
  if (!before || tl.calls == 0) return;
  if (!tl.let_go) tl.let_go = new LetGo;
  tl.let_go->push_back(std::move(before));
}

// While the thread has scopes. Not destroyed with the thread: kernels may run during its teardown.
thread_local OwnScopes* tl_own = nullptr;

OwnScopes& own() {
  if (!tl_own) tl_own = new OwnScopes;
  return *tl_own;
}
void end_own() {
  own().end();
  delete std::exchange(tl_own, nullptr);
}

// A forked child has this thread only, none of the writer threads, and may stand inside scopes of its parent: they are
// all off in it, and leaving them does nothing.
void in_child() {
  tl.scopes = nullptr;
  interceptor::arm(false);
}

std::string thread_text(std::thread::id id) {
  std::ostringstream text;
  text << id;
  return text.str();
}

// One warning for each filter item that matched nothing, once per process: a scope entered at every step would repeat
// it.
void warn_unmatched(const ActiveHook& active) {
  static std::mutex* mutex = new std::mutex;
  static std::set<std::string>* told = new std::set<std::string>;
  const auto warn = [&](const OpFilter* filter, const char* what) {
    if (!filter) return;
    for (const std::string& item : filter->unmatched_items()) {
      std::lock_guard<std::mutex> lock(*mutex);
      if (told->insert(item).second) log::warn(item + " matched no " + what);
    }
  };
  warn(active.options.filter.get(), "operator that was called");
  warn(active.options.modules.get(), "module in which an operator was called");
}

}  // namespace

CurrentChain::Thread& CurrentChain::this_thread() {
  return tl;
}

CurrentChain::CurrentChain(Level level, Thread& thread) : thread_(thread) {
  ++thread.calls;
  if (thread.scopes) {
    chain_ = thread.scopes->chain(level);
    return;
  }
  if (const std::shared_ptr<ThreadScopes> lender = Inheritance::get().find()) {
    lent_ = lender->lend(level);
  } else if (level == Level::kAten) {
    lent_ = EveryThread::get().chain();
  }
  chain_ = lent_.get();
}

CurrentChain::~CurrentChain() {
  if (--thread_.calls == 0 && thread_.let_go) {
    const std::unique_ptr<LetGo> dying(std::exchange(thread_.let_go, nullptr));  // a hook's end may run operators
  }
}

struct HookScope::Impl {
  std::shared_ptr<ActiveHook> active;
  std::unique_ptr<interceptor::OpenOps> open_ops;
  bool on = false;
  std::thread::id thread;
  ForkGuard process;  // that entered it
};

HookScope::HookScope(std::shared_ptr<Hook> hook, ResolvedOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->active = std::make_shared<ActiveHook>(std::move(hook), std::move(options));
}

HookScope::~HookScope() {
  if (!impl_->on) return;
  try {
    leave();
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

void HookScope::enter() {
  Impl& impl = *impl_;
  const std::string tool(impl.active->hook->name());
  if (impl.on) throw Error(tool + " is on already: stop it before it is started again");
  static std::once_flag fork_handler;
  std::call_once(fork_handler, [] { pthread_atfork(nullptr, nullptr, &in_child); });
  interceptor::install();

  const Level level = impl.active->options.level;
  if (impl.active->options.all_threads && level == Level::kTorch) {
    throw Error(tool +
                ": all_threads works at the aten level only; torch functions are met in the thread of the scope");
  }
  auto hooks = tl.scopes ? tl.scopes->hooks(level) : std::vector<std::shared_ptr<ActiveHook>>();
  if (hooks.size() == Chain::kMaxHooks) {
    throw Error(tool + " cannot be started: " + std::to_string(Chain::kMaxHooks) +
                " tools are on in this thread already, more are not supported");
  }
  // The aten level opens what the filter admits; a torch-level hook that asks which aten operator ran, opens all.
  if (level == Level::kAten) {
    impl.open_ops = std::make_unique<interceptor::OpenOps>(
        [&](std::string_view name, bool composite) { return impl.active->admits(name, composite); });
  } else if (impl.active->wants.aten_call) {
    impl.open_ops = std::make_unique<interceptor::OpenOps>([](std::string_view, bool) { return true; });
  }
  own().begin();
  hooks.push_back(impl.active);
  set_chain(level, std::move(hooks));
  if (level == Level::kAten) interceptor::arm(true);
  if (level == Level::kAten && impl.active->options.all_threads) EveryThread::get().add(impl.active);
  impl.on = true;
  impl.thread = std::this_thread::get_id();
  impl.process = ForkGuard();
}

void HookScope::leave() {
  Impl& impl = *impl_;
  if (!impl.on) return;
  if (impl.process.in_child()) {  // the chain is gone already; nothing of the parent's may be touched
    impl.on = false;
    impl.open_ops.release();  // NOLINT: its lock may have been held by another thread of the parent
    return;
  }
  if (impl.thread != std::this_thread::get_id()) {
    throw Error(std::string(impl.active->hook->name()) + " was started in thread " + thread_text(impl.thread) +
                " and cannot be stopped in thread " + thread_text(std::this_thread::get_id()) +
                ": stop it in the thread that started it");
  }
  const Level level = impl.active->options.level;
  if (level == Level::kAten && impl.active->options.all_threads) EveryThread::get().remove(impl.active);
  auto hooks = tl.scopes->hooks(level);
  hooks.erase(std::remove(hooks.begin(), hooks.end(), impl.active), hooks.end());
  const bool last = hooks.empty();
  set_chain(level, std::move(hooks));
  if (last && level == Level::kAten) interceptor::arm(false);
  const Level other = level == Level::kAten ? Level::kTorch : Level::kAten;
  if (last && tl.scopes->hooks(other).empty()) end_own();
  impl.open_ops.reset();
  impl.on = false;
  try {
    impl.active->hook->scope_left();
  } catch (const std::exception& error) {
    impl.active->fail("scope_left()", error.what());
  }
  warn_unmatched(*impl.active);
}

bool HookScope::is_on() const {
  return impl_->on && !impl_->process.in_child();
}
void HookScope::step() {
  const int64_t begun = impl_->active->step.fetch_add(1) + 1;
  try {
    impl_->active->hook->step_begins(begun);
  } catch (const std::exception& error) {
    impl_->active->fail("step_begins()", error.what());
  }
}
int64_t HookScope::current_step() const {
  return impl_->active->step.load();
}
uint64_t HookScope::calls_seen() const {
  return impl_->active->seen.load();
}
uint64_t HookScope::hook_failures() const {
  return impl_->active->off.load() ? 1 : 0;
}
const std::shared_ptr<Hook>& HookScope::hook() const {
  return impl_->active->hook;
}

}  // namespace op_tools
