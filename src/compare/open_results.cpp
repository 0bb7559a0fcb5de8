#include "compare/open_results.h"

#include <ATen/ops/abs_ops.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/sort_ops.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "compare/decomposition.h"
#include "hooks/op_traits.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// The argument of this name, or at this place; nullptr: it is left out.
const Value* argument(const CallFacts& facts, std::string_view name, int place) {
  if (const Value* const named = find_key(facts.kwargs, name)) return named;
  const Values* const positional = sequence_items(facts.args);
  if (place < 0 || !positional || positional->size() <= static_cast<size_t>(place)) return nullptr;
  return &(*positional)[static_cast<size_t>(place)];
}

// Order is what operators give where they are not asked.
bool asks_for_order(const CallFacts& facts) {
  const OpFamily* const family = family_of(base_name(facts.name), OpTrait::kOrdersOnRequest);
  const Value* const sorted = family ? argument(facts, "sorted", family->place) : nullptr;
  const bool* const asked = sorted ? sorted->get_if<bool>() : nullptr;
  return !asked || *asked;
}

// The dimension along which the call's indices count: the last where none is said; nothing where a name says it.
std::optional<int64_t> dimension_of(const CallFacts& facts, int64_t dims) {
  const OpFamily* const family = family_of(base_name(facts.name), OpTrait::kReturnsIndices);
  const Value* const value = family ? argument(facts, "dim", family->place) : nullptr;
  if (!value || value->is<None>()) return dims - 1;
  const int64_t* const dim = value->get_if<int64_t>();
  if (!dim || *dim < -dims || *dim >= dims) return std::nullopt;
  return *dim < 0 ? *dim + dims : *dim;
}

at::Tensor sorted_along(const at::Tensor& tensor, int64_t dim) {
  return std::get<0>(at::_ops::sort::call(tensor.detach(), dim, false));
}

bool are_in_range(const at::Tensor& indices, int64_t size) {
  const at::Tensor flat = indices.contiguous();
  const auto* const numbers = flat.const_data_ptr<int64_t>();
  return std::all_of(numbers, numbers + flat.numel(), [&](int64_t i) { return i >= 0 && i < size; });
}

bool are_distinct(const at::Tensor& indices, int64_t dim) {
  const int64_t size = indices.size(dim);
  if (size < 2) return true;
  const at::Tensor sorted = sorted_along(indices, dim);
  const at::Tensor same = at::_ops::eq_Tensor::call(sorted.narrow(dim, 1, size - 1), sorted.narrow(dim, 0, size - 1));
  return !at::_ops::any::call(same).item<bool>();
}

bool are_of_earlier(const at::Tensor& indices, int64_t dim) {
  std::vector<int64_t> shape(static_cast<size_t>(indices.dim()), 1);
  shape[static_cast<size_t>(dim)] = indices.size(dim);
  const at::Tensor places = at::arange(indices.size(dim), indices.options()).reshape(shape);
  return !at::_ops::any::call(at::_ops::gt_Tensor::call(indices, places)).item<bool>();
}

// May the operator give these indices, along a dimension of an input of this size?
bool are_possible(std::string_view base, const at::Tensor& indices, int64_t dim, int64_t size) {
  return are_in_range(indices, size) && (!has_trait(base, OpTrait::kNamesEachOnce) || are_distinct(indices, dim)) &&
         (!has_trait(base, OpTrait::kNamesEarlier) || are_of_earlier(indices, dim));
}

at::Tensor elements_at(const at::Tensor& input, const at::Tensor& indices, int64_t dim) {
  return at::_ops::gather::call(input.detach(), dim, indices, false);
}

}  // namespace

TensorVerdict judge_set(const CallFacts& facts, TensorVerdict judgement, const at::Tensor& result,
                        const at::Tensor& reference, const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& expected) {
  TensorVerdict open = not_judged(Unjudged::kUndetermined, "the order of its results is not defined");
  // Eigenvalues stand in an order that rounding changes.
  if (!reference.defined() || result.is_complex()) return open;
  if (asks_for_order(facts)) return judgement;
  if (outputs.empty() || expected.empty()) return open;
  if (same_bits(outputs[0], expected[0])) return judgement;
  if (!same_bits(result, outputs[0])) return open;
  const auto sorted = [](const at::Tensor& tensor) { return sorted_along(tensor.reshape({-1}), 0); };
  if (!same_bits(sorted(result), sorted(reference))) return judgement;
  if (result.dim() > 1) return open;  // rows
  return agreeing(std::move(judgement), "the same values in another order");
}

TensorVerdict agreeing(TensorVerdict judgement, const char* reason) {
  judgement.verdict = Verdict::kAgrees;
  judgement.kind.clear();
  judgement.reason = reason;
  return judgement;
}

