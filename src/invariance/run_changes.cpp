#include "invariance/run_changes.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

using Items = std::vector<std::pair<Value, Value>>;

Value value_of(const TensorChange& change) {
  switch (change.kind) {
    case TensorChange::Kind::kFill:
      return make_dict(
          {{"fill", change.number}, {"count", change.count}, {"dim", change.dim}, {"in_front", change.in_front}});
    case TensorChange::Kind::kJoin:
      return make_dict({{"join", true}});
    case TensorChange::Kind::kPack:
      return make_dict({{"pack", true}});
    case TensorChange::Kind::kGaps:
      return make_dict({{"gaps", true}});
    case TensorChange::Kind::kAlignment:
      return make_dict({{"alignment", true}});
    default:
      return make_dict(
          {{"places", make_list(Values(change.places.begin(), change.places.end()))}, {"dim", change.dim}});
  }
}

Value value_of(const RunChanges::Tensors& tensors) {
  Items items;
  for (const auto& [index, changes] : tensors) {
    Values steps;
    for (const TensorChange& change : changes) steps.push_back(value_of(change));
    items.emplace_back(static_cast<int64_t>(index), make_list(std::move(steps)));
  }
  return make_dict(std::move(items));
}

}  // namespace

RunChanges copies_of(const RunChanges& changes) {
  RunChanges copies;
  const auto without = [](const RunChanges::Tensors& tensors) {
    RunChanges::Tensors same;
    for (const auto& [index, steps] : tensors) same[index] = {};
    return same;
  };
  copies.inputs = without(changes.inputs);
  copies.gradients = without(changes.gradients);
  copies.program = without(changes.program);
  copies.other = without(changes.other);
  return copies;
}

at::Tensor mask_of(const OrderMask& order, int64_t queries, int64_t keys, at::ScalarType dtype) {
  const at::Tensor mask = at::full({queries, keys}, -std::numeric_limits<double>::infinity(), at::kFloat);
  for (int64_t query = 0; query < queries; ++query) {
    const int64_t last = std::min(keys - 1, std::max(query + order.first, order.left_out));
    mask.select(0, query).narrow(0, order.left_out, last - order.left_out + 1).fill_(0);
  }
  return mask.to(dtype);
}

at::Tensor mask_of(const PackingMask& packing, const at::Tensor& own, int64_t dims, int64_t queries, int64_t keys,
                   at::ScalarType dtype) {
  const int64_t count = packing.sequences, rows = queries / count, columns = keys / count;
  OrderMask order;
  order.first = packing.is_causal ? 0 : columns;
  const at::Tensor each = own.defined() ? on_cpu(own.detach()) : mask_of(order, rows, columns, dtype);
  const bool has_batch = each.dim() == dims;
  std::vector<int64_t> sizes = each.sizes().vec();
  sizes[sizes.size() - 2] = queries;
  sizes[sizes.size() - 1] = keys;
  if (has_batch) sizes[0] = 1;
  const double nothing = each.scalar_type() == at::kBool ? 0 : -std::numeric_limits<double>::infinity();
  const at::Tensor mask = at::full(sizes, nothing, each.options());
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor block = has_batch ? each.narrow(0, std::min(i, each.size(0) - 1), 1) : each;
    mask.narrow(-2, i * rows, rows).narrow(-1, i * columns, columns).copy_(block);
  }
  return mask;
}

Value to_value(const RunChanges& changes) {
  Items items{{"inputs", value_of(changes.inputs)},
              {"gradients", value_of(changes.gradients)},
              {"program", value_of(changes.program)},
              {"other", value_of(changes.other)}};
  if (changes.order) {
    const OrderMask& order = *changes.order;
    items.emplace_back("order", make_dict({{"parameters", std::string(order.parameters)},
                                           {"name", std::string(order.name)},
                                           {"first", order.first},
                                           {"left_out", order.left_out}}));
  }
  if (changes.packing) {
    const PackingMask& packing = *changes.packing;
    items.emplace_back("packing", make_dict({{"parameters", std::string(packing.parameters)},
                                             {"name", std::string(packing.name)},
                                             {"sequences", packing.sequences},
                                             {"is_causal", packing.is_causal}}));
  }
  return make_dict(std::move(items));
}

}  // namespace op_tools
