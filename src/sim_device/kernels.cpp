#include "sim_device/kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "compat/autograd_fallback.h"
#include "hooks/backward_pass.h"
#include "hooks/op_traits.h"
#include "hooks/written_inputs.h"
#include "sim_device/aliases.h"
#include "sim_device/device.h"
#include "sim_device/faults.h"
#include "sim_device/memory.h"
#include "sim_device/queue.h"
#include "sim_device/rounding.h"
#include "sim_device/scoped_kernel.h"
#include "tensor/cpu_kernels.h"

namespace op_tools::sim_device {
namespace {

using torch::jit::Stack;

struct Counters {
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> asynchronous = 0;
  std::atomic<int64_t> views = 0;
};
Counters counters;
std::atomic<bool> asynchronous_mode = true;
std::atomic<bool> other_rounding = false;

std::vector<std::string>& registered() {
  static auto* names = new std::vector<std::string>;  // NOLINT: read until the process is gone
  return *names;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_tensor_or_tensors(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         (type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::TensorType);
}

// The facts of an operator's schema that matter here.
struct Facts {
  explicit Facts(const c10::OperatorHandle& op)
      : name(full_name(op.operator_name())), kernel(op), writes(written_arguments(op)) {
    const c10::FunctionSchema& schema = op.schema();
    const std::string_view base = base_name(op.operator_name().name);
    if (const auto index = schema.argumentIndexWithName("generator")) generator = *index;
    // An operator's changes beside its result (running statistics, noise) move no version counter, as on other
    // devices: it may be saved for backward.
    counts_writes = std::any_of(writes.declared.begin(), writes.declared.end(), [&](size_t i) {
      const c10::Argument& argument = schema.arguments()[i];
      return argument.is_out() || argument.type()->kind() == c10::TypeKind::ListType;
    });
    for (const c10::Argument& result : schema.returns()) {
      if (result.alias_info() && !result.alias_info()->isWrite()) view = true;
      if (!is_tensor_or_tensors(result.type())) host_waits = true;
    }
    counts_writes = counts_writes && !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
    host_waits = host_waits || op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
    draws_unasked = generator < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
    // Random operators draw when they are called: manual_seed() and get_rng_state() count on it.
    may_run_later = !view && !host_waits && !op.hasTag(at::Tag::nondeterministic_seeded) &&
                    !has_trait(base, OpTrait::kChangesMemory);
    takes_cpu_tensors = has_trait(base, OpTrait::kTakesCpuTensors);
  }

  std::string name;
  CpuKernel kernel;
  WrittenArguments writes;
  int generator = -1;
  bool draws_unasked = false;  // random without an argument for a generator: native_dropout
  bool counts_writes = false;  // torch leaves it to the device to move version counters: _foreach_add_ and its like
  bool view = false;
  bool host_waits = false;
  bool may_run_later = false;
  bool takes_cpu_tensors = false;
};

// --- Shapes of results, learned. A call that runs later needs its results' shapes before it runs. They are those of
// the call before with the same signature: the same sizes, strides, dtypes and integers in its arguments.

// Numbers that say everything which the shapes of an operator's results can depend on.
class Signature {
 public:
  explicit Signature(const c10::ArrayRef<c10::IValue>& arguments) {
    words_.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));  // an integer times 1.5 has it
    for (const c10::IValue& value : arguments) add(value);
  }
  bool complete() const { return complete_; }
  std::vector<int64_t> take() { return std::move(words_); }

