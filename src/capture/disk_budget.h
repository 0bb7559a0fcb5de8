// How much a capture may write: a limit of its own, and the space that has to stay free on the disk that it writes to,
// so that a capture that was left on does not end with a full disk, which takes other programs down as well. Used by
// the writer's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace op_tools {

class DiskBudget {
 public:
  // Both in bytes. `least_free` nullopt: a tenth of the disk, 5 GB at most.
  DiskBudget(uint64_t most, std::optional<uint64_t> least_free) : most_(most), least_free_(least_free) {}

  // Why `size` more bytes must not be written to `folder`, which has `written` of this run; empty: they may. The disk
  // is asked again after a while of writing: other programs use it, too.
  std::string refusal(const std::string& folder, uint64_t written, uint64_t size);

 private:
  std::string refusal_of_disk(const std::string& folder, uint64_t size) const;

  const uint64_t most_;
  const std::optional<uint64_t> least_free_;
  uint64_t unasked_ = UINT64_MAX;  // bytes since the disk was asked last; the first time it is
};

}  // namespace op_tools
