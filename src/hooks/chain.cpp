#include "hooks/chain.h"

#include <ATen/SavedTensorHooks.h>

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include <c10/util/SmallVector.h>

#include "base/log.h"
#include "base/op_filter.h"
#include "hooks/ended_by_program.h"
#include "hooks/held_in_backward.h"
#include "hooks/module_path.h"
#include "hooks/reads_gradients.h"
#include "hooks/stop_program.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"

namespace op_tools {

std::unique_ptr<HookState> Hook::before(OpCall&) {
  return nullptr;
}
void Hook::after(OpCall&, HookState*) {}
void Hook::step_begins(int64_t) {}

void Frame::visit_inputs(Visit visit) {
  for_each_tensor(args(), visit);
  for_each_tensor(kwargs(), visit);
}
void Frame::visit_result(Visit visit) {
  for_each_tensor(result(), visit);
}

uint64_t next_call_id() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

// One for each hook of the chain. Filled by the thread of the forward call before its graph can run backward, read
// after that.
struct KeptStates {
  std::vector<std::shared_ptr<HookState>> states;
};

OpCall::OpCall(uint64_t id, Level level, Phase phase, std::string_view name, Frame& frame, const GuardedState& thread)
    : id(id),
      level(level),
      phase(phase),
      name(name),
      grad_enabled(thread.autograd.get_grad_mode()),
      local_keys(thread.keys),
      frame_(frame),
      thread_(thread) {}

const Value& OpCall::args() {
  if (!args_) args_ = frame_.args();
  return *args_;
}

const Value& OpCall::kwargs() {
  if (!kwargs_) kwargs_ = frame_.kwargs();
  return *kwargs_;
}

const Value& OpCall::result() {
  if (!result_) result_ = error.empty() ? frame_.result() : Value();
  return *result_;
}

const std::string& OpCall::module() {
  if (!module_) {
    first_node_ = next_node();
    module_ = current_module();
  }
  return *module_;
}

void OpCall::keep(std::shared_ptr<HookState> state) {
  if (kept_) kept_->states[hook_] = std::move(state);
}

HookState* OpCall::kept() const {
  return kept_ ? kept_->states[hook_].get() : nullptr;
}

namespace {
ResolvedOptions with_sorted_steps(ResolvedOptions options) {
  if (options.steps) std::sort(options.steps->begin(), options.steps->end());
  return options;
}
}  // namespace

ActiveHook::ActiveHook(std::shared_ptr<Hook> hook, ResolvedOptions options)
    : hook(std::move(hook)),
      options(with_sorted_steps(std::move(options))),
      wants(this->hook->wants()),
      asks_calls(this->options.steps || this->options.modules || this->options.skip_cpu) {}

bool ActiveHook::asks(OpCall& call) const {
  if (options.steps && call.phase == Phase::kForward) {
    const int64_t now = step.load(std::memory_order_relaxed);
    if (!std::binary_search(options.steps->begin(), options.steps->end(), now)) return false;
  }
  // Backward comes for the calls that were admitted.
  if (options.modules && call.phase == Phase::kForward && !admits_module(*options.modules, call.module())) return false;
  if (options.skip_cpu) {
    bool any = false;
    bool all_cpu = true;
    auto look = [&](const at::Tensor& tensor) {
      any = true;
      all_cpu = all_cpu && tensor.device().is_cpu();
    };
    for_each_tensor(call.args(), look);
    for_each_tensor(call.kwargs(), look);
    if (any && all_cpu) return false;
  }
  return true;
}

bool ActiveHook::admits(std::string_view name, bool composite) const {
  if (!options.filter) return !composite && !is_metadata_op(name);
  if (!options.filter->admits(name)) return false;
  return (!composite && !is_metadata_op(name)) || options.filter->names(name);
}

void ActiveHook::fail(std::string_view where, std::string_view what) noexcept {
  if (off.exchange(true)) return;
  try {
    std::string message(hook->name());
    message.append(" failed in ").append(where).append(" and is off now; the program goes on: ").append(what);
    log::error(message);
  } catch (...) {  // out of memory while telling: the hook is off, which is what matters
  }
}

namespace {
uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
}  // namespace

Chain::Chain(std::vector<std::shared_ptr<ActiveHook>> hooks)
    : number(next_number()), hooks_(std::move(hooks)), op_masks_(std::make_unique<std::atomic<uint64_t>[]>(kOpSlots)) {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (hooks_[i]->hook->is_innermost()) innermost_ |= uint32_t{1} << i;
    if (hooks_[i]->wants.gradients && !dynamic_cast<const ReadsGradients*>(hooks_[i]->hook.get())) {
      keeps_gradients_ |= uint32_t{1} << i;
    }
  }
}

