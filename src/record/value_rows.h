// The rows of tensors' values: which of them are known already, where they come from, and the questions to devices that
// still wait for their answers. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "record/named_tensors.h"
#include "record/row_tables.h"
#include "tensor/known_tensors.h"
#include "tensor/statistics.h"

namespace op_tools {

// The row of a tensor's value, and the question that its statistics come from; nullptr: it was not asked.
struct KnownValue {
  uint32_t number = kNoCall;
  std::shared_ptr<StatisticsQuery> question = nullptr;

  bool is_known() const { return number != kNoCall; }
};

// Questions to devices, while they are answered without the lock.
struct OpenValues {
  std::vector<std::shared_ptr<StatisticsQuery>> questions;
  OpenStatistics statistics;
};

class ValueRows {
 public:
  explicit ValueRows(RowTables& rows) : rows_(rows) {}

  // `place`: place_of(tensor).
  KnownValue find(const at::Tensor& tensor, size_t place) const { return known_.find(tensor, place); }
  void forget(const at::Tensor& tensor) { known_.forget(tensor); }
  // By a call; `counted`: its version counter moved.
  void written(const at::Tensor& tensor, bool counted) { known_.written(tensor, counted); }
  TensorOrigin origin(const at::Tensor& tensor) const { return origins_.find(tensor); }
  void name(const NamedTensor& named) { origins_.name(named.tensor, named.origin, rows_.string(named.name)); }

  // A new row.
  KnownValue add(const at::Tensor& tensor, const TensorOrigin& origin, WrittenPart written,
                 std::shared_ptr<StatisticsQuery> question);
  void know(const at::Tensor& tensor, size_t place, const KnownValue& value) { known_.put(tensor, place, value); }
  // The row is of an output; an output that is no view of an input was made by the call.
  KnownValue add_output(const at::Tensor& tensor, uint32_t call, uint32_t output, bool is_view, WrittenPart written,
                        std::shared_ptr<StatisticsQuery> question);

  // The elements of the value of this number are known now.
  void arrived(uint32_t number, const at::Tensor& tensor, std::shared_ptr<StatisticsQuery> question);

  // Questions to devices: all of them are read with a single transfer per device.
  size_t open() const { return open_.size(); }
  OpenValues open_values() const;
  void answer(OpenValues& read);

  uint64_t count() const { return count_; }
  uint64_t read_backs() const { return read_backs_; }
  uint64_t by_device(c10::DeviceType device) const;  // values that devices of this type have computed alone

 private:
  StringNumber device_of(const at::Tensor& tensor);
  void fill(const StatisticsQuery& question, c10::DeviceType device, RecordedValue* row);

  RowTables& rows_;
  KnownTensors<KnownValue> known_;
  TensorOrigins origins_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, StringNumber> devices_;
  std::optional<std::pair<c10::Device, StringNumber>> last_device_;
  struct Open {
    uint32_t number;  // of the value
    c10::DeviceType device;
    std::shared_ptr<StatisticsQuery> question;
  };
  std::vector<Open> open_;
  std::map<c10::DeviceType, uint64_t> by_device_;
  uint64_t count_ = 0, read_backs_ = 0;
};

}  // namespace op_tools
