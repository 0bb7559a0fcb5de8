#include "invariance/invariance_result.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "calls/saved_call.h"
#include "invariance/run_changes.h"

namespace op_tools {
namespace {

using Finding = InvarianceResult::Finding;
using Op = InvarianceResult::Op;

constexpr std::array kAllRelations{Relation::kRepeat,    Relation::kMemory,   Relation::kThreads,  Relation::kStream,
                                   Relation::kNeighbour, Relation::kBatch,    Relation::kPosition, Relation::kStrides,
                                   Relation::kShift,     Relation::kSequence, Relation::kPadding,  Relation::kPieces,
                                   Relation::kPacked};
static_assert(kAllRelations.size() == static_cast<size_t>(Relation::kCount));

constexpr uint64_t kLine = 64, kPage = 4096;  // bytes

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}
std::optional<int64_t> unless_zero(int64_t number) {
  return number == 0 ? std::nullopt : std::optional(number);
}

std::string relation_text(const Finding& finding) {
  const Variation& variation = finding.variation;
  switch (finding.relation) {
    case Relation::kRepeat:
      if (variation.runs == 0) return "does not repeat its bits";
      return "does not repeat its bits (" + std::to_string(variation.other_runs) + " of " +
             std::to_string(variation.runs) + " runs are other" + (variation.transient ? "; it happened once" : "") +
             ")";
    case Relation::kMemory:
      return "has other bits in other memory";
    case Relation::kThreads:
      return "has other bits with another number of threads";
    case Relation::kStream:
      return "has other bits on another stream of the device";
    case Relation::kNeighbour:
      return "has other bits beside other values in the batch (" + variation.rows_of_run + ", of " +
             std::to_string(variation.rows) + ")";
    case Relation::kBatch:
      return "has other bits in another batch (" + variation.rows_of_run + ", of " + std::to_string(variation.rows) +
             (variation.begins ? "; from " + std::to_string(variation.begins) + " rows on" : "") + ")";
    case Relation::kStrides:
      return "has other bits with other strides (a gap behind each row, or none)";
    case Relation::kShift:
      return "has other bits at another place of its sequence (" + variation.rows_of_run + ", of " +
             std::to_string(variation.rows) + " rows)";
    case Relation::kSequence:
      return "has other bits in another sequence (" + variation.rows_of_run + ", of " + std::to_string(variation.rows) +
             " rows)";
    case Relation::kPadding:
      return "has other bits with more keys that are left out (" + variation.rows_of_run + ")";
    case Relation::kPieces:
      return "has other bits with its queries in pieces (" + variation.rows_of_run + ")";
    case Relation::kPacked:
      return "has other bits with its sequences packed behind each other (" + variation.rows_of_run + ")";
    default:
      return "has other bits at another position of the batch (" + variation.rows_of_run + ", of " +
             std::to_string(variation.rows) + ")";
  }
}

std::string difference_text(const BitDifference& difference) {
  if (!difference.structure.empty()) return difference.structure;
  std::string text = std::to_string(difference.elements) + " of " + std::to_string(difference.numel) + " elements";
  if (difference.of_rows > 1) {
    text += " in " + std::to_string(difference.rows) + " of " + std::to_string(difference.of_rows) + " rows";
  }
  if (difference.max_ulp > 0) text += formatted(", at most %.4g ULP", difference.max_ulp);
  return text + ", " + bits_text(difference.bits);
}

// Of the run that is alone among all: nullptr where that is not known.
const std::vector<uint64_t>* addresses_of(const Variation& variation) {
  switch (variation.odd) {
    case OddRun::kProgram:
      return &variation.difference.program_addresses;
    case OddRun::kOther:
      return &variation.difference.other_addresses;
    default:
      return nullptr;
  }
}

template <class Numbers>
std::optional<std::string> listed(const Numbers& numbers) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kMost); ++i) text += (i ? " " : "") + std::to_string(numbers[i]);
  if (numbers.size() > kMost) text += " ...";
  return unless_empty(text);
}

std::optional<std::string> places_text(const BitDifference& difference) {
  return listed(difference.places);
}

std::optional<std::string> page_bytes_text(const Variation& variation) {
  const std::vector<uint64_t>* addresses = addresses_of(variation);
  if (!addresses) return std::nullopt;
  std::vector<uint64_t> bytes = *addresses;
  for (uint64_t& byte : bytes) byte %= kPage;
  return listed(bytes);
}

Value counts_of(const CountsBy<Relation>& counts) {
  std::vector<std::pair<Value, Value>> items;
  for (const Relation relation : kAllRelations) {
    items.emplace_back(std::string(token_of(relation).name), static_cast<int64_t>(counts[relation]));
  }
  return make_dict(std::move(items));
}

