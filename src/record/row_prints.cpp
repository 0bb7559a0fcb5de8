#include "record/row_prints.h"

#include <c10/core/ScalarType.h>

#include <cmath>
#include <cstdint>

#include "tensor/element_hash.h"
#include "tensor/element_sums.h"
#include "tensor/statistics.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

constexpr int64_t kMostRows = 1 << 16;

std::vector<std::pair<int64_t, int64_t>> row_dims(const at::Tensor& tensor) {
  const int64_t dims = tensor.dim();
  const bool counts_tokens = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  if (dims == 1) return {{0, kNoDim}};
  if (dims == 2) return {{0, counts_tokens ? 1 : kNoDim}};
  if (dims == 4) return {{0, 1}, {0, 2}, {0, 3}};
  if (dims == 5) return {{0, 1}, {1, 2}, {1, 3}};
  if (dims >= 3) return {{0, 1}};
  return {};
}

// `elements`: contiguous, on the CPU, `rows` rows one after the other.
std::vector<RowPrint> prints_of(const at::Tensor& elements, int64_t rows) {
  std::vector<RowPrint> prints(static_cast<size_t>(rows));
  const int64_t width = elements.numel() / rows;
  const at::Tensor row = elements.as_strided({width}, {1}, elements.storage_offset());
  const int64_t begin = elements.storage_offset();
  for (int64_t i = 0; i < rows; ++i) {
    row.unsafeGetTensorImpl()->set_storage_offset(begin + i * width);
    const ElementSums sums = element_sums(row);
    prints[static_cast<size_t>(i)] = {element_hash::finished(sums.hash, width), std::sqrt(sums.squares),
                                      sums.projections};
  }
  return prints;
}

}  // namespace

std::vector<RowPrints> row_prints(const at::Tensor& tensor) {
  std::vector<RowPrints> all;
  if (!may_have_statistics(tensor) || tensor.numel() == 0) return all;
  at::Tensor on_host;
  for (const auto& [first, second] : row_dims(tensor)) {
    const int64_t rows = tensor.size(first) * (second == kNoDim ? 1 : tensor.size(second));
    if (rows > kMostRows) continue;
    if (!on_host.defined()) on_host = on_cpu(tensor.detach());
    const at::Tensor elements = second == kNoDim ? on_host.movedim(first, 0) : on_host.movedim({first, second}, {0, 1});
    RecordedRows table;
    table.first_dim = static_cast<int32_t>(first);
    table.second_dim = static_cast<int32_t>(second);
    table.count = static_cast<uint32_t>(rows);
    all.push_back({table, prints_of(elements.contiguous(), rows)});
  }
  return all;
}

}  // namespace op_tools
