// An operator call's tensors, twice: as the program holds them (on sim) and as the CPU kernel takes them, tensors over
// the host storages behind them. A tensor that the program passed twice is the same object on both sides. Of a single
// thread and call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <optional>
#include <vector>

namespace op_tools::sim_device {

inline bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kPrivateUse1;
}

// A CPU tensor over the host storage of a sim tensor's storage.
at::Tensor cpu_alias(const at::Tensor& tensor);

// A tensor, a list of them or of such lists; nothing of another value.
std::vector<at::Tensor> tensors_in(const c10::IValue& value);

class Aliases {
 public:
  c10::IValue to_cpu(const c10::IValue& value);     // tensors, lists, storages, devices, generators
  c10::IValue to_device(const c10::IValue& value);  // results: arguments come back as themselves

  // Makes the program's tensors follow the kernel's changes of their CPU side in place: resize_, set_, t_, out= of
  // another size. True when anything but values changed.
  bool follow();

  // The device that the call is for; the first sim tensor's, else the Device argument's.
  const std::optional<c10::Device>& device() const { return device_; }
  const std::vector<at::Tensor>& originals() const { return originals_; }
  const std::vector<at::Tensor>& aliases() const { return aliases_; }
  const std::optional<c10::Device>& second_device() const { return second_device_; }  // another sim device
  bool has_cpu_tensor() const { return has_cpu_tensor_; }                             // with dimensions

  // Which argument this CPU tensor is, -1 when it is none; and whether it lives in memory of an argument.
  int argument(const at::Tensor& cpu) const;
  bool shares_memory(const at::Tensor& cpu) const;

  // CPU scalars are read when the kernel runs, which may be later: from here on they are copies.
  void keep_cpu_scalars(torch::jit::Stack& arguments) const;

 private:
  at::Tensor tensor_to_cpu(const at::Tensor& tensor);
  at::Tensor tensor_to_device(const at::Tensor& tensor);
  bool is_inference(const at::Tensor& cpu) const;
  c10::Storage storage_to_cpu(const c10::Storage& storage);
  c10::Storage storage_to_device(const c10::Storage& host);

  // Pairs, found by address. Searched from the front: few calls have more than a handful.
  std::vector<at::Tensor> originals_, aliases_;
  std::vector<const void*> original_keys_, alias_keys_;
  std::vector<c10::Storage> storages_, host_storages_;
  std::vector<const void*> storage_keys_, host_keys_;
  std::optional<c10::Device> device_, second_device_;
  bool has_cpu_tensor_ = false;
};

}  // namespace op_tools::sim_device
