#include "fallback/redirect.h"

#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/resize_ops.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "fallback/cpu_runner.h"
#include "fallback/random_stream.h"
#include "hooks/op_traits.h"
#include "hooks/written_inputs.h"
#include "tensor/cpu_kernels.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using c10::TypeKind;
using Stack = std::vector<IValue>;

c10::TypePtr element_type(c10::TypePtr type) {
  while (type->kind() == TypeKind::OptionalType || type->kind() == TypeKind::ListType) type = type->containedType(0);
  return type;
}

std::string why_never(const OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (is_collective(name)) {
    return "it is a collective: the other processes wait for this process on the device";
  }
  for (const OpTrait trait : {OpTrait::kReadsValue, OpTrait::kChangesMemory, OpTrait::kUndeclaredView}) {
    if (const OpFamily* family = family_of(base_name(name), trait)) return std::string(family->why);
  }
  if (is_metadata_op(name)) return "it only reads a tensor's description";
  if (returns_uninitialized(base_name(name))) {
    return "its result is uninitialized memory: there is nothing to compute";
  }
  if (op.hasTag(at::Tag::inplace_view)) return "it changes a tensor's sizes and strides, not its numbers";
  bool any_tensor = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const c10::TypePtr type = element_type(argument.real_type());
    any_tensor |= type->kind() == TypeKind::TensorType;
    if (argument.alias_info() && !argument.alias_info()->isWrite()) {
      return "it gives a view of its input: nothing is computed";
    }
    switch (type->kind()) {
      case TypeKind::StorageType:
      case TypeKind::StreamObjType:
      case TypeKind::ClassType:
      case TypeKind::PyObjectType:
      case TypeKind::AnyType:
      case TypeKind::DictType:
      case TypeKind::TupleType:
        return "its argument '" + argument.name() + "' (" + argument.real_type()->repr_str() + ") cannot be moved";
      default:
        break;
    }
  }
  if (!any_tensor) return "it makes tensors and takes none: there is nothing to move";
  return {};
}

struct OpFacts {
  explicit OpFacts(const OperatorHandle& op);

  std::string never;  // why it cannot be redirected; empty: it can
  bool random;
  CpuKernel kernel;
  std::optional<size_t> generator;  // the argument of that type
  WrittenArguments writes;
  std::vector<size_t> dtypes;  // arguments of that type
};

OpFacts::OpFacts(const OperatorHandle& op)
    : never(why_never(op)),
      random(op.hasTag(at::Tag::nondeterministic_seeded)),
      kernel(op),
      writes(written_arguments(op)) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const TypeKind kind = element_type(arguments[i].real_type())->kind();
    if (kind == TypeKind::GeneratorType) generator = i;
    if (kind == TypeKind::ScalarTypeType) dtypes.push_back(i);
  }
}

const OpFacts& facts_of(const OperatorHandle& op) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::unordered_map<c10::OperatorName, OpFacts>;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    const auto entry = known->find(op.operator_name());
    if (entry != known->end()) return entry->second;
  }
  OpFacts facts(op);  // asks the dispatcher, which has locks of its own
  std::lock_guard<std::mutex> lock(*mutex);
  return known->emplace(op.operator_name(), std::move(facts)).first->second;
}

// Every tensor of an argument or a return that is a tensor or a list of them.
template <class Visit>
void each_tensor(const IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

// The same with each tensor replaced; lists are new ones of the same element type.
IValue with_tensors(const IValue& value, const std::function<at::Tensor(const at::Tensor&)>& replace) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(replace(value.toTensor())) : value;
  if (!value.isList()) return value;
  const auto list = value.toList();
  c10::impl::GenericList moved_list(list.elementType());
  moved_list.reserve(list.size());
  for (const IValue& item : value.toListRef()) moved_list.push_back(with_tensors(item, replace));
  return moved_list;
}

// An argument that is written to is an out= argument when it can only be given by name.
bool is_in_place(const OperatorHandle& op, size_t argument) {
  return !op.schema().arguments()[argument].kwarg_only();
}

// torch's messages take pages: all kernels that there are, a stack.
std::string first_sentence(const std::exception& error) {
  const std::string text = exception_text(error);
  if (!dynamic_cast<const c10::Error*>(&error)) return text;
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));
}

// A call that goes elsewhere and back.
class Redirect {
 public:
  Redirect(const OperatorHandle& op, const OpFacts& facts, const Elsewhere& elsewhere, Stack arguments)
      : op_(op), facts_(facts), elsewhere_(elsewhere), arguments_(std::move(arguments)) {
    for (const IValue& argument : arguments_)
      each_tensor(argument, [&](const at::Tensor& t) { tensors_.push_back(t); });
  }

