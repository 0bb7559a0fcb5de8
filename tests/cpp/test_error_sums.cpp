// The numbers of a difference against a plain loop over doubles: random and special values, each dtype, sizes that are
// no multiple of anything.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "compare/metrics/tensor_diff.h"
#include "compare/metrics/tolerance.h"
#include "special_values.h"

using namespace op_tools;

namespace {

constexpr Tolerance kTolerance{1e-4, 1e-3};
constexpr double kRelativeLimit = 1e-2, kUlpLimit = 2;
constexpr double kSumsOfHalves = 7 * 0x1p-24;  // seven additions of floats, each rounded

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  const auto* data = wide.const_data_ptr<double>();
  return {data, data + wide.numel()};
}

at::Tensor tensor_of(const std::vector<double>& numbers, at::ScalarType dtype) {
  at::Tensor result = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), result.mutable_data_ptr<double>());
  return result.to(dtype);
}

struct Plain {
  double max_abs = 0, max_rel = 0, max_ulp = 0, sum = 0, squares = 0, ulps = 0, most = 0, ab = 0, aa = 0, bb = 0;
  int64_t outside = 0, mismatches = 0, over_relative = 0, over_ulp = 0, nan = 0, infinite = 0, worst = -1;
};

Plain plain_loop(const std::vector<double>& results, const std::vector<double>& goldens, const Rounding& rounding,
                 double limit, const Tolerance& tolerance) {
  Plain sums;
  int64_t mismatch = -1;
  for (size_t i = 0; i < goldens.size(); ++i) {
    const double a = results[i];
    const double b = std::fabs(goldens[i]) > limit ? std::copysign(kInf, goldens[i]) : goldens[i];
    if (!std::isfinite(a) || !std::isfinite(b)) {
      sums.nan += std::isnan(b);
      sums.infinite += std::isinf(b);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      ++sums.mismatches;
      ++sums.outside;
      if (mismatch < 0) mismatch = static_cast<int64_t>(i);
      continue;
    }
    const double d = std::fabs(a - b), m = std::fabs(b);
    if (d > sums.max_abs) sums.worst = static_cast<int64_t>(i);
    sums.max_abs = std::max(sums.max_abs, d);
    sums.most = std::max(sums.most, m);
    if (d > 0) sums.max_rel = std::max(sums.max_rel, d / m);
    const double ulp = d / (rounding.unit * std::exp2(std::ilogb(std::max(m, rounding.least))));
    sums.max_ulp = std::max(sums.max_ulp, ulp);
    sums.over_ulp += ulp > kUlpLimit;
    sums.over_relative += d > kRelativeLimit * m;
    sums.outside += d > tolerance.atol + tolerance.rtol * m;
    sums.sum += d;
    sums.squares += d * d;
    sums.ulps += ulp;
    sums.ab += a * b;
    sums.aa += a * a;
    sums.bb += b * b;
  }
  if (mismatch >= 0) sums.worst = mismatch;
  return sums;
}

// Mostly near each other, some bits equal in long stretches, a few far apart, very small, zero or not finite.
struct Pair {
  std::vector<double> results, goldens;
};
Pair pair_of(size_t n, double unit, bool specials, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> die(0, 99);
  const double values[] = {0.0, -0.0, kNan, kInf, -kInf, 1e-41, -3e-310, 6e-8, 1e30, 7e4, -1.0};
  std::uniform_int_distribution<size_t> special(0, std::size(values) - 1);
  Pair pair;
  while (pair.goldens.size() < n) {
    const bool equal = die(random) < 50;
    const size_t stretch = std::min<size_t>(n - pair.goldens.size(), static_cast<size_t>(1 + die(random) * 20));
    for (size_t i = 0; i < stretch; ++i) {
      double golden = normal(random);
      double result = equal ? golden : golden * (1 + 3 * unit * normal(random));
      const int cast = die(random);
      if (cast == 0) result = normal(random);
      if (cast == 1) golden = result = normal(random) * 1e-39;
      if (specials && cast == 2) golden = values[special(random)];
      if (specials && cast == 3) result = values[special(random)];
      if (specials && cast == 4) golden = result = values[special(random)];
      pair.goldens.push_back(golden);
      pair.results.push_back(result);
    }
  }
  return pair;
}

