#include "record/value_rows.h"

#include <algorithm>
#include <limits>

#include "tensor/plain_tensor.h"

namespace op_tools {
void ValueRows::fill(const StatisticsQuery& question, c10::DeviceType device, RecordedValue* row) {
  const Statistics& statistics = question.answer();
  if (!statistics.known) return;
  row->known = true;
  row->by_device = question.by_device();
  if (row->by_device) ++by_device_[device];
  row->hash = statistics.hash;
  row->nan = statistics.nan;
  row->inf = statistics.inf;
  row->zero = statistics.zero;
  row->min = statistics.min;
  row->max = statistics.max;
  row->mean = statistics.mean;
  row->norm = statistics.norm;
  row->projections = statistics.projections;
}

uint64_t ValueRows::by_device(c10::DeviceType device) const {
  const auto entry = by_device_.find(device);
  return entry == by_device_.end() ? 0 : entry->second;
}

StringNumber ValueRows::device_of(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  if (last_device_ && last_device_->first == device) return last_device_->second;
  const auto [place, is_new] = devices_.try_emplace({device.type(), device.index()}, 0);
  if (is_new) place->second = rows_.string(device.str());
  last_device_.emplace(device, place->second);
  return place->second;
}

KnownValue ValueRows::add(const at::Tensor& tensor, const TensorOrigin& origin, WrittenPart written,
                          std::shared_ptr<StatisticsQuery> question) {
  RecordedValue row;
  row.origin = origin.origin;
  row.written = written;
  row.producer = origin.producer;
  row.output = origin.output;
  row.name = origin.name;
  row.dtype = tensor.scalar_type();
  row.device = device_of(tensor);
  if (!tensor.is_nested()) {
    row.shape = rows_.list(own_sizes(tensor));
    if (tensor.layout() == at::kStrided) row.stride = rows_.list(own_strides(tensor));
  }
  row.nan = row.inf = row.zero = -1;
  row.projections.fill(std::numeric_limits<double>::quiet_NaN());
  const c10::DeviceType device = tensor.device().type();
  if (question && question->answered()) fill(*question, device, &row);
  const uint32_t number = rows_.add_value(row);
  if (question && !question->answered()) open_.push_back({number, device, question});
  ++count_;
  return {number, std::move(question)};
}

KnownValue ValueRows::add_output(const at::Tensor& tensor, uint32_t call, uint32_t output, bool is_view,
                                 WrittenPart written, std::shared_ptr<StatisticsQuery> question) {
  const StringNumber name = is_view ? origins_.find(tensor).name : origins_.note_producer(tensor, call, output);
  return add(tensor, {Origin::kCall, call, output, name}, written, std::move(question));
}

void ValueRows::arrived(uint32_t number, const at::Tensor& tensor, std::shared_ptr<StatisticsQuery> question) {
  RecordedValue* const row = rows_.value(number);
  if (!row || !question) return;
  if (question->answered()) {
    fill(*question, tensor.device().type(), row);
  } else {
    open_.push_back({number, tensor.device().type(), question});
  }
  known_.put(tensor, {number, std::move(question)});
}

OpenValues ValueRows::open_values() const {
  std::vector<std::shared_ptr<StatisticsQuery>> questions;
  for (const Open& open : open_) questions.push_back(open.question);
  std::sort(questions.begin(), questions.end());
  questions.erase(std::unique(questions.begin(), questions.end()), questions.end());
  std::vector<StatisticsQuery*> pointers;
  for (const auto& question : questions) pointers.push_back(question.get());
  return {std::move(questions), OpenStatistics(pointers)};
}

void ValueRows::answer(OpenValues& read) {
  read.statistics.give();
  ++read_backs_;
  std::erase_if(open_, [&](const Open& open) {
    if (!open.question->answered()) return false;  // asked since
    if (RecordedValue* const row = rows_.value(open.number)) fill(*open.question, open.device, row);
    return true;
  });
}

}  // namespace op_tools
