// Where the elements of tensors come from: the call that made or wrote their memory, or the name that the program's
// models have for it (Host::named_tensors). Known by the storage, so for every view of it; parameters and gradients
// that share a storage (weights of cuDNN's recurrent networks, flat parameters, buckets) each by their part of it. One
// thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/sweeps.h"
#include "record/recording.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

struct NamedTensor {
  std::string name;  // "Net.conv1.weight", "grad:Net.conv1.weight", "Net.input[0]"
  Origin origin;
  at::Tensor tensor;
};

struct TensorOrigin {
  Origin origin = Origin::kUnknown;
  uint32_t producer = kNoCall, output = 0;
  StringNumber name = 0;
};

class TensorOrigins {
 public:
  TensorOrigin find(const at::Tensor& tensor) const;
  // A call made or wrote it. Returns its name.
  StringNumber note_producer(const at::Tensor& tensor, uint32_t call, uint32_t output);
  void name(const at::Tensor& tensor, Origin origin, StringNumber name);

 private:
  struct Known {
    StringNumber name = 0;
    Origin named = Origin::kUnknown;
    uint32_t producer = kNoCall, output = 0;
    int64_t version = 0;  // after `producer` had made it
  };
  struct OfStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Known whole;                                     // `producer`: the last that wrote any of it
    std::vector<std::pair<ByteRange, Known>> parts;  // with names of their own, by `begin`

    const Known& of(const ByteRange& range) const;  // of the part that contains it, or the whole
  };
  OfStorage* known_of(const at::Tensor& tensor);

  ska::flat_hash_map<const c10::StorageImpl*, OfStorage> storages_;
  Sweeps sweeps_;
};

}  // namespace op_tools
