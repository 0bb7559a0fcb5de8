// The relations of CallInvariance that are about the rows of a sequence, and their memory.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "hooks/op_traits.h"
#include "invariance/call_invariance.h"
#include "invariance/copies.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> places = first_places(count);
  for (int64_t& place : places) place += first;
  return places;
}

std::vector<int64_t> both(std::vector<int64_t> first, const std::vector<int64_t>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

// Columns of a mask that no query reads.
TensorChange left_out(const at::Tensor& mask, int64_t count, bool in_front) {
  const bool is_bool = mask.scalar_type() == at::kBool;
  return {.kind = TensorChange::Kind::kFill,
          .dim = -1,
          .count = count,
          .number = is_bool ? 0 : -std::numeric_limits<double>::infinity(),
          .in_front = in_front};
}

}  // namespace

void CallInvariance::ask_strides() {
  if (!call_.overlapping_inputs().empty()) {
    return leave(Relation::kStrides, Unjudged::kNoForm, "it reads memory that it writes, at other places");
  }
  if (has_trait(base_name(name_), OpTrait::kReadsStorageOffset)) {
    return leave(Relation::kStrides, Unjudged::kNoForm, "its arguments name places in memory");
  }
  RunChanges apart;
  for (size_t i = 0; i < form_.of.size(); ++i) {
    if (form_.of[i] && can_have_gaps(call_.tensors()[i])) apart.inputs[i] = {{.kind = TensorChange::Kind::kGaps}};
  }
  if (apart.inputs.empty()) return;  // a single row, or numbers
  ask_whole(Relation::kStrides, apart, [](const std::function<void()>& run) { run(); });
}

bool CallInvariance::has_sequence(const at::Tensor& tensor) const {
  return has_rows(tensor) && tensor.dim() >= 2 && tensor.size(1) == form_.sequence;
}

// nullopt: a gradient that arrives has no second dimension of rows.
std::optional<RunChanges> CallInvariance::changes_of_sequence(const TensorChange& change) const {
  std::optional<RunChanges> changes = changes_of(change);
  if (!changes) return std::nullopt;
  for (const auto& [index, steps] : changes->gradients) {
    if (!has_sequence((*observed_.output_gradients)[index])) return std::nullopt;
  }
  for (size_t i = 0; i < program_.size(); ++i) {
    if (has_sequence(program_[i])) continue;
    changes->program.erase(i);
    changes->other.erase(i);
  }
  return changes;
}

bool CallInvariance::differs(Relation relation) const {
  const RelationVerdict* verdict = verdict_of(relation);
  return verdict && verdict->verdict == Verdict::kDiffers;
}

bool CallInvariance::depends_on_batch() const {
  return differs(Relation::kPosition) || differs(Relation::kBatch);
}

// Runs in which the second dimension has other places; the first that has other bits is told.
void CallInvariance::ask_places(Relation relation, const std::vector<std::pair<TensorChange, std::string>>& runs) {
  for (const auto& [change, text] : runs) {
    const std::optional<RunChanges> changes = changes_of_sequence(change);
    const std::optional<OtherRun> run = changes ? run_with(*changes) : std::nullopt;
    if (!run) {
      return leave(relation, Unjudged::kNoBatch,
                   "its result has no rows in the second dimension, or it fails with others");
    }
    std::optional<Variation> variation = variation_of(*run, *changes, text);
    if (!variation) continue;
    variation->rows = form_.rows;
    if (is_cause(*variation, *run)) vary(relation, std::move(*variation));
    return;
  }
  agree(relation);
}

void CallInvariance::ask_shift() {
  if (attention_) return ask_shift_of_attention();
  if (form_.sequence < 2) return;  // nothing that could be moved
  if (depends_on_batch()) return leave(Relation::kShift, Unjudged::kNoBatch, "its rows depend on the batch");
  std::vector<int64_t> turned = first_places(form_.sequence);
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  ask_places(Relation::kShift, {{places_of(1, turned), "each a place further"}});
}

