// When a table of things that may be gone is searched for those that are gone. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>

namespace op_tools {

// The note of a tensor, with the header of its memory, lies where the program allocated: as long as it is
// there, the C library cannot use the tensor's place again as a whole, and a process grows by its own tensors. So not
// the number of entries alone decides, but the bytes of the tensors that were noted.
class Sweeps {
 public:
  bool due(size_t entries, size_t bytes_noted) {
    bytes_ += bytes_noted;
    return entries >= at_ || bytes_ >= entries * kBytesPerEntry;
  }
  void done(size_t entries) {  // that are left
    at_ = std::max(kLeast, 2 * entries);
    bytes_ = 0;
  }

 private:
  // An operator that makes 64 KB takes a hundred times as long as a look at an entry.
  static constexpr size_t kLeast = 4096, kBytesPerEntry = size_t{64} << 10;
  size_t at_ = kLeast, bytes_ = 0;
};

}  // namespace op_tools
