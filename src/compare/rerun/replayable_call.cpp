#include "compare/rerun/replayable_call.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <limits>

#include "base/host.h"
#include "base/stop_program.h"
#include "calls/random_state.h"
#include "compare/rerun/unwritten_fill.h"
#include "hooks/op_traits.h"
#include "hooks/written_inputs.h"
#include "tensor/autocast.h"
#include "tensor/cpu_kernels.h"
#include "tensor/device_guard.h"
#include "tensor/device_names.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/quiet.h"

namespace op_tools {
namespace {

// The dispatcher's keys for a run in the state of the program's call: autograd and autocast as they were there, nothing
// of its modes and transforms, and never us. A compiled graph may enter functorch's transforms itself.
c10::impl::LocalDispatchKeySet without_modes(const c10::impl::LocalDispatchKeySet& program) {
  c10::impl::LocalDispatchKeySet keys = program;
  keys.included_ = keys.included_ - kModeKeys;
  keys.excluded_ = keys.excluded_ | (kModeKeys - kFunctorchKeys);
  return keys;
}

// The same on the CPU, whose autocast stands for that of the call's device.
c10::impl::LocalDispatchKeySet keys_for_cpu(const c10::impl::LocalDispatchKeySet& program, bool autocast) {
  c10::impl::LocalDispatchKeySet keys = without_modes(program);
  keys.excluded_ = keys.excluded_ | c10::autocast_dispatch_keyset;
  if (autocast) keys.excluded_ = keys.excluded_.remove(c10::DispatchKey::AutocastCPU);
  return keys;
}

bool is_traced(const c10::impl::LocalDispatchKeySet& keys) {
  return keys.included_.has(c10::DispatchKey::Tracer);
}

bool is_made_of_others(const c10::OperatorHandle& op) {
  const CpuKernel kernel(op);
  return kernel.exists(op) && !kernel.is_direct(op);
}

// torch.autograd.graph.saved_tensors_hooks are the program's own code: they are not called for tensors that a run of
// ours saves.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() : before_(at::SavedTensorDefaultHooks::set_tracing(true)) {}
  ~NoSavedTensorHooks() { at::SavedTensorDefaultHooks::set_tracing(before_); }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  const bool before_;
};

bool are_saved_tensors_packed() {
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  return !hooks.stack.empty() && !hooks.is_tracing;
}

// x.cuda(), and the method of a device that torch.utils.generate_methods_for_privateuse1_backend makes: on the CPU it
// is x, as x.to("cpu") is.
bool names_moving_method(const std::string& name) {
  const std::string method(base_name(name));
  if (method == "wrap_tensor_to") return true;
  const std::optional<c10::Device> device = device_named(method);
  return device && !device->is_cpu() && name == "torch.Tensor." + method;
}

Value first_argument(const CallArguments& arguments) {
  return sequence_items(arguments.args)->front();
}

// A run gets its inputs without a copy of their memory, until it writes into them. Here, before several threads run it.
void share_until_written(const std::vector<at::Tensor>& copies) {
  constexpr size_t kWorthIt = 64 * 1024;
  for (const at::Tensor& copy : copies) {
    if (!copy.defined() || copy.layout() != at::kStrided || !copy.has_storage()) continue;
    c10::StorageImpl& storage = *copy.storage().unsafeGetStorageImpl();
    if (storage.nbytes() < kWorthIt || c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) continue;
    if (!storage.allocator()) storage.set_allocator(c10::GetCPUAllocator());  // for the copy of who writes
    c10::impl::cow::lazy_clone_storage(storage);  // makes `storage` a storage that can be shared
  }
}

}  // namespace

