#include "compare/decomposition.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

at::Tensor wide(const at::Tensor& tensor) {
  const at::Tensor here = on_cpu(tensor.detach());
  return here.to(here.is_complex() ? at::kComplexDouble : at::kDouble);
}

double norm_of(const at::Tensor& tensor) {
  return tensor.abs().square().sum().sqrt().item().toDouble();
}

double distance(const at::Tensor& product, const at::Tensor& matrix) {
  if (product.sizes() != matrix.sizes()) return std::numeric_limits<double>::infinity();
  return norm_of(product.sub(matrix)) / norm_of(matrix);
}

}  // namespace

std::optional<double> distance_of_product(const std::vector<at::Tensor>& factors, const at::Tensor& matrix) {
  const c10::InferenceMode no_autograd;
  const auto is_filled = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.numel() > 0;
  };
  if (!is_filled(matrix) || matrix.dim() < 2 || !std::all_of(factors.begin(), factors.end(), is_filled))
    return std::nullopt;
  const at::Tensor expected = wide(matrix), left = wide(factors.front()), right = wide(factors.back());
  if (left.dim() < 2 || right.dim() < 2) return std::nullopt;
  double least = std::numeric_limits<double>::infinity();
  if (factors.size() == 2) {
    if (left.size(-1) == right.size(-2)) least = distance(left.matmul(right), expected);
  } else {
    const at::Tensor middle = wide(factors[1]).to(left.scalar_type()).unsqueeze(-2);
    const int64_t rank = middle.size(-1);
    if (left.size(-1) < rank) return std::nullopt;
    const at::Tensor scaled = left.narrow(-1, 0, rank).mul(middle);
    for (const at::Tensor& other : {right, right.mH()}) {  // linalg_svd gives the conjugate transpose, svd does not
      if (other.size(-2) >= rank) least = std::min(least, distance(scaled.matmul(other.narrow(-2, 0, rank)), expected));
    }
  }
  return std::isfinite(least) ? std::optional(least) : std::nullopt;
}

}  // namespace op_tools
