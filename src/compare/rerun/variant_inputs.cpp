#include "compare/rerun/variant_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "compare/metrics/tensor_diff.h"
#include "compare/metrics/tolerance.h"
#include "hooks/op_traits.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// Values between -1 and 1 that depend on nothing but the seed: the program's random streams stay untouched.
class PerturbationSource {
 public:
  explicit PerturbationSource(uint64_t seed) : state_(seed) {}
  double next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>(static_cast<int64_t>((z ^ (z >> 31)) >> 11)) * 0x1p-52 - 1;
  }

 private:
  uint64_t state_;
};

void perturb(double* values, size_t count, double unit, PerturbationSource& changes) {
  for (size_t k = 0; k < count; ++k) values[k] *= 1 + unit / 2 * changes.next();
}

void perturb(const c10::Storage& storage, c10::ScalarType dtype, double unit, PerturbationSource& changes) {
  if (dtype == golden_dtype(dtype)) {
    return perturb(static_cast<double*>(storage.mutable_data()), storage.nbytes() / sizeof(double), unit, changes);
  }
  // A tensor of its own over the storage: the version counters of the call's tensors do not move.
  const auto count = static_cast<int64_t>(storage.nbytes() / c10::elementSize(dtype));
  const at::Tensor all = at::empty({0}, at::TensorOptions(dtype)).set_(storage, 0, {count}, {1});
  const at::Tensor wide = all.to(golden_dtype(dtype));
  const size_t parts = wide.nbytes() / sizeof(double);
  perturb(static_cast<double*>(wide.storage().mutable_data()), parts, unit, changes);
  all.copy_(wide);
}

// -1, 0 and 1 alone: labels, masks, targets. They were not rounded, and an operator may compare them (target == 1).
bool are_marks(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.detach().to(golden_dtype(tensor.scalar_type())).contiguous();
  const auto* values = static_cast<const double*>(wide.const_data_ptr());
  return std::all_of(values, values + wide.nbytes() / sizeof(double),
                     [](double value) { return value == 0 || std::abs(value) == 1; });
}

// Which of these are changed: not marks, unless there is nothing else.
std::vector<bool> changeable(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> marks(tensors.size());
  bool has_others = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || rounding_of(tensors[i].scalar_type()).unit == 0) continue;
    if (tensors[i].layout() != at::kStrided || tensors[i]._is_zerotensor()) continue;
    marks[i] = are_marks(tensors[i]);
    has_others = has_others || !marks[i];
  }
  if (!has_others) return std::vector<bool>(tensors.size(), true);
  marks.flip();
  return marks;
}

// Changes the copies storage by storage, below every operator: aliases stay aliases, and neither expanded dimensions
// nor versions are in the way. Copies in float64 change by less than the rounding of the originals, those in their own
// dtypes (kPerturbed) and in float32 (kFloat32Perturbed) by about a unit of their dtype. `originals`: in their
// own dtypes, in the same order.
void perturb(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals, const RunVariant& variant,
             std::optional<c10::ScalarType> autocast) {
  PerturbationSource changes(static_cast<uint64_t>(variant.sample) + 1);
  const bool in_own_dtypes = variant.kind == RunVariant::Kind::kPerturbed;
  const bool coarse = in_own_dtypes || variant.coarse;
  std::set<const void*> done;
  const std::vector<bool> changes_them = changeable(copies);
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined() || !changes_them[i]) continue;
    const c10::ScalarType dtype = copies[i].scalar_type();
    const bool in_float32 = variant.kind == RunVariant::Kind::kFloat32Perturbed;
    if (rounding_of(dtype).unit == 0 || (!in_own_dtypes && !in_float32 && golden_dtype(dtype) != dtype)) continue;
    if (copies[i].layout() != at::kStrided || copies[i]._is_zerotensor()) continue;
    const Rounding rounding = rounding_of(originals[i].scalar_type());
    double unit = coarse ? rounding.unit : rounding.accumulate;
    if (coarse && autocast) unit = std::max(unit, rounding_of(*autocast).unit);
    const c10::Storage& storage = copies[i].storage();
    if (!done.insert(storage.unsafeGetStorageImpl()).second) continue;
    if (in_float32) unit = rounding_of(dtype).unit;
    // Less than two units of the dtype itself mostly round to the same number.
    const bool is_own = in_own_dtypes || in_float32 || dtype == originals[i].scalar_type();
    perturb(storage, dtype, is_own ? 2 * unit : unit, changes);
  }
}