ArgumentsOnCpu arguments_on_cpu(const CallArguments& call, std::string_view base_name, c10::Device device) {
  ArgumentsOnCpu copies;
  const auto moved = [&](const Value& value, std::optional<c10::Device> named) -> Value {
    if (!named) return value;
    copies.names_device = true;
    if (named->is_cpu() || named->type() == c10::kMeta) return value;
    copies.elsewhere = device = *named;
    return c10::Device(c10::kCPU);
  };
  const auto on_cpu = [&](const Value& value) -> Value {
    if (const auto* named = value.get_if<c10::Device>()) return moved(value, *named);
    const auto* text = value.get_if<std::string>();
    return text ? moved(value, device_named(*text)) : value;
  };
  copies.arguments.args = map_leaves(call.args, on_cpu);
  copies.arguments.kwargs = map_leaves(call.kwargs, on_cpu);
  copies.arguments.aten = map_leaves(call.aten, on_cpu);
  // Numbers are devices in these places alone: x.to(1), torch.ones(3, device=1).
  const auto by_number = [&](const Value& value) -> Value {
    const auto* index = value.get_if<int64_t>();
    if (!index || *index < 0 || *index > std::numeric_limits<c10::DeviceIndex>::max()) return value;
    const c10::DeviceType type = device.is_cpu() ? at::getAccelerator(false).value_or(c10::kCPU) : device.type();
    return moved(value, c10::Device(type, static_cast<c10::DeviceIndex>(*index)));
  };
  if (const Values* const args = sequence_items(copies.arguments.args); args && args->size() > 1 && base_name == "to") {
    Values changed = *args;
    changed[1] = by_number(changed[1]);
    copies.arguments.args = make_tuple(std::move(changed));
  }
  if (const auto* const kwargs = copies.arguments.kwargs.get_if<Dict>()) {
    std::vector<std::pair<Value, Value>> items = *kwargs->items;
    for (auto& [key, item] : items) {
      const auto* const name = key.get_if<std::string>();
      if (name && *name == "device") item = by_number(item);
    }
    copies.arguments.kwargs = make_dict(std::move(items));
  }
  return copies;
}

bool on_several_devices(const std::vector<TensorMeta>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const TensorMeta& tensor) { return tensor.device != tensors.front().device; });
}

ReplayableCall::ReplayableCall(OpCall& call)
    : level_(call.level),
      name_(call.name),
      grad_enabled_(call.grad_enabled),
      inference_mode_(c10::InferenceMode::is_enabled()),
      keys_(call.local_keys),
      written_(op_tools::written_inputs(call)) {
  // Operators of torch's own have no kernels in Python.
  in_python_ = level_ == Level::kTorch || !call.op || call.op->operator_name().getNamespace() != "aten";
  if (const std::shared_ptr<const OpRunner> runner = call.frame().runner())
    run_ = [runner](const CallArguments& arguments) { return runner->run(arguments.args, arguments.kwargs); };
  if (run_ && names_moving_method(name_)) run_ = first_argument;
  const Value both = make_tuple({call.args(), call.kwargs()});
  inputs_ = take_snapshot(both, "", /*owned=*/false, /*restride=*/false);
  for (const TensorMeta& facts : inputs_.tensors) {
    if (!facts.device.is_cpu()) device_ = facts.device;
    wants_gradients_ = wants_gradients_ || (grad_enabled_ && facts.requires_grad);
    devices_.push_back(facts.device);
  }
  has_packed_tensors_ = wants_gradients_ && are_saved_tensors_packed() && host().packs_saved_tensors();
  const Values& items = *sequence_items(inputs_.value);
  take({items[0], items[1], {}});
  share_until_written(tensors_);
  // At the aten level autocast has cast already, but not for the inner calls of an operator that is made of others.
  if (level_ == Level::kAten && !(call.op && is_made_of_others(*call.op))) return;
  autocast_ = autocast_dtype(device_.type(), keys_.excluded_);
}

