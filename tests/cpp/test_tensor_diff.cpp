#include "compare/metrics/tensor_diff.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "catch.h"
#include "compare/metrics/tolerance.h"
#include "scoped_variable.h"
#include "special_values.h"

using namespace op_tools;
using op_tools::test::ScopedVariable;

namespace {

at::Tensor tensor_with(std::vector<double> numbers, at::ScalarType dtype = at::kFloat) {
  at::Tensor result = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), result.mutable_data_ptr<double>());
  return result.to(dtype);
}

}  // namespace

TEST_CASE("A difference has its size, place and both values", "[tensor_diff]") {
  const auto golden = tensor_with({1, 2, 4, 8}).reshape({2, 2});
  const auto result = tensor_with({1, 2, 5, 8}).reshape({2, 2});
  const TensorDiff diff = diff_tensors(result, golden, {1e-5, 1e-5});
  CHECK(diff.structure.empty());
  CHECK_FALSE(diff.within());
  CHECK_FALSE(diff.bits_equal);
  CHECK(diff.numel == 4);
  CHECK(diff.outside == 1);
  CHECK(diff.max_abs == 1);
  CHECK(diff.max_rel == 0.25);
  CHECK(diff.mean_abs == 0.25);
  CHECK(diff.cosine == Approx(89.0 / std::sqrt(94.0 * 85.0)));
  CHECK(diff.worst_index == std::vector<int64_t>{1, 0});
  CHECK(diff.worst_result == "5");
  CHECK(diff.worst_golden == "4");
}

