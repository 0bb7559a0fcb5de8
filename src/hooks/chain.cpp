#include "hooks/chain.h"

#include <ATen/SavedTensorHooks.h>

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include <c10/util/SmallVector.h>

#include "base/host.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "base/stop_program.h"
#include "hooks/argument_key.h"
#include "hooks/backward_frame.h"
#include "hooks/backward_pass.h"
#include "hooks/error_origin.h"
#include "hooks/failed_backward.h"
#include "hooks/graph_capture.h"
#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "hooks/stack_source.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"

namespace op_tools {

std::unique_ptr<HookState> Hook::before(OpCall&) {
  return nullptr;
}
void Hook::after(OpCall&, HookState*) {}
void Hook::add_coverage(Coverage&) const {}
void Hook::run_ends(const std::function<Coverage()>&) {}
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

// A state for each hook of the chain. Filled by the thread of the forward call before its graph can run backward, read
// after that.
struct BackwardStates {
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

bool OpCall::in_backward() const {
  if (!in_backward_) in_backward_ = is_in_backward();
  return *in_backward_;
}

uint64_t OpCall::forward_id() {
  if (level == Level::kTorch) return phase == Phase::kBackward ? id : 0;
  notes_nodes();
  notes_id_ = true;
  return call_of_current_node();
}

void OpCall::find_place(bool line, bool module) {
  line = line && !line_;
  module = module && !module_;
  if (!line && !module) return;
  notes_nodes();
  const Place place = current_place(line, module, in_backward());
  if (line) line_ = place.line;
  if (module) module_ = place.module;
}

std::vector<std::string> OpCall::stack() {
  std::vector<std::string> lines = current_stack();
  const std::string& own = line();
  if (!own.empty() && (lines.empty() || lines.front() != own)) lines.insert(lines.begin(), own);
  return lines;
}

void OpCall::notes_nodes() {
  if (grad_enabled && !first_node_) first_node_ = next_node();  // else it makes none
}

void OpCall::save_for_backward(std::shared_ptr<HookState> state) {
  if (backward_states_) backward_states_->states[hook_] = std::move(state);
}

HookState* OpCall::saved_state() const {
  return backward_states_ ? backward_states_->states[hook_].get() : nullptr;
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
      asks_calls(this->options.steps || this->options.modules || this->options.skip_cpu || this->options.calls ||
                 wants.device_values),
      items(this->options.calls ? std::make_unique<CallItems>() : nullptr) {}

bool ActiveHook::asks(OpCall& call) const {
  const int64_t now = step.load(std::memory_order_relaxed);
  // First, because it counts. Torch level: backward comes for the calls that were admitted.
  if (options.calls && call.phase == Phase::kForward && !items->next(call, now).is_in(*options.calls)) return false;
  if (options.steps && call.phase == Phase::kForward) {
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
  if (wants.device_values && is_recorded_into_graph(call)) {
    in_graph.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  return true;
}

bool ActiveHook::admits(std::string_view name, bool composite) const {
  if (wants.modules != is_module_call(name)) return false;
  if (!options.filter) return !composite && !is_metadata_op(name);
  if (!options.filter->admits(name)) return false;
  return (!composite && !is_metadata_op(name)) || options.filter->names(name);
}

void ActiveHook::fail(std::string_view where, std::string_view why) noexcept {
  if (off.exchange(true)) return;
  try {
    std::string message(hook->name());
    message.append(" failed in ").append(where).append(" and is off now; the program goes on: ").append(why);
    log::error(message);
  } catch (...) {  // out of memory for the message: the hook is off, which matters more
  }
}

void ActiveHook::took_graph(std::string_view name) {
  const std::lock_guard<std::mutex> lock(graphs_mutex_);
  if (graphs_.find(name) == graphs_.end()) graphs_.emplace(name);
}

uint64_t ActiveHook::graph_count() const {
  const std::lock_guard<std::mutex> lock(graphs_mutex_);
  return graphs_.size();
}

namespace {
uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
}  // namespace

namespace {
std::atomic<int> g_unobserved{0};  // of all threads
thread_local int tl_unobserved = 0;
}  // namespace

Unobserved::Unobserved() {
  ++tl_unobserved;
  g_unobserved.fetch_add(1, std::memory_order_relaxed);
}

Unobserved::~Unobserved() {
  --tl_unobserved;
  g_unobserved.fetch_sub(1, std::memory_order_relaxed);
}

bool Unobserved::is_on() {
  return g_unobserved.load(std::memory_order_relaxed) != 0 && tl_unobserved != 0;
}

Chain::Chain(std::vector<std::shared_ptr<ActiveHook>> hooks)
    : number(next_number()), hooks_(std::move(hooks)), op_masks_(std::make_unique<std::atomic<uint64_t>[]>(kOpSlots)) {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (hooks_[i]->hook->is_innermost()) innermost_ |= uint32_t{1} << i;
    if (hooks_[i]->hook->is_executor()) executors_ |= uint32_t{1} << i;
    if (hooks_[i]->wants.gradients && !hooks_[i]->wants.borrows_gradients) owns_gradients_ |= uint32_t{1} << i;
    if (hooks_[i]->wants.failed_backward) wants_failed_backward_ |= uint32_t{1} << i;
    if (!hooks_[i]->on_device.load()) before_device_.fetch_or(uint32_t{1} << i);
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
    } else if (active.options.level == Level::kTorch && !is_metadata_op(name) &&
               active.wants.modules == is_module_call(name)) {
      log::info("skip " + std::string(active.hook->name()) + "Hook on " + std::string(name));
    }
  }
  return mask;
}

uint32_t Chain::mask_for_graph(std::string_view name) const {
  uint32_t mask = mask_for(name);
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (!hooks_[i]->wants.graphs || hooks_[i]->options.compiled != CompiledGraphs::kCheck) mask &= ~(uint32_t{1} << i);
  }
  return mask;
}

void Chain::leave_jagged(uint32_t mask) const {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (mask >> i & 1) hooks_[i]->jagged.fetch_add(1, std::memory_order_relaxed);
  }
}

CompiledGraphs Chain::compiled() const {
  CompiledGraphs most = CompiledGraphs::kAsIs;
  for (const auto& active : hooks_) most = std::max(most, active->options.compiled);
  return most;
}

bool Chain::wants(uint32_t mask, bool Wants::*need) const {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if ((mask >> i & 1) && hooks_[i]->wants.*need) return true;
  }
  return false;
}

