#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "sim_device/aliases.h"
#include "sim_device/device.h"
#include "sim_device/faults.h"
#include "sim_device/kernels.h"
#include "sim_device/memory.h"
#include "sim_device/queue.h"
#include "sim_device/scoped_kernel.h"

namespace op_tools::sim_device {
namespace {

c10::Device device_of(std::optional<c10::Device> device) {
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : current_device();
  return {c10::kPrivateUse1, index};
}

void check_factory(std::optional<c10::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "sim: only dense strided tensors are supported, not ", c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "only dense CPU tensors can be pinned");
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  check_factory(layout, pinned);
  const c10::DeviceGuard guard(device_of(device));
  return at::Tensor(at::detail::empty_generic(size, device_allocator(),
                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                              c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  check_factory(layout, pinned);
  const c10::DeviceGuard guard(device_of(device));
  return at::Tensor(at::detail::empty_strided_generic(size, stride, device_allocator(),
                                                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                      c10::dtype_or_default(dtype)));
}

// Nothing to do: work that is still queued keeps the memory of its tensors.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

// The work of the other device's queue so far comes before the next work of `queue`.
void follow(Queue& queue, Queue& other) {
  const auto event = std::make_shared<Event>();
  other.record(event);
  queue.wait_for(event);
}

// Every copy_() with a tensor of the device on either side, or on both, ends here.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const ScopedKernel scope;
  static const std::string kName = "aten::_copy_from";
  const bool from_device = is_sim(self), to_device = is_sim(dst);
  const c10::DeviceGuard guard(to_device ? dst.device() : self.device());
  FaultInjection faults(kName, /*moves_data=*/true, scope.is_of_tool());
  const auto latency = latency_of(kName) + faults.latency();
  Queue& queue = queue_for_work();
  at::Tensor from = from_device ? cpu_alias(self) : self;
  const at::Tensor to = to_device ? cpu_alias(dst) : dst.alias();
  Queue* other =
      from_device && to_device && self.device() != dst.device() ? &current_queue(self.device().index()) : nullptr;
  if (other) follow(queue, *other);

  // The host's side may change, or be read, as soon as this returns; unless it is pinned, and the caller will wait.
  const at::Tensor& host = from_device ? dst : self;
  const bool host_is_left_alone = (from_device && to_device) || (non_blocking && is_pinned(host.const_data_ptr()));
  const bool stale_is_fine = host_is_left_alone || !from_device;
  if (is_asynchronous() && stale_is_fine && !faults.any()) {
    if (!host_is_left_alone) from = from.clone();
    queue.push(
        [from, to] {
          const ScopedKernel in_worker;
          to.copy_(from);
        },
        latency);
  } else {
    queue.wait();
    faults.before({to});
    to.copy_(from);
    torch::jit::Stack results{to};
    faults.after(results, {from}, {to});
    if (latency.count() > 0) {
      queue.push(nullptr, latency);
      queue.wait();
    }
  }
  if (other) follow(*other, queue);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const ScopedKernel scope;
  static const std::string kName = "aten::_local_scalar_dense";
  const c10::DeviceGuard guard(self.device());
  FaultInjection faults(kName, /*moves_data=*/true, scope.is_of_tool());
  Queue& queue = queue_for_work();
  const auto latency = latency_of(kName) + faults.latency();
  if (latency.count() > 0) queue.push(nullptr, latency);
  queue.wait();
  const at::Tensor element = cpu_alias(self);
  if (!faults.any()) return element.item();
  torch::jit::Stack results{element.clone()};  // a wrong number; the tensor stays right
  faults.after(results, {element}, {});
  return results.front().toTensor().item();
}

}  // namespace

void register_copies() {
  register_function("aten::empty.memory_format", &empty);
  register_function("aten::empty_strided", &empty_strided);
  register_function("aten::_copy_from", &copy_from);
  register_function("aten::_copy_from_and_resize", &copy_from_and_resize);
  register_function("aten::_local_scalar_dense", &local_scalar_dense);
  register_function("aten::record_stream", &record_stream);
  // A tensor with a conjugate or negative bit comes here with it. The fallbacks of those keys would clone it, which
  // copies it, which comes here, until the stack is full.
  for (const char* op : {"aten::_copy_from", "aten::_copy_from_and_resize"}) {
    for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
      register_kernel(op, key, c10::KernelFunction::makeFallthrough());
    }
  }
}

}  // namespace op_tools::sim_device