TEST_CASE("Equal tensors of every dtype agree bit for bit", "[tensor_diff]") {
  for (const auto dtype : {at::kByte,          at::kChar,        at::kShort,           at::kInt,
                           at::kLong,          at::kUInt16,      at::kUInt32,          at::kUInt64,
                           at::kBool,          at::kHalf,        at::kBFloat16,        at::kFloat,
                           at::kDouble,        at::kComplexHalf, at::kComplexFloat,    at::kComplexDouble,
                           at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    INFO(dtype);
    const auto tensor = tensor_with({0, 1, 2, 1}, dtype);
    const TensorDiff diff = diff_tensors(tensor, tensor.clone(), {});
    CHECK(diff.within());
    CHECK(diff.bits_equal);
    CHECK(diff.max_abs == 0);
    CHECK(diff.cosine == Approx(1));
  }
}

TEST_CASE("NaN is equal to NaN and an infinity to the same infinity only", "[tensor_diff]") {
  const auto golden = tensor_with({kNan, kInf, -kInf, kInf, 1});
  TensorDiff diff = diff_tensors(golden.clone(), golden, {});
  CHECK(diff.within());
  CHECK(diff.golden.nan == 1);
  CHECK(diff.golden.pos_inf == 2);
  CHECK(diff.golden.neg_inf == 1);
  CHECK(diff.max_abs == 0);

  diff = diff_tensors(tensor_with({kNan, kInf, -kInf, -kInf, kNan}), golden, {1e30, 1});
  CHECK(diff.nonfinite_mismatches == 2);
  CHECK(diff.outside == 2);
  CHECK_FALSE(diff.within());
  CHECK(diff.worst_index == std::vector<int64_t>{3});
  CHECK(diff.worst_golden == "inf");
}

TEST_CASE("Integers are exact: no tolerance and no wrap-around", "[tensor_diff]") {
  TensorDiff diff = diff_tensors(tensor_with({3}, at::kByte), tensor_with({250}, at::kByte), {1000, 1});
  CHECK(diff.max_abs == 247);
  CHECK_FALSE(diff.within());

  const auto low = at::full({1}, std::numeric_limits<int64_t>::min(), at::kLong);
  const auto high = at::full({1}, std::numeric_limits<int64_t>::max(), at::kLong);
  diff = diff_tensors(low, high, {});
  CHECK(diff.max_abs == Approx(18446744073709551615.0));
  // Beyond 2^53, where doubles would call neighbours equal.
  diff = diff_tensors(high - 1, high, {});
  CHECK(diff.max_abs == 1);
  CHECK_FALSE(diff.within());
  CHECK(diff_tensors(tensor_with({1}, at::kBool), tensor_with({0}, at::kBool), {}).max_abs == 1);
}

TEST_CASE("Tensors without elements and without dimensions are compared", "[tensor_diff]") {
  const TensorDiff empty = diff_tensors(at::zeros({0, 3}), at::zeros({0, 3}), {});
  CHECK(empty.within());
  CHECK(empty.bits_equal);
  CHECK(empty.mean_abs == 0);
  CHECK(empty.cosine == 1);

  const TensorDiff scalar = diff_tensors(at::full({}, 2.0), at::full({}, 1.0), {});
  CHECK(scalar.has_worst);
  CHECK(scalar.worst_index.empty());
  CHECK(scalar.max_abs == 1);
}

TEST_CASE("Another shape, dtype or layout is an outcome of its own", "[tensor_diff]") {
  CHECK(diff_tensors(at::zeros({2}), at::zeros({3}), {}).structure == "shape [2], expected [3]");
  CHECK_FALSE(diff_tensors(at::zeros({2}, at::kDouble), at::zeros({2}), {}).within());
  CHECK_FALSE(diff_tensors(at::zeros({2}, at::kLong), at::zeros({2}, at::kDouble), {}).within());
  CHECK(diff_tensors(at::zeros({2}), at::zeros({2}, at::kDouble), {}).within());  // float64 stands for float32
  CHECK_FALSE(diff_tensors(at::zeros({2}).to_sparse(), at::zeros({2}), {}).within());
  CHECK_FALSE(diff_tensors(at::Tensor(), at::zeros({2}), {}).within());
  CHECK(diff_tensors(at::Tensor(), at::Tensor(), {}).within());
}

TEST_CASE("A golden zero counts in the relative difference", "[tensor_diff]") {
  const TensorDiff diff = diff_tensors(tensor_with({1e-9}), tensor_with({0}), {1e-5, 1e-5});
  CHECK(diff.max_rel == kInf);
  CHECK(diff.within());
  CHECK(diff.cosine == 0);
}

TEST_CASE("Zeros of different sign are equal but not bit for bit", "[tensor_diff]") {
  const TensorDiff diff = diff_tensors(tensor_with({-0.0}), tensor_with({0.0}), {});
  CHECK(diff.within());
  CHECK_FALSE(diff.bits_equal);
}

TEST_CASE("Complex numbers, views and lazily conjugated tensors are compared by value", "[tensor_diff]") {
  const auto golden = tensor_with({1, 2, 3, 4}, at::kComplexFloat);
  const auto shifted = golden + at::Scalar(c10::complex<double>(3, 4));
  CHECK(diff_tensors(shifted, golden, {}).max_abs == Approx(5));
  CHECK(diff_tensors(shifted.conj(), shifted.conj().resolve_conj(), {}).bits_equal);
  const auto matrix = tensor_with({1, 2, 3, 4}).reshape({2, 2});
  CHECK(diff_tensors(matrix.t(), matrix.t().contiguous(), {}).bits_equal);
}

TEST_CASE("Sparse tensors are compared coalesced", "[tensor_diff]") {
  const auto indices = tensor_with({1, 1, 0}, at::kLong).reshape({1, 3});
  const auto twice = at::sparse_coo_tensor(indices, tensor_with({1, 2, 5}), {3});
  const auto once = at::sparse_coo_tensor(tensor_with({0, 1}, at::kLong).reshape({1, 2}), tensor_with({5, 3}), {3});
  CHECK(diff_tensors(twice, once, {}).bits_equal);
  const auto other = at::sparse_coo_tensor(tensor_with({0, 2}, at::kLong).reshape({1, 2}), tensor_with({5, 3}), {3});
  const TensorDiff diff = diff_tensors(other, once, {});
  CHECK(diff.max_abs == 3);
  CHECK_FALSE(diff.within());
  CHECK(diff_tensors(at::full({2, 2}, 1.0).to_sparse_csr(), at::full({2, 2}, 1.0).to_sparse_csr(), {}).within());
}

TEST_CASE("The table has the known tolerances per dtype", "[tolerance]") {
  const ToleranceTable table;
  CHECK(table.allclose("torch.add", at::kHalf).atol == 1e-4);
  CHECK(table.allclose("torch.add", at::kBFloat16).rtol == 1e-3);
  CHECK(table.allclose("torch.add", at::kFloat).atol == 1e-5);
  CHECK(table.allclose("torch.add", at::kDouble).atol == 1e-8);
  CHECK(table.allclose("torch.add", at::kComplexFloat).atol == 1e-5);
  CHECK(table.allclose("torch.add", at::kLong).atol == 0);
}

TEST_CASE("The more exact variable sets the tolerance", "[tolerance]") {
  const ScopedVariable all("AUTOCOMPARE_ERROR_TOLERANCE", "1,2");
  const ScopedVariable dtype("AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", " 3 , 4 ");
  const ScopedVariable op("LINEAR_AUTOCOMPARE_ERROR_TOLERANCE", "5,6");
  const ScopedVariable op_dtype("LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "7,8");
  const auto table = ToleranceTable::from_environment();
  CHECK(table.allclose("torch.nn.functional.linear", at::kHalf).atol == 7);
  CHECK(table.allclose("torch.nn.functional.linear", at::kFloat).rtol == 6);
  CHECK(table.allclose("aten::linear", at::kHalf).atol == 7);
  CHECK(table.allclose("aten::add.Tensor", at::kHalf).rtol == 4);
  CHECK(table.allclose("torch.add", at::kDouble).atol == 1);
  CHECK(table.allclose("torch.add", at::kLong).atol == 0);
}

TEST_CASE("A tolerance that is no pair of numbers is an error that names it", "[tolerance]") {
  for (const char* value : {"1e-3", "a,b", "1,", ",1", "1,2,3", "-1,0", "inf,0", "nan,0"}) {
    const ScopedVariable variable("MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", value);
    INFO(value);
    try {
      ToleranceTable::from_environment();
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32") != std::string::npos);
      CHECK(std::string(error.what()).find(value) != std::string::npos);
    }
  }
  const ScopedVariable unknown("AUTOCOMPARE_ERROR_TOLERANCE_FLOAT17", "1,1");
  CHECK_THROWS_AS(ToleranceTable::from_environment(), Error);
}
