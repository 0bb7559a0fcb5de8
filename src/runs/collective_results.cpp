#include "runs/collective_results.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"
#include "report/json_writer.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

enum class Pattern : uint8_t {
  kSum,          // all get the inputs of all, reduced
  kSumAtRoot,    // a single rank does
  kFromRoot,     // all get the input of a single rank
  kListOfAll,    // all get a list of the ranks' inputs
  kListAtRoot,   // a single rank does
  kPartsOfRoot,  // each gets its part of a single rank's list
  kSumOfParts,   // each gets its part of the ranks' lists, reduced
  kPartsOfAll,   // each gets a list of its parts of the ranks' lists
  kJoined,       // all get the ranks' inputs in the same tensor
  kSumOfPieces,  // each gets a piece of the reduced tensor
  kPiecesOfAll,  // each gets pieces of the ranks' tensors in the same tensor
};

struct Parameter {
  size_t position;
  std::string_view name;
};

struct Form {
  std::string_view names;  // base names
  Pattern pattern;
  Parameter sent, received, root, reduction;
};

constexpr std::string_view kFunctionsOfTorch = "torch.distributed.distributed_c10d.";
constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr Parameter kAbsent{kNone, ""}, kResult{kNone, "result"};

// Functions of torch.distributed.
constexpr Form kFunctions[] = {
    {"all_reduce", Pattern::kSum, {0, "tensor"}, {0, "tensor"}, kAbsent, {1, "op"}},
    {"reduce", Pattern::kSumAtRoot, {0, "tensor"}, {0, "tensor"}, {1, "dst"}, {2, "op"}},
    {"broadcast", Pattern::kFromRoot, {0, "tensor"}, {0, "tensor"}, {1, "src"}, kAbsent},
    {"all_gather", Pattern::kListOfAll, {1, "tensor"}, {0, "tensor_list"}, kAbsent, kAbsent},
    {"gather", Pattern::kListAtRoot, {0, "tensor"}, {1, "gather_list"}, kAbsent, kAbsent},
    {"scatter", Pattern::kPartsOfRoot, {1, "scatter_list"}, {0, "tensor"}, kAbsent, kAbsent},
    {"reduce_scatter", Pattern::kSumOfParts, {1, "input_list"}, {0, "output"}, kAbsent, {2, "op"}},
    {"all_to_all", Pattern::kPartsOfAll, {1, "input_tensor_list"}, {0, "output_tensor_list"}, kAbsent, kAbsent},
    {"all_gather_into_tensor all_gather_single",
     Pattern::kJoined,
     {1, "input_tensor"},
     {0, "output_tensor"},
     kAbsent,
     kAbsent},
    {"reduce_scatter_tensor reduce_scatter_single",
     Pattern::kSumOfPieces,
     {1, "input"},
     {0, "output"},
     kAbsent,
     {2, "op"}},
    {"all_to_all_single", Pattern::kPiecesOfAll, {1, "input"}, {0, "output"}, kAbsent, kAbsent},
};

// Operators of c10d: the reduction is beside the arguments.
constexpr Parameter kBeside{kNone, "reduce_op"};
constexpr Form kOperators[] = {
    {"allreduce_", Pattern::kSum, {0, ""}, {0, ""}, kAbsent, kBeside},
    {"reduce_", Pattern::kSumAtRoot, {0, ""}, {0, ""}, {3, "root_rank"}, kBeside},
    {"broadcast_", Pattern::kFromRoot, {0, ""}, {0, ""}, {2, "root_rank"}, kAbsent},
    {"allgather_", Pattern::kListOfAll, {1, ""}, {0, ""}, kAbsent, kAbsent},
    {"gather_", Pattern::kListAtRoot, {1, ""}, {0, ""}, kAbsent, kAbsent},
    {"scatter_", Pattern::kPartsOfRoot, {1, ""}, {0, ""}, kAbsent, kAbsent},
    {"reduce_scatter_", Pattern::kSumOfParts, {1, ""}, {0, ""}, kAbsent, kBeside},
    {"alltoall_", Pattern::kPartsOfAll, {1, ""}, {0, ""}, kAbsent, kAbsent},
    {"_allgather_base_", Pattern::kJoined, {1, ""}, {0, ""}, kAbsent, kAbsent},
    {"_reduce_scatter_base_", Pattern::kSumOfPieces, {1, ""}, {0, ""}, kAbsent, kBeside},
    {"alltoall_base_", Pattern::kPiecesOfAll, {1, ""}, {0, ""}, kAbsent, kAbsent},
};

