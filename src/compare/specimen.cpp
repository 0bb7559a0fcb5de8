#include "compare/specimen.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "capture/call_files.h"
#include "capture/random_state.h"
#include "compare/golden.h"
#include "compare/op_traits.h"
#include "fallback/cpu_kernels.h"
#include "fallback/cpu_runner.h"
#include "hooks/interceptor.h"
#include "hooks/internal_guard.h"

namespace op_tools {
namespace {

// The dispatcher's keys for a run on the CPU that sees what the program's call saw: autograd and autocast as they were
// there, nothing of modes and transforms, and never us.
c10::impl::LocalDispatchKeySet keys_for_cpu(const c10::impl::LocalDispatchKeySet& program, bool autocast) {
  constexpr auto kNever =
      c10::functorch_transforms_ks | c10::python_ks |
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::PreDispatch,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::Functionalize,
                           c10::DispatchKey::Tracer, kInterceptorKey});
  c10::impl::LocalDispatchKeySet keys = program;
  keys.included_ = keys.included_ - kNever;
  keys.excluded_ = keys.excluded_ | kNever | c10::autocast_dispatch_keyset;
  if (autocast) keys.excluded_ = keys.excluded_.remove(c10::DispatchKey::AutocastCPU);
  return keys;
}

bool is_made_of_others(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

class AutocastDtype {
 public:
  explicit AutocastDtype(std::optional<c10::ScalarType> dtype) : before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    if (dtype) at::autocast::set_autocast_dtype(at::kCPU, *dtype);
  }
  ~AutocastDtype() { at::autocast::set_autocast_dtype(at::kCPU, before_); }
  AutocastDtype(const AutocastDtype&) = delete;
  AutocastDtype& operator=(const AutocastDtype&) = delete;

 private:
  const c10::ScalarType before_;
};

// What a run of ours saves for its backward is none of the program's: a checkpoint counts what its hook is given.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() : before_(at::SavedTensorDefaultHooks::get_tls_state()) {
    if (!before_.stack.empty()) at::SavedTensorDefaultHooks::set_tls_state({});
  }
  ~NoSavedTensorHooks() {
    if (!before_.stack.empty()) at::SavedTensorDefaultHooks::set_tls_state(before_);
  }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  const at::impl::SavedTensorDefaultHooksTLS before_;
};

constexpr int kGradientSamples = 100;  // added to the sample: other changes than those of the inputs

// The program has had its warnings from the call itself.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// The gradient of a bias depends on nothing else, and is a sum that may cancel (in front of a batch norm it is all
// noise).
std::vector<at::Tensor> perturbed_gradients(const std::vector<at::Tensor>& gradients, RunKind kind,
                                            std::optional<c10::ScalarType> autocast) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      copies.push_back(gradient.to(golden_dtype(gradient.scalar_type()), /*non_blocking=*/false, /*copy=*/true));
    } else {
      copies.emplace_back();
    }
  }
  kind.sample += kGradientSamples;
  perturb(copies, gradients, kind, autocast);
  return copies;
}

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.empty() ? "an exception without a message" : text;
}

}  // namespace

