#include "hooks/scope.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork_guard.h"
#include "base/host.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "base/options.h"
#include "base/stop_program.h"
#include "coverage/coverage_file.h"
#include "coverage/coverage_text.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "hooks/gradient_sums.h"
#include "hooks/interceptor.h"
#include "hooks/tool.h"
#include "report/row_file.h"
#include "tensor/copy_memory.h"
#include "tensor/exception_text.h"

namespace op_tools {
namespace {

std::string this_thread_text() {
  std::ostringstream text;
  text << std::this_thread::get_id();
  return text.str();
}

// True once per process and text: a scope entered at every step would repeat a warning.
bool is_first(const std::string& text) {
  static std::mutex* mutex = new std::mutex;
  static std::set<std::string>* logged = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  return logged->insert(text).second;
}

// Why no call was in the wanted steps.
void warn_steps(const ActiveHook& active) {
  const auto& steps = active.options.steps;
  if (!steps || steps->empty() || active.seen.load() > 0) return;
  std::string wanted;
  for (int64_t step : *steps) wanted += (wanted.empty() ? "steps=" : ",") + std::to_string(step);
  if (!is_first(wanted)) return;
  const int64_t ended = active.step.load();
  log::warn(wanted + ": no call was in them; " +
            (ended > 0
                 ? std::to_string(ended) + " steps ended, the last of them is step " + std::to_string(ended - 1)
                 : "no step ended, all calls were in step 0: the steps of torch's optimizers are seen, and step()"));
}

// A warning for each filter item that matched nothing.
void warn_unmatched(const ActiveHook& active) {
  const auto warn = [&](const OpFilter* filter, const char* candidate, bool of_operators) {
    if (!filter) return;
    for (const OpFilter::Unmatched& item : filter->unmatched_items()) {
      if (!is_first(item.described)) continue;
      log::warn(item.described + " matched no " + candidate +
                (of_operators ? host().advice(item.text, std::string(to_string(active.options.level))) : ""));
    }
  };
  warn(active.options.filter.get(), "operator that was called", true);
  warn(active.options.modules.get(), "module in which an operator was called", false);
}

}  // namespace

struct HookScope::Impl {
  std::shared_ptr<ActiveHook> active;
  std::unique_ptr<interceptor::OpenOps> open_ops;
  bool on = false;
  std::shared_ptr<ThreadChains> thread;  // whose calls come to the hook; nullptr while it is suspended
  std::string thread_text;               // for messages: another thread may have the same number later
  ForkGuard process;                     // that entered it
  std::function<void(Coverage&)> beside;
  std::map<std::string, uint64_t> rows;      // of the hook's files, as its account says
  std::unique_ptr<HookScope> gradient_sums;  // nullptr: the hook gets none; else on and off with this scope