std::string names_of(const CountsBy<Relation>& counts) {
  std::string names;
  for (const Relation relation : kAllRelations) {
    if (counts[relation] > 0) names += (names.empty() ? "" : " ") + std::string(token_of(relation).name);
  }
  return names;
}

}  // namespace

const Columns<Finding>& Finding::columns() {
  static const Columns<Finding> all{
      "InvarianceRow",
      "A result whose bits a relation should have kept.",
      {
          {"op", [](const Finding& finding) { return finding.call.name; }, "the operator"},
          {"id", [](const Finding& finding) { return finding.call.id; }, "of the call"},
          {"step", [](const Finding& finding) { return finding.call.step; }, "of the call"},
          {"level", [](const Finding& finding) { return to_string(finding.call.level); }, "torch or aten"},
          {"phase", [](const Finding& finding) { return to_string(finding.call.phase); }, "forward or backward"},
          {"relation", [](const Finding& finding) { return token_of(finding.relation).name; },
           "repeat: the same inputs again; memory: in other memory; threads: with another number of threads; stream: "
           "on another stream; neighbour: beside other values in the batch; batch: in a batch of another size; "
           "position: at another position of the batch; strides: with other gaps in memory; shift: at another place of "
           "its sequence; sequence: in another sequence; padding: with more keys that are left out; pieces: with its "
           "queries in pieces; packed: with its "
           "sequences behind each other"},
          {"transient", [](const Finding& finding) { return finding.variation.transient; },
           "repeat: a single run of all has other bits; False: several have"},
          {"runs", [](const Finding& finding) { return unless_zero(finding.variation.runs); },
           "repeat: runs on the same inputs, besides the program's"},
          {"other_runs", [](const Finding& finding) { return unless_zero(finding.variation.other_runs); },
           "those of them whose bits are not the program's"},
          {"output", [](const Finding& finding) { return finding.variation.difference.output; },
           "which result (then: which input that the call wrote), or input gradient"},
          {"elements", [](const Finding& finding) { return finding.variation.difference.elements; },
           "that have other bits"},
          {"numel", [](const Finding& finding) { return finding.variation.difference.numel; }, "of all"},
          {"rows", [](const Finding& finding) { return finding.variation.difference.rows; },
           "of the first dimension: with such an element"},
          {"of_rows", [](const Finding& finding) { return finding.variation.difference.of_rows; }, "of all"},
          {"max_ulp", [](const Finding& finding) { return finding.variation.difference.max_ulp; },
           "the largest difference, in units of the last place"},
          {"max_abs", [](const Finding& finding) { return finding.variation.difference.max_abs; },
           "the largest difference"},
          {"bits", [](const Finding& finding) { return bits_text(finding.variation.difference.bits); },
           "of an element, from the lowest: those that differ in any"},
          {"places", [](const Finding& finding) { return places_text(finding.variation.difference); },
           "the first elements that have other bits, by their numbers in the order of elements"},
          {"page_bytes", [](const Finding& finding) { return page_bytes_text(finding.variation); },
           "of a single run: where they lie, their addresses modulo 4096"},
          {"structure", [](const Finding& finding) { return unless_empty(finding.variation.difference.structure); },
           "where shape, dtype or number of tensors is another"},
          {"batch", [](const Finding& finding) { return unless_zero(finding.variation.rows); },
           "rows of the program's call"},
          {"run", [](const Finding& finding) { return unless_empty(finding.variation.rows_of_run); },
           "neighbour, batch, position, shift, sequence, padding, pieces, packed: the rows of the run with other bits"},
          {"begins", [](const Finding& finding) { return unless_zero(finding.variation.begins); },
           "batch: the smallest number of rows with other bits than fewer rows have"},
          {"right", [](const Finding& finding) { return token_of(finding.variation.rightness).name; },
           "by float64: both right, program wrong, other wrong, both wrong, unknown"},
          {"device", &Finding::device, "of the call"},
          {"module", [](const Finding& finding) { return unless_empty(finding.call.module); },
           "as in ResNet.layer3.0.conv1"},
          {"line", [](const Finding& finding) { return unless_empty(finding.call.line()); }, "of the program"},
          {"saved", [](const Finding& finding) { return unless_empty(finding.saved); },
           "the call's folder, for op-tools repro"},
      }};
  return all;
}