 private:
  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      const auto& tensors = value.toListRef();
      words_.push_back(static_cast<int64_t>(tensors.size()));
      for (const c10::IValue& tensor : tensors) add(tensor.toTensor());
    } else if (value.isInt()) {
      add('i', value.toInt());
    } else if (value.isBool()) {
      add('b', value.toBool());
    } else if (value.isNone()) {
      words_.push_back('n');
    } else if (value.isDouble()) {
      // Beside a tensor a factor shapes nothing; alone it may (arange).
      add('d', seen_.empty() ? c10::bit_cast<int64_t>(value.toDouble()) : 0);
    } else if (value.isDevice()) {
      add('D', static_cast<int64_t>(value.toDevice().type()) * 256 + value.toDevice().index());
    } else if (value.isGenerator()) {
      words_.push_back('g');
    } else if (value.isString()) {
      add('s', static_cast<int64_t>(std::hash<std::string>()(value.toStringRef())));
    } else if (value.isList()) {
      const auto& items = value.toListRef();
      add('l', static_cast<int64_t>(items.size()));
      for (const c10::IValue& item : items) add_in_full(item);
    } else {
      complete_ = false;  // complex numbers and others: rare
    }
  }
  void add_in_full(const c10::IValue& value) {
    if (value.isDouble()) {
      add('d', c10::bit_cast<int64_t>(value.toDouble()));  // scale factors give sizes
    } else {
      add(value);
    }
  }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      words_.push_back('u');
      return;
    }
    const auto* impl = tensor.unsafeGetTensorImpl();
    const auto entry = std::find(seen_.begin(), seen_.end(), impl);
    add('t', entry - seen_.begin());
    if (entry != seen_.end()) return;
    seen_.push_back(impl);
    words_.push_back((static_cast<int64_t>(tensor.scalar_type()) << 32) | (int64_t{tensor.is_cpu()} << 8) |
                     (tensor.is_conj() << 4) | (tensor.is_neg() << 3) | (tensor._is_zerotensor() << 2) |
                     (impl->is_wrapped_number() << 1));
    add('[', tensor.dim());
    words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
    words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
  }
  void add(char kind, int64_t word) {
    words_.push_back(kind);
    words_.push_back(word);
  }

  std::vector<int64_t> words_;
  std::vector<const c10::TensorImpl*> seen_;
  bool complete_ = true;
};

struct Result {
  int argument = -1;  // which argument's tensor it is; -1: a new tensor
  bool defined = true;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype = at::kFloat;
};

struct Shapes {
  bool usable = true;
  std::vector<std::pair<bool, std::vector<Result>>> results;  // a list?, its tensors
};

Shapes learn(const Stack& results, const Aliases& aliases) {
  Shapes shapes;
  for (const c10::IValue& value : results) {
    std::vector<Result> items;
    for (const at::Tensor& tensor : tensors_in(value)) {
      Result result;
      result.defined = tensor.defined();
      if (tensor.defined() && (result.argument = aliases.argument(tensor)) < 0) {
        result.sizes = tensor.sizes().vec();
        result.strides = tensor.strides().vec();
        result.dtype = tensor.scalar_type();
        const bool plain = tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
                           !tensor._is_zerotensor() && tensor.storage_offset() == 0 &&
                           tensor.storage().use_count() == 1 && !aliases.shares_memory(tensor) &&
                           tensor.is_non_overlapping_and_dense() && tensor.is_cpu();
        shapes.usable = shapes.usable && plain;
      }
      items.push_back(std::move(result));
    }
    shapes.results.emplace_back(value.isTensorList(), std::move(items));
  }
  return shapes;
}

struct HashOfWords {
  size_t operator()(const std::vector<int64_t>& words) const { return c10::hash<std::vector<int64_t>>()(words); }
};

class LearnedShapes {
 public:
  std::shared_ptr<const Shapes> find(const std::vector<int64_t>& signature) const {
    const std::lock_guard lock(mutex_);
    const auto entry = known_.find(signature);
    return entry == known_.end() ? nullptr : entry->second;
  }
  void add(std::vector<int64_t> signature, Shapes shapes) {
    constexpr size_t kMost = 4096;  // of an operator; a program whose shapes never come again must not fill memory
    const std::lock_guard lock(mutex_);
    // The function registered last runs first at exit: the wait for work comes before the end of the libraries that
    // this kind of call has just loaded. Now and then is enough.
    if (std::has_single_bit(++added_)) std::atexit(finish);
    if (known_.size() >= kMost) known_.clear();
    known_[std::move(signature)] = std::make_shared<const Shapes>(std::move(shapes));
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::vector<int64_t>, std::shared_ptr<const Shapes>, HashOfWords> known_;
  size_t added_ = 0;
};

// --- The kernel

void check_devices(const Facts& facts, const Aliases& aliases) {
  const bool mixed = aliases.has_cpu_tensor() && !aliases.originals().empty() && !facts.takes_cpu_tensors;
  if (!mixed && !aliases.second_device()) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              *aliases.device(), " and ", mixed ? "cpu" : aliases.second_device()->str(), "! (when running ",
              facts.name, ")");
}