namespace {

constexpr uint64_t kCallsBetweenLines = 1024;  // of the progress

// How a hook's part in a call ended.
struct Ended {
  bool normally;
  std::exception_ptr stop;  // its request to stop the program (base/stop_program.h)
};

// Calls into a hook. Its exception is logged once and disables the hook; an exception of the program
// (Ctrl-C), is held for the program.
template <class Call>
Ended contained(ActiveHook& active, std::string_view where, Call&& call) noexcept {
  try {
    call();
    return {true, nullptr};
  } catch (const StopProgram&) {
    return {false, std::current_exception()};
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) active.fail(where, exception_text(error));
  } catch (...) {
    active.fail(where, "an exception of unknown type");
  }
  return {false, nullptr};
}

// The work of a source for the hooks. When it fails, the hooks miss the backward; the program's call goes on.
template <class Call>
bool tried(const OpCall& op, Call&& call) noexcept {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) {
      log::error("backward of " + std::string(op.name) + " is not recorded: " + exception_text(error));
    }
  } catch (...) {
    log::error("backward of " + std::string(op.name) + " is not recorded: an exception of unknown type");
  }
  return false;
}

// Backward of a torch-level call: the engine has run it already, the frame only shows results, or the exception.
class BackwardFrame final : public Frame, public GradientsInGraph {
 public:
  BackwardFrame(const CallGradients& gradients, const std::string& error) : gradients_(gradients), error_(error) {}
  Value args() override { return as_tuple(gradients_.outputs); }
  Value kwargs() override { return make_dict({}); }
  Value result() override { return as_tuple(gradients_.inputs); }
  const std::vector<bool>& in_graph() const override { return gradients_.in_graph; }
  bool add_arguments(ArgumentKey& key) override { return add(gradients_.outputs, key); }
  bool add_result(ArgumentKey& key) override { return add(gradients_.inputs, key); }
  void proceed() override {
    if (!error_.empty()) throw std::runtime_error(error_);
  }

 private:
  static Value as_tuple(const std::vector<at::Tensor>& tensors) {
    return make_tuple(Values(tensors.begin(), tensors.end()));
  }
  static bool add(const std::vector<at::Tensor>& tensors, ArgumentKey& key) {
    key.add_group(ArgumentKey::Part::kTuple, tensors.size());
    for (const at::Tensor& tensor : tensors) key.add_tensor(tensor);
    return true;
  }
  const CallGradients& gradients_;
  const std::string& error_;
};

