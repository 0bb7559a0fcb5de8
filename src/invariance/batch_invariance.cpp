// The relations of CallInvariance that are about the rows of a batch.
#include <algorithm>
#include <numeric>
#include <utility>

#include "invariance/call_invariance.h"
#include "invariance/copies.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

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

void CallInvariance::ask_rows(const Rows& rows, Relation relation) {
  RunOutcome outcome;
  const std::optional<Tensors> values = rows_again(rows.rows, &outcome);
  const auto no_rows = [&](const char* why) {
    no_rows_ = Unjudged::kNoBatch;
    why_no_rows_ = why;
    leave(relation, no_rows_, why_no_rows_);
  };
  if (!values) return no_rows("its result has no rows in the first dimension, or it fails without the others");
  std::vector<int64_t> compared;
  for (const int64_t place : rows.places) compared.push_back(rows.rows[static_cast<size_t>(place)]);
  const Tensors program = rows_of_program(compared);
  bool any = false;
  for (size_t i = 0; i < program.size() && i < values->size(); ++i) {
    any = any || (program[i].defined() && (*values)[i].defined());
  }
  if (!any) return no_rows("its result has no rows in the first dimension");
  const std::optional<BitDifference> difference = bit_difference(program, picked(*values, rows.places));
  if (!difference) return;
  Variation variation;
  variation.difference = *difference;
  variation.rows = form_.rows;
  variation.rows_of_run = rows.text;
  const std::optional<Tensors> gradients = is_backward() ? gradients_of(rows.rows) : std::nullopt;
  variation.rightness = rightness(call_of(rows.rows), outcome, gradients ? &*gradients : nullptr);
  const std::vector<int64_t> all = first_rows(form_.rows, form_.rows);
  const auto once_more = [&] { return rows_again(rows.rows); };
  if (!is_cause(variation, *values, once_more, rows_of_program(all), [&] { return rows_again(all); })) return;
  if (rows.to > rows.from) {
    const std::optional<int64_t> begins = where_it_begins(rows.from, rows.to);
    if (!begins) {
      variation.transient = true;
      relation = Relation::kRepeat;
    }
    variation.begins = begins.value_or(0);
  }
  vary(relation, std::move(variation));
}

bool CallInvariance::is_cause(const Variation& variation, const Tensors& values, const RunOnce& once_more,
                              const Tensors& program, const RunOnce& copied) {
  Variation other = variation;
  const auto repeats = [](const Tensors& run, const RunOnce& again) {
    const std::optional<Tensors> same = again();
    return same && !bit_difference(run, *same);
  };
  const std::optional<Tensors> copy = copied();
  const bool is_other = !copy || bit_difference(program, *copy);
  if (!repeats(values, once_more) || (copy && is_other && !repeats(*copy, copied))) {
    other.transient = true;
    vary(Relation::kRepeat, std::move(other));
  } else if (is_other) {
    other.rows_of_run = "all rows, without gaps";
    vary(Relation::kMemory, std::move(other));
  } else {
    return true;
  }
  return false;
}

// The smallest batch in (from, to] whose first rows have other bits than in a batch of `from`; 0: it is not known.
std::optional<int64_t> CallInvariance::where_it_begins(int64_t from, int64_t to) {
  const std::vector<int64_t> compared = first_rows(from, from);
  const std::vector<int64_t> smallest = first_rows(from, form_.rows);
  const std::optional<Tensors> small = rows_again(smallest);
  if (!small) return 0;
  const auto is_other = [&](int64_t rows) -> std::optional<bool> {
    const std::optional<Tensors> values = rows_again(first_rows(rows, form_.rows));
    if (!values) return std::nullopt;
    return bit_difference(*small, picked(*values, compared)).has_value();
  };
  while (to - from > 1) {
    const int64_t middle = from + (to - from) / 2;
    const std::optional<bool> other = is_other(middle);
    if (!other) return 0;
    (*other ? to : from) = middle;
  }
  // A fault in a run of the search would have sent it elsewhere.
  const std::optional<bool> small_is_other = is_other(from), large_is_other = is_other(to);
  if (!small_is_other || !large_is_other) return 0;
  if (*small_is_other || !*large_is_other) return std::nullopt;
  return to;
}

void CallInvariance::learn_form() {
  no_rows_ = Unjudged::kNoBatch;
  const Values& in = *sequence_items(call_.inputs().value);
  form_ = batch_form(name_, in[0], in[1], call_.tensors(), call_.written_inputs());
  attention_ = attention_form(name_, in[0], in[1]);
  why_no_rows_ = std::string(form_.why_not);
  if (observed_.random_states.is<None>()) return;
  no_rows_ = Unjudged::kRandom;
  why_no_rows_ = "its rows draw random numbers by their places";
}