const Columns<Op>& Op::columns() {
  static const Columns<Op> all{
      "InvariantOp",
      "The relations of an operator's calls: kept, not kept, not judged.",
      {
          {"op", &Op::op, "the operator"},
          {"calls", &Op::calls, "forward calls that were run again"},
          {"backward", &Op::backward, "backward passes that were run again"},
          {"kept", [](const Op& op) { return op.kept.total(); }, "relations that kept the bits"},
          {"repeat", [](const Op& op) { return op.varied[Relation::kRepeat]; }, "calls that did not repeat their bits"},
          {"memory", [](const Op& op) { return op.varied[Relation::kMemory]; }, "that have other bits in other memory"},
          {"threads", [](const Op& op) { return op.varied[Relation::kThreads]; }, "with another number of threads"},
          {"stream", [](const Op& op) { return op.varied[Relation::kStream]; }, "on another stream of the device"},
          {"neighbour", [](const Op& op) { return op.varied[Relation::kNeighbour]; },
           "beside other values in the other rows of the batch"},
          {"batch", [](const Op& op) { return op.varied[Relation::kBatch]; }, "in a batch of another size"},
          {"position", [](const Op& op) { return op.varied[Relation::kPosition]; }, "at another position of the batch"},
          {"strides", [](const Op& op) { return op.varied[Relation::kStrides]; }, "with other gaps in memory"},
          {"shift", [](const Op& op) { return op.varied[Relation::kShift]; }, "at another place of its sequence"},
          {"sequence", [](const Op& op) { return op.varied[Relation::kSequence]; }, "in another sequence"},
          {"padding", [](const Op& op) { return op.varied[Relation::kPadding]; }, "with more keys that are left out"},
          {"pieces", [](const Op& op) { return op.varied[Relation::kPieces]; }, "with queries in pieces"},
          {"packed", [](const Op& op) { return op.varied[Relation::kPacked]; }, "with sequences behind each other"},
          {"keeps", [](const Op& op) { return names_of(op.kept); },
           "the relations in which calls kept their bits, separated by blanks"},
          {"not_judged", &Op::not_judged, "relations without a verdict"},
          {"transient", &Op::transient, "findings with a single run of other bits"},
          {"max_ulp", &Op::max_ulp, "the largest difference, in units of the last place"},
          {"reason", &Op::reason, "of the first relation that was not judged"},
          {"source", &Op::source, "the user's line of the first finding"},
      }};
  return all;
}

namespace {

using Faults = InvarianceResult::Faults;

Faults::Counts bits_of(const Faults& faults) {
  Faults::Counts bits;
  for (size_t bit = 0; bit < faults.by_bit.size(); ++bit) {
    if (faults.by_bit[bit] > 0) bits[static_cast<int64_t>(bit)] = faults.by_bit[bit];
  }
  return bits;
}

Value faults_of(const std::map<std::string, Faults>& faults) {
  const auto dict_of = [](const Faults::Counts& counts) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [place, count] : counts) items.emplace_back(place, static_cast<int64_t>(count));
    return make_dict(std::move(items));
  };
  std::vector<std::pair<Value, Value>> devices;
  for (const auto& [device, counts] : faults) {
    devices.emplace_back(device, make_dict({{"rank", counts.rank},
                                            {"transient", static_cast<int64_t>(counts.transient)},
                                            {"persistent", static_cast<int64_t>(counts.persistent)},
                                            {"bits", dict_of(bits_of(counts))},
                                            {"line_bytes", dict_of(counts.by_line)},
                                            {"page_bytes", dict_of(counts.by_page)}}));
  }
  return make_dict(std::move(devices));
}

// The most frequent first: "13: 4 2: 1".
std::string counts_text(const Faults::Counts& counts) {
  constexpr size_t kMost = 8;
  std::vector<std::pair<int64_t, uint64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(order.size(), kMost); ++i) {
    text += " " + std::to_string(order[i].first) + ": " + std::to_string(order[i].second);
  }
  return text + (order.size() > kMost ? " ..." : "");
}

std::string faults_text(const std::string& device, const Faults& faults) {
  std::string text = "rank " + std::to_string(faults.rank) + ", " + device + ": " + std::to_string(faults.transient) +
                     " calls had other bits in a single run, " + std::to_string(faults.persistent) +
                     " in several; how often by bit:" + counts_text(bits_of(faults));
  if (faults.by_line.empty()) return text;
  return text + "\n  single runs, elements by byte of a line of 64:" + counts_text(faults.by_line) +
         "\n  by byte of a page of 4096:" + counts_text(faults.by_page);
}

}  // namespace