void check_pair(const at::Tensor& result, const at::Tensor& golden, const Tolerance& tolerance = kTolerance) {
  const Rounding rounding = rounding_of(result.scalar_type());
  const bool wider = result.scalar_type() != golden.scalar_type();
  const double limit = wider ? rounding.most + std::exp2(std::ilogb(rounding.most)) * rounding.unit * 0.49999
                             : std::numeric_limits<double>::max();
  const Plain plain = plain_loop(numbers_of(result), numbers_of(golden), rounding, limit, tolerance);
  const TensorDiff diff = diff_tensors(
      result, golden, {.tolerance = tolerance, .relative_limits = {kRelativeLimit}, .ulp_limits = {kUlpLimit}});
  REQUIRE(diff.structure.empty());
  const auto n = static_cast<double>(std::max<int64_t>(1, golden.numel()));
  // Half types that are near each other are added up as floats first, eight at a time (near_float16.h).
  const bool parts = !wider && (result.scalar_type() == at::kHalf || result.scalar_type() == at::kBFloat16);
  const double sums = parts ? kSumsOfHalves : 1e-9;
  CHECK(diff.max_abs == plain.max_abs);
  CHECK(diff.golden_max == plain.most);
  CHECK(diff.max_rel == Approx(plain.max_rel).epsilon(1e-12));
  CHECK(diff.max_ulp == Approx(plain.max_ulp).epsilon(1e-12));
  CHECK(diff.mean_ulp == Approx(plain.ulps / n).epsilon(1e-9));
  CHECK(diff.mean_abs == Approx(plain.sum / n).epsilon(sums));
  CHECK(diff.rmse == Approx(std::sqrt(plain.squares / n)).epsilon(sums / 2));
  CHECK(diff.golden_rms == Approx(std::sqrt(plain.bb / n)).epsilon(sums / 2));
  if (plain.aa > 0 && plain.bb > 0) {
    CHECK(diff.cosine == Approx(plain.ab / std::sqrt(plain.aa) / std::sqrt(plain.bb)).margin(1e-9));
  }
  CHECK(diff.outside == plain.outside);
  CHECK(diff.nonfinite_mismatches == plain.mismatches);
  CHECK(diff.golden.nan == plain.nan);
  CHECK(diff.golden.pos_inf + diff.golden.neg_inf == plain.infinite);
  CHECK(diff.over_relative[0] == plain.over_relative);
  CHECK(diff.over_ulp[0] == plain.over_ulp);
  REQUIRE(diff.has_worst == (plain.worst >= 0));
  if (diff.has_worst) CHECK(diff.worst_index == std::vector<int64_t>{plain.worst});
  if (!wider) CHECK(diff.bits_equal == same_bits(result, golden));
}

}  // namespace

TEST_CASE("The numbers are those of a plain loop", "[tensor_diff]") {
  std::mt19937 random(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kFloat8_e5m2, at::kFloat8_e4m3fn}) {
    for (const bool specials : {false, true}) {
      for (const size_t n : {1, 2, 3, 4, 5, 7, 63, 511, 512, 513, 1023, 5000, 65537, 140001}) {
        INFO(dtype << ", " << n << " elements, " << (specials ? "with" : "without") << " special values");
        const Pair pair = pair_of(n, rounding_of(dtype).unit, specials, random);
        const at::Tensor result = tensor_of(pair.results, dtype);
        check_pair(result, tensor_of(pair.goldens, dtype));
        check_pair(result, tensor_of(pair.goldens, at::kDouble));
        check_pair(result, result.clone());
      }
    }
  }
}