void CallInvariance::ask_sequence() {
  const int64_t rows = form_.rows, length = form_.sequence, half = length / 2;
  if (depends_on_batch()) return leave(Relation::kSequence, Unjudged::kNoBatch, "its rows depend on the batch");
  if (differs(Relation::kShift)) {
    return leave(Relation::kSequence, Unjudged::kNoBatch, "its rows depend on their place in the sequence");
  }
  std::vector<std::pair<TensorChange, std::string>> runs;
  if (length >= 2) {
    runs.emplace_back(places_of(1, first_places(half)),
                      "the first " + std::to_string(half) + " of " + std::to_string(length) + " places");
    runs.emplace_back(places_of(1, range(half, length - half)),
                      "the last " + std::to_string(length - half) + " of " + std::to_string(length) + " places");
  }
  // Rows behind each other have to lie so in memory, too: with other strides it would be another relation.
  bool in_order = true;
  for (size_t i = 0; i < form_.of.size(); ++i) {
    in_order = in_order && (!form_.of[i] || call_.tensors()[i].is_contiguous());
  }
  if (rows >= 2 && in_order) {
    runs.emplace_back(TensorChange{.kind = TensorChange::Kind::kJoin},
                      "all " + std::to_string(rows) + " sequences as a single one, behind each other");
  }
  if (!runs.empty()) ask_places(Relation::kSequence, runs);
}

std::vector<size_t> CallInvariance::indices_of(const at::Tensor& argument) const {
  std::vector<size_t> indices;
  for (size_t i = 0; argument.defined() && i < call_.tensors().size(); ++i) {
    if (call_.tensors()[i].is_same(argument)) indices.push_back(i);
  }
  return indices;
}

void CallInvariance::change_input(RunChanges& changes, const at::Tensor& argument, const TensorChanges& steps) const {
  for (const size_t index : indices_of(argument)) changes.inputs[index] = steps;
}

// Of attention: what is done with its queries. Of the results the first is compared, and of a backward pass the
// gradient of the queries: those of keys are sums over all queries. False: other gradients arrive.
bool CallInvariance::change_queries(RunChanges& changes, const TensorChanges& queries, const TensorChange& gradient,
                                    const TensorChanges& program, const TensorChanges& other) const {
  const AttentionForm& form = *attention_;
  change_input(changes, form.query, queries);
  const std::vector<size_t> of_query = indices_of(form.query);
  const size_t place = is_backward() && !of_query.empty() ? of_query[0] : 0;
  changes.program[place] = program;
  changes.other[place] = other;
  const size_t gradients = is_backward() ? observed_.output_gradients->size() : 0;
  for (size_t i = 0; i < gradients; ++i) {
    const at::Tensor& arriving = (*observed_.output_gradients)[i];
    if (!arriving.defined()) continue;
    if (i > 0 || arriving.layout() != at::kStrided) return false;
    changes.gradients[i] = {gradient};
  }
  return true;
}

std::optional<RunChanges> CallInvariance::with_more_tokens(int64_t extra, bool in_front) const {
  const AttentionForm& form = *attention_;
  const int64_t queries = form.query.size(-2), keys = form.key.size(-2);
  RunChanges changes;
  const std::vector<int64_t> more(static_cast<size_t>(extra), in_front ? 0 : queries - 1);
  const std::vector<int64_t> all = first_places(queries);
  const TensorChange of_queries = places_of(-2, in_front ? both(more, all) : both(all, more));
  const TensorChange of_gradient{.kind = TensorChange::Kind::kFill, .dim = -2, .count = extra, .in_front = in_front};
  const TensorChange compared = places_of(-2, range(in_front ? extra : 0, queries));
  if (!change_queries(changes, {of_queries}, of_gradient, {}, {compared})) return std::nullopt;
  if (!form.leaves_out()) return changes;  // all keys are read
  std::vector<int64_t> behind = first_places(keys), front;
  for (int64_t i = 0; i < extra; ++i) (in_front ? front : behind).push_back(i % keys);
  for (const at::Tensor& tensor : {form.key, form.value}) {
    change_input(changes, tensor, {places_of(-2, both(front, behind))});
  }
  if (form.mask.defined()) {
    TensorChanges steps{left_out(form.mask, extra, in_front)};
    if (form.mask.size(-2) > 1) steps.push_back(of_queries);
    change_input(changes, form.mask, steps);
  }
  if (form.is_causal) changes.order = OrderMask{form.parameters, form.mask_name, 0, in_front ? extra : 0};
  return changes;
}