uint32_t Chain::mask_of_op(size_t op_index, std::string_view name, bool composite) const {
  constexpr uint64_t kAsked = uint64_t{1} << 63;
  if (op_index >= kOpSlots) return mask_for(name, composite);
  std::atomic<uint64_t>& slot = op_masks_[op_index];
  uint64_t known = slot.load(std::memory_order_relaxed);
  if (known == 0) {
    known = mask_for(name, composite) | kAsked;
    slot.store(known, std::memory_order_relaxed);
  }
  return static_cast<uint32_t>(known);
}

uint32_t Chain::mask_for(std::string_view name, bool composite) const {
  uint32_t mask = 0;
  for (size_t i = 0; i < hooks_.size(); ++i) {
    const ActiveHook& active = *hooks_[i];
    if (active.options.filter) active.options.filter->saw(name);
    if (active.admits(name, composite)) {
      mask |= uint32_t{1} << i;
    } else if (active.options.level == Level::kTorch && !is_metadata_op(name)) {
      log::info("skip " + std::string(active.hook->name()) + "Hook on " + std::string(name));
    }
  }
  return mask;
}

Wants Chain::wants(uint32_t mask) const {
  Wants all;
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (!(mask >> i & 1)) continue;
    all.gradients |= hooks_[i]->wants.gradients;
    all.aten_call |= hooks_[i]->wants.aten_call;
    all.nodes |= hooks_[i]->wants.nodes;
  }
  return all;
}

namespace {

// Calls into a hook: whatever it throws is logged once and switches it off, but for its wish to stop the program, which
// is returned.
template <class Call>
std::exception_ptr contained(ActiveHook& active, std::string_view where, Call&& call) noexcept {
  try {
    call();
  } catch (const StopProgram&) {
    return std::current_exception();
  } catch (const std::exception& error) {
    active.fail(where, exception_text(error));
  } catch (...) {
    active.fail(where, "an exception of unknown type");
  }
  return nullptr;
}

// What a source does for the hooks. Its failure costs them that, not the program its call.
template <class Call>
bool prepared(const OpCall& op, Call&& call) noexcept {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    log::error("backward of " + std::string(op.name) + " is not recorded: " + error.what());
  } catch (...) {
    log::error("backward of " + std::string(op.name) + " is not recorded: an exception of unknown type");
  }
  return false;
}

// Backward of a torch-level call: the engine has run it already, the frame only shows what came out.
class BackwardFrame final : public Frame {
 public:
  explicit BackwardFrame(const CallGradients& gradients) : gradients_(gradients) {}
  Value args() override { return as_tuple(gradients_.outputs); }
  Value kwargs() override { return make_dict({}); }
  Value result() override { return as_tuple(gradients_.inputs); }
  void proceed() override {}
  void replace_inputs(const std::function<at::Tensor(const at::Tensor&)>&) override {}
  void replace_result(const std::function<at::Tensor(const at::Tensor&)>&) override {}

 private:
  static Value as_tuple(const std::vector<at::Tensor>& tensors) {
    return make_tuple(Values(tensors.begin(), tensors.end()));
  }
  const CallGradients& gradients_;
};

// Below Python operators throw torch's errors and the standard library's. What is neither comes from Python code that
// autograd called inside of the operator, which hooks for saved tensors are.
bool is_of_saved_tensor_hook(const OpCall& call, const std::exception& error) {
  return call.level == Level::kAten && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
         !dynamic_cast<const c10::Error*>(&error) && !dynamic_cast<const std::runtime_error*>(&error) &&
         !dynamic_cast<const std::logic_error*>(&error) && !dynamic_cast<const std::bad_alloc*>(&error);
}

}  // namespace