// Below Python operators throw torch's errors and the standard library's. Any other exception comes from Python code
// that autograd called inside of the operator, which hooks for saved tensors are.
bool is_of_saved_tensor_hook(const OpCall& call, const std::exception& error) {
  return call.level == Level::kAten && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
         !dynamic_cast<const c10::Error*>(&error) && !dynamic_cast<const std::runtime_error*>(&error) &&
         !dynamic_cast<const std::logic_error*>(&error) && !dynamic_cast<const std::bad_alloc*>(&error);
}

// An exception that came for the program while hooks ran: now it is the program's turn.
void throw_held(const OpCall& call) {
  const std::exception_ptr held = take_held();
  if (!held) return;
  // The gradient collector distinguishes it from a failure by its type.
  if (call.phase == Phase::kBackward) throw StopProgram("the program was interrupted", held);
  std::rethrow_exception(held);
}

}  // namespace

namespace {
const std::string kNotAsked;  // of the forward call
}

GradientCollector::OnBackward Chain::backward_of(OpCall& call) const {
  call.backward_states_ = std::make_shared<BackwardStates>();
  call.backward_states_->states.resize(hooks_.size());
  const bool borrows = (call.hooks & owns_gradients_) == 0;
  auto backward = [chain = shared_from_this(), states = call.backward_states_, id = call.id, borrows,
                   name = std::string(call.name), module = call.module_,
                   line = call.line_](uint32_t mask, const CallGradients& gradients, const std::string& error) {
    BackwardFrame frame(gradients, error);
    const GuardedState thread;
    OpCall call(id, Level::kTorch, Phase::kBackward, name, frame, thread);
    call.pass = gradients.pass;
    call.incomplete = !gradients.complete;
    call.owns_values = !borrows;
    call.backward_states_ = states;
    call.module_ = module ? module : &kNotAsked;
    call.line_ = line ? line : &kNotAsked;
    chain->run(mask, call);
  };
  auto begins = [states = call.backward_states_]() -> std::shared_ptr<void> {
    auto held = std::make_shared<c10::SmallVector<std::shared_ptr<void>, 2>>();
    for (const auto& state : states->states) {
      if (std::shared_ptr<void> hold = state ? state->hold_during_backward() : nullptr)
        held->push_back(std::move(hold));
    }
    return held->empty() ? nullptr : held;
  };
  GradientCollector::OnBackward on_backward(
      [backward, mask = call.hooks](const CallGradients& gradients) { backward(mask, gradients, ""); },
      std::move(begins));
  if (const uint32_t wanting = call.hooks & wants_failed_backward_) {
    on_backward.failed = [backward, wanting](CallGradients gradients) {
      note_failed_backward([backward, wanting, gradients = std::move(gradients)](const std::string& error) {
        try {
          backward(wanting, gradients, error);
        } catch (const std::exception& same) {  // the error, which is on its way to the program already
          hold_for_program(same);
        }
      });
    };
  }
  on_backward.borrows = borrows;
  return on_backward;
}

// Takes a call through the hooks. While hooks run, guards hide their own operators from the program's grad mode,
// autocast and modes, which this thread may hold.
class Chain::Run {
 public:
  Run(const Chain& chain, uint32_t mask, OpCall& call) : chain_(chain), mask_(mask), call_(call) {
    states_.resize(chain.hooks_.size());
  }

  // Both for the masked hooks only.
  void before(uint32_t group);
  void after(uint32_t group);

  void execute() {
    if (executor_ && !executor_->off.load(std::memory_order_relaxed)) {
      executor_->hook->execute(call_);
    } else {
      call_.frame().proceed();
    }
  }

  void failed(std::string error) {
    call_.error = std::move(error);
    after(chain_.innermost_);
    after(~chain_.innermost_);
  }

  uint32_t mask() const { return mask_; }  // of the hooks that take part
  std::exception_ptr stop() const { return stop_; }

 private:
  const Chain& chain_;
  uint32_t mask_;
  OpCall& call_;
  c10::SmallVector<std::unique_ptr<HookState>, 4> states_;
  ActiveHook* executor_ = nullptr;
  std::exception_ptr stop_;  // of the first hook that wants to stop the program; thrown after all hooks saw the call
};