TensorVerdict judge_sizes(const at::Tensor& result, const at::Tensor& reference, JudgeContext context) {
  const auto sizes_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::_ops::abs::call(tensor.detach()) : tensor;
  };
  if (context.golden) {
    context.golden = [golden = context.golden, sizes_of](std::string* why) { return sizes_of(golden(why)); };
    context.perturbed = [perturbed = context.perturbed, sizes_of](int sample, bool coarse) {
      return sizes_of(perturbed(sample, coarse));
    };
    context.float32_scalars = [scalars = context.float32_scalars, sizes_of] { return sizes_of(scalars()); };
    context.in_float32 = [in_float32 = context.in_float32, sizes_of](int sample) {
      return sizes_of(in_float32(sample));
    };
    context.golden_apart = nullptr;
  }
  if (context.rerun_perturbed) {
    context.rerun_perturbed = [rerun = context.rerun_perturbed, sizes_of](int sample) {
      return sizes_of(rerun(sample));
    };
  }
  TensorVerdict judgement = judge(sizes_of(result), sizes_of(reference), context);
  if (judgement.verdict == Verdict::kAgrees) judgement.reason = "equal up to ambiguous signs";
  return judgement;
}

TensorVerdict judge_factor(const CallFacts& facts, const at::Tensor& result, const at::Tensor& reference,
                           const JudgeContext& context, const std::vector<at::Tensor>& outputs) {
  TensorVerdict judgement = judge_sizes(result, reference, context);
  if (judgement.verdict != Verdict::kAgrees) return judgement;
  const int count = family_of(base_name(facts.name), OpTrait::kSignAmbiguous)->place;
  if (count > 0 && outputs.size() == static_cast<size_t>(count) && !facts.before.empty()) {
    const at::Tensor& input = facts.before[0];
    // A backward stable algorithm is off by some units times the size of the matrix.
    const double most = 100 * rounding_of(result.scalar_type()).unit *
                        static_cast<double>(input.dim() < 2 ? 1 : std::max(input.size(-1), input.size(-2)));
    const std::optional<double> off = distance_of_product(outputs, input);
    if (off && *off > most) {
      judgement.verdict = Verdict::kDiffers;
      judgement.kind = "values";
      judgement.deciding = Deciding::kRmse;
      judgement.number = *off;
      judgement.limit = most;
      judgement.reason = "the product of the factors is not the input";
    }
  }
  return judgement;
}

bool name_same_elements(const CallFacts& facts, const at::Tensor& indices, const at::Tensor& other) {
  if (!other.defined() || indices.scalar_type() != at::kLong || other.sizes() != indices.sizes()) return false;
  const std::string_view base = base_name(facts.name);
  const at::Tensor& input = facts.before[0];
  if (indices.numel() == 1) {  // of all elements, or the other dimensions have a single element
    if (!are_in_range(indices, input.numel()) || !are_in_range(other, input.numel())) return false;
    const at::Tensor flat = input.detach().reshape({-1});
    return same_bits(flat[indices.item<int64_t>()], flat[other.item<int64_t>()]);
  }
  const std::optional<int64_t> named = dimension_of(facts, input.dim());
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    if (named && dim != *named) continue;
    at::Tensor ours = indices, theirs = other;
    if (ours.dim() == input.dim() - 1) {
      ours = ours.unsqueeze(dim);
      theirs = theirs.unsqueeze(dim);
    }
    if (ours.dim() != input.dim()) return false;
    bool fits = true;
    for (int64_t i = 0; i < input.dim(); ++i) fits = fits && (i == dim || ours.size(i) == input.size(i));
    if (!fits || !are_possible(base, ours, dim, input.size(dim)) || !are_in_range(theirs, input.size(dim))) continue;
    if (same_bits(elements_at(input, ours, dim), elements_at(input, theirs, dim))) return true;
  }
  return false;
}

bool are_same_in_other_order(const CallFacts& facts, const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& expected) {
  if (asks_for_order(facts) || outputs.size() != 2 || expected.size() != 2 || facts.before.empty()) return false;
  const at::Tensor& input = facts.before[0];
  const at::Tensor values = on_cpu(outputs[0]), indices = on_cpu(outputs[1]);
  const bool is_shaped = values.sizes() == expected[0].sizes() && indices.sizes() == values.sizes() &&
                         indices.scalar_type() == at::kLong && indices.dim() == input.dim() && input.dim() > 0;
  if (!is_shaped) return false;
  const int64_t dim = dimension_of(facts, input.dim()).value_or(input.dim() - 1);
  return are_possible(base_name(facts.name), indices, dim, input.size(dim)) &&
         same_bits(sorted_along(values, dim), sorted_along(expected[0], dim)) &&
         same_bits(elements_at(input, indices, dim), values);
}

}  // namespace op_tools
