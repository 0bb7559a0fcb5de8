// The relations of CallInvariance that are about the rows of a batch.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "invariance/call_invariance.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// The rows, without gaps, the dimensions in the order of the tensor's strides: kernels choose their path by it. On the
// CPU.
at::Tensor rows_of(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  const at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), index.mutable_data_ptr<int64_t>());
  const at::Tensor picked = on_cpu(tensor.detach()).index_select(0, index);
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  std::vector<int64_t> strides(order.size(), 1);
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[static_cast<size_t>(*dim)] = stride;
    stride *= std::max<int64_t>(1, picked.size(*dim));
  }
  const at::Tensor copy = at::empty_strided(picked.sizes(), strides, picked.options().requires_grad(false));
  copy.copy_(picked);
  return copy;
}

std::vector<int64_t> first_rows(int64_t count, int64_t of) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = i % of;
  return rows;
}

std::vector<at::Tensor> picked(std::vector<at::Tensor> tensors, const std::vector<int64_t>& rows) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = rows_of(tensor, rows);
  }
  return tensors;
}

}  // namespace

// Rows that run together, and which of them are compared with the program's.
struct CallInvariance::Rows {
  std::vector<int64_t> rows = {};    // of the program's batch
  std::vector<int64_t> places = {};  // of the run's batch: where they are compared
  int64_t from = 0, to = 0;  // sizes of batches with other bits, for the search where it begins; 0, 0: no search
  std::string text;
};

void CallInvariance::leave_batch(Unjudged why, const std::string& reason) {
  for (const Relation relation : {Relation::kNeighbour, Relation::kBatch, Relation::kPosition}) {
    leave(relation, why, reason);
  }
}

ReplayableCall CallInvariance::call_of(const std::vector<int64_t>& rows) const {
  const std::vector<at::Tensor>& tensors = call_.tensors();
  return call_.with_inputs([&](const at::Tensor& tensor) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (form_.of[i] && tensors[i].is_same(tensor)) return rows_of(tensor, rows);
    }
    return at::Tensor();
  });
}

std::optional<CallInvariance::Tensors> CallInvariance::gradients_of(const std::vector<int64_t>& rows) const {
  Tensors gradients = *observed_.output_gradients;
  for (size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor& gradient = gradients[i];
    if (!gradient.defined()) continue;
    const bool has_rows =
        i < form_.results && gradient.layout() == at::kStrided && gradient.dim() > 0 && gradient.size(0) == form_.rows;
    if (!has_rows) return std::nullopt;
    gradient = rows_of(gradient, rows).to(gradient.device());
  }
  return gradients;
}

// nullopt: it cannot run so, or has no rows then.
std::optional<CallInvariance::Tensors> CallInvariance::rows_again(const std::vector<int64_t>& rows,
                                                                  RunOutcome* outcome) {
  RunOutcome run;
  const std::optional<Tensors> gradients = is_backward() ? gradients_of(rows) : std::nullopt;
  if (is_backward() && !gradients) return std::nullopt;
  std::optional<Tensors> values = again(call_of(rows), nullptr, &run, gradients ? &*gradients : nullptr);
  if (!values) return std::nullopt;
  const size_t results = is_backward() ? 0 : flatten_tensors(run.result).size();
  for (size_t i = 0; i < values->size(); ++i) {
    at::Tensor& value = (*values)[i];
    const bool has_rows = i < results ? i < form_.results : form_.of[i - results];
    if (!has_rows || (value.defined() && value.layout() != at::kStrided)) value.reset();
    if (!value.defined()) continue;
    if (value.dim() == 0 || value.size(0) != static_cast<int64_t>(rows.size())) return std::nullopt;
  }
  if (outcome) *outcome = std::move(run);
  return values;
}

CallInvariance::Tensors CallInvariance::rows_of_program(const std::vector<int64_t>& rows) const {
  Tensors with_batch = program_;
  for (at::Tensor& tensor : with_batch) {
    const bool has_rows =
        tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.size(0) == form_.rows;
    if (!has_rows) tensor.reset();
  }
  return picked(std::move(with_batch), rows);
}

// Writes a verdict down, but for rows that have the program's bits.
void CallInvariance::ask_rows(const Rows& rows, Relation relation) {
  RunOutcome outcome;
  const std::optional<Tensors> values = rows_again(rows.rows, &outcome);
  if (!values) {
    return leave(relation, Unjudged::kNoBatch,
                 "its result has no rows in the first dimension, or it fails without the others");
  }
  std::vector<int64_t> compared;
  for (const int64_t place : rows.places) compared.push_back(rows.rows[static_cast<size_t>(place)]);
  const Tensors program = rows_of_program(compared);
  bool any = false;
  for (size_t i = 0; i < program.size() && i < values->size(); ++i) {
    any = any || (program[i].defined() && (*values)[i].defined());
  }
  if (!any) return leave(relation, Unjudged::kNoBatch, "its result has no rows in the first dimension");
  const std::optional<BitDifference> difference = bit_difference(program, picked(*values, rows.places));
  if (!difference) return;
  Variation variation;
  variation.difference = *difference;
  variation.rows = form_.rows;
  variation.rows_of_run = rows.text;
  const std::optional<Tensors> gradients = is_backward() ? gradients_of(rows.rows) : std::nullopt;
  variation.rightness = rightness(call_of(rows.rows), outcome, gradients ? &*gradients : nullptr);
  // Is it the batch, or does the call not repeat, or did the copies of rows change the memory?
  const std::vector<int64_t> all = first_rows(form_.rows, form_.rows);
  const std::optional<Tensors> rows_once_more = rows_again(rows.rows), in_other_memory = rows_again(all);
  if (!rows_once_more || bit_difference(*values, *rows_once_more)) {
    variation.transient = true;
    vary(Relation::kRepeat, std::move(variation));
  } else if (!in_other_memory || bit_difference(rows_of_program(all), *in_other_memory)) {
    variation.rows_of_run = "all rows, without gaps";
    vary(Relation::kMemory, std::move(variation));
  } else {
    if (rows.to > rows.from) variation.begins = where_it_begins(rows.from, rows.to);
    vary(relation, std::move(variation));
  }
}