  // The conditions for the call to run elsewhere.
  Redirected check() {
    const auto refuse = [](std::string why) { return Redirected{Redirected::Outcome::kRefused, std::move(why)}; };
    const auto device = device_of(tensors_);
    if (!device) return refuse("its tensors are on several devices");
    device_ = *device;
    if (elsewhere_.to_cpu ? device_.is_cpu() && !names_device() : !casts_any() && !elsewhere_.on_copies) {
      return {Redirected::Outcome::kNothingToDo, {}};
    }
    if (elsewhere_.on_copies && device_.is_cpu()) return {Redirected::Outcome::kNothingToDo, {}};
    if (!facts_.never.empty()) return refuse(facts_.never);
    if (at::tracer::impl::is_dispatch_enabled()) {
      return refuse("torch.jit.trace records it, and would not know the tensors that are brought back");
    }
    for (const IValue& argument : arguments_) {
      if (argument.isDevice() && !is_same_device(argument.toDevice(), device_)) {
        return refuse("it moves data to another device");
      }
    }
    if (!elsewhere_.to_cpu && !elsewhere_.on_copies) return {};
    if (elsewhere_.to_cpu && !facts_.kernel.exists(op_)) return refuse("the CPU has no kernel for it");
    for (const at::Tensor& tensor : tensors_) {
      // An index or a length may be on the CPU; other data there is the user's mistake, and the device's to complain
      // of.
      if (tensor.device().is_cpu() && tensor.dim() > 0 && at::isFloatingType(tensor.scalar_type())) {
        return refuse("it takes tensors from the CPU and from the device: a copy between them, or a mistake");
      }
    }
    for (const size_t i : facts_.writes.declared) {
      bool on_cpu = false;
      each_tensor(arguments_[i], [&](const at::Tensor& tensor) { on_cpu |= tensor.device().is_cpu(); });
      if (on_cpu) return refuse("it changes a tensor on the CPU: a copy between devices");
    }
    return {};
  }

  Redirected run(interceptor::OperatorFrame& frame) {
    std::optional<MovedTensors> moved;
    std::optional<RandomStream> random;
    const Target target{elsewhere_.to_cpu ? c10::Device(c10::kCPU) : device_, elsewhere_.cast, elsewhere_.on_copies};
    // The error of an earlier call, which a device reports once and late, belongs to the program: it must not be taken
    // for a reason to refuse this call.
    if (elsewhere_.to_cpu || elsewhere_.on_copies) wait_for_device(device_);
    try {
      moved.emplace(tensors_, target, GradientsGo::kToOriginals);
      if (elsewhere_.to_cpu) start_random(random);
    } catch (const c10::Error& error) {
      return {Redirected::Outcome::kRefused, "it could not be moved: " + first_sentence(error)};
    } catch (const Error& error) {
      return {Redirected::Outcome::kRefused, error.what()};
    }
    Stack moved_stack = moved_arguments(*moved, target, random);
    try {
      // Autocast has cast the arguments already, by the device's lists: the CPU's lists must not cast them again.
      c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      facts_.kernel.call(op_, &moved_stack);
      if (elsewhere_.on_copies) wait_for_device(device_);
    } catch (const c10::NotImplementedError& error) {
      if (random) random->take_back();
      return {Redirected::Outcome::kRefused, "it cannot be done there: " + first_sentence(error)};
    }
    std::optional<MovedTensors> back;
    try {
      back.emplace(new_tensors(moved_stack, *moved), Target{device_, narrowing()}, GradientsGo::kToOriginals);
    } catch (const std::exception& error) {
      if (random) random->take_back();
      return {Redirected::Outcome::kRefused, "its result could not be brought back: " + first_sentence(error)};
    }
    random.reset();
    write_back(*moved);
    frame.set_returns(brought_back(std::move(moved_stack), *moved, *back));
    Redirected done;
    done.bytes = moved->bytes() + back->bytes();
    return done;
  }

 private:
  at::ScalarType cast(at::ScalarType dtype) const { return elsewhere_.cast ? elsewhere_.cast(dtype) : dtype; }