// As a sequence with padding on the left against that with padding on the right: the same numbers of queries and keys.
void CallInvariance::ask_shift_of_attention() {
  const AttentionForm& form = *attention_;
  if (!form.why_not.empty()) return leave(Relation::kShift, Unjudged::kNoBatch, std::string(form.why_not));
  if (form.is_causal && form.mask_name.empty()) {
    return leave(Relation::kShift, Unjudged::kNoBatch,
                 "its causal order is counted from the first token, and it takes no mask");
  }
  bool any = false;
  for (const int64_t extra : {int64_t{1}, form.key.size(-2)}) {
    const std::optional<RunChanges> right = with_more_tokens(extra, false), left = with_more_tokens(extra, true);
    const std::optional<OtherRun> behind = right ? run_with(*right) : std::nullopt;
    const std::optional<OtherRun> front = left ? run_with(*left) : std::nullopt;
    if (!behind || !front) return leave(Relation::kShift, Unjudged::kNoReference, "it fails with more tokens");
    // Its bits depend on the number of queries or keys, or on a mask in place of the causal order.
    if (bit_difference(behind->program, behind->values)) continue;
    any = true;
    const std::string text =
        std::to_string(extra) + (form.leaves_out() ? " more in front, left out" : " more in front");
    std::optional<Variation> variation = variation_of(*front, *left, text);
    if (!variation) continue;
    variation->rows = form_.rows;
    if (is_cause(*variation, *front)) vary(Relation::kShift, std::move(*variation));
    return;
  }
  if (any) return agree(Relation::kShift);
  leave(Relation::kShift, Unjudged::kNoBatch,
        "its bits depend on the number of its tokens, or on a mask in place of its order");
}

RunChanges CallInvariance::with_more_keys(int64_t extra) const {
  const AttentionForm& form = *attention_;
  const std::vector<int64_t> all = first_places(form.key.size(-2));
  RunChanges changes;
  for (const at::Tensor& tensor : {form.key, form.value}) {
    change_input(changes, tensor, {places_of(-2, both(all, first_places(extra)))});
  }
  if (form.mask.defined()) change_input(changes, form.mask, {left_out(form.mask, extra, false)});
  // Other results are notes for the backward kernel, of a form of its own.
  const size_t results = is_backward() ? program_.size() : 1;
  for (size_t i = 0; i < results; ++i) {
    changes.program[i] = {};
    changes.other[i] = {};
  }
  if (!is_backward()) return changes;
  for (const at::Tensor& tensor : {form.key, form.value}) {
    for (const size_t index : indices_of(tensor)) changes.other[index] = {places_of(-2, all)};
  }
  for (const size_t index : indices_of(form.mask)) changes.other[index] = {places_of(-1, all)};
  return changes;
}

void CallInvariance::ask_padding() {
  const AttentionForm& form = *attention_;
  if (!form.why_not.empty()) return leave(Relation::kPadding, Unjudged::kNoBatch, std::string(form.why_not));
  const int64_t keys = form.key.size(-2);
  for (const int64_t extra : {int64_t{1}, keys}) {
    const RunChanges changes = with_more_keys(extra);
    const std::optional<OtherRun> run = run_with(changes);
    if (!run) return leave(Relation::kPadding, Unjudged::kNoReference, "it fails with more keys");
    std::optional<Variation> variation =
        variation_of(*run, changes, std::to_string(extra) + " behind the " + std::to_string(keys));
    if (!variation) continue;
    if (is_cause(*variation, *run)) vary(Relation::kPadding, std::move(*variation));
    return;
  }
  agree(Relation::kPadding);
}

struct CallInvariance::Piece {
  int64_t first = 0, count = 0;  // queries
  int64_t keys = 0;              // from the first on
  bool by_mask = false;          // the causal order is that of a mask
  std::string text = {};
};