// Blocks of neighbours take a shorter way. Here each element is a neighbour, but for those that `strange` puts among
// them.
TEST_CASE("The numbers of tensors that are rounding apart are those of a plain loop", "[tensor_diff]") {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponent(-12, 8);
  struct Strange {
    const char* name;
    double golden, result;
  };
  const Strange cases[] = {{"nothing", 1, 1},
                           {"an element far away", 3, -900},
                           {"the opposite", 0.7, -0.7},
                           {"a lost element", 2, 0},
                           {"an element of nothing", 0, 1e-4},
                           {"elements below the least", 3e-39, 1e-39},
                           {"a NaN", kNan, 1},
                           {"an infinity", 1, kInf},
                           {"infinities", kInf, kInf},
                           {"large ones", 5e4, 5.1e4},
                           {"the largest floats", 3e38, 3.1e38},
                           {"zeros of either sign", 0.0, -0.0},
                           {"parts below the least", 3e-5, 3.1e-5}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double unit = rounding_of(dtype).unit;
    for (const Strange& strange : cases) {
      for (const double scale : {1.0, 1e-4, 1e-30, 1e-41}) {
        for (const size_t n : {1024, 3072, 70000}) {
          INFO(dtype << ", " << n << " elements times " << scale << ", and " << strange.name);
          Pair pair;
          for (size_t i = 0; i < n; ++i) {
            const double golden = scale * normal(random) * std::exp2(exponent(random));
            pair.goldens.push_back(golden);
            pair.results.push_back(golden * (1 + 2 * unit * normal(random)));
          }
          for (size_t i = n / 3; i < n && i < n / 3 + 3; ++i) {
            pair.goldens[i] = strange.golden;
            pair.results[i] = strange.result;
          }
          const at::Tensor result = tensor_of(pair.results, dtype), golden = tensor_of(pair.goldens, dtype);
          for (const Tolerance& tolerance : {Tolerance{}, kTolerance}) {
            check_pair(result, golden, tolerance);
            check_pair(result, golden.to(at::kDouble), tolerance);
          }
          // From an odd place on.
          check_pair(result.slice(0, 3), golden.slice(0, 3));
        }
      }
    }
  }
  // A single quotient in all elements, the largest, and a quotient that floats do not hold.
  const at::Tensor odd = tensor_of(std::vector<double>(8192, 129), at::kFloat);
  check_pair(odd + 0.001, odd);
}

// The possible cost of eight additions as floats, and the usual cost, of numbers that nobody chose. 1 - cosine is as
// exact as the sums, not as the cosine.
TEST_CASE("Numbers of half types are as exact as is promised", "[tensor_diff]") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponent(-12, 8);
  enum Kind { kNormal, kWide, kOneNumber, kMostAreLost, kMixed };
  struct Scale {
    at::ScalarType dtype;
    double factor;
  };
  // Halves: also subnormal, and the largest. bfloat16: also where squares of floats are too small or too large.
  const Scale scales[] = {{at::kHalf, 1},           {at::kHalf, 0x1p-17},     {at::kHalf, 0x1p-9},
                          {at::kHalf, 0x1p7},       {at::kBFloat16, 1},       {at::kBFloat16, 0x1p-45},
                          {at::kBFloat16, 0x1p-52}, {at::kBFloat16, 0x1p-58}, {at::kBFloat16, 0x1p-80},
                          {at::kBFloat16, 0x1p55},  {at::kBFloat16, 0x1p62},  {at::kBFloat16, 0x1p100}};
  for (const Scale& scale : scales) {
    const Rounding rounding = rounding_of(scale.dtype);
    for (const Kind kind : {kNormal, kWide, kOneNumber, kMostAreLost, kMixed}) {
      for (const int64_t n : {1, 1000, 1024, 5000, 100'000, 1'000'000}) {
        if (n > 100'000 && scale.factor != 1) continue;
        INFO(scale.dtype << " times " << scale.factor << ", " << n << " elements of kind " << kind);
        std::vector<double> goldens, results;
        for (int64_t i = 0; i < n; ++i) {
          double golden = normal(random);
          if (kind == kWide) golden *= std::exp2(exponent(random));
          if (kind == kOneNumber) golden = 2 - rounding.unit;
          // A number of eight in each lane is so large that the squares of the others are just not seen beside it.
          if (kind == kMostAreLost) golden = i % 128 < 16 ? 2 - rounding.unit : 0x1p-12 * (2 - rounding.unit);
          if (kind == kMixed && i % 3 == 0) golden = 0;
          goldens.push_back(std::clamp(golden * scale.factor, -rounding.most / 2, rounding.most / 2));
          const double apart = kind == kOneNumber ? -rounding.unit : 2 * rounding.unit * normal(random);
          results.push_back(goldens.back() * (1 + apart));
        }
        const at::Tensor result = tensor_of(results, scale.dtype), golden = tensor_of(goldens, scale.dtype);
        const std::vector<double> a = numbers_of(result), b = numbers_of(golden);
        long double sum_d = 0, sum_d2 = 0, be = 0, bb = 0;
        for (size_t i = 0; i < b.size(); ++i) {
          const long double e = static_cast<long double>(a[i]) - b[i];
          sum_d += std::fabs(e);
          sum_d2 += e * e;
          be += b[i] * e;
          bb += static_cast<long double>(b[i]) * b[i];
        }
        const TensorDiff diff = diff_tensors(result, golden);
        const auto count = static_cast<long double>(n);
        const bool chosen = kind == kOneNumber || kind == kMostAreLost;
        const double most = n < 1024 ? 1e-13 : chosen ? kSumsOfHalves : 3e-8;
        CHECK(diff.mean_abs == Approx(static_cast<double>(sum_d / count)).epsilon(most));
        CHECK(diff.rmse == Approx(static_cast<double>(std::sqrt(sum_d2 / count))).epsilon(most / 2));
        CHECK(diff.golden_rms == Approx(static_cast<double>(std::sqrt(bb / count))).epsilon(most / 2));
        // 1 - (bb + be) / sqrt(bb * (bb + 2 be + d2)), without a difference of nearly equal numbers.
        const long double aa = bb + 2 * be + sum_d2, root = std::sqrt(aa * bb), ab = bb + be;
        const long double sine2 = (sum_d2 * bb - be * be) / (root * root);
        const double margin = 1e-13 + (bb == 0 ? 0 : 2 * most * static_cast<double>(sum_d2 / bb));
        const long double missing = bb == 0 ? 0 : sine2 / (1 + ab / root);
        CHECK(1 - diff.cosine == Approx(static_cast<double>(missing)).epsilon(0).margin(margin));
      }
    }
  }
}

// A thread remembers the largest from one part to the next.
TEST_CASE("The numbers and the worst element do not depend on the threads", "[tensor_diff]") {
  constexpr int64_t kCount = 3'200'000, kPlaces[] = {99'990, 1'250'000, 2'500'000};
  const int before = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor golden = at::full({kCount}, 1.25, at::kDouble).to(dtype);
    const at::Tensor result = golden.clone();
    result.slice(0, 5, 2'000'000) += rounding_of(dtype).unit;
    for (const int64_t place : kPlaces) result[place] = 1.5;  // the largest, three times
    std::vector<TensorDiff> diffs;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      diffs.push_back(diff_tensors(result, golden));
    }
    at::set_num_threads(before);
    for (const TensorDiff& diff : diffs) {
      INFO(dtype);
      CHECK(diff.worst_index == std::vector<int64_t>{kPlaces[0]});
      CHECK(diff.max_abs == 0.25);
      CHECK(diff.max_rel == 0.2);
      CHECK(diff.rmse == diffs[0].rmse);
      CHECK(diff.mean_ulp == diffs[0].mean_ulp);
      CHECK(diff.cosine == diffs[0].cosine);
      CHECK(diff.outside == 2'000'000 - 5 + 1);
    }
  }
}

