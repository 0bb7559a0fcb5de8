#include "compare/rerun/variant_inputs.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "compare/metrics/tolerance.h"
#include "fallback/cpu_runner.h"

namespace op_tools {
namespace {

// Numbers between -1 and 1 that depend on nothing but the seed: the program's random streams stay untouched.
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

void change(double* numbers, size_t count, double unit, PerturbationSource& changes) {
  for (size_t k = 0; k < count; ++k) numbers[k] *= 1 + unit / 2 * changes.next();
}

void change(const c10::Storage& storage, c10::ScalarType dtype, double unit, PerturbationSource& changes) {
  if (dtype == golden_dtype(dtype)) {
    return change(static_cast<double*>(storage.mutable_data()), storage.nbytes() / sizeof(double), unit, changes);
  }
  // A tensor of its own over the storage: those of the call see nothing of it in their versions.
  const auto count = static_cast<int64_t>(storage.nbytes() / c10::elementSize(dtype));
  const at::Tensor all = at::empty({0}, at::TensorOptions(dtype)).set_(storage, 0, {count}, {1});
  const at::Tensor wide = all.to(golden_dtype(dtype));
  const size_t parts = wide.nbytes() / sizeof(double);
  change(static_cast<double*>(wide.storage().mutable_data()), parts, unit, changes);
  all.copy_(wide);
}

}  // namespace

c10::ScalarType golden_dtype(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return c10::ScalarType::ComplexDouble;
  return rounding_of(dtype).unit > 0 ? c10::ScalarType::Double : dtype;
}

void perturb(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals, const RunVariant& variant,
             std::optional<c10::ScalarType> autocast) {
  PerturbationSource changes(static_cast<uint64_t>(variant.sample) + 1);
  const bool shaken = variant.kind == RunVariant::Kind::kPerturbed;
  const bool coarse = shaken || variant.coarse;
  std::set<const void*> done;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    const c10::ScalarType dtype = copies[i].scalar_type();
    if (rounding_of(dtype).unit == 0 || (!shaken && golden_dtype(dtype) != dtype)) continue;
    if (copies[i].layout() != at::kStrided || copies[i]._is_zerotensor()) continue;
    const Rounding rounding = rounding_of(originals[i].scalar_type());
    double unit = coarse ? rounding.unit : rounding.accumulate;
    if (coarse && autocast) unit = std::max(unit, rounding_of(*autocast).unit);
    const c10::Storage& storage = copies[i].storage();
    if (!done.insert(storage.unsafeGetStorageImpl()).second) continue;
    change(storage, dtype, shaken ? 2 * unit : unit, changes);
  }
}

bool round_scalars_to_float32(Value& args, Value& kwargs, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && c10::toRealValueType(tensor.scalar_type()) == c10::ScalarType::Double) return false;
  }
  bool any = false;
  const auto as_single = [&any](const Value& value) -> Value {
    const auto* number = value.get_if<double>();
    if (!number) return value;
    const double single = static_cast<float>(*number);
    if (!std::isfinite(single) || single == *number) return value;
    any = true;
    return single;
  };
  args = map_leaves(args, as_single);
  kwargs = map_leaves(kwargs, as_single);
  return any;
}

}  // namespace op_tools