void Chain::Run::before(uint32_t group) {
  if (!(mask_ & group)) return;
  const InternalGuard guard(call_.thread_);
  for (size_t i = 0; i < states_.size(); ++i) {
    const uint32_t bit = uint32_t{1} << i;
    if (!(mask_ & group & bit)) continue;
    ActiveHook& active = *chain_.hooks_[i];
    call_.declined_ = true;
    const Ended ended = contained(active, "before()", [&] {
      if (!active.accepts(call_)) return;
      call_.declined_ = false;
      const uint64_t seen = active.seen.fetch_add(1, std::memory_order_relaxed) + 1;
      if (active.wants.progress && seen % kCallsBetweenLines == 0) {
        log::progress(std::string(active.hook->name()) + ": " + std::to_string(seen) + " calls");
      }
      if (call_.is_graph) active.took_graph(call_.name);
      call_.hook_ = i;
      call_.step = active.step.load(std::memory_order_relaxed);
      states_[i] = active.hook->before(call_);
      if (call_.declined_) return;
      if (active.wants.inputs_after) call_.args(), call_.kwargs();
      if (active.hook->is_executor()) executor_ = &active;
    });
    if (ended.stop) active.fail("before()", "it wants to stop the program, which only after() may do");
    if (call_.declined_ || !ended.normally) mask_ &= ~bit;
  }
}

void Chain::Run::after(uint32_t group) {
  if (!(mask_ & group)) return;
  const InternalGuard guard(call_.thread_);
  for (size_t i = states_.size(); i-- > 0;) {
    ActiveHook& active = *chain_.hooks_[i];
    if (!(mask_ & group & uint32_t{1} << i) || active.off.load(std::memory_order_relaxed)) continue;
    call_.hook_ = i;
    call_.step = active.step.load(std::memory_order_relaxed);
    const Ended ended = contained(active, "after()", [&] { active.hook->after(call_, states_[i].get()); });
    if (ended.stop && !stop_) stop_ = ended.stop;
  }
}

// Tensors on the accelerator: a run on the host beside it lacks them. Looking ends with a hook's first such tensor, so
// a run on a device pays for a few calls only.
void Chain::look_for_device_tensor(uint32_t asking, OpCall& call) const noexcept {
  bool has_device_tensor = false;
  try {
    call.frame().visit_result([&](const at::Tensor& tensor) {
      has_device_tensor =
          has_device_tensor || (tensor.defined() && !tensor.device().is_cpu() && !tensor.device().is_meta());
    });
  } catch (const std::exception& error) {
    hold_for_program(error);  // an interrupt; a tensor without a device that can be asked is on none
  } catch (...) {             // NOLINT(bugprone-empty-catch): as above
  }
  if (!has_device_tensor) return;
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (asking >> i & 1) hooks_[i]->on_device.store(true, std::memory_order_relaxed);
  }
  before_device_.fetch_and(~asking, std::memory_order_relaxed);
}

void Chain::run(uint32_t mask, OpCall& call) const {
  if (Unobserved::is_on()) {
    mask &= executors_;
    if (mask == 0) return call.frame().proceed();
  }
  Run run(*this, mask, call);
  run.before(~innermost_);
  call.hooks = run.mask();
  const bool prepared = call.hooks != 0 && tried(call, [&] { call.frame().prepare(call); });
  run.before(innermost_);
  call.hooks = run.mask();
  try {
    run.execute();
  } catch (const std::exception& error) {
    run.failed(is_of_saved_tensor_hook(call, error) ? ended_by_program("a hook for saved tensors raised")
               : host().is_of_program(error)        ? ended_by_program(exception_text(error))
                                                    : exception_text(error));
    throw_held(call);
    throw;
  } catch (...) {
    run.failed("an exception of unknown type");
    throw;
  }
  run.after(innermost_);
  if (const uint32_t asking = before_device_.load(std::memory_order_relaxed) & run.mask()) {
    look_for_device_tensor(asking, call);
  }
  // At the torch level gradients are reported by call; at the aten level the engine's operators only know their node.
  if (call.level == Level::kAten && call.first_node_) {
    tried(call, [&] {
      note_nodes(*call.first_node_, call.name, {call.module_, call.line_, call.notes_id_ ? call.id : 0});
    });
  }
  if (prepared) tried(call, [&] { call.frame().conclude(call); });
  run.after(~innermost_);
  throw_held(call);
  if (!run.stop()) return;
  try {
    std::rethrow_exception(run.stop());
  } catch (const StopProgram& stop) {
    // The gradient collector distinguishes it from a failure by its type.
    if (call.phase == Phase::kBackward) throw;
    stop.raise();
  }
}

}  // namespace op_tools