std::vector<at::Tensor> tensors_of(const CallArguments& call) {
  return flatten_tensors(make_tuple({call.args, call.kwargs}));
}

// Scalars as float32 holds them, which is how an operator on float32 tensors reads them: x // 0.1 steps where float32's
// 0.1 goes into x. Throws Error where that changes nothing, or where a tensor is in float64.
CallArguments with_float32_scalars(const CallArguments& call) {
  const auto unchanged = [] { return Error("its scalars are the same in float32"); };
  for (const at::Tensor& tensor : tensors_of(call)) {
    if (tensor.defined() && c10::toRealValueType(tensor.scalar_type()) == c10::ScalarType::Double) throw unchanged();
  }
  std::set<double> rounded;
  const auto round = [&](const Value& value) -> Value {
    const auto* scalar = value.get_if<double>();
    if (!scalar) return value;
    const double in_float32 = static_cast<float>(*scalar);
    if (!std::isfinite(in_float32) || in_float32 == *scalar) return value;
    rounded.insert(*scalar);
    return in_float32;
  };
  // The recorded aten call also holds defaults of the schema (eps), which the call itself did not give.
  const auto round_given = [&](const Value& value) -> Value {
    const auto* scalar = value.get_if<double>();
    return scalar && rounded.contains(*scalar) ? round(value) : value;
  };
  CallArguments changed;
  changed.args = map_leaves(call.args, round);
  changed.kwargs = map_leaves(call.kwargs, round);
  changed.aten = map_leaves(call.aten, round_given);
  if (rounded.empty()) throw unchanged();
  return changed;
}

// The argument half_to_float of _softmax and _log_softmax: with it they refuse every input that is not float16.
Value without_half_to_float(const Value& args, std::string_view base_name) {
  if (base_name != "_softmax" && base_name != "_log_softmax") return args;
  Values items = *sequence_items(args);
  if (items.size() > 2) items[2] = false;
  return make_tuple(std::move(items));
}

CallArguments without_half_to_float(CallArguments call, std::string_view name) {
  call.args = without_half_to_float(call.args, name);
  if (const Values* aten = sequence_items(call.aten); aten && aten->size() == 2 && (*aten)[0].is<std::string>()) {
    const std::string& aten_name = *(*aten)[0].get_if<std::string>();
    call.aten = make_tuple({(*aten)[0], without_half_to_float((*aten)[1], base_name(aten_name))});
  }
  return call;
}

double value_of(OpenArgument::Default value, const at::Tensor& tensor) {
  const Rounding rounding = rounding_of(tensor.scalar_type());
  switch (value) {
    case OpenArgument::Default::kEpsilon:
      return rounding.accumulate;
    case OpenArgument::Default::kEpsilonTimesSize:
      return rounding.unit * static_cast<double>(tensor.dim() < 2 ? 1 : std::max(tensor.size(-1), tensor.size(-2)));
    case OpenArgument::Default::kLargest:
      return rounding.most;
    case OpenArgument::Default::kLowest:
      break;
  }
  return -rounding.most;
}

void give(CallArguments& call, const OpenArgument& open, double value) {
  Values args = *sequence_items(call.args);
  if (open.position < args.size()) {
    args[open.position] = value;
    call.args = make_tuple(std::move(args));
    return;
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& item : *call.kwargs.get_if<Dict>()->items) {
    const auto* key = item.first.get_if<std::string>();
    if (!key || *key != open.name) items.push_back(item);
  }
  items.emplace_back(std::string(open.name), value);
  call.kwargs = make_dict(std::move(items));
}

// Defaults that depend on the dtype as the recorded call had them: the computation is the same in float64.
CallArguments with_defaults_of_dtype(CallArguments call, std::string_view name) {
  const std::vector<OpenArgument> open = open_arguments(name, call.args, call.kwargs);
  if (open.empty()) return call;
  const std::vector<at::Tensor> tensors = tensors_of(call);
  if (tensors.empty() || !tensors[0].defined() || rounding_of(tensors[0].scalar_type()).unit == 0) return call;
  for (const OpenArgument& argument : open) give(call, argument, value_of(argument.value, tensors[0]));
  const Values* aten = sequence_items(call.aten);
  if (!aten || aten->size() != 2 || !(*aten)[0].is<std::string>()) return call;
  CallArguments inner{(*aten)[1], make_dict({}), {}};
  for (const OpenArgument& argument : open_arguments(*(*aten)[0].get_if<std::string>(), inner.args, inner.kwargs)) {
    if (argument.position >= sequence_items(inner.args)->size()) continue;
    give(inner, argument, value_of(argument.value, tensors[0]));
  }
  call.aten = make_tuple({(*aten)[0], inner.args});
  return call;
}