Value to_value(const InvarianceResult& result) {
  const auto number = [](uint64_t count) { return Value(static_cast<int64_t>(count)); };
  std::vector<std::pair<Value, Value>> reasons;
  for (const auto& [reason, count] : result.reasons) reasons.emplace_back(reason, number(count));
  return make_dict({{"rows", Finding::columns().values(result.findings)},
                    {"ops", Op::columns().values(result.ops)},
                    {"calls", number(result.calls)},
                    {"kept", counts_of(result.kept)},
                    {"varied", counts_of(result.varied)},
                    {"not_judged", number(result.unjudged.total())},
                    {"transient", number(result.transient)},
                    {"faults", faults_of(result.faults)},
                    {"reasons", make_dict(std::move(reasons))},
                    {"left_out", number(result.left_out)},
                    {"rows_dropped", number(result.rows_dropped)},
                    {"root", result.root},
                    {"failure", result.failure}});
}

std::string sentence_of(const Finding& finding) {
  std::string text = finding.call.name;
  if (finding.call.phase == Phase::kBackward) text += " backward";
  text += " " + relation_text(finding) + ": " + difference_text(finding.variation.difference);
  if (finding.variation.rightness != Rightness::kUnknown) {
    text += "; " + std::string(token_of(finding.variation.rightness).help);
  }
  if (!finding.call.module.empty()) text += "; in " + finding.call.module;
  if (!finding.call.stack.empty()) text += "; called at " + finding.call.line();
  return printable(text);
}

std::string command_of(const Finding& finding) {
  return finding.saved.empty()
             ? ""
             : "; to show it with torch alone: op-tools repro " + printable(shown_path(finding.saved));
}

void InvarianceResult::Faults::add(const Variation& variation) {
  ++(variation.transient ? transient : persistent);
  for (size_t bit = 0; bit < by_bit.size(); ++bit) by_bit[bit] += variation.difference.bits >> bit & 1;
  const std::vector<uint64_t>* addresses = addresses_of(variation);
  if (!addresses) return;
  for (const uint64_t address : *addresses) {
    ++by_line[static_cast<int64_t>(address % kLine)];
    ++by_page[static_cast<int64_t>(address % kPage)];
  }
}

void InvarianceReport::failed_to_write(const std::string& problem) {
  if (!totals_.failure.empty()) return;
  totals_.failure = problem;
  log::error("OpInvariance cannot write its files and goes on without: " + problem);
}

void InvarianceReport::open_files() {
  if (!totals_.root.empty() || !totals_.failure.empty()) return;
  try {
    totals_.root = claim_run_folder(options_.output_dir, "op_invariance_result", rank_);
    csv_.emplace(totals_.root + "/invariance.csv", Finding::columns().names());
    jsonl_.emplace(totals_.root + "/invariance.jsonl");
    store_ = CallStore::in_folder(totals_.root);
  } catch (const std::exception& error) {
    failed_to_write(error.what());
  }
}

// The call's folder; empty when it is not saved.
std::string InvarianceReport::save(const Finding& finding, const std::string& kind,
                                   const std::function<SavedRun()>& saved) {
  if (!store_ || !saved || !totals_.failure.empty()) return {};
  const bool is_full = saved_bytes_ >= static_cast<size_t>(options_.max_saved_mb << 20);
  int64_t& count = saved_by_kind_[kind];
  if (count >= options_.max_saved || is_full) return {};
  try {
    SavedRun run = saved();
    const std::string relation(token_of(finding.relation).name);
    run.call.variation = make_dict({{"relation", relation},
                                    {"phase", std::string(to_string(finding.call.phase))},
                                    {"text", sentence_of(finding)},
                                    {"runs", finding.variation.runs},
                                    {"changes", to_value(finding.variation.changes)}});
    saved_bytes_ += run.bytes;
    ++count;
    const bool is_backward = finding.call.phase == Phase::kBackward;
    return write_call(*store_, run.call, relation + (is_backward ? "_backward" : ""));
  } catch (const std::exception& error) {
    failed_to_write(error.what());
    return {};
  }
}

void InvarianceReport::write(const Finding& finding) {
  if (!csv_ || !jsonl_ || !totals_.failure.empty()) return;
  try {
    const Value row = Finding::columns().value(finding);
    csv_->add(row);
    jsonl_->add(row);
  } catch (const std::exception& error) {
    failed_to_write(error.what());
  }
}

