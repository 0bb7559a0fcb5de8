#include "compare/tensor_diff.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "hooks/doubles.h"

namespace op_tools {
namespace {

// Elements are widened to doubles block by block, so that one loop over doubles serves all dtypes. A block stays in the
// first-level cache.
constexpr int64_t kBlock = 512;
constexpr int64_t kBlocksPerTask = 128;

typedef double Doubles __attribute__((vector_size(32)));
typedef int64_t Bits __attribute__((vector_size(32)));
constexpr int64_t kLanes = 4;
constexpr int64_t kExponent = int64_t{0x7FF} << 52;
constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
constexpr int64_t kInverse = int64_t{2046} << 52;  // minus the bits of a power of two: the bits of its inverse

struct Block {
  alignas(64) double a[2 * kBlock];  // result; a complex element is two numbers
  alignas(64) double b[2 * kBlock];  // golden
  alignas(64) double d[kBlock];      // |a - b|
  alignas(64) double m[kBlock];      // |b|
};

// What one task finds in its blocks; tasks are added up in order, so that the numbers do not depend on the threads.
struct Sums {
  double max_d = 0, sum_d = 0, sum_d2 = 0, max_rel = 0, max_ulp = 0, sum_ulp = 0, max_m = 0;
  double ab = 0, aa = 0, bb = 0;
  int64_t outside = 0;
  int64_t worst_at = -1, mismatch_at = -1;
  NonFinite result, golden;
  int64_t mismatches = 0;
  std::array<int64_t, 4> over_relative{}, over_ulp{};
  int64_t small_outside = 0, normal_outside = 0;
};

struct Plan {
  const DiffOptions* options;
  c10::ScalarType result_dtype, golden_dtype;
  bool is_complex, is_exact;
  double least, unit, limit;  // of the result's dtype; limit: a golden value beyond it rounds to an infinity
  double scale = 1;           // for numbers whose squares are too large or too small for a double
};

bool has_elements_known(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, true) || dtype == c10::ScalarType::UInt16 || dtype == c10::ScalarType::UInt32 ||
         dtype == c10::ScalarType::UInt64 || c10::isComplexType(dtype) || rounding_of(dtype).unit > 0;
}

// |a - b| of integers, subtracted as unsigned numbers: no overflow, no wrap.
template <class T>
void subtract(const void* a, const void* b, int64_t first, int64_t n, double* d) {
  const T* left = static_cast<const T*>(a) + first;
  const T* right = static_cast<const T*>(b) + first;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t l = static_cast<uint64_t>(left[i]), r = static_cast<uint64_t>(right[i]);
    d[i] = static_cast<double>(left[i] > right[i] ? l - r : r - l);
  }
}

