// A tensor of the program that may have to be saved later: another tensor on its memory, and the version that it had.
// Nothing is copied until that memory is about to be written. All copies are made in the device's order of
// work, without waiting.
//
// Called under InternalGuard; one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace op_tools {

// Are they tensors over the same storage?
bool share_memory(const at::Tensor& tensor, const at::Tensor& other);
// Are all elements of `part`, on the same storage, elements of `whole`, too?
bool shows_part_of(const at::Tensor& whole, const at::Tensor& part);
// A defined, strided tensor on a real storage.
bool has_plain_memory(const at::Tensor& tensor);

class VersionedTensor {
 public:
  VersionedTensor() = default;  // of a tensor without plain memory
  explicit VersionedTensor(const at::Tensor& tensor);
  static VersionedTensor copy_of(const at::Tensor& tensor);
  // Its own memory, without values, as that of `tensor`: the elements have no meaning.
  static VersionedTensor unwritten_like(const at::Tensor& tensor);

  const at::Tensor& tensor() const { return tensor_; }
  bool is_unchanged() const;
  // `written` is about to be written: a copy takes the place of a tensor that shares memory with it. Copies of the same
  // moment are shared. Returns the bytes copied.
  class Copies;
  int64_t before_write(const at::Tensor& written, Copies& copies);

 private:
  at::Tensor tensor_;
  int64_t version_ = 0;
};

class VersionedTensor::Copies {
 public:
  // The copy, and whether it was made now.
  std::pair<at::Tensor, bool> of(const at::Tensor& tensor);

 private:
  std::map<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, c10::ScalarType>, at::Tensor> copies_;
};

}  // namespace op_tools