// Functional ones, whose results are waited for later.
constexpr Form kFunctional[] = {
    {"all_reduce", Pattern::kSum, {0, ""}, kResult, kAbsent, {1, ""}},
    {"broadcast", Pattern::kFromRoot, {0, ""}, kResult, {1, ""}, kAbsent},
    {"all_gather_into_tensor", Pattern::kJoined, {0, ""}, kResult, kAbsent, kAbsent},
    {"reduce_scatter_tensor", Pattern::kSumOfPieces, {0, ""}, kResult, kAbsent, {1, ""}},
    {"all_to_all_single", Pattern::kPiecesOfAll, {0, ""}, kResult, kAbsent, kAbsent},
};

const Form* form_of(std::string_view op) {
  const std::string_view base = base_name(op);
  const auto find = [&](c10::ArrayRef<Form> forms) {
    const auto* const row = std::find_if(forms.begin(), forms.end(), [&](const Form& form) {
      bool is_it = false;
      each_word(form.names, [&](std::string_view name) { is_it = is_it || name == base; });
      return is_it;
    });
    return row == forms.end() ? nullptr : row;
  };
  if (op.starts_with("_c10d_functional::")) return find(kFunctional);
  if (op.starts_with("c10d::")) return find(kOperators);
  return op.starts_with(kFunctionsOfTorch) ? find(kFunctions) : nullptr;
}

enum class Reduction : uint8_t { kUnknown, kSum, kMean, kMax, kMin };

Reduction reduction_of(const Value* value) {
  const auto* const name = value ? value->get_if<std::string>() : nullptr;
  if (!name) return Reduction::kUnknown;
  if (*name == "sum") return Reduction::kSum;
  if (*name == "avg") return Reduction::kMean;
  if (*name == "max") return Reduction::kMax;
  return *name == "min" ? Reduction::kMin : Reduction::kUnknown;
}

Value facts_of(const Recording& run, uint32_t call) {
  const std::string_view text = run.string(run.calls[call].scalars);
  try {
    Value facts = text.empty() ? make_dict({}) : value_of_json(text);
    return facts.is<Dict>() ? facts : make_dict({});
  } catch (const Error&) {  // a dump of another tool
    return make_dict({});
  }
}

std::string keyword(std::string_view name) {
  return "kwargs." + std::string(name);
}
std::string argument(size_t position) {
  return "args[" + std::to_string(position) + "]";
}

// An argument that is no tensor; nullptr: it is not given.
const Value* fact(const Value& facts, const Parameter& parameter) {
  if (parameter.position == kNone) return find_key(facts, parameter.name);
  if (const Value* const value = find_key(facts, argument(parameter.position))) return value;
  return parameter.name.empty() ? nullptr : find_key(facts, keyword(parameter.name));
}

using Tensors = std::vector<const RecordedValue*>;

// A rank's side.
struct Side {
  const Recording* run = nullptr;
  Value facts;
  Tensors sent, received;
};

bool is_at(std::string_view place, std::string_view parameter) {
  return place.starts_with(parameter) && (place.size() == parameter.size() || place[parameter.size()] == '[');
}

Tensors tensors_at(const Recording& run, c10::ArrayRef<RecordedUse> uses, std::string_view before,
                   const Parameter& parameter) {
  Tensors tensors;
  const std::string by_position =
      std::string(before) + (parameter.position == kNone ? std::string(parameter.name) : argument(parameter.position));
  const std::string by_name = std::string(before) + keyword(parameter.name);
  for (const RecordedUse& use : uses) {
    const std::string_view place = run.string(use.place);
    const bool is_it = is_at(place, by_position) || (!parameter.name.empty() && is_at(place, by_name));
    if (is_it) tensors.push_back(&run.values[use.value]);
  }
  return tensors;
}

Side side_of(const RankCall& rank, const Form& form) {
  const Recording& run = *rank.run;
  const RecordedCall& call = run.calls[rank.call];
  Side side{&run, facts_of(run, rank.call), tensors_at(run, run.inputs(call), "", form.sent), {}};
  const bool returns = form.received.position == kNone;
  side.received = tensors_at(run, run.outputs(call), returns ? "" : kWrittenPlace, form.received);
  return side;
}

