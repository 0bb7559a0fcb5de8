#include "compare/memory_beside.h"

#include <algorithm>
#include <cstring>

#include "hooks/collectives.h"
#include "hooks/written_inputs.h"
#include "tensor/element_runs.h"

namespace op_tools {
namespace {

constexpr int64_t kMostGaps = 4;            // times the tensor's own bytes
constexpr int64_t kSmallRange = 64 * 1024;  // bytes, whatever its own

bool has_memory(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && tensor.layout() == at::kStrided && why_not_plain(tensor, &type).empty() &&
         tensor.has_storage() && tensor.numel() > 0 && is_in_storage(tensor);
}

}  // namespace

void MemoryBeside::take(OpCall& call, const std::vector<at::Tensor>& inputs) {
  if (call.is_graph || is_collective(call)) return;  // other ranks and other kernels of the graph write, too
  take(op_tools::written_inputs(call), inputs);
}

void MemoryBeside::take(const std::vector<bool>& writes, const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < writes.size() && i < inputs.size(); ++i) {
    if (!writes[i] || !has_memory(inputs[i])) continue;
    const at::Tensor tensor = without_bits(inputs[i]);
    const ByteRange range = bytes_shown(tensor);
    const int64_t own = tensor.numel() * static_cast<int64_t>(tensor.itemsize());
    const bool has_gaps = own < range.end - range.begin && range.end - range.begin <= kMostGaps * own + kSmallRange;
    written_.push_back({i, tensor, range, has_gaps});
  }
  for (size_t i = 0; i < written_.size(); ++i) {
    const auto& [input, tensor, range, has_gaps] = written_[i];
    const int64_t begin = std::max<int64_t>(range.begin - kBytes, 0);
    const int64_t end = std::min(range.end + kBytes, static_cast<int64_t>(storage_bytes(tensor)));
    if (has_gaps) {
      add_region(i, begin, end);
    } else {
      add_region(i, begin, range.begin);
      add_region(i, range.end, end);
    }
  }
}

void MemoryBeside::add_region(size_t written, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const at::Tensor& tensor = written_[written].tensor;
  Region region{written, bytes_of_storage(tensor, {begin, end}), tensor.storage().data(), {}};
  region.before = read(region);
  regions_.push_back(std::move(region));
}

// On the CPU; zeros in the place of the bytes that the call may write.
at::Tensor MemoryBeside::read(const Region& region) const {
  at::Tensor copy = region.bytes.to(region.bytes.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
  for (const Written& written : written_) {
    if (written.tensor.storage().is_alias_of(region.bytes.storage())) {
      clear_own(region, written, copy.mutable_data_ptr<uint8_t>());
    }
  }
  return copy;
}

void MemoryBeside::clear_own(const Region& region, const Written& written, uint8_t* copy) const {
  const int64_t first = region.bytes.storage_offset(), size = region.bytes.numel();
  const auto clear = [&](int64_t begin, int64_t end) {
    begin = std::max<int64_t>(begin - first, 0), end = std::min(end - first, size);
    if (begin < end) std::memset(copy + begin, 0, static_cast<size_t>(end - begin));
  };
  if (written.has_gaps) {
    each_run(written.tensor, clear);
  } else {
    clear(written.range.begin, written.range.end);
  }
}

std::string MemoryBeside::place_of_change(const Region& region, const uint8_t* after) const {
  const auto* const before = region.before.const_data_ptr<uint8_t>();
  const int64_t size = region.bytes.numel();
  int64_t changed = 0, first = -1;
  for (int64_t i = 0; i < size; ++i) {
    if (before[i] == after[i]) continue;
    ++changed;
    if (first < 0) first = i + region.bytes.storage_offset();
  }
  if (changed == 0) return {};
  const Written& written = written_[region.written];
  const char* const side = first < written.range.begin ? " before"
                           : first < written.range.end ? " between the rows of"
                                                       : " behind";
  return std::to_string(changed) + " bytes" + side + " input " + std::to_string(written.input);
}

std::string MemoryBeside::changes() const {
  std::string all;
  for (const Region& region : regions_) {
    const int64_t end = region.bytes.storage_offset() + region.bytes.numel();
    const c10::Storage& storage = region.bytes.storage();
    const bool is_moved = storage.data() != region.memory || static_cast<int64_t>(storage.nbytes()) < end;
    if (is_moved) continue;  // by resize_, set_data
    const std::string place = place_of_change(region, read(region).const_data_ptr<uint8_t>());
    if (!place.empty()) all += (all.empty() ? "" : ", ") + place;
  }
  return all;
}

Check MemoryBeside::check(const std::string& changes) {
  return {"", differs("memory beside", "it wrote " + changes + ", where its storage has other tensors' elements"), {}};
}

}  // namespace op_tools