  bool casts_any() const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const at::Tensor& tensor) {
      return !tensor.unsafeGetTensorImpl()->is_wrapped_number() && cast(tensor.scalar_type()) != tensor.scalar_type();
    });
  }

  // A factory's tensors are where an argument says.
  bool names_device() const {
    return std::any_of(arguments_.begin(), arguments_.end(),
                       [](const IValue& argument) { return argument.isDevice() && !argument.toDevice().is_cpu(); });
  }

  void start_random(std::optional<RandomStream>& random) const {
    const bool has_generator = facts_.generator && arguments_[*facts_.generator].isGenerator();
    if (!has_generator && !facts_.random) return;
    try {
      random.emplace(
          has_generator ? arguments_[*facts_.generator].toGenerator() : at::globalContext().defaultGenerator(device_),
          /*as_default=*/!facts_.generator);
    } catch (const std::exception& error) {
      throw Error(std::string("its random numbers cannot be had from the device: ") + exception_text(error));
    }
  }

  Stack moved_arguments(const MovedTensors& moved, const Target& target,
                        const std::optional<RandomStream>& random) const {
    Stack moved_stack;
    moved_stack.reserve(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const IValue& argument = arguments_[i];
      if (random && facts_.generator == i) {
        moved_stack.emplace_back(random->generator());
      } else if (argument.isDevice()) {
        moved_stack.emplace_back(target.device);
      } else if (argument.isInt() && is_dtype(i)) {
        moved_stack.emplace_back(static_cast<int64_t>(cast(argument.toScalarType())));
      } else {
        moved_stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) { return moved.copy_of(tensor); }));
      }
    }
    return moved_stack;
  }

  bool is_dtype(size_t index) const {
    return std::find(facts_.dtypes.begin(), facts_.dtypes.end(), index) != facts_.dtypes.end();
  }

  // Under the program's own autograd: a copy_ refuses tensors that the operator in place would refuse (a leaf), and is
  // recorded.
  void write_back(const MovedTensors& moved) const {
    for (const size_t i : facts_.writes.declared) {
      each_tensor(arguments_[i], [&](at::Tensor tensor) {
        const at::Tensor changed = moved.copy_of(tensor);
        if (changed.is_same(tensor)) return;
        if (tensor.sizes() != changed.sizes()) resize(tensor, changed);
        // torch's copy_ from another device or dtype would leave the tangent there.
        std::optional<MovedTensors> home;
        if (changed._fw_grad(/*level=*/0).defined()) {
          const auto own = [dtype = tensor.scalar_type()](at::ScalarType) { return dtype; };
          home.emplace(std::vector{changed}, Target{tensor.device(), own}, GradientsGo::kToOriginals);
        }
        at::_ops::copy_::call(tensor, home ? home->copy_of(changed) : changed, /*non_blocking=*/false);
      });
    }
    if (facts_.writes.writes_undeclared(arguments_)) write_back_undeclared(moved);
  }

  // The operator moves no version counter for these, and autograd does not look at them.
  void write_back_undeclared(const MovedTensors& moved) const {
    const InternalGuard guard;
    for (const size_t i : facts_.writes.undeclared) {
      each_tensor(arguments_[i], [&](at::Tensor tensor) {
        const at::Tensor changed = moved.copy_of(tensor);
        if (!changed.is_same(tensor)) at::_ops::copy_::call(tensor, changed, /*non_blocking=*/false);
      });
    }
  }

  // An out= tensor of another size than the result, as the operator itself resizes it.
  static void resize(at::Tensor& tensor, const at::Tensor& like) {
    const InternalGuard guard;  // autograd lets no program resize a tensor that requires grad, but operators
    if (tensor.layout() != at::kStrided) return;  // a sparse tensor takes its size with the copy
    at::_ops::resize_::call(tensor, like.sym_sizes(), std::nullopt);
    if (tensor.strides() == like.strides()) return;
    // Strides may reach further than as many elements do: lstsq solves in the memory of its right side.
    const ByteRange reached = bytes_shown(like);
    const int64_t elements = (reached.end - reached.begin) / static_cast<int64_t>(like.itemsize());
    at::_ops::resize_::call(tensor, c10::SymInt(elements), std::nullopt);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  }

  // The program's tensor for a result of the run that need not be moved: an input, a view of it, or a tensor that
  // belongs on the CPU; undefined for a tensor that the operator made.
  at::Tensor known(const at::Tensor& tensor, size_t result, const MovedTensors& moved) const {
    at::Tensor own = moved.original_of(tensor);
    if (!own.defined() && stays_on_cpu(result)) own = tensor;
    return own.defined() ? own : moved.view_of_original(tensor);
  }

  std::vector<at::Tensor> new_tensors(const Stack& results, const MovedTensors& moved) const {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < results.size(); ++i) {
      each_tensor(results[i], [&](const at::Tensor& tensor) {
        if (!known(tensor, i, moved).defined()) tensors.push_back(tensor);
      });
    }
    return tensors;
  }

  // After the inputs were written back, because a view shows their new elements.
  Stack brought_back(Stack results, const MovedTensors& moved, const MovedTensors& back) const {
    std::unordered_map<const void*, at::Tensor> own;  // a tensor that is returned twice is the same tensor
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = with_tensors(results[i], [&](const at::Tensor& tensor) {
        at::Tensor& tensor_of_result = own[tensor.unsafeGetTensorImpl()];
        if (!tensor_of_result.defined()) tensor_of_result = known(tensor, i, moved);
        if (!tensor_of_result.defined()) tensor_of_result = back.copy_of(tensor);
        return tensor_of_result;
      });
    }
    return results;
  }

  bool stays_on_cpu(size_t result) const {
    const OpFamily* family = family_of(base_name(op_.operator_name().name), OpTrait::kResultOnCpu);
    return family && static_cast<size_t>(family->place) == result;
  }

  // From the dtype that came out to the dtype that the call would have given where it belongs. A dtype among the
  // arguments says it; else a result in a dtype that inputs were cast to had theirs, unless inputs had that dtype from
  // the start: then type promotion decides between them.
  DtypeMap narrowing() const {
    if (!elsewhere_.cast) return nullptr;
    std::vector<std::pair<at::ScalarType, at::ScalarType>> narrow;  // of the results -> of the program
    const auto add_pair = [&](at::ScalarType elsewhere, at::ScalarType own) {
      const auto known =
          std::find_if(narrow.begin(), narrow.end(), [&](const auto& pair) { return pair.first == elsewhere; });
      if (known == narrow.end()) {
        narrow.emplace_back(elsewhere, own);
      } else {
        known->second = c10::promoteTypes(known->second, own);
      }
    };
    // The absolute value of a complex number is real, the transform of real numbers complex.
    const auto add = [&](at::ScalarType own) {
      const at::ScalarType elsewhere = cast(own);
      add_pair(elsewhere, own);
      if (own == elsewhere) return;
      if (at::isComplexType(own)) add_pair(c10::toRealValueType(elsewhere), c10::toRealValueType(own));
      if (at::isFloatingType(own) && own != at::kBFloat16)
        add_pair(c10::toComplexType(elsewhere), c10::toComplexType(own));
    };
    bool dtype_given = false;
    for (const size_t i : facts_.dtypes) {
      if (!arguments_[i].isInt()) continue;
      dtype_given = true;
      add(arguments_[i].toScalarType());
    }
    const bool first_only = has_trait(base_name(op_.operator_name().name), OpTrait::kHasFirstDtype);
    const bool any_dims = std::any_of(tensors_.begin(), tensors_.end(), [](const auto& t) { return t.dim() > 0; });
    for (const at::Tensor& tensor : tensors_) {
      if (dtype_given || (any_dims && tensor.dim() == 0)) continue;  // without dimensions it takes no part in promotion
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) continue;
      add(tensor.scalar_type());
      if (first_only) break;
    }
    return [narrow = std::move(narrow)](at::ScalarType dtype) {
      for (const auto& [elsewhere, own] : narrow) {
        if (elsewhere == dtype) return own;
      }
      return dtype;
    };
  }

  const OperatorHandle& op_;
  const OpFacts& facts_;
  const Elsewhere& elsewhere_;
  const Stack arguments_;
  std::vector<at::Tensor> tensors_;
  c10::Device device_{c10::kCPU};
};

}  // namespace