// --- The answers of statistics. nullopt: none.

std::optional<bool> same_bits(const RecordedValue& value, const RecordedValue& other) {
  if (value.hash == 0 || other.hash == 0 || value.dtype != other.dtype) return std::nullopt;
  return value.hash == other.hash;
}

// The largest rounding of an addition, relative; nullopt: sums of this dtype may wrap, or are no sums.
std::optional<double> rounding_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::BFloat16:
      return 0x1p-8;
    case c10::ScalarType::Half:
      return 0x1p-11;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return 0x1p-24;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return 0x1p-50;  // projections are sums in float64 themselves
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
      return 1e-12;
    default:
      return std::nullopt;
  }
}

bool all_known(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const RecordedValue* value) { return value && value->known; });
}

double extreme(const Tensors& tensors, double RecordedValue::*of, bool largest) {
  double extreme = tensors.front()->*of;
  for (const RecordedValue* value : tensors)
    extreme = largest ? std::max(extreme, value->*of) : std::min(extreme, value->*of);
  return extreme;
}

constexpr double kRoom = 4;  // projections are right within a factor of 2 nearly always

// `got`: element by element the reduction of `inputs`.
std::optional<bool> is_reduced(const RecordedValue& got, const Tensors& inputs, Reduction reduction) {
  if (inputs.empty() || !got.known || !all_known(inputs)) return std::nullopt;
  if (reduction == Reduction::kMax || reduction == Reduction::kMin) {
    const bool largest = reduction == Reduction::kMax;
    const double max = extreme(inputs, &RecordedValue::max, largest),
                 min = extreme(inputs, &RecordedValue::min, largest);
    if (std::isnan(max) || std::isnan(min)) return std::nullopt;
    return largest ? got.max == max && got.min >= min : got.min == min && got.max <= max;
  }
  const std::optional<double> rounding = rounding_of(got.dtype);
  if (reduction == Reduction::kUnknown || !rounding) return std::nullopt;
  const auto count = static_cast<double>(inputs.size());
  const double share = reduction == Reduction::kMean ? 1 / count : 1;
  double norms = 0, squares = 0;
  for (const RecordedValue* value : inputs) norms += value->norm;
  for (size_t p = 0; p < kProjections; ++p) {
    double expected = 0;
    for (const RecordedValue* value : inputs) expected += share * value->projections[p];
    squares += std::pow(got.projections[p] - expected, 2);
  }
  if (!std::isfinite(norms) || !std::isfinite(squares)) return std::nullopt;
  return std::sqrt(squares / kProjections) <= kRoom * count * *rounding * norms;
}

// All elements of `got` are those of `inputs`, in whatever order.
std::optional<bool> has_the_elements(const Tensors& got, const Tensors& inputs) {
  if (got.empty() || inputs.empty() || !all_known(got) || !all_known(inputs)) return std::nullopt;
  const auto total = [](const Tensors& tensors, int64_t RecordedValue::*of) {
    int64_t sum = 0;
    for (const RecordedValue* value : tensors) {
      if (value->*of < 0) return int64_t{-1};
      sum += value->*of;
    }
    return sum;
  };
  for (const auto of : {&RecordedValue::nan, &RecordedValue::inf, &RecordedValue::zero}) {
    const int64_t elements = total(got, of), other = total(inputs, of);
    if (elements >= 0 && other >= 0 && elements != other) return false;
  }
  const auto squares = [](const Tensors& tensors) {
    double sum = 0;
    for (const RecordedValue* value : tensors) sum += value->norm * value->norm;
    return sum;
  };
  const double norm = squares(got), other = squares(inputs);
  if (!std::isfinite(norm) || !std::isfinite(other)) return std::nullopt;
  constexpr double kShare = 1e-9;  // sums in float64
  return std::abs(norm - other) <= kShare * std::max(norm, other) &&
         extreme(got, &RecordedValue::max, true) == extreme(inputs, &RecordedValue::max, true) &&
         extreme(got, &RecordedValue::min, false) == extreme(inputs, &RecordedValue::min, false);
}

// --- The ranks