const RelationVerdict* CallInvariance::verdict_of(Relation relation) const {
  const auto is_of_it = [&](const RelationVerdict& verdict) { return verdict.relation == relation; };
  const auto verdict = std::find_if(verdicts_.begin(), verdicts_.end(), is_of_it);
  return verdict == verdicts_.end() ? nullptr : &*verdict;
}

bool CallInvariance::keeps(Relation relation) const {
  const RelationVerdict* verdict = verdict_of(relation);
  return verdict && verdict->verdict == Verdict::kAgrees;
}

void CallInvariance::ask_positions() {
  if (form_.rows < 2) return;
  std::vector<int64_t> turned = first_rows(form_.rows, form_.rows);
  const std::vector<int64_t> all = turned;
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  const size_t before = verdicts_.size();
  ask_rows({turned, all, 0, 0, "each row a place further"}, Relation::kPosition);
  if (verdicts_.size() == before) agree(Relation::kPosition);
}

void CallInvariance::ask_batch() {
  const int64_t count = form_.rows;
  const std::vector<int64_t> all = first_rows(count, count);
  const int64_t half = count / 2;
  const std::vector<int64_t> first_half = first_rows(half, count);
  std::vector<Rows> sizes;
  if (count >= 2) sizes.push_back({{0}, {0}, 1, count, "row 0 alone"});
  if (count >= 4) {
    sizes.push_back({first_half, first_half, half, count, "the first half of the rows"});
    // Its rows are at other positions, too: where these matter, they would be blamed on the batch.
    if (keeps(Relation::kPosition)) {
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

// The tensors that have the batch; of a backward pass the gradients that arrive, too. On the CPU.
CallInvariance::Tensors CallInvariance::batch_values() const {
  Tensors batch;
  const auto add = [&](const at::Tensor& tensor) {
    const bool has_rows =
        tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.size(0) == form_.rows;
    if (has_rows) batch.push_back(dense_copy(tensor, tensor));
  };
  for (size_t i = 0; i < form_.of.size(); ++i) {
    if (form_.of[i]) add(call_.tensors()[i]);
  }
  if (is_backward()) std::for_each(observed_.output_gradients->begin(), observed_.output_gradients->end(), add);
  return batch;
}

// Among the rows at the places `first`, `first` + 2, ...: of the nearest that which differs from the row in most
// elements: what leaks from an equal row, or from equal elements, changes nothing.
int64_t CallInvariance::most_different(int64_t row, int64_t first) const {
  constexpr int64_t kNearest = 4;
  int64_t best = -1, most = -1;
  const auto look = [&](int64_t other) {
    if (other < 0 || other >= form_.rows || other % 2 != first) return;
    int64_t elements = 0;
    for (const at::Tensor& tensor : batch_values_) {
      const auto difference = bit_difference({tensor.select(0, row)}, {tensor.select(0, other)});
      elements += difference ? std::max<int64_t>(1, difference->elements) : 0;
    }
    if (elements > most) {
      best = other;
      most = elements;
    }
  };
  for (int64_t distance = 1; distance <= kNearest; distance += 2) {
    look(row - distance);
    look(row + distance);
  }
  return best;
}

// Every other row stays where it is, beside copies of these rows: once the rows at even places stay, once those at odd
// ones. The number of rows and the places are the program's.
void CallInvariance::ask_neighbours() {
  if (form_.rows < 2) return;
  batch_values_ = batch_values();
  bool tried = false;
  for (const int64_t first : {0, 1}) {
    Rows run{.text =
                 first == 0 ? "odd rows replaced by even rows near them" : "even rows replaced by odd rows near them"};
    bool is_other = false;
    for (int64_t row = 0; row < form_.rows; ++row) {
      const bool stays = row % 2 == first;
      if (stays) run.places.push_back(row);
      run.rows.push_back(stays ? row : most_different(row, first));
      for (const at::Tensor& tensor : batch_values_) {
        is_other = is_other || bit_difference({tensor.select(0, row)}, {tensor.select(0, run.rows.back())});
      }
    }
    if (!is_other) continue;
    tried = true;
    const size_t before = verdicts_.size();
    ask_rows(run, Relation::kNeighbour);
    if (verdicts_.size() == before) continue;
    const RelationVerdict& verdict = verdicts_.back();
    if (verdict.verdict == Verdict::kDiffers && verdict.relation == Relation::kNeighbour) {
      why_no_rows_ = "its rows depend on the values of others";
    }
    return;
  }
  if (tried) return agree(Relation::kNeighbour);
  leave(Relation::kNeighbour, Unjudged::kNoBatch, "its rows are equal: there are no other values to put beside them");
}

}  // namespace op_tools
