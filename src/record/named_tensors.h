// Where the elements of tensors come from: the call that made or wrote their memory, or the name that the program's
// models have for it. Known by the storage, so for every view of it. One thread at a time; the source: any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/sweeps.h"
#include "record/recording.h"

namespace op_tools {

struct NamedTensor {
  std::string name;  // "Net.conv1.weight", "grad:Net.conv1.weight", "Net.input[0]"
  Origin origin;
  at::Tensor tensor;
};

// The names that the program's language has in its models: parameters and buffers of the model that this thread is in
// (when they may have changed since this recording asked for them), and its arguments; outside of models the gradients
// of all models' parameters. `recording`: a number of its own in the process. Set once by the bindings of that
// language.
using NamedTensorSource = std::function<std::vector<NamedTensor>(uint64_t recording)>;
OP_TOOLS_API void set_named_tensor_source(NamedTensorSource source);
std::vector<NamedTensor> named_tensors(uint64_t recording);  // nothing where there is no source

struct TensorOrigin {
  Origin origin = Origin::kUnknown;
  uint32_t producer = kNoCall, output = 0;
  StringNumber name = 0;
};

class TensorOrigins {
 public:
  TensorOrigin find(const at::Tensor& tensor) const;
  // A call made or wrote it. Returns its name.
  StringNumber made(const at::Tensor& tensor, uint32_t call, uint32_t output);
  void name(const at::Tensor& tensor, Origin origin, StringNumber name);

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    StringNumber name = 0;
    Origin named = Origin::kUnknown;
    uint32_t producer = kNoCall, output = 0;
    int64_t version = 0;  // after `producer` had made it
  };
  Known* known_of(const at::Tensor& tensor);

  ska::flat_hash_map<const c10::StorageImpl*, Known> storages_;
  Sweeps sweeps_;
};

}  // namespace op_tools