// The smallest batch in (from, to] whose first rows have other bits than in a batch of `from`; 0: it is not known.
int64_t CallInvariance::where_it_begins(int64_t from, int64_t to) {
  const std::vector<int64_t> compared = first_rows(from, from);
  const std::optional<Tensors> small = rows_again(first_rows(from, form_.rows));
  if (!small) return 0;
  while (to - from > 1) {
    const int64_t middle = from + (to - from) / 2;
    const std::optional<Tensors> values = rows_again(first_rows(middle, form_.rows));
    if (!values) return 0;
    (bit_difference(*small, picked(*values, compared)) ? to : from) = middle;
  }
  return to;
}

void CallInvariance::ask_batch() {
  if (!observed_.random_states.is<None>()) {
    return leave_batch(Unjudged::kRandom, "its rows draw random numbers by their places");
  }
  const Values& in = *sequence_items(call_.inputs().value);
  form_ = batch_form(name_, in[0], in[1], call_.tensors(), call_.written_inputs());
  if (!form_.why_not.empty()) return leave_batch(Unjudged::kNoBatch, std::string(form_.why_not));
  const int64_t count = form_.rows;
  const std::vector<int64_t> all = first_rows(count, count);
  bool keeps_positions = false;
  if (count >= 2) {
    if (!ask_neighbours()) return;
    std::vector<int64_t> turned = all;
    std::rotate(turned.begin(), turned.begin() + 1, turned.end());
    const size_t before = verdicts_.size();
    ask_rows({turned, all, 0, 0, "each row a place further"}, Relation::kPosition);
    keeps_positions = verdicts_.size() == before;
    if (keeps_positions) agree(Relation::kPosition);
    if (verdicts_.back().verdict == Verdict::kNotJudged) return;  // the other sizes would fail as well
  }
  const int64_t half = count / 2;
  const std::vector<int64_t> first_half = first_rows(half, count);
  std::vector<Rows> sizes;
  if (count >= 2) sizes.push_back({{0}, {0}, 1, count, "row 0 alone"});
  if (count >= 4) {
    sizes.push_back({first_half, first_half, half, count, "the first half of the rows"});
    // Its rows are at other positions, too: where these matter, they would be blamed on the batch.
    if (keeps_positions) {
      const std::vector<int64_t> rest(all.begin() + half, all.end());
      sizes.push_back({rest, first_rows(count - half, count), 0, 0, "the second half of the rows"});
    }
  }
  sizes.push_back({first_rows(2 * count, count), all, count, 2 * count, "all rows, with as many others behind them"});
  for (const Rows& rows : sizes) {
    const size_t before = verdicts_.size();
    ask_rows(rows, Relation::kBatch);
    if (verdicts_.size() > before) return;
  }
  agree(Relation::kBatch);
}

// Whether the batch with these rows has other values than the program's: rows may be equal.
bool CallInvariance::has_other_values(const std::vector<int64_t>& rows) const {
  Tensors batch = call_.tensors();
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!form_.of[i]) batch[i].reset();
  }
  if (is_backward()) batch.insert(batch.end(), observed_.output_gradients->begin(), observed_.output_gradients->end());
  const auto has_no_rows = [&](const at::Tensor& tensor) {
    return tensor.defined() && (tensor.layout() != at::kStrided || tensor.dim() == 0 || tensor.size(0) != form_.rows);
  };
  std::replace_if(batch.begin(), batch.end(), has_no_rows, at::Tensor());
  return bit_difference(picked(batch, first_rows(form_.rows, form_.rows)), picked(batch, rows)).has_value();
}

// Every other row stays where it is, beside copies of these rows: once the rows at even places stay, once those at odd
// ones. The number of rows and the places are the program's. False: there is no more to be asked of the batch.
bool CallInvariance::ask_neighbours() {
  bool tried = false;
  for (const int64_t first : {0, 1}) {
    Rows run{.text = first == 0 ? "odd rows replaced by the even rows before them"
                                : "even rows replaced by odd rows beside them"};
    for (int64_t row = 0; row < form_.rows; ++row) {
      const bool stays = row % 2 == first;
      if (stays) run.places.push_back(row);
      run.rows.push_back(stays ? row : row == 0 ? 1 : row - 1);
    }
    if (!has_other_values(run.rows)) continue;
    tried = true;
    const size_t before = verdicts_.size();
    ask_rows(run, Relation::kNeighbour);
    if (verdicts_.size() == before) continue;
    if (verdicts_.back().verdict == Verdict::kNotJudged) return false;  // other rows would fail as well
    if (verdicts_.back().relation != Relation::kNeighbour) return true;
    for (const Relation relation : {Relation::kPosition, Relation::kBatch}) {
      leave(relation, Unjudged::kNoBatch, "its rows depend on the values of others");
    }
    return false;
  }
  if (tried) {
    agree(Relation::kNeighbour);
  } else {
    leave(Relation::kNeighbour, Unjudged::kNoBatch, "its rows are equal: there are no other values to put beside them");
  }
  return true;
}

}  // namespace op_tools
