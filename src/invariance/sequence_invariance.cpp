// The relations of CallInvariance that are about the rows of a sequence, and their memory.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"
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

std::optional<CallInvariance::Tensors> CallInvariance::run_values(const std::optional<Changed>& run) {
  return run ? std::optional(run->values) : std::nullopt;
}

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
    const Change same = [](const at::Tensor& tensor) { return tensor; };
    const std::optional<Changed> copied = changed(same);
    if (!is_cause(
            variation, other->values, [&] { return run_values(changed(run.change)); },
            copied ? copied->program : program_, [&] { return run_values(changed(same)); })) {
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
    if (!is_cause(
            variation, other->values, [&] { return run_values(padded(form, extra)); }, program_,
            [&] { return run_values(padded(form, 0)); })) {
      return;
    }
    return vary(Relation::kPadding, std::move(variation));
  }
  agree(Relation::kPadding);
}

struct CallInvariance::Piece {
  int64_t first = 0, count = 0;  // queries
  int64_t keys = 0;              // from the first on
  bool by_mask = false;          // the causal order is that of a mask
  std::string text = {};
};

std::optional<CallInvariance::Changed> CallInvariance::piece_again(const AttentionForm& form, const Piece& piece) {
  const auto part_of = [](const at::Tensor& tensor, int64_t dim, int64_t first, int64_t count) {
    const at::Tensor plain = on_cpu(tensor.detach());
    return dense_copy(plain.narrow(dim, first, count), tensor);
  };
  const auto queries_of = [&](const at::Tensor& tensor) { return part_of(tensor, -2, piece.first, piece.count); };
  const ReplayableCall divided = call_.with_inputs([&](const at::Tensor& tensor) {
    if (tensor.is_same(form.query)) return queries_of(tensor);
    if (tensor.is_same(form.key) || tensor.is_same(form.value)) return part_of(tensor, -2, 0, piece.keys);
    if (!form.mask.defined() || !tensor.is_same(form.mask)) return at::Tensor();
    const at::Tensor columns = part_of(tensor, -1, 0, piece.keys);
    return tensor.size(-2) == 1 ? columns : part_of(columns, -2, piece.first, piece.count);
  });
  const auto with_mask = [&] {
    const at::TensorOptions options = form.query.options().device(at::kCPU).requires_grad(false);
    const at::Tensor behind = at::full({piece.count, piece.keys}, -std::numeric_limits<double>::infinity(), options);
    const Values& in = *sequence_items(divided.inputs().value);
    const NamedArguments masked =
        with_argument(form.parameters, form.mask_name, behind.triu(piece.first + 1), in[0], in[1]);
    const NamedArguments without_order = with_argument(form.parameters, "is_causal", false, masked.args, masked.kwargs);
    return divided.with_arguments(without_order.args, without_order.kwargs);
  };
  Changed run{piece.by_mask ? with_mask() : divided, {}, {}, {}, program_};
  if (is_backward()) {
    // That of the result alone: other results are notes for the backward kernel.
    run.gradients = *observed_.output_gradients;
    for (size_t i = 0; i < run.gradients->size(); ++i) {
      at::Tensor& gradient = (*run.gradients)[i];
      if (!gradient.defined()) continue;
      if (i > 0 || gradient.layout() != at::kStrided) return std::nullopt;
      gradient = queries_of(gradient).to(gradient.device());
    }
  }
  std::optional<Tensors> values = again(run.call, nullptr, &run.outcome, run.gradients ? &*run.gradients : nullptr);
  if (!values || values->empty() || program_.empty()) return std::nullopt;
  // Of a backward pass the gradient of the queries: those of keys are sums over all queries.
  size_t place = 0;
  if (is_backward()) {
    while (place < call_.tensors().size() && !call_.tensors()[place].is_same(form.query)) ++place;
  }
  if (place >= values->size() || place >= program_.size() || !program_[place].defined()) return std::nullopt;
  run.values = {(*values)[place]};
  run.program = {queries_of(program_[place])};
  return run;
}

void CallInvariance::ask_pieces() {
  const AttentionForm& form = *attention_;
  if (!form.why_not.empty()) return leave(Relation::kPieces, Unjudged::kNoBatch, std::string(form.why_not));
  const int64_t queries = form.query.size(-2), keys = form.key.size(-2), half = queries / 2;
  if (queries < 2) return;  // nothing that could be divided
  const auto text = [&](int64_t first, int64_t count, int64_t with_keys) {
    return "queries " + std::to_string(first) + " to " + std::to_string(first + count - 1) + " of " +
           std::to_string(queries) + ", with " + std::to_string(with_keys) + " of " + std::to_string(keys) + " keys";
  };
  // As in a prefill in chunks: the first piece has the keys that it reads. Where keys that are left out change the
  // bits, that is `padding`, and it keeps them all.
  int64_t read = keys;
  if (keeps(Relation::kPadding)) {
    if (form.is_causal) read = half;
    if (form.mask.defined() && form.mask.size(-2) == queries) {
      const at::Tensor rows = on_cpu(form.mask.detach()).narrow(-2, 0, half);
      const at::Tensor is_read =
          rows.scalar_type() == at::kBool ? rows : rows.ne(-std::numeric_limits<double>::infinity());
      const at::Tensor columns = is_read.reshape({-1, keys}).any(0).nonzero();
      if (columns.numel() > 0) read = columns.max().item<int64_t>() + 1;
    }
  }
  const int64_t rest = queries - half;
  const bool can_mask = !form.mask_name.empty();
  std::vector<Piece> pieces{{0, half, read, false, text(0, half, read)}};
  if (!form.is_causal || can_mask) pieces.push_back({half, rest, keys, form.is_causal, text(half, rest, keys)});
  for (Piece piece : pieces) {
    std::optional<Changed> other = piece_again(form, piece);
    if (!other && piece.by_mask) continue;  // a kernel that takes no such mask
    if (!other) return leave(Relation::kPieces, Unjudged::kNoReference, "it fails with fewer queries");
    std::optional<BitDifference> difference = bit_difference(other->program, other->values);
    if (!difference) continue;
    if (piece.by_mask) {
      const Piece whole{0, queries, keys, true, "all " + std::to_string(queries) + " queries"};
      std::optional<Changed> masked = piece_again(form, whole);
      const std::optional<BitDifference> by_mask =
          masked ? bit_difference(masked->program, masked->values) : std::nullopt;
      if (by_mask) {
        difference = by_mask;
        other.emplace(std::move(*masked));
        piece = whole;
      }
      piece.text += ", with a mask in place of the causal order";
    }
    Variation variation;
    variation.difference = *difference;
    variation.rows_of_run = piece.text;
    variation.rightness = rightness(other->call, other->outcome, other->gradients ? &*other->gradients : nullptr);
    const Piece all{0, queries, keys};
    const std::optional<Changed> copied = piece_again(form, all);
    if (!is_cause(
            variation, other->values, [&] { return run_values(piece_again(form, piece)); },
            copied ? copied->program : program_, [&] { return run_values(piece_again(form, all)); })) {
      return;
    }
    return vary(Relation::kPieces, std::move(variation));
  }
  agree(Relation::kPieces);
}

}  // namespace op_tools
