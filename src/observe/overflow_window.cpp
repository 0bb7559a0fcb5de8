#include "observe/overflow_window.h"

#include <algorithm>

#include "base/log.h"
#include "base/run_folder.h"
#include "tensor/internal_guard.h"

namespace op_tools {
namespace {

constexpr size_t kMaxFindings = 1000;     // in memory; all are in the file and in the counts
constexpr int64_t kMostHeld = 256 << 20;  // bytes of tensors that wait to be judged

}  // namespace

OverflowWindow::OverflowWindow(const ResolvedOverflowOptions& options, int64_t rank)
    : options_(options), rank_(rank), archive_(options.max_saved, options.max_saved_mb << 20) {}

void OverflowWindow::before_write(const std::vector<std::pair<size_t, at::Tensor>>& written) {
  VersionedTensor::Copies copies;
  for (const auto& [index, target] : written) {
    for (OverflowRecord& record : records_) {
      for (auto* tensors : {&record.call.inputs, &record.call.outputs}) {
        for (VersionedTensor& retained : *tensors) held_bytes_ += retained.before_write(target, copies);
      }
    }
    if (held_bytes_ >= kMostHeld) return judge();
  }
}

// Parameters are there anyway; the other tensors that the window holds count once.
void OverflowWindow::hold(const VersionedTensor& retained) {
  const at::Tensor& tensor = retained.tensor();
  if (!tensor.defined() || tensor.requires_grad()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (held_storages_.insert(storage).second) held_bytes_ += static_cast<int64_t>(tensor.nbytes());
}

void OverflowWindow::add(OverflowRecord record) {
  for (const VersionedTensor& input : record.call.inputs) hold(input);
  for (const VersionedTensor& output : record.call.outputs) hold(output);
  records_.push_back(std::move(record));
}

bool OverflowWindow::is_full() const {
  return static_cast<int64_t>(records_.size()) >= options_.every || held_bytes_ >= kMostHeld;
}

void OverflowWindow::judge() {
  std::vector<NonFiniteQuery*> queries;
  for (OverflowRecord& record : records_) {
    for (const auto* flags : {&record.inputs, &record.outputs}) {
      for (const FlagPtr& flag : *flags) {
        if (flag && flag->question) queries.push_back(&*flag->question);
      }
    }
  }
  const InternalGuard ours;  // also where no chain has put a guard: at the end of a step, of the scope
  std::sort(queries.begin(), queries.end());
  queries.erase(std::unique(queries.begin(), queries.end()), queries.end());
  NonFiniteQuery::answer_all(queries);
  for (OverflowRecord& record : records_) judge(record);
  records_.clear();
  held_storages_.clear();
  held_bytes_ = 0;
}

void OverflowWindow::note_memory(const Flag& flag) {
  if (!flag.storage || flag.storage->expired()) return;
  constexpr size_t kMany = 1024;
  if (of_calls_.size() >= kMany) std::erase_if(of_calls_, [](const auto& entry) { return entry.second.expired(); });
  of_calls_.insert_or_assign(flag.storage->_unsafe_get_target(), *flag.storage);
}

bool OverflowWindow::is_of_call(const Flag& flag) const {
  return flag.storage && !flag.storage->expired() && of_calls_.contains(flag.storage->_unsafe_get_target());
}

Specials OverflowWindow::that_count(const Specials& values) const {
  return options_.inf ? values : Specials{values.nan, false, false};
}

void OverflowWindow::judge(OverflowRecord& record) {
  // An input that no judged call made came from outside: -inf alone is taken for a mask, the rest counts.
  Specials specials, given_allowed;
  for (const FlagPtr& flag : record.inputs) {
    if (!flag->judged && flag->question) {
      const Specials values = that_count(flag->question->answer());
      (values.only_neg_inf() ? flag->allowed : flag->unsound) = values;
      flag->judged = true;
      result_.came_in += flag->unsound.any() && !flag->by_program && !is_of_call(*flag);
    }
    specials.add(flag->unsound);
    given_allowed.add(flag->allowed);
  }
  // Numbers that the program itself gives: -inf alone makes a mask (scatter, F.pad(value=-inf)).
  const bool makes_mask = record.scalars.only_neg_inf();
  (makes_mask ? given_allowed : specials).add(that_count(record.scalars));
  std::string saved, not_saved;  // a single folder, whichever of its outputs
  for (size_t i = 0; i < record.outputs.size(); ++i) {
    if (!record.outputs[i] || !record.outputs[i]->question || record.outputs[i]->judged) continue;
    Flag& flag = *record.outputs[i];
    flag.judged = true;
    const Specials values = that_count(flag.question->answer());
    if (!values.any()) continue;
    if (values.only_neg_inf() && !specials.any() && (record.allows_neg_inf || given_allowed.any())) {
      flag.allowed = values;
      continue;
    }
    flag.unsound = values;
    note_memory(flag);
    const bool is_given =
        specials.any() || record.reads_unseen || (makes_mask && !values.nan);  // x * -inf has +inf as well
    result_.came_in += record.reads_unseen && !specials.any();
    OverflowResult::Finding finding = finding_of(record, i, /*producer=*/!is_given);
    write([&] { open_file(); });
    if (finding.producer && !finding.expected && options_.max_saved > 0) {
      if (saved.empty() && not_saved.empty()) save(record.call, &saved, &not_saved);
      finding.saved = saved;
      finding.not_saved = not_saved;
    }
    report(std::move(finding));
  }
}

OverflowResult::Finding OverflowWindow::finding_of(const OverflowRecord& record, size_t output, bool producer) const {
  OverflowResult::Finding finding;
  finding.call = record.call.meta;
  finding.call.phase = record.backward ? Phase::kBackward : Phase::kForward;
  finding.producer = producer;
  finding.expected = record.backward && options_.allow_in_backward_with_scaler;
  finding.output = output;
  const VersionedTensor& output_tensor = record.call.outputs[output];
  if (output_tensor.tensor().defined()) finding.tensor = TensorShape::of(output_tensor.tensor());
  if (output_tensor.is_unchanged() && (producer || result_.findings.size() < kMaxFindings)) {
    const at::Tensor& written = record.outputs[output]->written;
    const SpecialsCount count =
        count_specials(written.defined() ? written_alone(output_tensor.tensor(), written) : output_tensor.tensor());
    finding.nan = count.nan;
    finding.pos_inf = count.pos_inf;
    finding.neg_inf = count.neg_inf;
    finding.first = count.first;
  }
  return finding;
}

void OverflowWindow::save(const RetainedCall& call, std::string* saved, std::string* not_saved) {
  if (call.inputs.empty() && archive_.is_full()) {
    *not_saved = "max_saved_mb is reached";
    return;
  }
  write([&] { *saved = archive_.save(call, result_.root, rank_, not_saved); });
  if (!result_.failure.empty()) *not_saved = result_.failure;
}

void OverflowWindow::open_file() {
  if (file_) return;
  result_.root = claim_run_folder(options_.output_dir, "op_overflow_check_result", rank_);
  file_ = std::make_unique<RowFile>(result_.root + "/overflow.jsonl");
}

template <class Work>
void OverflowWindow::write(const Work& work) {
  if (!result_.failure.empty()) return;
  try {
    work();
  } catch (const std::exception& error) {
    result_.failure = error.what();
    log::error("OpOverflowCheck cannot write its files and goes on without: " + result_.failure);
  }
}

void OverflowWindow::report(OverflowResult::Finding finding) {
  ++(finding.expected ? result_.expected : finding.producer ? result_.producers : result_.propagators);
  if (finding.producer && !finding.expected) {
    const std::string text = sentence_of(finding);
    if (first_producer_.empty()) first_producer_ = text;
    const std::string kind = finding.call.name + to_string(finding.call.phase) + finding.call.module;
    lines_.warn(kind, "OpOverflowCheckHook: " + text);
  }
  write([&] { file_->add(OverflowResult::Finding::columns().value(finding)); });
  if (result_.findings.size() < kMaxFindings) result_.findings.push_back(std::move(finding));
}

void OverflowWindow::flush_file() {
  write([&] {
    if (result_.calls > 0) open_file();  // a run in which nothing was found stands in a report, too
    if (file_) file_->flush();
  });
}

void OverflowWindow::write_summary() {
  write([&] {
    if (!file_) return;
    RowFile file(result_.root + "/summary.jsonl");
    file.add(make_dict(
        {{"calls", static_cast<int64_t>(result_.calls)}, {"came_in", static_cast<int64_t>(result_.came_in)}}));
    file.flush();
  });
}

std::string OverflowWindow::untold_text() const {
  return lines_.untold_text();
}

}  // namespace op_tools