Specimen::Specimen(OpCall& call)
    : level_(call.level),
      name_(call.name),
      grad_enabled_(call.grad_enabled),
      keys_(call.local_keys),
      written_(written_by_schema(call)),
      runner_(call.frame().runner()) {
  if (level_ == Level::kAten && call.op) {
    if (const c10::KernelFunction* kernel = cpu_kernel_for(*call.op))
      runner_ = interceptor::runner_of(*call.op, kernel);
  }
  const Value both = make_tuple({call.args(), call.kwargs()});
  inputs_ = take_snapshot(both, "", /*owned=*/false, /*restride=*/false);
  c10::Device device(c10::kCPU);
  for (const TensorFacts& facts : inputs_.tensors) {
    if (!facts.device.is_cpu()) {
      all_on_cpu_ = false;
      device = facts.device;
    }
    wants_gradients_ = wants_gradients_ || (grad_enabled_ && facts.requires_grad);
  }
  const auto on_cpu = [&](const Value& value) -> Value {
    const auto* named = value.get_if<c10::Device>();
    const auto* text = value.get_if<std::string>();
    const bool by_text = text && !device.is_cpu() &&
                         (*text == device.str() || *text == c10::DeviceTypeName(device.type(), /*lower_case=*/true));
    if (!named && !by_text) return value;
    names_device_ = true;
    if (by_text) return c10::Device(c10::kCPU);
    if (named->is_cpu() || named->type() == c10::kMeta) return value;
    all_on_cpu_ = false;
    device = *named;
    return c10::Device(c10::kCPU);
  };
  const Values& items = *sequence_items(inputs_.value);
  args_ = map_leaves(items[0], on_cpu);
  kwargs_ = map_leaves(items[1], on_cpu);
  tensors_ = flatten_tensors(inputs_.value);
  // At the aten level autocast has cast already, but not for what an operator that is made of others calls.
  if (level_ == Level::kAten && !(call.op && is_made_of_others(*call.op))) return;
  if (!at::autocast::is_autocast_available(device.type())) return;  // meta has none
  const c10::DispatchKey key = at::autocast::get_autocast_dispatch_key_from_device_type(device.type());
  if (!keys_.excluded_.has(key)) autocast_ = at::autocast::get_autocast_dtype(device.type());
}

CallRun Specimen::run(const RunKind& kind, const std::vector<at::Tensor>* output_gradients,
                      const at::Tensor* random_state) const {
  CallRun run;
  if (!runner_) {
    run.impossible = "the call cannot be run again";
    return run;
  }
  const bool same = kind.precision == RunKind::Precision::kSame;
  Target target{.device = c10::kCPU, .fresh = true};
  if (!same) target.cast = &golden_dtype;
  CpuStreamKept stream;
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  try {
    const InternalGuard ours;
    const MovedCall moved(args_, kwargs_, target);
    std::vector<at::Tensor> arriving = output_gradients ? *output_gradients : std::vector<at::Tensor>();
    if (kind.precision == RunKind::Precision::kPerturbed) {
      perturb(moved.tensors(), tensors_, kind, autocast_);
      arriving = perturbed_gradients(arriving, kind, autocast_);
    }
    Value args = moved.args();
    if (!same && (base_name(name_) == "_softmax" || base_name(name_) == "_log_softmax")) {
      // half_to_float: refuses every input that is not half.
      Values plain = *sequence_items(args);
      if (plain.size() > 2) plain[2] = false;
      args = make_tuple(std::move(plain));
    }
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : moved.tensors()) versions.push_back(tensor._version());
    if (random_state && same) stream.start_from(*random_state);
    const auto call = [&] {
      try {
        run.result = runner_->run(args, moved.kwargs());
      } catch (const std::exception& error) {
        run.raised = message_of(error);
      }
      if (run.raised.empty() && output_gradients) {
        run.gradients = moved.gradients(flatten_tensors(run.result), arriving, /*keep_graph=*/false);
      }
    };
    if (level_ == Level::kTorch) {
      const bool autocast = autocast_ && same;
      const auto keys = keys_for_cpu(keys_, autocast);
      const c10::impl::ForceDispatchKeyGuard as_the_program(keys);
      const c10::AutoGradMode grad(grad_enabled_);
      const AutocastDtype dtype(autocast ? autocast_ : std::nullopt);
      const NoSavedTensorHooks no_hooks;
      call();
    } else {
      call();
    }
    run.inputs = moved.tensors();
    for (size_t i = 0; i < versions.size(); ++i) {
      const bool by_schema = i < written_.size() && written_[i];
      run.written.push_back(by_schema || run.inputs[i]._version() != versions[i]);
    }
    const std::vector<at::Tensor> results = flatten_tensors(run.result);
    run.aliases = shared_memory(results, run.inputs);
    for (const at::Tensor& tensor : results) {
      run.strides.push_back(tensor.layout() == at::kStrided && !tensor.is_nested() ? tensor.strides().vec()
                                                                                   : std::vector<int64_t>());
    }
  } catch (const std::exception& error) {
    run.impossible = message_of(error);
  }
  return run;
}

}  // namespace op_tools
