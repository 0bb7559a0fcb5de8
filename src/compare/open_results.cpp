#include "compare/open_results.h"

#include <ATen/ops/abs_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/sort_ops.h>

#include <algorithm>
#include <tuple>

#include "compare/decomposition.h"
#include "hooks/op_traits.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// The argument `sorted` of unique, which is true where it is left out.
bool asks_for_order(std::string_view base, const Value& args, const Value& kwargs) {
  const Value* sorted = find_key(kwargs, "sorted");
  const Values* const positional = sequence_items(args);
  const size_t place = base == "unique_dim" ? 2 : 1;
  if (!sorted && positional && positional->size() > place) sorted = &(*positional)[place];
  const bool* const asked = sorted ? sorted->get_if<bool>() : nullptr;
  return !asked || *asked;
}

}  // namespace

TensorVerdict judge_set(const CallFacts& facts, TensorVerdict judgement, const at::Tensor& result,
                        const at::Tensor& reference, const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& expected) {
  TensorVerdict open = not_judged(Unjudged::kUndetermined, "the order of its results is not defined");
  // Eigenvalues stand in an order that rounding changes.
  if (!reference.defined() || result.is_complex()) return open;
  if (asks_for_order(base_name(facts.name), facts.args, facts.kwargs)) return judgement;
  if (outputs.empty() || expected.empty()) return open;
  if (same_bits(outputs[0], expected[0])) return judgement;
  if (!same_bits(result, outputs[0])) return open;
  const auto sorted = [](const at::Tensor& tensor) {
    return std::get<0>(at::_ops::sort::call(tensor.detach().reshape({-1}), 0, false));
  };
  if (!same_bits(sorted(result), sorted(reference))) return judgement;
  if (result.dim() > 1) return open;  // rows
  judgement.verdict = Verdict::kAgrees;
  judgement.kind.clear();
  judgement.reason = "the same values in another order";
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

bool name_same_elements(const at::Tensor& input, const at::Tensor& indices, const at::Tensor& other) {
  if (!other.defined() || indices.scalar_type() != at::kLong || other.sizes() != indices.sizes()) return false;
  const at::Tensor values = input.detach();
  const auto elements = [&](const at::Tensor& at, int64_t dim) {
    return at::_ops::gather::call(values, dim, at, false);
  };
  const auto in_range = [&](const at::Tensor& tensor, int64_t size) {
    const at::Tensor flat = tensor.contiguous();
    const auto* numbers = flat.const_data_ptr<int64_t>();
    return std::all_of(numbers, numbers + flat.numel(), [&](int64_t i) { return i >= 0 && i < size; });
  };
  if (indices.dim() == 0) {
    if (!in_range(indices, values.numel())) return false;
    const at::Tensor flat = values.reshape({-1});
    return same_bits(flat[indices.item<int64_t>()], flat[other.item<int64_t>()]);
  }
  for (int64_t dim = 0; dim < values.dim(); ++dim) {
    at::Tensor ours = indices, theirs = other;
    if (ours.dim() == values.dim() - 1) {
      ours = ours.unsqueeze(dim);
      theirs = theirs.unsqueeze(dim);
    }
    if (ours.dim() != values.dim()) return false;
    bool fits = true;
    for (int64_t i = 0; i < values.dim(); ++i) fits = fits && (i == dim || ours.size(i) == values.size(i));
    if (!fits || !in_range(ours, values.size(dim)) || !in_range(theirs, values.size(dim))) continue;
    if (same_bits(elements(ours, dim), elements(theirs, dim))) return true;
  }
  return false;
}

}  // namespace op_tools