void InvarianceReport::add(const CallInfo& call, const std::string& device, std::vector<RelationVerdict> verdicts,
                           const std::function<SavedRun()>& saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_files();
  Op& op = ops_[call.name];
  op.op = call.name;
  ++(call.phase == Phase::kForward ? op.calls : op.backward);
  ++totals_.calls;
  totals_.devices[device.substr(0, device.find(':'))] += verdicts.size();
  for (RelationVerdict& verdict : verdicts) {
    if (verdict.verdict == Verdict::kAgrees) {
      ++op.kept[verdict.relation];
      ++totals_.kept[verdict.relation];
    } else if (verdict.verdict == Verdict::kNotJudged) {
      ++op.not_judged;
      ++totals_.unjudged[verdict.unjudged];
      if (op.reason.empty()) op.reason = verdict.reason;
      const bool known = totals_.reasons.contains(verdict.reason) || totals_.reasons.size() < kMostReasons;
      ++totals_.reasons[known ? verdict.reason : "other reasons"];
    } else if (verdict.variation) {
      Finding finding{call, device, verdict.relation, std::move(*verdict.variation), ""};
      if (op.source.empty()) op.source = call.line();
      ++op.varied[finding.relation];
      ++totals_.varied[finding.relation];
      op.transient += finding.variation.transient;
      totals_.transient += finding.variation.transient;
      if (finding.relation == Relation::kRepeat) {
        InvarianceResult::Faults& faults = totals_.faults[device];
        faults.rank = rank_;
        faults.add(finding.variation);
      }
      op.max_ulp = std::max(op.max_ulp, finding.variation.difference.max_ulp);
      const std::string kind = finding.call.name + to_string(finding.call.phase) + finding.call.module +
                               std::string(token_of(finding.relation).name);
      finding.saved = save(finding, kind, saved);
      finding.variation.changes = {};  // they are in the file; ten thousand findings would hold many
      lines_.warn(kind, "OpInvariance: " + sentence_of(finding) + command_of(finding));
      write(finding);
      const bool is_full = totals_.findings.size() >= InvarianceResult::kMostFindings;
      totals_.rows_dropped += is_full;
      if (!is_full) totals_.findings.push_back(finding);
    }
  }
}

void InvarianceReport::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (csv_ && totals_.failure.empty()) csv_->flush();
    if (jsonl_ && totals_.failure.empty()) jsonl_->flush();
  } catch (const std::exception& error) {
    failed_to_write(error.what());
  }
}

InvarianceResult InvarianceReport::result() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  InvarianceResult result = totals_;
  result.left_out = left_out_.load(std::memory_order_relaxed);
  for (const auto& [name, op] : ops_) result.ops.push_back(op);
  return result;
}

std::string InvarianceReport::untold_text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lines_.untold_text();
}

void InvarianceReport::summarize() const {
  InvarianceResult summary = result();
  if (summary.calls == 0) return;
  std::stable_sort(summary.ops.begin(), summary.ops.end(), [](const Op& a, const Op& b) {
    return a.varied.total() != b.varied.total() ? a.varied.total() > b.varied.total() : a.not_judged > b.not_judged;
  });
  const auto cell = [](uint64_t count) { return count ? std::to_string(count) : std::string("-"); };
  std::vector<std::vector<std::string>> lines;
  // A column for each relation that was not kept: all of them would not fit a terminal.
  std::vector<Relation> varied;
  std::vector<TableColumn> columns{{"op"}, {"calls", true}};
  for (const Relation relation : kAllRelations) {
    if (summary.varied[relation] == 0) continue;
    varied.push_back(relation);
    columns.push_back({std::string(token_of(relation).name), true});
  }
  columns.insert(columns.end(), {{"kept", true}, {"not judged", true}, {"ULP", true}});
  constexpr size_t kMost = 10;
  for (const Op& op : summary.ops) {
    if (lines.size() >= kMost && op.varied.total() == 0) break;
    std::vector<std::string> line{op.op, std::to_string(op.calls + op.backward)};
    for (const Relation relation : varied) line.push_back(cell(op.varied[relation]));
    line.insert(line.end(), {std::to_string(op.kept.total()), cell(op.not_judged),
                             op.max_ulp > 0 ? formatted("%.4g", op.max_ulp) : std::string("-")});
    lines.push_back(std::move(line));
  }
  std::string text = "OpInvariance: " + std::to_string(summary.calls) + " calls run again, " +
                     std::to_string(summary.kept.total()) + " relations kept, " +
                     std::to_string(summary.unjudged.total()) + " not judged, " +
                     std::to_string(summary.varied.total()) + " NOT KEPT" + untold_text();
  if (summary.left_out) text += "; " + std::to_string(summary.left_out) + " calls left out by the limits";
  if (!summary.root.empty()) text += "; files in " + shown_path(summary.root);
  text += "\n" + text_table(columns, lines);
  for (const auto& [device, faults] : summary.faults) text += "\n" + faults_text(device, faults);
  (summary.varied.total() ? log::warn : log::notice)(text);
}

}  // namespace op_tools