const std::string& why_not_redirected(const OperatorHandle& op) {
  return facts_of(op).never;
}

Redirected would_redirect(const OperatorHandle& op, const interceptor::OperatorFrame& frame,
                          const Elsewhere& elsewhere) {
  return Redirect(op, facts_of(op), elsewhere, frame.arguments()).check();
}

Redirected redirect(const OperatorHandle& op, interceptor::OperatorFrame& frame, const Elsewhere& elsewhere) {
  const OpFacts& facts = facts_of(op);
  Redirect call(op, facts, elsewhere, frame.arguments());
  const Redirected checked = call.check();
  return checked.outcome == Redirected::Outcome::kRan ? call.run(frame) : checked;
}

bool changes_inputs(const OperatorHandle& op) {
  const auto& changed = facts_of(op).writes.declared;
  return std::any_of(changed.begin(), changed.end(), [&](size_t i) { return is_in_place(op, i); });
}

InPlaceBackup::InPlaceBackup(const OperatorHandle& op, const Stack& arguments) {
  const InternalGuard guard;
  for (const size_t i : facts_of(op).writes.declared) {
    if (!is_in_place(op, i)) continue;
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      kept_.emplace_back(tensor, at::_ops::clone::call(tensor, std::nullopt));
    });
  }
}

void InPlaceBackup::restore() const {
  const InternalGuard guard;
  for (const auto& [tensor, values] : kept_) {
    at::Tensor original = tensor;
    if (original.sizes() == values.sizes()) at::_ops::copy_::call(original, values, /*non_blocking=*/false);
  }
}

}  // namespace op_tools