// nullopt: other gradients arrive.
std::optional<RunChanges> CallInvariance::changes_of_piece(const Piece& piece) const {
  const AttentionForm& form = *attention_;
  const TensorChange queries = places_of(-2, range(piece.first, piece.count));
  RunChanges changes;
  if (!change_queries(changes, {queries}, queries, {queries}, {})) return std::nullopt;
  for (const at::Tensor& tensor : {form.key, form.value}) {
    change_input(changes, tensor, {places_of(-2, first_places(piece.keys))});
  }
  if (form.mask.defined()) {
    TensorChanges steps{places_of(-1, first_places(piece.keys))};
    if (form.mask.size(-2) > 1) steps.push_back(queries);
    change_input(changes, form.mask, steps);
  }
  if (piece.by_mask) changes.order = OrderMask{form.parameters, form.mask_name, piece.first, 0};
  return changes;
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
  // The last queries are at other places in their piece: where these matter, that is `shift`.
  const bool can_run_last = !differs(Relation::kShift) && (!form.is_causal || !form.mask_name.empty());
  std::vector<Piece> pieces{{0, half, read, false, text(0, half, read)}};
  if (can_run_last) pieces.push_back({half, rest, keys, form.is_causal, text(half, rest, keys)});
  for (const Piece& piece : pieces) {
    std::optional<RunChanges> changes = changes_of_piece(piece);
    std::optional<OtherRun> run = changes ? run_with(*changes) : std::nullopt;
    if (!run && piece.by_mask) continue;  // a kernel that takes no such mask
    if (!run) return leave(Relation::kPieces, Unjudged::kNoReference, "it fails with fewer queries");
    if (!bit_difference(run->program, run->values)) continue;
    std::string which = piece.text;
    if (piece.by_mask) {
      const std::optional<RunChanges> whole = changes_of_piece({0, queries, keys, true});
      std::optional<OtherRun> masked = whole ? run_with(*whole) : std::nullopt;
      if (masked && bit_difference(masked->program, masked->values)) {
        run.emplace(std::move(*masked));
        changes = whole;
        which = "all " + std::to_string(queries) + " queries";
      }
      which += ", with a mask in place of the causal order";
    }
    std::optional<Variation> variation = variation_of(*run, *changes, which);
    if (variation && is_cause(*variation, *run)) vary(Relation::kPieces, std::move(*variation));
    return;
  }
  agree(Relation::kPieces);
}

void CallInvariance::ask_packed() {
  const AttentionForm& form = *attention_;
  if (!form.why_not.empty()) return leave(Relation::kPacked, Unjudged::kNoBatch, std::string(form.why_not));
  if (form_.rows < 2 || form.query.dim() < 3) return;  // a single sequence
  if (form.mask_name.empty()) {
    return leave(Relation::kPacked, Unjudged::kNoBatch, "it takes no mask that keeps packed sequences apart");
  }
  for (const Relation relation : {Relation::kNeighbour, Relation::kPosition, Relation::kBatch, Relation::kShift,
                                  Relation::kPadding, Relation::kPieces}) {
    if (differs(relation)) {
      return leave(Relation::kPacked, Unjudged::kNoBatch,
                   "packed sequences are another batch, other queries and keys that are left out, on which it depends");
    }
  }
  constexpr int64_t kMostSequences = 3, kMostElements = int64_t{1} << 26;  // of the mask
  const int64_t count = std::min(form_.rows, kMostSequences), queries = form.query.size(-2), keys = form.key.size(-2);
  if (count * queries > kMostElements / std::max<int64_t>(1, count * keys)) {
    return leave(Relation::kPacked, Unjudged::kNoForm, "the mask of packed sequences would be too large");
  }
  const auto changes_by = [&](const TensorChanges& steps) {
    RunChanges changes;
    const bool can = change_queries(changes, steps, steps[0], steps, {});
    for (auto& [index, of_gradient] : changes.gradients) of_gradient = steps;
    for (const at::Tensor& tensor : {form.key, form.value}) change_input(changes, tensor, steps);
    return can ? std::optional(changes) : std::nullopt;
  };
  const TensorChange first = places_of(0, first_places(count));
  std::optional<RunChanges> apart = changes_by({first});
  std::optional<RunChanges> packed = changes_by({first, {.kind = TensorChange::Kind::kPack}});
  if (apart && form.mask.defined()) {
    if (form.mask.dim() == form.query.dim() && form.mask.size(0) > 1) change_input(*apart, form.mask, {first});
  } else if (apart) {
    apart->order = OrderMask{form.parameters, form.mask_name, form.is_causal ? 0 : keys, 0};
  }
  if (packed) packed->packing = PackingMask{form.parameters, form.mask_name, count, form.is_causal};
  const std::optional<OtherRun> by_mask = apart ? run_with(*apart) : std::nullopt;
  const std::optional<OtherRun> run = packed ? run_with(*packed) : std::nullopt;
  if (!by_mask || !run) return leave(Relation::kPacked, Unjudged::kNoReference, "it fails with packed sequences");
  if (bit_difference(by_mask->program, by_mask->values)) {
    return leave(Relation::kPacked, Unjudged::kNoBatch, "its bits depend on a mask in place of its order");
  }
  std::optional<Variation> variation =
      variation_of(*run, *packed, "the first " + std::to_string(count) + " of " + std::to_string(form_.rows));
  if (!variation) return agree(Relation::kPacked);
  variation->rows = form_.rows;
  if (is_cause(*variation, *run)) vary(Relation::kPacked, std::move(*variation));
}

}  // namespace op_tools