void subtract_exactly(c10::ScalarType dtype, const void* a, const void* b, int64_t first, int64_t n, double* d) {
  switch (dtype) {
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return subtract<type>(a, b, first, n, d);
    OP_TOOLS_CASE(uint8_t, Byte)
    OP_TOOLS_CASE(int8_t, Char)
    OP_TOOLS_CASE(int16_t, Short)
    OP_TOOLS_CASE(int32_t, Int)
    OP_TOOLS_CASE(int64_t, Long)
    OP_TOOLS_CASE(bool, Bool)
    OP_TOOLS_CASE(uint16_t, UInt16)
    OP_TOOLS_CASE(uint32_t, UInt32)
    OP_TOOLS_CASE(uint64_t, UInt64)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

const Doubles& lanes(const double* at) {
  return *reinterpret_cast<const Doubles*>(at);
}
Doubles& lanes(double* at) {
  return *reinterpret_cast<Doubles*>(at);
}

// d and m of real numbers. True when there is a NaN, an infinity, or a golden value beyond the limit.
OP_TOOLS_WIDE bool distances(const double* a, const double* b, int64_t n, double limit, double* d, double* m) {
  const Bits no_sign = Bits{} + ~kSign;
  const Doubles most = Doubles{} + std::numeric_limits<double>::max();
  const Doubles golden_most = Doubles{} + limit;
  Bits fine = Bits{} - 1;
  for (int64_t i = 0; i < n; i += kLanes) {
    const Doubles result = lanes(a + i), golden = lanes(b + i);
    const Doubles size = reinterpret_cast<Doubles>(reinterpret_cast<Bits>(golden) & no_sign);
    const Doubles result_size = reinterpret_cast<Doubles>(reinterpret_cast<Bits>(result) & no_sign);
    fine &= (result_size <= most) & (size <= golden_most);
    lanes(d + i) = reinterpret_cast<Doubles>(reinterpret_cast<Bits>(result - golden) & no_sign);
    lanes(m + i) = size;
  }
  return (fine[0] & fine[1] & fine[2] & fine[3]) == 0;
}

// All numbers of finite elements; arrays are filled up with zeros, which change nothing, to a multiple of the lanes.
OP_TOOLS_WIDE void add_errors(const double* d, const double* m, int64_t n, double least_m, Tolerance tolerance,
                              Sums* sums) {
  const Bits exponent = Bits{} + kExponent, inverse = Bits{} + kInverse;
  const Doubles least = Doubles{} + least_m, atol = Doubles{} + tolerance.atol, rtol = Doubles{} + tolerance.rtol;
  Doubles max_d{}, sum_d{}, sum_d2{}, max_rel{}, max_ulp{}, sum_ulp{}, max_m{};
  Bits outside{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Doubles difference = lanes(d + i), size = lanes(m + i);
    max_d = difference > max_d ? difference : max_d;
    max_m = size > max_m ? size : max_m;
    sum_d += difference;
    sum_d2 += difference * difference;
    const Doubles relative = difference / size;  // 0 / 0 is no number and greater than none
    max_rel = relative > max_rel ? relative : max_rel;
    const Doubles scale = size > least ? size : least;
    const Doubles ulp = difference * reinterpret_cast<Doubles>(inverse - (reinterpret_cast<Bits>(scale) & exponent));
    max_ulp = ulp > max_ulp ? ulp : max_ulp;
    sum_ulp += ulp;
    outside -= difference > atol + rtol * size;
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    sums->max_d = std::max(sums->max_d, max_d[i]);
    sums->max_m = std::max(sums->max_m, max_m[i]);
    sums->max_rel = std::max(sums->max_rel, max_rel[i]);
    sums->max_ulp = std::max(sums->max_ulp, max_ulp[i]);
    sums->sum_d += sum_d[i];
    sums->sum_d2 += sum_d2[i];
    sums->sum_ulp += sum_ulp[i];
    sums->outside += outside[i];
  }
}

OP_TOOLS_WIDE void add_products(const double* a, const double* b, int64_t n, Sums* sums) {
  Doubles ab{}, aa{}, bb{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Doubles result = lanes(a + i), golden = lanes(b + i);
    ab += result * golden;
    aa += result * result;
    bb += golden * golden;
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    sums->ab += ab[i];
    sums->aa += aa[i];
    sums->bb += bb[i];
  }
}

double as_dtype(double golden, double limit) {
  return std::fabs(golden) > limit ? std::copysign(std::numeric_limits<double>::infinity(), golden) : golden;
}

enum class Special { kNone, kNan, kPositive, kNegative };

Special special_of(const double* parts, int count, double limit) {
  Special found = Special::kNone;
  for (int i = 0; i < count; ++i) {
    const double part = as_dtype(parts[i], limit);
    if (std::isnan(part)) return Special::kNan;
    if (std::isinf(part) && found == Special::kNone) found = part > 0 ? Special::kPositive : Special::kNegative;
  }
  return found;
}

void count(Special special, NonFinite* counts) {
  if (special == Special::kNan) ++counts->nan;
  if (special == Special::kPositive) ++counts->pos_inf;
  if (special == Special::kNegative) ++counts->neg_inf;
}

bool same_special(const double* a, const double* b, int parts, double limit, bool nan_equal) {
  for (int i = 0; i < parts; ++i) {
    const double golden = as_dtype(b[i], limit);
    if (a[i] != golden && !(nan_equal && std::isnan(a[i]) && std::isnan(golden))) return false;
  }
  return true;
}

// Counts the elements that are not finite on a side, and takes them out of the numbers.
void take_out_specials(const Plan& plan, int64_t first, int64_t n, Block* block, Sums* sums) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const int parts = plan.is_complex ? 2 : 1;
  for (int64_t i = 0; i < n; ++i) {
    double* a = block->a + parts * i;
    double* b = block->b + parts * i;
    const Special result = special_of(a, parts, kAny);
    const Special golden = special_of(b, parts, plan.limit);
    if (result == Special::kNone && golden == Special::kNone) continue;
    count(result, &sums->result);
    count(golden, &sums->golden);
    if (!same_special(a, b, parts, plan.limit, plan.options->nan_equal)) {
      ++sums->mismatches;
      ++sums->outside;
      if (sums->mismatch_at < 0) sums->mismatch_at = first + i;
    }
    std::fill_n(a, parts, 0.0);
    std::fill_n(b, parts, 0.0);
    block->d[i] = block->m[i] = 0;
  }
}

bool complex_distances(int64_t n, double limit, Block* block) {
  bool special = false;
  for (int64_t i = 0; i < n; ++i) {
    const double* a = block->a + 2 * i;
    const double* b = block->b + 2 * i;
    block->d[i] = std::hypot(a[0] - b[0], a[1] - b[1]);
    block->m[i] = std::hypot(b[0], b[1]);
    special |= !(std::isfinite(a[0]) && std::isfinite(a[1]) && std::fabs(b[0]) <= limit && std::fabs(b[1]) <= limit);
  }
  return special;
}

void count_over(const Plan& plan, const Block& block, int64_t n, Sums* sums) {
  const DiffOptions& options = *plan.options;
  for (size_t k = 0; k < options.relative_limits.size(); ++k) {
    const double limit = options.relative_limits[k];
    for (int64_t i = 0; i < n; ++i) sums->over_relative[k] += block.d[i] > limit * block.m[i];
  }
  for (size_t k = 0; k < options.ulp_limits.size(); ++k) {
    const double limit = options.ulp_limits[k] * plan.unit;
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::max(block.m[i], plan.least);
      sums->over_ulp[k] += block.d[i] > limit * std::exp2(std::ilogb(size));
    }
  }
  if (options.small.below <= 0) return;
  for (int64_t i = 0; i < n; ++i) {
    if (block.m[i] <= options.small.below)
      sums->small_outside += block.d[i] > options.small.atol;
    else
      sums->normal_outside += block.d[i] > options.small.rtol * block.m[i];
  }
}