constexpr int64_t kMostElements = int64_t{1} << 24;  // of a copy

bool has_floating_elements(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor._is_zerotensor() && rounding_of(tensor.scalar_type()).unit > 0 &&
         tensor.numel() > 0 && tensor.numel() <= kMostElements;
}

// An expanded tensor has a single number for many elements: equal rows stay equal however it changes. An operator
// rounds its own numbers element by element (a mean, the differences from it), so each element is to change by itself.
CallArguments with_elements_apart(const CallArguments& call) {
  return with_copies(call, [](const at::Tensor& tensor) {
    bool expanded = false;
    for (int64_t dim = 0; has_floating_elements(tensor) && dim < tensor.dim(); ++dim) {
      expanded = expanded || (tensor.size(dim) > 1 && tensor.stride(dim) == 0);
    }
    return expanded ? tensor.detach().contiguous() : at::Tensor();
  });
}

// Elements with room for another between them: a kernel that takes several at once takes these singly, and has no
// rest at the end that is computed otherwise.
at::Tensor with_gaps(const at::Tensor& tensor) {
  if (!has_floating_elements(tensor) || tensor.dim() == 0) return {};
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.back() *= 2;
  const at::Tensor wide = at::empty(sizes, tensor.options().requires_grad(false));
  const at::Tensor copy = wide.slice(-1, 0, std::nullopt, 2);
  copy.copy_(tensor.detach());
  return copy;
}

CallArguments with_gaps(const CallArguments& call) {
  return with_copies(call, [](const at::Tensor& tensor) { return with_gaps(tensor); });
}

CallArguments with_zeros(const CallArguments& call) {
  return with_copies(call, [](const at::Tensor& tensor) {
    return tensor.requires_grad() && has_floating_elements(tensor) ? at::zeros_like(tensor.detach()) : at::Tensor();
  });
}

// In the dtypes of the recording, with the values that the variant's dtypes would change.
CallArguments prepared(const CallArguments& recorded, std::string_view name, const RunVariant& variant) {
  // Of several changes, to have both kinds.
  const bool apart = variant.changes_inputs() && variant.sample % 2 == 1;
  const CallArguments call = apart                                             ? with_elements_apart(recorded)
                             : variant.kind == RunVariant::Kind::kFloat64Gaps  ? with_gaps(recorded)
                             : variant.kind == RunVariant::Kind::kFloat64Zeros ? with_zeros(recorded)
                                                                               : recorded;
  if (!variant.in_float64()) return call;
  return with_defaults_of_dtype(variant.kind == RunVariant::Kind::kFloat32Scalars ? with_float32_scalars(call) : call,
                                name);
}

DtypeMap integers_in(c10::ScalarType wide) {
  return [wide](c10::ScalarType dtype) {
    const bool narrower =
        c10::isIntegralType(dtype, /*includeBool=*/false) && c10::elementSize(dtype) < c10::elementSize(wide);
    return narrower ? wide : dtype;
  };
}

c10::ScalarType without_16_bits(c10::ScalarType dtype) {
  const Rounding rounding = rounding_of(dtype);
  if (rounding.unit <= rounding.accumulate) return dtype;
  return c10::isComplexType(dtype) ? at::kComplexFloat : at::kFloat;
}

DtypeMap dtypes_of(const RunVariant& variant, std::optional<c10::ScalarType> autocast) {
  switch (variant.kind) {
    case RunVariant::Kind::kReference:
    case RunVariant::Kind::kPerturbed:
    case RunVariant::Kind::kUnwritten:
    case RunVariant::Kind::kMeta:
    case RunVariant::Kind::kInGraph:
    case RunVariant::Kind::kOnDevice:
      return nullptr;
    case RunVariant::Kind::kFloat32Perturbed:
      return &without_16_bits;
    case RunVariant::Kind::kAutocastDtype:
      if (!autocast) throw Error("the call has no autocast");
      return [to = *autocast](c10::ScalarType dtype) { return c10::isFloatingType(dtype) ? to : dtype; };
    case RunVariant::Kind::kWideIntegers:
      return integers_in(at::kLong);
    case RunVariant::Kind::kMiddleIntegers:
      return integers_in(at::kInt);
    default:
      return &golden_dtype;
  }
}

