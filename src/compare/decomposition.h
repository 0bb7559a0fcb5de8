// The factors of a matrix, taken together: signs that fit each factor alone may not fit each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace op_tools {

// How far the product of two factors (Q, R), or of three (U, S, and V or its conjugate transpose), is from the matrix,
// as a share of the matrix's norm; with or without a batch. nullopt: it is not known (empty factors, numbers that are
// not finite).
std::optional<double> distance_of_product(const std::vector<at::Tensor>& factors, const at::Tensor& matrix);

}  // namespace op_tools