void ReplayableCall::take(CallArguments as_given) {
  as_given_ = std::move(as_given);
  ArgumentsOnCpu moved = arguments_on_cpu(as_given_, base_name(name_), device_);
  arguments_ = std::move(moved.arguments);
  names_device_ = moved.names_device || (level_ == Level::kTorch && names_moving_method(name_));
  if (moved.elsewhere) device_ = *moved.elsewhere;
  all_on_cpu_ = device_.is_cpu();
  inputs_.value = make_tuple({as_given_.args, as_given_.kwargs});
  tensors_ = flatten_tensors(inputs_.value);
  overlapping_ = reads_what_it_writes(tensors_, written_);
  arguments_ = with_memory_of_their_own(arguments_, overlapping_);
}

ReplayableCall ReplayableCall::with_inputs(const std::function<at::Tensor(const at::Tensor&)>& copy_of) const {
  ReplayableCall other(*this);
  other.take(with_copies(as_given_, copy_of));
  return other;
}

ReplayableCall ReplayableCall::with_arguments(Value args, Value kwargs) const {
  ReplayableCall other(*this);
  other.take({std::move(args), std::move(kwargs), {}});
  other.devices_.clear();
  other.written_.clear();
  for (const at::Tensor& tensor : other.tensors_) {
    const auto is_it = [&](const at::Tensor& own) { return own.is_same(tensor); };
    const auto place = static_cast<size_t>(std::find_if(tensors_.begin(), tensors_.end(), is_it) - tensors_.begin());
    other.devices_.push_back(place < devices_.size() ? devices_[place] : device_);
    other.written_.push_back(place < written_.size() && written_[place]);
  }
  return other;
}

ReplayableCall::ReplayableCall(Saved call)
    : level_(call.level),
      name_(std::move(call.name)),
      grad_enabled_(call.grad_enabled),
      inference_mode_(call.inference_mode),
      keys_(call.keys),
      autocast_(call.autocast),
      written_(std::move(call.written_inputs)),
      arguments_(std::move(call.arguments)),
      tensors_(flatten_tensors(make_tuple({arguments_.args, arguments_.kwargs}))),
      run_(names_moving_method(name_) ? first_argument : std::move(call.run)) {
  overlapping_ = reads_what_it_writes(tensors_, written_);
  arguments_ = with_memory_of_their_own(arguments_, overlapping_);
}

// Autograd and autocast as the program had them.
void ReplayableCall::with_program_state(const RunVariant& variant, const std::function<void()>& work) const {
  if (level_ != Level::kTorch) return work();
  const bool on_device = variant.kind == RunVariant::Kind::kOnDevice;
  const bool autocast = autocast_ && variant.in_own_dtypes() && !on_device;
  const auto keys = on_device ? without_modes(keys_) : keys_for_cpu(keys_, autocast);
  const c10::InferenceMode mode(inference_mode_);  // first: it sets grad mode and keys, too
  const c10::impl::ForceDispatchKeyGuard as_there(keys);
  const c10::AutoGradMode grad(grad_enabled_);
  const NoSavedTensorHooks no_hooks;
  // Where the program has left its autocast, a backward pass is run in the device's default dtype otherwise.
  const AutocastDtype dtype(on_device ? device_.type() : c10::kCPU, autocast || on_device ? autocast_ : std::nullopt);
  work();
}

RunOutcome ReplayableCall::backward(RunOutcome forward, const RunVariant& variant,
                                    const std::vector<at::Tensor>& output_gradients) const {
  const QuietRun quiet(in_python_);
  try {
    const InternalGuard ours;
    forward.arriving = output_gradients;
    with_program_state(variant, [&] {
      forward.gradients =
          forward.made_from->input_gradients(flatten_tensors(forward.result), output_gradients, output_gradients);
    });
  } catch (const std::exception& error) {
    hold_for_program(error);
    forward.impossible = exception_text(error);
  }
  return forward;
}