TEST_CASE("Whole numbers are those of a plain loop, too", "[tensor_diff]") {
  std::mt19937 random(11);
  std::uniform_int_distribution<int> die(0, 99);
  for (const auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    for (const size_t n : {1, 3, 511, 513, 66000}) {
      INFO(dtype << ", " << n << " elements");
      std::vector<double> goldens, results;
      for (size_t i = 0; i < n; ++i) {
        goldens.push_back(die(random));
        results.push_back(i % 3000 < 1500 || die(random) > 3 ? goldens.back() : die(random));
      }
      const at::Tensor result = tensor_of(results, dtype), golden = tensor_of(goldens, dtype);
      const std::vector<double> a = numbers_of(result), b = numbers_of(golden);
      int64_t different = 0;
      double most = 0;
      for (size_t i = 0; i < n; ++i) {
        different += a[i] != b[i];
        most = std::max(most, std::fabs(a[i] - b[i]));
      }
      const TensorDiff diff = diff_tensors(result, golden);
      CHECK(diff.outside == different);
      CHECK(diff.max_abs == most);
      CHECK(diff.bits_equal == (different == 0));
    }
  }
}

TEST_CASE("NaN that is not to be equal counts where all bits are the same", "[tensor_diff]") {
  std::vector<double> numbers(2000, 1.0);
  numbers[1500] = kNan;
  const at::Tensor tensor = tensor_of(numbers, at::kFloat);
  CHECK(diff_tensors(tensor, tensor.clone()).within());
  const TensorDiff diff = diff_tensors(tensor, tensor.clone(), {.nan_equal = false});
  CHECK(diff.bits_equal);
  CHECK(diff.nonfinite_mismatches == 1);
  CHECK(diff.worst_index == std::vector<int64_t>{1500});
}