void fill_up(double* values, int64_t n, int64_t full) {
  std::fill(values + n, values + full, 0.0);
}

void add_block(const Plan& plan, const void* result, const void* golden, int64_t first, int64_t n, Block* block,
               Sums* sums) {
  const int parts = plan.is_complex ? 2 : 1;
  const int64_t full = (n + kLanes - 1) / kLanes * kLanes;
  load_doubles(plan.result_dtype, result, first, n, block->a);
  load_doubles(plan.golden_dtype, golden, first, n, block->b);
  fill_up(block->a, parts * n, parts * full);
  fill_up(block->b, parts * n, parts * full);
  if (plan.is_exact) {
    subtract_exactly(plan.result_dtype, result, golden, first, n, block->d);
    for (int64_t i = 0; i < n; ++i) block->m[i] = std::fabs(block->b[i]);
    fill_up(block->d, n, full);
    fill_up(block->m, n, full);
  } else {
    const bool special = plan.is_complex ? complex_distances(full, plan.limit, block)
                                         : distances(block->a, block->b, full, plan.limit, block->d, block->m);
    if (special) take_out_specials(plan, first, n, block, sums);
  }
  if (plan.scale != 1) {
    for (int64_t i = 0; i < parts * full; ++i) {
      block->a[i] *= plan.scale;
      block->b[i] *= plan.scale;
    }
    for (int64_t i = 0; i < full; ++i) block->d[i] *= plan.scale;
  }
  const double before = sums->max_d;
  add_errors(block->d, block->m, full, plan.least, plan.is_exact ? Tolerance{} : plan.options->tolerance, sums);
  add_products(block->a, block->b, parts * full, sums);
  if (sums->max_d > before) {
    sums->worst_at = first + (std::find(block->d, block->d + n, sums->max_d) - block->d);
  }
  count_over(plan, *block, n, sums);
}