// Why the call cannot be run a second time; empty when it can.
std::string ReplayableCall::why_not() const {
  if (!run_) return "the call cannot be run again";
  if (is_collective(name_)) return "other processes take part in it, and would wait for it to be run again";
  // Torch's own conversion of arguments in Python tells the trace of sizes that are values of it, and the call that is
  // run again takes none of them: the next call of the program would have them.
  if (in_python_ && (is_traced(keys_) || is_traced(c10::impl::tls_local_dispatch_key_set()))) {
    return "torch.jit.trace records it, and would record it again";
  }
  for (const OpTrait trait : {OpTrait::kForwardMode, OpTrait::kOpensFile}) {
    if (const OpFamily* const family = family_of(base_name(name_), trait)) return std::string(family->why);
  }
  return {};
}

bool ReplayableCall::is_on_several_devices() const {
  bool several = on_several_devices(inputs_.tensors);
  map_leaves(inputs_.value, [&](const Value& value) {
    const auto* const generator = value.get_if<Generator>();
    several = several || (generator && generator->device.type() != device_.type());
    return value;
  });
  return several;
}

bool ReplayableCall::names_absent_device() const {
  const bool has_tensor = std::find(devices_.begin(), devices_.end(), device_) != devices_.end();
  return names_device_ && !has_tensor && !is_there(device_);
}

RunOutcome ReplayableCall::run_on_device(const RunVariant& variant, const Value& random_states,
                                         const std::vector<at::Tensor>* output_gradients) const {
  const DeviceStreamGuard streams(random_states);
  const Value* on_cpu = find_key(random_states, "cpu");
  return run(variant, output_gradients, on_cpu ? on_cpu->get_if<at::Tensor>() : nullptr);
}

RunOutcome ReplayableCall::run(const RunVariant& variant, const std::vector<at::Tensor>* output_gradients,
                               const at::Tensor* random_state, bool beside_program) const {
  RunOutcome run;
  run.impossible = why_not();
  if (!run.impossible.empty()) return run;
  // Beside the program it would take back numbers that the program draws meanwhile.
  std::optional<CpuStreamGuard> stream;
  if (!beside_program) stream.emplace();
  const QuietRun quiet(in_python_);
  try {
    // Copies are ordinary tensors, whose writes are counted, whatever mode the program is in.
    const c10::InferenceMode ordinary(false);
    const InternalGuard ours;
    const bool on_device = variant.kind == RunVariant::Kind::kOnDevice;
    const auto inputs =
        std::make_shared<const VariantInputs>(on_device ? as_given_ : arguments_, name_, variant, autocast_, devices_);
    run.made_from = inputs;
    run.inputs = inputs->tensors();
    const std::vector<at::Tensor> arriving =
        output_gradients ? inputs->output_gradients(*output_gradients) : std::vector<at::Tensor>();
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : run.inputs) versions.push_back(tensor._version());
    if (stream && random_state && variant.in_own_dtypes()) stream->start_from(*random_state);
    const bool is_filled = variant.kind == RunVariant::Kind::kUnwritten;
    with_program_state(variant, [&] {
      const UnwrittenFillGuard fill(is_filled ? std::optional(static_cast<UnwrittenFill>(variant.sample))
                                              : std::nullopt);
      try {
        run.result = run_(inputs->arguments());
      } catch (const std::exception& error) {
        (hold_for_program(error) ? run.impossible : run.raised) = exception_text(error);
      }
      if (run.returned() && output_gradients) {
        run.arriving = arriving;
        run.gradients = inputs->input_gradients(flatten_tensors(run.result), arriving, *output_gradients);
      }
    });
    for (size_t i = 0; i < versions.size(); ++i) {
      const bool is_written = i < written_.size() && written_[i];
      run.written.push_back(is_written || run.inputs[i]._version() != versions[i]);
    }
    run.record_memory(flatten_tensors(run.result), run.inputs);
  } catch (const std::exception& error) {
    hold_for_program(error);
    run.impossible = exception_text(error);
  }
  return run;
}

}  // namespace op_tools
