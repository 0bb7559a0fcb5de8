// The relations of CallInvariance that are about the rows of a batch.
#include <algorithm>
#include <utility>

#include "invariance/call_invariance.h"
#include "invariance/copies.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
// Rows that run together, and which of them are compared with the program's.
struct CallInvariance::Rows {
  std::vector<int64_t> rows = {};    // of the program's batch
  std::vector<int64_t> places = {};  // of the run's batch: where they are compared
  int64_t from = 0, to = 0;  // sizes of batches with other bits, for the search where it begins; 0, 0: no search
  std::string text;
};

bool CallInvariance::has_rows(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.size(0) == form_.rows;
}

// nullopt: a gradient that arrives has no rows.
std::optional<RunChanges> CallInvariance::changes_of(const TensorChange& change) const {
  RunChanges changes;
  for (size_t i = 0; i < form_.of.size(); ++i) {
    if (form_.of[i]) changes.inputs[i] = {change};
  }
  const size_t gradients = is_backward() ? observed_.output_gradients->size() : 0;
  for (size_t i = 0; i < gradients; ++i) {
    const at::Tensor& gradient = (*observed_.output_gradients)[i];
    if (!gradient.defined()) continue;
    if (i >= form_.results || !has_rows(gradient)) return std::nullopt;
    changes.gradients[i] = {change};
  }
  const size_t results = is_backward() ? 0 : program_.size() - observed_.outcome.inputs.size();
  for (size_t i = 0; i < program_.size(); ++i) {
    const bool is_of_rows = i < results ? i < form_.results : form_.of[i - results];
    if (!is_of_rows || !has_rows(program_[i])) continue;
    changes.program[i] = {change};
    changes.other[i] = {};
  }
  return changes;
}

std::optional<RunChanges> CallInvariance::changes_of_rows(const std::vector<int64_t>& rows,
                                                          const std::vector<int64_t>& places) const {
  std::optional<RunChanges> changes = changes_of(places_of(0, rows));
  if (!changes) return std::nullopt;
  changes->rows = static_cast<int64_t>(rows.size());
  for (RunChanges::Tensors* compared : {&changes->program, &changes->other}) {
    for (auto& [index, steps] : *compared) steps.push_back(places_of(0, places));
  }
  return changes;
}

void CallInvariance::ask_rows(const Rows& rows, Relation relation) {
  const std::optional<RunChanges> changes = changes_of_rows(rows.rows, rows.places);
  const std::optional<OtherRun> run = changes ? run_with(*changes) : std::nullopt;
  if (!run) {
    no_rows_ = Unjudged::kNoBatch;
    why_no_rows_ = "its result has no rows in the first dimension, or it fails without the others";
    return leave(relation, no_rows_, why_no_rows_);
  }
  std::optional<Variation> variation = variation_of(*run, *changes, rows.text);
  if (!variation) return;
  variation->rows = form_.rows;
  if (!is_cause(*variation, *run)) return;
  if (rows.to > rows.from) {
    const std::optional<int64_t> begins = where_it_begins(rows.from, rows.to);
    if (!begins) {
      variation->transient = true;
      relation = Relation::kRepeat;
    }
    variation->begins = begins.value_or(0);
  }
  vary(relation, std::move(*variation));
}

// The smallest batch in (from, to] whose first rows have other bits than in a batch of `from`; 0: it is not known.
std::optional<int64_t> CallInvariance::where_it_begins(int64_t from, int64_t to) {
  const std::vector<int64_t> compared = first_places(from);
  const auto first_rows_of = [&](int64_t rows) -> std::optional<Tensors> {
    std::vector<int64_t> places = first_places(rows);
    for (int64_t& place : places) place %= form_.rows;
    const std::optional<RunChanges> changes = changes_of_rows(places, compared);
    std::optional<OtherRun> run = changes ? run_with(*changes) : std::nullopt;
    return run ? std::optional(std::move(run->values)) : std::nullopt;
  };
  const std::optional<Tensors> small = first_rows_of(from);
  if (!small) return 0;
  const auto is_other = [&](int64_t rows) -> std::optional<bool> {
    const std::optional<Tensors> values = first_rows_of(rows);
    if (!values) return std::nullopt;
    return bit_difference(*small, *values).has_value();
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
  const std::vector<int64_t> all = first_places(form_.rows);
  std::vector<int64_t> turned = all;
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  const size_t before = verdicts_.size();
  ask_rows({turned, all, 0, 0, "each row a place further"}, Relation::kPosition);
  if (verdicts_.size() == before) agree(Relation::kPosition);
}

void CallInvariance::ask_batch() {
  const int64_t count = form_.rows;
  const std::vector<int64_t> all = first_places(count);
  const int64_t half = count / 2;
  const std::vector<int64_t> first_half = first_places(half);
  std::vector<Rows> sizes;
  if (count >= 2) sizes.push_back({{0}, {0}, 1, count, "row 0 alone"});
  if (count >= 4) {
    sizes.push_back({first_half, first_half, half, count, "the first half of the rows"});
    // Its rows are at other positions, too: where these matter, they would be blamed on the batch.
    if (keeps(Relation::kPosition)) {
      const std::vector<int64_t> rest(all.begin() + half, all.end());
      sizes.push_back({rest, first_places(count - half), 0, 0, "the second half of the rows"});
    }
  }
  std::vector<int64_t> twice = all;
  twice.insert(twice.end(), all.begin(), all.end());
  sizes.push_back({twice, all, count, 2 * count, "all rows, with as many others behind them"});
  for (const Rows& rows : sizes) {
    const size_t before = verdicts_.size();
    ask_rows(rows, Relation::kBatch);
    if (verdicts_.size() > before) return;
  }
  agree(Relation::kBatch);
}

// The tensors that have the batch; of a backward pass the gradients that arrive, too. Contiguous, on the CPU.
CallInvariance::Tensors CallInvariance::batch_values() const {
  Tensors batch;
  const auto add = [&](const at::Tensor& tensor) {
    if (has_rows(tensor)) batch.push_back(on_cpu(tensor.detach()).contiguous());
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
    for (const at::Tensor& tensor : batch_values_) elements += elements_that_differ(tensor, row, other);
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
        is_other = is_other || elements_that_differ(tensor, row, run.rows.back()) > 0;
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
