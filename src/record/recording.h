// A recording of a run in memory: a row per call, and a row per value that a tensor had. OpRecord writes recordings
// (record_hook.h), recording_file.h reads it, src/runs compares two. Also made of other tools' dumps.
//
// Rows are plain numbers; strings and lists of sizes are stored once. All numbers of rows, strings and lists are valid:
// the reader checks them. Not changed after it was made; any thread.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/options.h"
#include "hooks/op_call.h"
#include "tensor/sign_pattern.h"
#include "tensor/unwritten_memory.h"
#include "tensor/value.h"

namespace op_tools {

// Where the elements of a tensor come from.
enum class Origin : uint8_t {
  kUnknown,    // made or written where no call was seen
  kCall,       // an output of a recorded call, or an input that it wrote
  kParameter,  // of a module
  kBuffer,     // of a module
  kGradient,   // of a parameter
  kInput,      // an argument of the outermost module
};
inline constexpr std::array kOriginNames{"unknown", "call", "parameter", "buffer", "gradient", "input"};  // to Python

using StringNumber = uint32_t;  // in Recording::strings; 0: ""
using ListNumber = uint32_t;    // in Recording::lists; 0: []
inline constexpr uint32_t kNoCall = std::numeric_limits<uint32_t>::max();
inline constexpr int32_t kNoDim = -1;
inline constexpr size_t kProjections = sign_pattern::kProjections;
inline constexpr int64_t kRecordingFormat = 3;  // in headers; hashes of another format are of another kind

// Why a recording ends before its program did, in its header.
enum class EndedEarly : uint8_t {
  kNo,
  kFailure,  // of op_tools
  kDiskFull,
  kNoEnd,  // the process was killed; or it runs
  kDamaged,
};
OP_TOOLS_API std::string_view to_string(EndedEarly reason);  // "disk_full"; "": kNo

// In headers. Of the devices that were found to compute statistics wrong: from which call on (a row) the host has
// computed them, and the difference.
inline constexpr const char* kStatisticsOnHost = "statistics_on_host";
inline constexpr const char* kStatisticsInDoubt = "statistics_in_doubt";  // how many values have therefore none
inline constexpr const char* kEndedEarly = "ended_early";
inline constexpr const char* kAccount = "account";  // of the run, from its end on

// "sim", as torch names devices without their numbers.
OP_TOOLS_API std::string device_name(c10::DeviceType type);

// The elements of a tensor. A tensor that is not written has a single value, however many calls see it.
struct RecordedValue {
  Origin origin = Origin::kUnknown;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool known = false;          // are there statistics? Not of sparse, quantized, meta tensors and of dumps without them
  bool by_device : 1 = false;  // computed by the tensor's device, and not compared with the host's
  // Of memory that was never written when it was allocated (torch.empty). kSome: the statistics are those of the tensor
  // with zeros in the place of the other elements.
  WrittenPart written : 3 = WrittenPart::kNotWatched;
  uint32_t producer = kNoCall;  // Origin::kCall: number of the row in Recording::calls
  uint32_t output = 0;          // Origin::kCall: which tensor of that call's outputs
  StringNumber name = 0;        // of a parameter, buffer, gradient, input: "Net.layer1.weight"
  StringNumber device = 0;
  ListNumber shape = 0, stride = 0;
  uint64_t hash = 0;                            // of the bytes of the elements in the order of their indices
  int64_t nan = 0, inf = 0, zero = 0;           // -1: not known
  double min = 0, max = 0, mean = 0, norm = 0;  // tensor/statistics.h
  // Sums of the elements with signs that depend on their index alone: the difference of two tensors' projections is, as
  // a mean over many signs, as large as the norm of the tensors' difference. NaN: not known.
  std::array<double, kProjections> projections{};

  // Its device was found to compute statistics wrong: the reader leaves them out.
  bool in_doubt() const { return by_device && !known; }
};

inline constexpr std::string_view kWrittenPlace = "written ";  // begins the place of an input that its call wrote
inline constexpr std::string_view kGradientName = "grad:";     // begins the name of a parameter's gradient

// A tensor of a call.
struct RecordedUse {
  StringNumber place = 0;  // "args[0]", "kwargs.weight", "args[1][2]", "result", "result[1]"; "written args[0]"
  uint32_t value = 0;      // in Recording::values
};

struct RecordedCall {
  uint64_t id = 0;          // process-wide; that of OpCapture's folders
  uint64_t forward_id = 0;  // backward: the id of the call whose gradients it computes; 0: not known
  int64_t step = 0;
  StringNumber op = 0, module = 0, line = 0, error = 0;
  StringNumber scalars = 0;  // the arguments that are no tensors, as JSON
  StringNumber random = 0;   // the generator that it drew from ("cpu", "sim:0"); 0: none
  uint32_t thread = 0;       // from 0, in the order of their first calls
  uint32_t module_call = 0;  // how often this module had been called before, in this step
  uint32_t pass = 0;         // which backward pass over the call
  uint32_t first_use = 0;    // in Recording::uses: inputs, then outputs (results, then inputs that it wrote)
  uint32_t inputs = 0, outputs = 0;
  Level level = Level::kTorch;
  Phase phase = Phase::kForward;
  bool grad_enabled = false;
};

// The elements at a place of the batch and sequence dimensions.
struct RowPrint {
  uint64_t hash = 0;  // of their bytes in the order of their indices
  double norm = 0;
  std::array<double, kProjections> projections{};  // by the elements' indices in the row
};

// The rows of a value along a choice of dimensions (row_prints.h). A value may have several.
struct RecordedRows {
  uint32_t value = 0;                          // in Recording::values
  int32_t first_dim = 0, second_dim = kNoDim;  // the second counts faster
  uint32_t count = 0;                          // rows: of the value's sizes in these dimensions
};

// A block of rows in a recording's file, and how many rows of each kind are before it.
struct RowBlock {
  uint64_t begin = 0, end = 0;  // bytes
  uint32_t strings = 0, lists = 0, values = 0, uses = 0, calls = 0;
};

struct Recording {
  std::string path;
  Value header;          // a Dict: versions, devices, flags, seeds, git commit, arguments, rank, world size
  bool complete = true;  // false: it ends before its program did, or is damaged from `damage` on
  std::string damage;    // "byte 4711: checksum of a block is wrong"; empty: none

  std::vector<std::string> strings;
  std::vector<std::vector<int64_t>> lists;
  std::vector<RecordedValue> values;
  std::vector<RecordedUse> uses;
  std::vector<RecordedCall> calls;  // in the order of their ends
  std::vector<RecordedRows> rows;   // row_hashes=
  std::vector<RowPrint> prints;     // of `rows`, in their order
  std::vector<RowBlock> blocks;  // of the file that has exactly these rows; empty: there is none, or it has no blocks

  std::string_view string(StringNumber number) const { return strings[number]; }
  c10::ArrayRef<int64_t> list(ListNumber number) const { return lists[number]; }
  c10::ArrayRef<RecordedUse> inputs(const RecordedCall& call) const {
    return {uses.data() + call.first_use, call.inputs};
  }
  c10::ArrayRef<RecordedUse> outputs(const RecordedCall& call) const {
    return {uses.data() + call.first_use + call.inputs, call.outputs};
  }
};

// The recording as it was when step `step` began, its file's path included. Values of later calls are unknown, and in
// no call. It has no prints of rows.
OP_TOOLS_API Recording before_step(const Recording& run, int64_t step);

}  // namespace op_tools