// `devices`: by input tensor; used by kOnDevice.
MovedCall moved_call(const CallArguments& call, const RunVariant& variant, std::optional<c10::ScalarType> autocast,
                     const std::vector<c10::Device>& devices) {
  const bool has_data = variant.kind != RunVariant::Kind::kMeta;
  Target target{.device = has_data ? c10::kCPU : c10::kMeta, .cast = dtypes_of(variant, autocast), .fresh = true};
  if (variant.kind == RunVariant::Kind::kOnDevice) {
    std::map<const c10::TensorImpl*, c10::Device> by_tensor;
    const std::vector<at::Tensor> tensors = tensors_of(call);
    if (tensors.size() != devices.size()) throw Error("the devices of its tensors are not known");
    for (size_t i = 0; i < tensors.size(); ++i) by_tensor.try_emplace(tensors[i].unsafeGetTensorImpl(), devices[i]);
    target.device_of = [by_tensor = std::move(by_tensor)](const at::Tensor& tensor) {
      return by_tensor.at(tensor.unsafeGetTensorImpl());
    };
  }
  return {make_tuple({call.args, call.kwargs, call.aten}), make_dict({}), target};
}

bool has_elements_in_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor._is_zerotensor() && tensor.has_storage() &&
         tensor.numel() > 0;
}

// Two tensors that show the same memory, each element at another place. (The same elements at the same places are no
// matter: an operator reads an element before it writes it.)
bool overlap_otherwise(const at::Tensor& tensor, const at::Tensor& other) {
  if (!has_elements_in_memory(tensor) || !has_elements_in_memory(other)) return false;
  const bool same_places = tensor.storage_offset() == other.storage_offset() && tensor.sizes() == other.sizes() &&
                           tensor.strides() == other.strides();
  return !same_places && share_bytes(tensor, other);
}

// Added to the sample: output gradients and results change otherwise than the inputs.
constexpr int kGradientSamples = 100;
constexpr int kResultSamples = 200;

RunVariant with_samples_from(RunVariant variant, int first) {
  variant.sample += first;
  return variant;
}

// Results, which autograd saved for the backward, changed by their rounding as long as this lives: a device rounds them
// otherwise, and 1 - tanh^2 multiplies that where tanh is next to 1. Changed below autograd's version counters.
class ChangedResults {
 public:
  // `recorded`: their gradients in the dtypes of the recording, which are those of the results; undefined: the
  // backward does not begin there.
  ChangedResults(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& recorded,
                 const RunVariant& variant, std::optional<c10::ScalarType> autocast) {
    std::vector<at::Tensor> read = results;
    for (size_t i = 0; i < read.size(); ++i) {
      const bool is_read = i < recorded.size() && recorded[i].defined() && has_elements_in_memory(read[i]);
      if (!is_read) read[i] = at::Tensor();
      if (is_read) before_.emplace_back(read[i].storage(), bytes_of(read[i].storage()));
    }
    RunVariant by_own_rounding = with_samples_from(variant, kResultSamples);
    by_own_rounding.coarse = true;  // a result was rounded to its dtype, whatever the sums were accumulated in
    perturb(read, recorded, by_own_rounding, autocast);
  }
  ~ChangedResults() {
    for (auto& [storage, bytes] : before_) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
  }
  ChangedResults(const ChangedResults&) = delete;
  ChangedResults& operator=(const ChangedResults&) = delete;

 private:
  static std::vector<std::byte> bytes_of(const c10::Storage& storage) {
    const auto* first = static_cast<const std::byte*>(storage.data());
    return {first, first + storage.nbytes()};
  }

  std::vector<std::pair<c10::Storage, std::vector<std::byte>>> before_;
};

}  // namespace

c10::ScalarType golden_dtype(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return c10::ScalarType::ComplexDouble;
  return rounding_of(dtype).unit > 0 ? c10::ScalarType::Double : dtype;
}

CallArguments with_copies(const CallArguments& call, const std::function<at::Tensor(const at::Tensor&)>& copy_of) {
  std::map<const c10::TensorImpl*, at::Tensor> copies;
  const auto replaced = [&](const at::Tensor& tensor) -> Value {
    if (!tensor.defined()) return tensor;
    const auto [place, is_new] = copies.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) {
      const at::Tensor copy = copy_of(tensor);
      place->second = copy.defined() ? copy.set_requires_grad(tensor.requires_grad()) : tensor;
    }
    return place->second;
  };
  const Value all = map_tensors(make_tuple({call.args, call.kwargs, call.aten}), replaced);
  const Values& parts = *sequence_items(all);
  return {parts[0], parts[1], parts[2]};
}