// `flags`: of parts; a part that is wrong decides, else an unknown part.
std::optional<bool> all_of(const std::vector<std::optional<bool>>& flags) {
  if (std::find(flags.begin(), flags.end(), std::optional(false)) != flags.end()) return false;
  const bool is_known = !flags.empty() && std::find(flags.begin(), flags.end(), std::nullopt) == flags.end();
  return is_known ? std::optional(true) : std::nullopt;
}

class Ranks {
 public:
  Ranks(const std::vector<RankCall>& ranks, const Form& form, bool is_function) : ranks_(ranks), form_(form) {
    for (const RankCall& rank : ranks) sides_.push_back(side_of(rank, form));
    const Value* const reduction = fact(sides_[0].facts, form.reduction);
    reduction_ = !reduction && is_function ? Reduction::kSum : reduction_of(reduction);
    root_ = find_root(is_function);
  }

  std::vector<std::optional<bool>> follow() const {
    const bool is_of_all = form_.pattern == Pattern::kSumOfPieces || form_.pattern == Pattern::kPiecesOfAll;
    if (is_of_all) return std::vector(sides_.size(), pieces_are_right());
    std::vector<std::optional<bool>> ranks;
    for (size_t rank = 0; rank < sides_.size(); ++rank) ranks.push_back(is_right(rank));
    return ranks;
  }

 private:
  std::optional<size_t> find_root(bool is_function) const {
    if (form_.pattern == Pattern::kPartsOfRoot) {  // it alone has the list
      const auto has_list = [](const Side& side) { return !side.sent.empty(); };
      const auto side = std::find_if(sides_.begin(), sides_.end(), has_list);
      if (side == sides_.end()) return std::nullopt;
      return static_cast<size_t>(side - sides_.begin());
    }
    const Value& facts = sides_[0].facts;
    const Value* const root = fact(facts, form_.root);
    const auto* const number = root ? root->get_if<int64_t>() : nullptr;
    if (!number || !is_function) return number ? std::optional(static_cast<size_t>(*number)) : std::nullopt;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].rank == *number) return i;
    }
    return std::nullopt;
  }

  const RecordedValue* sent(size_t rank, size_t item) const {
    return item < sides_[rank].sent.size() ? sides_[rank].sent[item] : nullptr;
  }
  Tensors sent_by_all(size_t item) const {
    Tensors tensors;
    for (size_t rank = 0; rank < sides_.size(); ++rank) tensors.push_back(sent(rank, item));
    return tensors;
  }

  // `source`: of this rank's results, by number.
  template <class Source>
  std::optional<bool> has_bits(const Tensors& got, Source&& source) const {
    std::vector<std::optional<bool>> flags;
    for (size_t i = 0; i < got.size(); ++i) {
      const RecordedValue* const from = source(i);
      flags.push_back(from ? same_bits(*got[i], *from) : std::nullopt);
    }
    return all_of(flags);
  }

  std::optional<bool> is_right(size_t rank) const {
    const Tensors& got = sides_[rank].received;
    if (got.empty()) return std::nullopt;
    const bool needs_root = form_.pattern == Pattern::kSumAtRoot || form_.pattern == Pattern::kFromRoot ||
                            form_.pattern == Pattern::kPartsOfRoot;
    if (needs_root && (!root_ || *root_ >= sides_.size())) return std::nullopt;
    switch (form_.pattern) {
      case Pattern::kSumAtRoot:
        if (rank != *root_) return std::nullopt;
        [[fallthrough]];
      case Pattern::kSum: {
        std::vector<std::optional<bool>> flags;
        for (size_t i = 0; i < got.size(); ++i) flags.push_back(is_reduced(*got[i], sent_by_all(i), reduction_));
        return all_of(flags);
      }
      case Pattern::kFromRoot:
        return has_bits(got, [&](size_t i) { return sent(*root_, i); });
      case Pattern::kListOfAll:
      case Pattern::kListAtRoot:
        if (got.size() != sides_.size()) return std::nullopt;
        return has_bits(got, [&](size_t i) { return sent(i, 0); });
      case Pattern::kPartsOfRoot:
        return has_bits({got[0]}, [&](size_t) { return sent(*root_, rank); });
      case Pattern::kSumOfParts:
        return is_reduced(*got[0], sent_by_all(rank), reduction_);
      case Pattern::kPartsOfAll:
        if (got.size() != sides_.size()) return std::nullopt;
        return has_bits(got, [&](size_t i) { return sent(i, rank); });
      case Pattern::kJoined:
        return has_the_elements({got[0]}, sent_by_all(0));
      case Pattern::kSumOfPieces:
      case Pattern::kPiecesOfAll:
        break;
    }
    return std::nullopt;
  }

  // The results of all ranks together.
  std::optional<bool> pieces_are_right() const {
    Tensors got;
    for (const Side& side : sides_) {
      if (side.received.empty()) return std::nullopt;
      got.push_back(side.received[0]);
    }
    const Tensors inputs = sent_by_all(0);
    if (form_.pattern == Pattern::kPiecesOfAll) return has_the_elements(got, inputs);
    const std::optional<double> rounding = rounding_of(got[0]->dtype);
    const bool adds = reduction_ == Reduction::kSum || reduction_ == Reduction::kMean;
    if (!adds || !rounding || !all_known(got) || !all_known(inputs)) return std::nullopt;
    const auto count = static_cast<double>(inputs.size());
    const double share = reduction_ == Reduction::kMean ? 1 / count : 1;
    double mean = 0, expected = 0, size = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      mean += got[i]->mean / count;
      expected += share * inputs[i]->mean;
      size += rms_of(*sides_[i].run, *inputs[i]);
    }
    if (!std::isfinite(mean) || !std::isfinite(expected) || !std::isfinite(size)) return std::nullopt;
    return std::abs(mean - expected) <= kRoom * count * *rounding * size;
  }

  const std::vector<RankCall>& ranks_;
  const Form& form_;
  std::vector<Side> sides_;
  Reduction reduction_ = Reduction::kUnknown;
  std::optional<size_t> root_;
};

}  // namespace