  void add_to_thread();
  // Error when the thread differs, and still lives.
  void remove_from_thread();
};

void HookScope::Impl::add_to_thread() {
  thread = ThreadHooks::add(active);
  thread_text = this_thread_text();
}

void HookScope::Impl::remove_from_thread() {
  if (!thread) return;
  const ThreadHooks::Owner owner = ThreadHooks::owner(*thread);
  const std::string tool(active->hook->name());
  if (owner == ThreadHooks::Owner::kOther) {
    throw Error(tool + " was started in thread " + thread_text + " and cannot be stopped in thread " +
                this_thread_text() + ": stop it in the thread that started it");
  }
  if (owner == ThreadHooks::Owner::kEnded) {
    log::warn(tool + " was started in thread " + thread_text +
              ", which has ended, and is stopped in another thread: it saw the calls of the thread that started it");
  }
  ThreadHooks::remove(*thread, active);
  thread.reset();
}

HookScope::HookScope(std::shared_ptr<Hook> hook, ResolvedOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->gradient_sums = scope_of_gradient_sums(hook, options);
  impl_->active = std::make_shared<ActiveHook>(std::move(hook), std::move(options));
}

HookScope::~HookScope() {
  if (!impl_->on) return;
  try {
    leave();
  } catch (const std::exception& error) {
    log::error(exception_text(error));
  }
}

void HookScope::enter() {
  Impl& impl = *impl_;
  const std::string tool(impl.active->hook->name());
  if (impl.on) throw Error(tool + " is on already: stop it before it is started again");
  warn_of_unread_variables();
  interceptor::install();

  const Level level = impl.active->options.level;
  if (ThreadHooks::count(level) == Chain::kMaxHooks) {
    throw Error(tool + " cannot be started: " + std::to_string(Chain::kMaxHooks) +
                " tools are on in this thread already, more are not supported");
  }
  // The aten level opens the operators that the filter admits; a torch-level hook that asks which aten operator ran,
  // opens all.
  if (level == Level::kAten) {
    impl.open_ops = std::make_unique<interceptor::OpenOps>(
        [&](std::string_view name, bool composite) { return impl.active->admits(name, composite); });
  } else if (impl.active->wants.aten_call || impl.active->wants.aten_ops) {
    impl.open_ops = std::make_unique<interceptor::OpenOps>([](std::string_view, bool) { return true; });
  }
  if (impl.gradient_sums) impl.gradient_sums->enter();
  impl.add_to_thread();
  impl.on = true;
  impl.process = ForkGuard();
}

void HookScope::await_end_of_thread() {
  constexpr int kMostMilliseconds = 5000;  // a thread that is not at its end after all must not stop the program
  const auto is_there = [&] {
    return impl_->thread && !impl_->process.in_child() &&
           ThreadHooks::owner(*impl_->thread) == ThreadHooks::Owner::kOther;
  };
  for (int i = 0; i < kMostMilliseconds && is_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void HookScope::suspend() {
  if (is_on() && !impl_->process.in_child()) impl_->remove_from_thread();
  if (impl_->gradient_sums) impl_->gradient_sums->suspend();
}

void HookScope::resume() {
  if (is_on() && !impl_->thread) impl_->add_to_thread();
  if (impl_->gradient_sums) impl_->gradient_sums->resume();
}

void HookScope::leave() {
  Impl& impl = *impl_;
  if (!impl.on) return;
  if (impl.process.in_child()) {  // the parent's chain is gone already; nothing of the parent's may be touched
    const bool went_on = is_on();
    impl.on = false;
    impl.thread.reset();
    impl.open_ops.release();  // NOLINT: its lock may have been held by another thread of the parent
    if (!went_on) return;
    ThreadHooks::remove_in_child(impl.active);
  } else {
    impl.remove_from_thread();
    impl.open_ops.reset();
    impl.on = false;
  }
  if (impl.gradient_sums) impl.gradient_sums->leave();
  try {
    if (impl.active->wants.progress) log::progress("");
    impl.active->hook->run_ends([this] { return coverage(); });
    impl.active->hook->scope_left();
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) impl.active->fail("scope_left()", exception_text(error));
  }
  write_account();
  release_copy_memory();  // of the copies that the hook made for its calls
  warn_unmatched(*impl.active);
  warn_steps(*impl.active);
}

bool HookScope::is_on() const {
  return impl_->on && (!impl_->process.in_child() || ThreadHooks::is_on_in_child(*impl_->active));
}
void HookScope::step() {
  const int64_t begun = impl_->active->step.fetch_add(1) + 1;
  if (impl_->gradient_sums) impl_->gradient_sums->step();
  try {
    impl_->active->hook->step_begins(begun);
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) impl_->active->fail("step_begins()", exception_text(error));
  }
}
int64_t HookScope::current_step() const {
  return impl_->active->step.load();
}
uint64_t HookScope::calls_seen() const {
  return impl_->active->seen.load();
}
uint64_t HookScope::hook_failures() const {
  const bool sums_failed = impl_->gradient_sums && impl_->gradient_sums->hook_failures() > 0;
  return impl_->active->off.load() || sums_failed ? 1 : 0;
}
Coverage HookScope::coverage() const {
  const ActiveHook& active = *impl_->active;
  Coverage account;
  account.seen = active.seen.load();
  account.steps = static_cast<uint64_t>(active.step.load());
  account.off = hook_failures() > 0;
  account.accelerator = accelerator();
  const uint64_t in_graph = active.in_graph.load();
  const uint64_t jagged = active.jagged.load();
  account.seen += in_graph + jagged;
  account.lost[Loss::kJagged] += jagged;
  account.lost[Loss::kInGraph] += in_graph;
  if (active.on_device.load()) {
    account.on_device = true;
  } else if (!account.off) {  // a failed hook has not asked all of its calls
    account.on_device = false;
  }
  account.graphs = active.graph_count();
  active.hook->add_coverage(account);
  if (impl_->gradient_sums) impl_->gradient_sums->hook()->add_coverage(account);
  if (impl_->beside) impl_->beside(account);
  return account;
}
Value HookScope::report() const {
  const Value of_hook = impl_->active->hook->report();
  const Dict* dict = of_hook.get_if<Dict>();
  if (!dict) return of_hook;
  std::vector<std::pair<Value, Value>> items = *dict->items;
  items.emplace_back("coverage", to_value(coverage()));
  return make_dict(std::move(items));
}

void HookScope::write_account() const {
  bool is_known = false;  // that nothing can be written there: the tool has said so
  try {
    const std::string folder = hook()->folder();
    if (folder.empty()) return;
    const Coverage account = coverage();
    is_known = account.lost[Loss::kNotWritten] > 0;
    for (const auto& [file, count] : take_row_counts(folder)) impl_->rows[file] = count;
    RunFacts facts{std::string(hook()->name()), launched_ranks(), impl_->rows};
    host().program_start(&facts.program);
    if (is_known) return write_coverage(folder, account, facts, std::chrono::seconds(1));
    write_coverage(folder, account, facts);
  } catch (const std::exception& error) {
    if (is_known) return;
    log::warn(std::string(hook()->name()) + ": its account is in no file: " + exception_text(error));
  }
}
void HookScope::look_beside(std::function<void(Coverage&)> add) {
  impl_->beside = std::move(add);
}
const std::shared_ptr<Hook>& HookScope::hook() const {
  return impl_->active->hook;
}

}  // namespace op_tools
