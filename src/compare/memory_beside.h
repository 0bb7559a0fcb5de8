// The bytes beside the tensors that a call writes, in the storages of these tensors. A kernel that writes past its
// tensor (behind the last row, into the gaps of a slice) gives the right result, and changes other tensors of the
// program. In the program's thread, under InternalGuard; the program's other threads write no such memory meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"
#include "compare/call_judge.h"
#include "hooks/op_call.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

class OP_TOOLS_API MemoryBeside {
 public:
  static constexpr int64_t kBytes = 1024;  // that are looked at on each side

  // Before the call: copies up to kBytes before and behind each tensor of `inputs` that the call writes, and its gaps
  // where they are not much larger than itself.
  void take(OpCall& call, const std::vector<at::Tensor>& inputs);
  // The same of a call that is no graph and no collective. `writes`: by input; may be short.
  void take(const std::vector<bool>& writes, const std::vector<at::Tensor>& inputs);

  // After it: where it wrote, for people: "12 bytes behind input 0". Empty: nowhere.
  std::string changes() const;
  static Check check(const std::string& changes);

 private:
  struct Written {
    size_t input;
    at::Tensor tensor;  // without the bits that change how memory reads
    ByteRange range;
    bool has_gaps;  // that are looked at; else all of `range` is its own
  };
  struct Region {
    size_t written;      // whose region it is
    at::Tensor bytes;    // of the storage
    const void* memory;  // of the storage, before the call
    at::Tensor before;   // their copy on the CPU, without the bytes that the call may write
  };

  void add_region(size_t written, int64_t begin, int64_t end);
  at::Tensor read(const Region& region) const;
  void clear_own(const Region& region, const Written& written, uint8_t* copy) const;
  std::string place_of_change(const Region& region, const uint8_t* after) const;

  std::vector<Written> written_;
  std::vector<Region> regions_;
};

}  // namespace op_tools