void merge(const Sums& from, Sums* to) {
  if (from.max_d > to->max_d) to->worst_at = from.worst_at;
  if (to->mismatch_at < 0) to->mismatch_at = from.mismatch_at;
  for (const auto member : {&Sums::max_d, &Sums::max_rel, &Sums::max_ulp, &Sums::max_m}) {
    to->*member = std::max(to->*member, from.*member);
  }
  for (const auto member : {&Sums::sum_d, &Sums::sum_d2, &Sums::sum_ulp, &Sums::ab, &Sums::aa, &Sums::bb}) {
    to->*member += from.*member;
  }
  for (const auto member : {&Sums::outside, &Sums::mismatches, &Sums::small_outside, &Sums::normal_outside}) {
    to->*member += from.*member;
  }
  for (const auto member : {&NonFinite::nan, &NonFinite::pos_inf, &NonFinite::neg_inf}) {
    to->result.*member += from.result.*member;
    to->golden.*member += from.golden.*member;
  }
  for (size_t i = 0; i < to->over_relative.size(); ++i) to->over_relative[i] += from.over_relative[i];
  for (size_t i = 0; i < to->over_ulp.size(); ++i) to->over_ulp[i] += from.over_ulp[i];
}

Sums all_sums(const Plan& plan, const void* result, const void* golden, int64_t numel) {
  const int64_t per_task = kBlock * kBlocksPerTask;
  const int64_t tasks = (numel + per_task - 1) / per_task;
  std::vector<Sums> found(static_cast<size_t>(tasks));
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    Block block;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t last = std::min(numel, (task + 1) * per_task);
      for (int64_t first = task * per_task; first < last; first += kBlock) {
        add_block(plan, result, golden, first, std::min(kBlock, last - first), &block,
                  &found[static_cast<size_t>(task)]);
      }
    }
  });
  Sums sums;
  for (const Sums& one : found) merge(one, &sums);
  return sums;
}

std::string text_of(double value) {
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, written.ptr};
}

template <class T>
std::string integer_text(const void* data, int64_t at) {
  return std::to_string(static_cast<const T*>(data)[at]);
}

std::string element_text(c10::ScalarType dtype, const void* data, int64_t at) {
  if (dtype == c10::ScalarType::Bool) return static_cast<const bool*>(data)[at] ? "True" : "False";
  if (dtype == c10::ScalarType::Long) return integer_text<int64_t>(data, at);
  if (dtype == c10::ScalarType::UInt64) return integer_text<uint64_t>(data, at);
  double parts[2] = {0, 0};
  load_doubles(dtype, data, at, 1, parts);
  if (!c10::isComplexType(dtype)) return text_of(parts[0]);
  return std::string("(").append(text_of(parts[0])).append(", ").append(text_of(parts[1])).append(")");
}

// The index of the element that lies at `position` in memory.
std::vector<int64_t> index_at(int64_t position, const at::Tensor& tensor) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()));
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dims.push_back(i);
  }
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  for (const int64_t dim : dims) {
    index[static_cast<size_t>(dim)] = position / tensor.stride(dim);
    position %= tensor.stride(dim);
  }
  return index;
}

