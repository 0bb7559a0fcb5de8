#include "compare/golden.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "compare/tolerance.h"

namespace op_tools {
namespace {

// Numbers between -1 and 1 that depend on nothing but the seed: the program's random streams stay untouched.
class SmallChanges {
 public:
  explicit SmallChanges(uint64_t seed) : state_(seed) {}
  double next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>(static_cast<int64_t>((z ^ (z >> 31)) >> 11)) * 0x1p-52 - 1;
  }

 private:
  uint64_t state_;
};

}  // namespace

c10::ScalarType golden_dtype(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return c10::ScalarType::ComplexDouble;
  return rounding_of(dtype).unit > 0 ? c10::ScalarType::Double : dtype;
}

void perturb(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals, const RunKind& kind,
             std::optional<c10::ScalarType> autocast) {
  SmallChanges changes(static_cast<uint64_t>(kind.sample) + 1);
  std::set<const void*> done;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    const c10::ScalarType dtype = copies[i].scalar_type();
    if (dtype != c10::ScalarType::Double && dtype != c10::ScalarType::ComplexDouble) continue;
    if (copies[i].layout() != at::kStrided || copies[i]._is_zerotensor()) continue;
    const Rounding rounding = rounding_of(originals[i].scalar_type());
    double unit = kind.coarse ? rounding.unit : rounding.accumulate;
    if (kind.coarse && autocast) unit = std::max(unit, rounding_of(*autocast).unit);
    const c10::Storage& storage = copies[i].storage();
    if (!done.insert(storage.unsafeGetStorageImpl()).second) continue;
    auto* numbers = static_cast<double*>(storage.mutable_data());
    const size_t count = storage.nbytes() / sizeof(double);
    for (size_t k = 0; k < count; ++k) numbers[k] *= 1 + unit / 2 * changes.next();
  }
}

}  // namespace op_tools