std::vector<bool> reads_what_it_writes(const std::vector<at::Tensor>& tensors, const std::vector<bool>& written) {
  std::vector<bool> marks;
  if (written.size() != tensors.size()) return marks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!written[i]) continue;
    for (size_t j = 0; j < tensors.size(); ++j) {
      if (written[j] || !overlap_otherwise(tensors[i], tensors[j])) continue;
      marks.resize(tensors.size());
      marks[j] = true;
    }
  }
  return marks;
}

CallArguments with_memory_of_their_own(const CallArguments& call, const std::vector<bool>& marks) {
  if (marks.empty()) return call;
  const std::vector<at::Tensor> tensors = tensors_of(call);
  return with_copies(call, [&](const at::Tensor& tensor) {
    for (size_t i = 0; i < tensors.size() && i < marks.size(); ++i) {
      if (marks[i] && tensors[i].is_same(tensor)) return tensor.detach().clone();
    }
    return at::Tensor();
  });
}

VariantInputs::VariantInputs(const CallArguments& recorded, std::string_view name, const RunVariant& variant,
                             std::optional<c10::ScalarType> autocast, const std::vector<c10::Device>& devices)
    : variant_(variant),
      autocast_(autocast),
      gradient_reads_result_(has_trait(base_name(name), OpTrait::kGradientReadsResult)),
      moved_(moved_call(prepared(recorded, name, variant), variant, autocast, devices)) {
  const Values& parts = *sequence_items(moved_.args());
  arguments_ = {parts[0], parts[1], parts[2]};
  if (variant.in_float64()) arguments_ = without_half_to_float(std::move(arguments_), base_name(name));
  tensors_ = tensors_of(arguments_);
  if (variant.changes_inputs()) perturb(tensors_, tensors_of(recorded), variant, autocast);
}

// The gradient of a bias depends on nothing but these, and is a sum that may cancel (in front of a batch norm it is all
// noise).
std::vector<at::Tensor> VariantInputs::output_gradients(const std::vector<at::Tensor>& recorded) const {
  std::vector<at::Tensor> copies;
  if (variant_.kind == RunVariant::Kind::kFloat64Gaps) {
    for (const at::Tensor& gradient : recorded) {
      const at::Tensor copy =
          gradient.defined() ? with_gaps(on_cpu(gradient).to(golden_dtype(gradient.scalar_type()))) : at::Tensor();
      copies.push_back(copy.defined() ? copy : gradient);
    }
    return copies;
  }
  if (!variant_.changes_inputs()) return recorded;
  for (const at::Tensor& gradient : recorded) {
    if (!gradient.defined()) {
      copies.emplace_back();
      continue;
    }
    const c10::ScalarType own = gradient.scalar_type();
    const c10::ScalarType dtype = variant_.in_own_dtypes()                               ? own
                                  : variant_.kind == RunVariant::Kind::kFloat32Perturbed ? without_16_bits(own)
                                                                                         : golden_dtype(own);
    copies.push_back(gradient.to(dtype, /*non_blocking=*/false, /*copy=*/true));
  }
  perturb(copies, recorded, with_samples_from(variant_, kGradientSamples), autocast_);
  return copies;
}

std::vector<at::Tensor> VariantInputs::input_gradients(const std::vector<at::Tensor>& outputs,
                                                       const std::vector<at::Tensor>& output_gradients,
                                                       const std::vector<at::Tensor>& recorded) const {
  std::optional<ChangedResults> changed;
  if (gradient_reads_result_ && variant_.changes_inputs()) changed.emplace(outputs, recorded, variant_, autocast_);
  const bool create_graph = variant_.kind == RunVariant::Kind::kInGraph;
  return gradients_at(edges(), outputs, output_gradients, /*keep_graph=*/create_graph, create_graph);
}

std::vector<GradientEdge> VariantInputs::edges() const {
  const auto& edges = moved_.edges();  // those of args and kwargs are the first
  return {edges.begin(), edges.begin() + static_cast<std::ptrdiff_t>(tensors_.size())};
}

}  // namespace op_tools
