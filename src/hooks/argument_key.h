// The arguments or results of a call apart from its tensors, as bytes, and the tensors themselves: read from
// the source's own form, without a Value. For a hook that is asked for every call and remembers by these bytes the
// facts that it read from Values once. On the thread of the call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace op_tools {

class ArgumentKey {
 public:
  enum class Part : char {
    kNone,
    kTensor,
    kBool,
    kInt,
    kFloat,
    kText,
    kWrappedNumber,
    kDtype,
    kLayout,
    kMemoryFormat,
    kDevice,
    kSize,
    kTuple,
    kList,
    kSlice,
    kEllipsis,
    kKeyword
  };

  // Results: which numbers they are makes no difference.
  explicit ArgumentKey(bool with_numbers = true) : with_numbers_(with_numbers) {}

  void add(Part part) { bytes_.push_back(static_cast<char>(part)); }
  template <class Number>
  void add(Part part, Number number) {
    static_assert(std::is_trivially_copyable_v<Number>);
    add(part);
    if (with_numbers_) append(&number, sizeof number);
  }
  // A part that `count` others belong to, which follow.
  void add_group(Part part, size_t count) {
    add(part);
    append(&count, sizeof count);
  }
  void add_text(Part part, std::string_view text) {
    add_group(part, text.size());
    append(text.data(), text.size());
  }
  // Is there longer than the key; an undefined tensor is None.
  void add_tensor(const at::Tensor& tensor) {
    add(tensor.defined() ? Part::kTensor : Part::kNone);
    if (tensor.defined()) tensors_.push_back(&tensor);
  }
  void add_wrapped_number(const at::Tensor& number);
  void add_device(c10::Device device) {
    add(Part::kDevice, device);
    devices_.push_back(device);
  }
  // An argument or result on the dispatcher's stack. False: it has no form here.
  bool add_ivalue(const c10::IValue& value);

  std::string_view bytes() const { return {bytes_.data(), bytes_.size()}; }
  c10::ArrayRef<const at::Tensor*> tensors() const { return tensors_; }  // in the order of for_each_tensor
  c10::ArrayRef<c10::Device> devices() const { return devices_; }        // that arguments name

 private:
  void append(const void* from, size_t size) {
    const char* const first = static_cast<const char*>(from);
    bytes_.append(first, first + size);
  }

  const bool with_numbers_;
  c10::SmallVector<char, 192> bytes_;
  c10::SmallVector<const at::Tensor*, 8> tensors_;
  c10::SmallVector<c10::Device, 2> devices_;
};

}  // namespace op_tools
