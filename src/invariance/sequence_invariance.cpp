// The relations of CallInvariance that are about the rows of a sequence, and their memory.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "hooks/op_traits.h"
#include "invariance/call_invariance.h"
#include "invariance/copies.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// As many elements behind the last in this dimension, on the CPU: copies of the first, or a fill.
at::Tensor with_more_behind(const at::Tensor& tensor, int64_t dim, int64_t extra, std::optional<double> fill) {
  const at::Tensor plain = on_cpu(tensor.detach());
  std::vector<int64_t> sizes = plain.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + plain.dim() : dim)] = extra;
  const at::Tensor behind = fill ? at::full(sizes, *fill, plain.options()) : plain.narrow(dim, 0, extra);
  return dense_copy(at::cat({plain, behind}, dim), tensor);
}

// Cut to these sizes where it is larger.
at::Tensor cut_to(at::Tensor tensor, const at::Tensor& like) {
  if (!tensor.defined() || !like.defined() || tensor.dim() != like.dim()) return tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > like.size(dim)) tensor = tensor.narrow(dim, 0, like.size(dim));
  }
  return tensor;
}

}  // namespace

void CallInvariance::ask_strides() {
  if (!call_.overlapping_inputs().empty()) {
    return leave(Relation::kStrides, Unjudged::kNoForm, "it reads memory that it writes, at other places");
  }
  if (has_trait(base_name(name_), OpTrait::kReadsStorageOffset)) {
    return leave(Relation::kStrides, Unjudged::kNoForm, "its arguments name places in memory");
  }
  const Tensors& tensors = call_.tensors();
  bool any = false;
  const ReplayableCall apart = call_.with_inputs([&](const at::Tensor& tensor) {
    at::Tensor copy;
    for (size_t i = 0; i < tensors.size() && !copy.defined(); ++i) {
      if (form_.of[i] && tensors[i].is_same(tensor)) copy = copy_with_gaps(tensor);
    }
    any = any || copy.defined();
    return copy;
  });
  if (!any) return;  // a single row, or numbers
  ask_whole(Relation::kStrides, apart, [](const std::function<void()>& run) { run(); });
}

// A run of changed inputs.
struct CallInvariance::Changed {
  ReplayableCall call;
  std::optional<Tensors> gradients;  // of a backward pass: those that arrive
  RunOutcome outcome;
  Tensors values;   // that are compared; undefined: not
  Tensors program;  // the program's, as the relation says that they must be
};

std::optional<CallInvariance::Changed> CallInvariance::changed(const Change& change) {
  const auto has_sequence = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() >= 2 && tensor.size(0) == form_.rows &&
           tensor.size(1) == form_.sequence;
  };
  const auto copy_of = [&](const at::Tensor& tensor) {
    const at::Tensor elements = change(on_cpu(tensor.detach()));
    return dense_copy(elements, tensor);
  };
  const Tensors& tensors = call_.tensors();
  Changed run{call_.with_inputs([&](const at::Tensor& tensor) {
                for (size_t i = 0; i < tensors.size(); ++i) {
                  if (form_.of[i] && tensors[i].is_same(tensor)) return copy_of(tensor);
                }
                return at::Tensor();
              }),
              {},
              {},
              {},
              program_};
  if (is_backward()) {
    run.gradients = *observed_.output_gradients;
    for (size_t i = 0; i < run.gradients->size(); ++i) {
      at::Tensor& gradient = (*run.gradients)[i];
      if (!gradient.defined()) continue;
      if (i >= form_.results || !has_sequence(gradient)) return std::nullopt;
      gradient = copy_of(gradient).to(gradient.device());
    }
  }
  std::optional<Tensors> values = again(run.call, nullptr, &run.outcome, run.gradients ? &*run.gradients : nullptr);
  if (!values || values->size() != program_.size()) return std::nullopt;
  run.values = std::move(*values);
  const size_t results = is_backward() ? 0 : flatten_tensors(run.outcome.result).size();
  bool any = false;
  for (size_t i = 0; i < run.program.size(); ++i) {
    at::Tensor& program = run.program[i];
    const bool is_of_rows = i < results ? i < form_.results : form_.of[i - results];
    if (!is_of_rows || !has_sequence(program) || !run.values[i].defined()) {
      run.values[i].reset();
      continue;
    }
    program = copy_of(program);
    if (program.sizes() != run.values[i].sizes()) return std::nullopt;
    any = true;
  }
  return any ? std::optional(std::move(run)) : std::nullopt;
}