std::vector<at::Tensor> written_by(const Facts& facts, const Stack& arguments) {
  std::vector<at::Tensor> written;
  const auto add = [&](const std::vector<size_t>& positions) {
    for (const size_t i : positions) {
      for (at::Tensor& tensor : tensors_in(arguments[i])) written.push_back(std::move(tensor));
    }
  };
  add(facts.writes.declared);
  if (facts.writes.writes_undeclared(arguments)) add(facts.writes.undeclared);
  return written;
}

std::vector<size_t> all_written(const WrittenArguments& writes) {
  std::vector<size_t> all = writes.declared;
  all.insert(all.end(), writes.undeclared.begin(), writes.undeclared.end());
  return all;
}

// The autograd engine's thread keeps the number of threads with which it began, and sums are cut into pieces by it: a
// backward pass on the CPU runs on the program's thread, so that a later torch.set_num_threads would change bits here.
void take_threads_of_program() {
  static std::atomic<int> program_threads = 0;
  thread_local const bool of_engine = is_in_backward();  // at this thread's first call
  if (!of_engine) {
    program_threads.store(at::get_num_threads(), std::memory_order_relaxed);
    return;
  }
  const int threads = program_threads.load(std::memory_order_relaxed);
  if (threads > 0 && at::get_num_threads() != threads) at::set_num_threads(threads);
}

// Runs in the worker thread: `arguments` become results, which go `into` the tensors that the program already has.
void run_later(const c10::OperatorHandle& op, const CpuKernel& kernel, Stack& arguments,
               const std::vector<at::Tensor>& into, int threads, const OtherRounding* rounding) {
  const ScopedKernel scope;
  // Sums are cut into pieces by thread: as many as the issuing thread would have used, so that the bits are the same.
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  if (rounding) {
    rounding->redispatch(op, kernel, arguments);
  } else {
    kernel.redispatch(op, &arguments);
  }
  size_t next = 0;
  for (const c10::IValue& value : arguments) {
    for (const at::Tensor& result : tensors_in(value)) {
      const at::Tensor& to = into.at(next++);
      if (!to.defined()) continue;
      TORCH_CHECK(result.sizes() == to.sizes() && result.scalar_type() == to.scalar_type(), "sim: ", op.operator_name(),
                  " gave a result of ", result.sizes(), " ", result.dtype(), " where ", to.sizes(), " ", to.dtype(),
                  " was expected from calls with the same arguments; sim_device.set_asynchronous(False) avoids this");
      to.copy_(result);
    }
  }
}