GroupOfCall group_of(const Recording& run, uint32_t call) {
  constexpr std::string_view kEnd = " ranks";  // "0, 2 ranks"
  const Value facts = facts_of(run, call);
  for (const auto& [key, fact] : *facts.get_if<Dict>()->items) {
    const auto* const text = fact.get_if<std::string>();
    const size_t comma = text && text->ends_with(kEnd) ? text->rfind(", ") : std::string::npos;
    if (comma == std::string::npos) continue;
    size_t ranks = 0;
    std::from_chars(text->data() + comma + 2, text->data() + text->size() - kEnd.size(), ranks);
    return {*text, ranks};
  }
  return {};
}

std::string form_on_all_ranks(const Recording& run, uint32_t call) {
  const std::string_view op = run.string(run.calls[call].op);
  const Form* const form = form_of(op);
  if (!form && !(is_collective(op) && has_trait(base_name(op), OpTrait::kGivesAllRanksTheSame))) return {};
  std::string text(op);
  if (!form) return text;
  const Value facts = facts_of(run, call);
  for (const Parameter& parameter : {form->root, form->reduction}) {
    const Value* const value = parameter.position == kNone && parameter.name.empty() ? nullptr : fact(facts, parameter);
    text += ' ';
    if (value) text += json_text(*value);
  }
  const bool have_same_shapes =
      form->pattern == Pattern::kSum || form->pattern == Pattern::kSumAtRoot || form->pattern == Pattern::kFromRoot;
  if (!have_same_shapes) return text;
  for (const RecordedValue* value : tensors_at(run, run.inputs(run.calls[call]), "", form->sent)) {
    text += " of";
    for (const int64_t size : run.list(value->shape)) text += ' ' + std::to_string(size);
  }
  return text;
}

bool is_received(std::string_view op, std::string_view place) {
  const Form* const form = form_of(op);
  if (!form || form->received.position == kNone)
    return place.starts_with("result") || place.starts_with("written args[0]");
  if (!place.starts_with(kWrittenPlace)) return false;
  place.remove_prefix(kWrittenPlace.size());
  const Parameter& received = form->received;
  return is_at(place, argument(received.position)) || (!received.name.empty() && is_at(place, keyword(received.name)));
}

std::vector<std::optional<bool>> follow_from_inputs(const std::vector<RankCall>& ranks) {
  const std::vector<std::optional<bool>> unknown(ranks.size(), std::nullopt);
  if (ranks.size() < 2) return unknown;
  const std::string_view op = ranks[0].run->string(ranks[0].run->calls[ranks[0].call].op);
  const Form* const form = form_of(op);
  return form ? Ranks(ranks, *form, op.starts_with(kFunctionsOfTorch)).follow() : unknown;
}

}  // namespace op_tools