TensorDiff different_structure(const char* kind, const std::string& result, const std::string& golden) {
  TensorDiff diff;
  diff.bits_equal = false;
  diff.kind = kind;
  diff.structure = std::string(kind).append(" ").append(result).append(", expected ").append(golden);
  return diff;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// Numbers in memory, on the CPU, without pending conjugation or negation.
at::Tensor plain(const at::Tensor& tensor) {
  // Autograd's zero tensors stand for zeros and have no memory.
  if (tensor._is_zerotensor()) {
    return at::_ops::zeros::call(tensor.sym_sizes(), tensor.scalar_type(), at::kStrided, c10::Device(c10::kCPU), false);
  }
  return tensor.resolve_conj().resolve_neg().to(c10::kCPU);
}

// Brings two plain tensors of one shape into one order in memory: theirs when it is the same without gaps.
void align(at::Tensor& a, at::Tensor& b) {
  if (a.strides() == b.strides() && a.is_non_overlapping_and_dense()) return;
  a = a.contiguous();
  b = b.contiguous();
}

bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

Plan plan_for(const at::Tensor& a, const at::Tensor& b, const DiffOptions& options) {
  const Rounding rounding = rounding_of(a.scalar_type());
  Plan plan{&options,           a.scalar_type(), b.scalar_type(), a.is_complex(),
            rounding.unit == 0, rounding.least,  rounding.unit,   std::numeric_limits<double>::max()};
  if (plan.is_exact) {
    plan.least = 1;
  } else if (a.scalar_type() != b.scalar_type()) {
    plan.limit = rounding.most + std::exp2(std::ilogb(rounding.most)) * rounding.unit * 0.49999;
  }
  return plan;
}

TensorDiff diff_dense(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  at::Tensor a = plain(result);
  at::Tensor b = plain(golden);
  align(a, b);
  TensorDiff diff;
  if (!has_elements_known(a.scalar_type()) || !has_elements_known(b.scalar_type())) {
    diff.bits_equal = false;
    diff.kind = "dtype";
    diff.structure = "dtype " + printed(b.scalar_type()) + " cannot be compared by element";
    return diff;
  }
  const int64_t numel = b.numel();
  const void* const results = a.const_data_ptr();
  const void* const goldens = b.const_data_ptr();
  Plan plan = plan_for(a, b, options);
  const Sums sums = all_sums(plan, results, goldens, numel);
  diff.numel = numel;
  diff.bits_equal = a.scalar_type() == b.scalar_type() && equal_bytes(a, b);
  diff.outside = sums.outside;
  diff.max_abs = sums.max_d;
  diff.max_rel = sums.max_rel;
  diff.golden_max = sums.max_m;
  diff.result = sums.result;
  diff.golden = sums.golden;
  diff.nonfinite_mismatches = sums.mismatches;
  diff.small_outside = sums.small_outside;
  diff.normal_outside = sums.normal_outside;
  diff.over_relative.assign(sums.over_relative.begin(),
                            sums.over_relative.begin() + static_cast<std::ptrdiff_t>(options.relative_limits.size()));
  diff.over_ulp.assign(sums.over_ulp.begin(),
                       sums.over_ulp.begin() + static_cast<std::ptrdiff_t>(options.ulp_limits.size()));
  if (!plan.is_exact) {
    diff.max_ulp = sums.max_ulp / plan.unit;
    if (numel > 0) diff.mean_ulp = sums.sum_ulp / plan.unit / static_cast<double>(numel);
  }
  if (numel > 0) diff.mean_abs = sums.sum_d / static_cast<double>(numel);

  // Squares that a double cannot hold: once more, with numbers near 1.
  Sums scaled = sums;
  const double largest = std::max(sums.max_m, sums.max_d);
  const bool overflow = !std::isfinite(sums.aa) || !std::isfinite(sums.bb) || !std::isfinite(sums.sum_d2);
  if (largest > 0 && (overflow || largest < 1e-140)) {
    plan.scale = std::exp2(-std::ilogb(largest) - 2);
    scaled = all_sums(plan, results, goldens, numel);
  }
  if (numel > 0) {
    diff.rmse = std::sqrt(scaled.sum_d2 / static_cast<double>(numel)) / plan.scale;
    diff.golden_rms = std::sqrt(scaled.bb / static_cast<double>(numel)) / plan.scale;
  }
  if (scaled.aa > 0 && scaled.bb > 0) {
    diff.cosine = std::clamp(scaled.ab / (std::sqrt(scaled.aa) * std::sqrt(scaled.bb)), -1.0, 1.0);
  } else {
    diff.cosine = scaled.aa == scaled.bb ? 1 : 0;
  }
  const int64_t worst = sums.mismatch_at >= 0 ? sums.mismatch_at : sums.worst_at;
  if (worst >= 0) {
    diff.has_worst = true;
    diff.worst_index = index_at(worst, b);
    diff.worst_result = element_text(a.scalar_type(), results, worst);
    diff.worst_golden = element_text(b.scalar_type(), goldens, worst);
  }
  return diff;
}

// The dense tensors that a sparse one consists of: indices, then values.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kSparse: {
      const at::Tensor coalesced = tensor.coalesce();
      return {coalesced.indices(), coalesced.values()};
    }
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    default:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
  }
}