class DeviceKernel final : public c10::OperatorKernel {
 public:
  explicit DeviceKernel(const c10::OperatorHandle& op, bool may_run_later = true)
      : facts_(op), rounding_(std::make_shared<OtherRounding>(op, all_written(facts_.writes), !facts_.view)) {
    facts_.may_run_later = facts_.may_run_later && may_run_later;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
    const ScopedKernel scope;
    take_threads_of_program();
    ++counters.calls;
    const size_t count = op.schema().arguments().size();
    const c10::ArrayRef<c10::IValue> originals(stack->data() + (stack->size() - count), count);
    Aliases aliases;
    Stack arguments;
    arguments.reserve(count);
    for (const c10::IValue& value : originals) arguments.push_back(aliases.to_cpu(value));
    check_devices(facts_, aliases);
    if (facts_.counts_writes) count_writes(originals);
    const c10::OptionalDeviceGuard device(aliases.device());
    FaultInjection faults(facts_.name, !facts_.view, scope.is_of_tool());
    const bool unnamed = facts_.generator >= 0 && arguments[static_cast<size_t>(facts_.generator)].isNone();
    const bool elsewhere = (unnamed || facts_.draws_unasked) && faults.draws_elsewhere();
    if (unnamed && !elsewhere) {
      arguments[static_cast<size_t>(facts_.generator)] = cpu_generator_in(default_generator(current_device()));
    }
    if (facts_.view) {
      ++counters.views;
      facts_.kernel.redispatch(op, &arguments);
      give(aliases, arguments, count, *stack);
      return;
    }

    const auto latency = latency_of(facts_.name) + faults.latency();
    Queue& queue = queue_for_work();
    if (faults.device_work()) queue.push(faults.device_work());
    std::vector<int64_t> signature;
    const bool asynchronous = asynchronous_mode.load(std::memory_order_relaxed);
    if (asynchronous && facts_.may_run_later && aliases.device() && !aliases.has_cpu_tensor() && !faults.any()) {
      Signature words(originals);
      if (words.complete()) signature = words.take();
      const auto shapes = signature.empty() ? nullptr : shapes_.find(signature);
      if (shapes && shapes->usable) {
        launch(op, *shapes, aliases, std::move(arguments), queue, latency, count, *stack);
        return;
      }
      if (shapes) signature.clear();  // known to be of no use
    }

    // In this thread, after all that was queued before it.
    queue.wait();
    const std::vector<at::Tensor> written = faults.any() ? written_by(facts_, arguments) : std::vector<at::Tensor>();
    faults.before(written);
    {
      const DrawsAsTheDevice draws(facts_.draws_unasked && !elsewhere);
      if (other_rounding.load(std::memory_order_relaxed)) {
        rounding_->redispatch(op, facts_.kernel, arguments);
      } else {
        facts_.kernel.redispatch(op, &arguments);
      }
    }
    faults.after(arguments, aliases.aliases(), written);
    Shapes shapes;
    if (!signature.empty()) shapes = learn(arguments, aliases);
    if (aliases.follow()) shapes.usable = false;
    if (!signature.empty()) shapes_.add(std::move(signature), std::move(shapes));
    give(aliases, arguments, count, *stack);
    if (latency.count() > 0) {
      queue.push(nullptr, latency);
      if (!asynchronous || facts_.host_waits) queue.wait();
    }
  }

 private:
  void count_writes(const c10::ArrayRef<c10::IValue>& arguments) const {
    const auto count = [](const at::Tensor& tensor) {
      if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    };
    for (const size_t index : facts_.writes.declared) {
      const c10::IValue& value = arguments[index];
      if (value.isTensor()) count(value.toTensor());
      if (!value.isTensorList()) continue;
      for (const c10::IValue& item : value.toListRef()) count(item.toTensor());
    }
  }

  static void give(Aliases& aliases, const Stack& results, size_t arguments, Stack& stack) {
    std::vector<c10::IValue> device_results;
    for (const c10::IValue& value : results) device_results.push_back(aliases.to_device(value));
    torch::jit::drop(stack, arguments);
    for (c10::IValue& value : device_results) stack.push_back(std::move(value));
  }

  void launch(const c10::OperatorHandle& op, const Shapes& shapes, const Aliases& aliases, Stack arguments,
              Queue& queue, std::chrono::nanoseconds latency, size_t count, Stack& stack) const {
    ++counters.asynchronous;
    aliases.keep_cpu_scalars(arguments);
    std::vector<at::Tensor> into;  // CPU side of new results; undefined where the result is an argument
    std::vector<c10::IValue> results;
    for (const auto& [is_list, items] : shapes.results) {
      std::vector<at::Tensor> tensors;
      for (const Result& item : items) {
        if (!item.defined || item.argument >= 0) {
          tensors.push_back(item.defined ? aliases.originals()[static_cast<size_t>(item.argument)] : at::Tensor());
          into.emplace_back();
          continue;
        }
        tensors.emplace_back(at::detail::empty_strided_generic(item.sizes, item.strides, device_allocator(),
                                                               c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                               item.dtype));
        into.push_back(cpu_alias(tensors.back()));
      }
      results.emplace_back(is_list ? c10::IValue(c10::List<at::Tensor>(tensors)) : c10::IValue(tensors[0]));
    }
    queue.push(
        [op, kernel = facts_.kernel, arguments = std::move(arguments), into = std::move(into),
         threads = at::get_num_threads(), rounding = other_rounding.load() ? rounding_ : nullptr]() mutable {
          run_later(op, kernel, arguments, into, threads, rounding.get());
        },
        latency);
    torch::jit::drop(stack, count);
    for (c10::IValue& value : results) stack.push_back(std::move(value));
  }