void CallInvariance::ask_sequence() {
  const int64_t rows = form_.rows, length = form_.sequence;
  for (const Relation relation : {Relation::kPosition, Relation::kBatch}) {
    const RelationVerdict* verdict = verdict_of(relation);
    if (verdict && verdict->verdict == Verdict::kDiffers) {
      return leave(Relation::kSequence, Unjudged::kNoBatch, "its rows depend on the batch");
    }
  }
  struct Run {
    Change change;
    std::string text;
  };
  std::vector<Run> runs;
  const int64_t half = length / 2;
  if (length >= 2) {
    runs.push_back({[half](const at::Tensor& tensor) { return tensor.narrow(1, 0, half); },
                    "the first " + std::to_string(half) + " of " + std::to_string(length) + " places"});
    runs.push_back({[half, length](const at::Tensor& tensor) { return tensor.narrow(1, half, length - half); },
                    "the last " + std::to_string(length - half) + " of " + std::to_string(length) + " places"});
  }
  // Rows behind each other have to lie so in memory, too: with other strides it would be another relation.
  const auto lies_so = [&](size_t i) { return !form_.of[i] || call_.tensors()[i].is_contiguous(); };
  bool in_order = true;
  for (size_t i = 0; i < form_.of.size(); ++i) in_order = in_order && lies_so(i);
  if (rows >= 2 && in_order) {
    runs.push_back({[rows, length](const at::Tensor& tensor) {
                      std::vector<int64_t> sizes = tensor.sizes().vec();
                      sizes[0] = 1;
                      sizes[1] = rows * length;
                      return tensor.reshape(sizes);
                    },
                    "all " + std::to_string(rows) + " sequences as a single one, behind each other"});
  }
  if (runs.empty()) return;
  for (const Run& run : runs) {
    const std::optional<Changed> other = changed(run.change);
    if (!other) {
      return leave(Relation::kSequence, Unjudged::kNoBatch,
                   "its result has no rows in the second dimension, or it fails with others");
    }
    const std::optional<BitDifference> difference = bit_difference(other->program, other->values);
    if (!difference) continue;
    Variation variation;
    variation.difference = *difference;
    variation.rows = rows;
    variation.rows_of_run = run.text;
    variation.rightness = rightness(other->call, other->outcome, other->gradients ? &*other->gradients : nullptr);
    const std::optional<Changed> once_more = changed(run.change);
    const std::optional<Changed> copied = changed([](const at::Tensor& tensor) { return tensor; });
    const auto values = [](const std::optional<Changed>& of) { return of ? std::optional(of->values) : std::nullopt; };
    if (!is_cause(variation, other->values, values(once_more), copied ? copied->program : program_, values(copied))) {
      return;
    }
    return vary(Relation::kSequence, std::move(variation));
  }
  agree(Relation::kSequence);
}

std::optional<CallInvariance::Changed> CallInvariance::padded(const AttentionForm& form, int64_t extra) {
  Changed run{call_.with_inputs([&](const at::Tensor& tensor) {
                if (tensor.is_same(form.key) || tensor.is_same(form.value)) {
                  return with_more_behind(tensor, -2, extra, {});
                }
                if (!form.mask.defined() || !tensor.is_same(form.mask)) return at::Tensor();
                const bool is_bool = tensor.scalar_type() == at::kBool;
                return with_more_behind(tensor, -1, extra, is_bool ? 0 : -std::numeric_limits<double>::infinity());
              }),
              {},
              {},
              {},
              program_};
  std::optional<Tensors> values = again(run.call, nullptr, &run.outcome);
  if (!values || values->size() != program_.size()) return std::nullopt;
  run.values = std::move(*values);
  for (size_t i = 0; i < run.values.size(); ++i) {
    // Other results are notes for the backward kernel, of a form of its own.
    if (!is_backward() && i > 0) run.values[i].reset();
    run.values[i] = cut_to(run.values[i], program_[i]);
  }
  return run;
}

void CallInvariance::ask_padding() {
  const AttentionForm& form = *attention_;
  if (!form.why_not.empty()) return leave(Relation::kPadding, Unjudged::kNoBatch, std::string(form.why_not));
  const int64_t keys = form.key.size(-2);
  for (const int64_t extra : {int64_t{1}, keys}) {
    const std::optional<Changed> other = padded(form, extra);
    if (!other) return leave(Relation::kPadding, Unjudged::kNoReference, "it fails with more keys");
    const std::optional<BitDifference> difference = bit_difference(program_, other->values);
    if (!difference) continue;
    Variation variation;
    variation.difference = *difference;
    variation.rows_of_run = std::to_string(extra) + " behind the " + std::to_string(keys);
    variation.rightness = rightness(other->call, other->outcome);
    const std::optional<Changed> once_more = padded(form, extra), copied = padded(form, 0);
    if (!is_cause(variation, other->values, once_more ? std::optional(once_more->values) : std::nullopt, program_,
                  copied ? std::optional(copied->values) : std::nullopt)) {
      return;
    }
    return vary(Relation::kPadding, std::move(variation));
  }
  agree(Relation::kPadding);
}

}  // namespace op_tools