TensorDiff diff_sparse(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  const auto result_parts = parts_of(result);
  const auto golden_parts = parts_of(golden);
  bool same_pattern = true;
  for (size_t i = 0; i + 1 < golden_parts.size() && same_pattern; ++i) {
    same_pattern = result_parts[i].sizes() == golden_parts[i].sizes() &&
                   diff_dense(result_parts[i], golden_parts[i], {}).bits_equal;
  }
  if (same_pattern) return diff_dense(result_parts.back(), golden_parts.back(), options);
  // A zero that one side stores and the other leaves out is no difference.
  TensorDiff diff = diff_dense(result.to_dense(), golden.to_dense(), options);
  diff.bits_equal = false;
  return diff;
}

// The dtype itself, or the float64 (complex128) that stands for it.
bool stands_for(c10::ScalarType golden, c10::ScalarType result) {
  if (golden == result) return true;
  if (golden == c10::ScalarType::Double) return rounding_of(result).unit > 0 && !c10::isComplexType(result);
  return golden == c10::ScalarType::ComplexDouble && c10::isComplexType(result);
}

}  // namespace

TensorDiff diff_tensors(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  if (!result.defined() || !golden.defined()) {
    if (!result.defined() && !golden.defined()) return {};
    return different_structure("presence", result.defined() ? "a tensor" : "no tensor",
                               golden.defined() ? "a tensor" : "no tensor");
  }
  if (result.sizes() != golden.sizes()) {
    return different_structure("shape", printed(result.sizes()), printed(golden.sizes()));
  }
  if (!stands_for(golden.scalar_type(), result.scalar_type())) {
    return different_structure("dtype", printed(result.scalar_type()), printed(golden.scalar_type()));
  }
  if (result.layout() != golden.layout()) {
    return different_structure("layout", printed(result.layout()), printed(golden.layout()));
  }
  const c10::InferenceMode no_autograd;
  if (golden.layout() == at::kStrided) return diff_dense(result, golden, options);
  if (golden.layout() == at::kMkldnn) {
    return diff_dense(result.to_dense(), golden.to_dense(), options);
  }
  return diff_sparse(result, golden, options);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.layout() != b.layout()) return false;
  const c10::InferenceMode no_autograd;
  if (a.layout() != at::kStrided) return diff_tensors(a, b).bits_equal;
  at::Tensor left = plain(a), right = plain(b);
  align(left, right);
  return equal_bytes(left, right);
}

int64_t nonfinite_strangers(const at::Tensor& result, const at::Tensor& golden, const at::Tensor& reference) {
  const c10::InferenceMode no_autograd;
  const at::Tensor a = plain(result).contiguous(), b = plain(golden).contiguous(), c = plain(reference).contiguous();
  const DiffOptions options;
  const Plan plan = plan_for(a, b, options);
  if (plan.is_exact) return 0;
  const int parts = plan.is_complex ? 2 : 1;
  double left[2 * kBlock], middle[2 * kBlock], right[2 * kBlock];
  constexpr double kAny = std::numeric_limits<double>::infinity();
  int64_t strangers = 0;
  for (int64_t first = 0; first < a.numel(); first += kBlock) {
    const int64_t n = std::min(kBlock, a.numel() - first);
    load_doubles(a.scalar_type(), a.const_data_ptr(), first, n, left);
    load_doubles(b.scalar_type(), b.const_data_ptr(), first, n, middle);
    load_doubles(c.scalar_type(), c.const_data_ptr(), first, n, right);
    for (int64_t i = 0; i < parts * n; i += parts) {
      const bool special = special_of(left + i, parts, kAny) != Special::kNone ||
                           special_of(middle + i, parts, plan.limit) != Special::kNone;
      if (!special || same_special(left + i, middle + i, parts, plan.limit, true)) continue;
      // The CPU in the same dtype has it so, too; or has the other's infinity, where this one has a number.
      if (same_special(left + i, right + i, parts, kAny, true)) continue;
      const bool both_finite =
          special_of(left + i, parts, kAny) == Special::kNone && special_of(right + i, parts, kAny) == Special::kNone;
      if (!both_finite) ++strangers;
    }
  }
  return strangers;
}

}  // namespace op_tools