  Facts facts_;
  std::shared_ptr<const OtherRounding> rounding_;
  LearnedShapes shapes_;
};

// Operators that were registered after load(), custom ones mostly: nothing is learned of them, so they never run later.
void run_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  DeviceKernel kernel(op, /*may_run_later=*/false);
  kernel(op, keys, stack);
}

bool runs_on_cpu(const c10::OperatorHandle& op, const std::string& name) {
  // Composite on the CPU; a device has a single kernel for a whole list of tensors.
  if (has_trait(base_name(name), OpTrait::kDeviceKernelOfComposite) || is_foreach(base_name(name))) return true;
  // This library's own.
  if (is_one_of(name, {"aten::empty.memory_format", "aten::empty_strided", "aten::_copy_from",
                       "aten::_copy_from_and_resize", "aten::_local_scalar_dense", "aten::record_stream"})) {
    return false;
  }
  return CpuKernel(op).is_direct(op) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace

void register_kernel(const char* op, c10::DispatchKey key, c10::KernelFunction kernel) {
  const std::string_view text = op;
  const size_t dot = std::min(text.find('.'), text.size());
  c10::OperatorName name(std::string(text.substr(0, dot)), std::string(dot < text.size() ? text.substr(dot + 1) : ""));
  if (key == c10::DispatchKey::PrivateUse1) registered().push_back(full_name(name));
  // Never removed: RegistrationHandleRAII would take the kernel out again.
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;  // NOLINT
  kept->push_back(c10::Dispatcher::singleton().registerImpl(std::move(name), key, std::move(kernel), std::nullopt,
                                                            nullptr, "op_tools sim device"));
}

// A fallback for the key alone would not do: operators that torch composes of others above the backend
// (CompositeExplicitAutograd: add as add.out, convolution) would win over it, and a device has kernels of its own for
// them.
void register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  [[gnu::used]] static auto* fallback =
      new c10::RegistrationHandleRAII(dispatcher.registerFallback(  // NOLINT: for good
          c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&run_unknown>(),
          "op_tools sim device"));
  compat::register_autograd_fallback();
  for (const c10::OperatorName& operator_name : dispatcher.getAllOpNames()) {
    const std::string name = full_name(operator_name);
    if (!name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(operator_name);
    if (!op || !runs_on_cpu(*op, name)) continue;
    register_kernel(name.c_str(), c10::DispatchKey::PrivateUse1,
                    c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<DeviceKernel>(*op)));
  }
}

DeviceNames names_that_reach_the_device() {
  DeviceNames names;
  names.reach = registered();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& operator_name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(operator_name);
    if (!op) continue;
    const bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (composite && !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      names.composite.push_back(full_name(operator_name));
    } else if (!operator_name.name.starts_with("aten::") && op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
      names.reach.push_back(full_name(operator_name));  // a custom operator
    }
  }
  return names;
}

void set_asynchronous(bool on) {
  synchronize();
  asynchronous_mode = on;
}

bool is_asynchronous() {
  return asynchronous_mode;
}

void set_rounding(bool on) {
  synchronize();
  other_rounding = on;
}

bool is_rounding() {
  return other_rounding;
}

void count_calls(Statistics& all) {
  all.calls = counters.calls;
  all.asynchronous = counters.asynchronous;
  all.views = counters.views;
}

}  // namespace op_tools::sim_device