GradientCollector::OnBackward Chain::backward_of(OpCall& call) const {
  call.kept_ = std::make_shared<KeptStates>();
  call.kept_->states.resize(hooks_.size());
  const bool lends = (call.hooks & keeps_gradients_) == 0;
  auto backward = [chain = shared_from_this(), kept = call.kept_, mask = call.hooks, id = call.id, lends,
                   name = std::string(call.name), module = call.module_](const CallGradients& gradients) {
    BackwardFrame frame(gradients);
    const GuardedState thread;
    OpCall call(id, Level::kTorch, Phase::kBackward, name, frame, thread);
    call.pass = gradients.pass;
    call.incomplete = !gradients.complete;
    call.owns_values = !lends;
    call.kept_ = kept;
    call.module_ = module.value_or("");
    chain->run(mask, call);
  };
  auto begins = [kept = call.kept_] {
    std::shared_ptr<void> held;
    for (const auto& state : kept->states) {
      const auto* holder = dynamic_cast<const HeldInBackward*>(state.get());
      if (!holder) continue;
      held = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(held), holder->hold());
    }
    return held;
  };
  GradientCollector::OnBackward on_backward(std::move(backward), std::move(begins));
  on_backward.lends = lends;
  return on_backward;
}

void Chain::run(uint32_t mask, OpCall& call) const {
  const size_t count = hooks_.size();
  const GuardedState& thread = call.thread_;
  c10::SmallVector<std::unique_ptr<HookState>, 4> states;
  states.resize(count);
  ActiveHook* executor = nullptr;

  // This thread may hold the user's grad mode, autocast and modes: the guards hide the hooks' own operators from them.
  const auto before = [&](uint32_t group) {
    if (!(mask & group)) return;
    const InternalGuard guard(thread);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bit = uint32_t{1} << i;
      if (!(mask & group & bit)) continue;
      ActiveHook& active = *hooks_[i];
      call.declined_ = true;
      const auto wish = contained(active, "before()", [&] {
        if (!active.accepts(call)) return;
        call.declined_ = false;
        active.seen.fetch_add(1, std::memory_order_relaxed);
        call.hook_ = i;
        call.step = active.step.load(std::memory_order_relaxed);
        states[i] = active.hook->before(call);
        if (!call.declined_ && active.hook->is_executor()) executor = &active;
      });
      if (wish) active.fail("before()", "it wants to stop the program, which is for after()");
      if (call.declined_) mask &= ~bit;
    }
  };
  std::exception_ptr stop;  // the first wish; thrown when all hooks have seen the call
  const auto after = [&](uint32_t group) {
    if (!(mask & group)) return;
    const InternalGuard guard(thread);
    for (size_t i = count; i-- > 0;) {
      ActiveHook& active = *hooks_[i];
      if (!(mask & group & uint32_t{1} << i) || active.off.load(std::memory_order_relaxed)) continue;
      call.hook_ = i;
      call.step = active.step.load(std::memory_order_relaxed);
      const auto wish = contained(active, "after()", [&] { active.hook->after(call, states[i].get()); });
      if (wish && !stop) stop = wish;
    }
  };
  const auto failed = [&](std::string what) {
    call.error = std::move(what);
    after(innermost_);
    after(~innermost_);
  };

  before(~innermost_);
  call.hooks = mask;
  const bool ready = mask != 0 && prepared(call, [&] { call.frame().prepare(call); });
  before(innermost_);
  call.hooks = mask;
  try {
    if (executor && !executor->off.load(std::memory_order_relaxed)) {
      executor->hook->execute(call);
    } else {
      call.frame().proceed();
    }
  } catch (const std::exception& error) {
    failed(is_of_saved_tensor_hook(call, error) ? ended_by_program("a hook for saved tensors raised")
                                                : exception_text(error));
    throw;
  } catch (...) {
    failed("an exception of unknown type");
    throw;
  }
  after(innermost_);
  // At the torch level gradients come by call; here the engine's operators only know their node.
  if (call.level == Level::kAten && call.module_ && !call.module_->empty()) {
    prepared(call, [&] { note_nodes(call.first_node_, *call.module_); });
  }
  if (ready) prepared(call, [&] { call.frame().conclude(call); });
  after(~innermost_);
  if (!stop) return;
  try {
    std::rethrow_exception(stop);
  } catch (const StopProgram& wish) {
    // Who reports gradients tells a wish from a failure by its type.
    if (call.phase == Phase::kBackward) throw;
    wish.raise();
  }
}

}  // namespace op_tools
