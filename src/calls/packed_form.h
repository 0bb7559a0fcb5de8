// How a snapshot lies in the bytes of packed values (packed_values.h): kSnapshotNumber, the size of its tree in bytes,
// the tree, the number of its tensors, an entry for each, the size of its copies. For those who write and read them
// only; the bytes never leave the process.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace op_tools {

enum class PackedNode : uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,
  kDouble,
  kText,
  kTensor,  // number in the snapshot
  kKnown,   // number of an earlier tensor
  kDtype,
  kDevice,
  kLayout,
  kMemoryFormat,
  kList,
  kTuple,
  kNamedTuple,
  kSet,
  kSlice,
  kDict,
  kOther,  // number in the list of others
};

constexpr uint32_t kNoValue = UINT32_MAX;  // in the place of a number in the list of others: None

// The facts about a tensor, followed by its sizes and strides: a TensorMeta in as few bytes as it needs, which is most
// of the cost of a small call's record, and where its copy is.
struct PackedEntry {
  int64_t offset = 0;       // in the program's storage, in elements
  int64_t copy_offset = 0;  // in the copy's
  int32_t storage = -1;     // number that aliases share
  int32_t memory = -1;      // of the copy
  int32_t tensor = -1;      // else: the copy, in the list of tensors
  int32_t other = -1;       // else: Unsupported, in the list of others
  uint32_t first;           // the same tensor object came here first
  uint16_t sizes = 0, strides = 0;
  at::ScalarType dtype;
  c10::Device device;
  c10::Layout layout;
  bool requires_grad, is_leaf;
  bool conj = false, neg = false;
  bool compact = false;  // the copy is contiguous in memory, the strides are the program's
};

}  // namespace op_tools
