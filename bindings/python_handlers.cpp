#include "python_handlers.h"

#include <c10/core/impl/PyInterpreter.h>
#include <torch/csrc/PyInterpreter.h>

#include <string>
#include <utility>

#include "hooks/interceptor.h"

namespace op_tools::python {
namespace {

// Stands before torch's table of C++'s questions to Python: the only place between the dispatcher, which excludes the
// keys, and the handler. All but dispatch() goes on as it is.
class Handlers final : public c10::impl::PyInterpreterVTable {
 public:
  explicit Handlers(const PyInterpreterVTable& torch) : torch_(torch) {}

  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    const interceptor::InsidePythonHandler inside;
    torch_.dispatch(op, stack);
  }

  std::string name() const override { return torch_.name(); }
  void incref(PyObject* object) const override { torch_.incref(object); }
  void decref(PyObject* object) const override { torch_.decref(object); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override { return torch_.try_incref(slot); }
  size_t refcnt(PyObject* object) const override { return torch_.refcnt(object); }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override { return torch_.detach(self); }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    torch_.reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                                         torch::jit::Stack* stack, bool with_keyset, bool with_op) const override {
    torch_.python_op_registration_trampoline(op, key, keys, stack, with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    torch_.throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
  void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) const override {
    torch_.python_dispatcher(op, keys, stack);
  }

  bool is_contiguous(const c10::TensorImpl* self, at::MemoryFormat format) const override {
    return torch_.is_contiguous(self, format);
  }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl* self, at::MemoryFormat format) const override {
    return torch_.sym_is_contiguous(self, format);
  }
  bool is_strides_like(const c10::TensorImpl* self, at::MemoryFormat format) const override {
    return torch_.is_strides_like(self, format);
  }
  bool is_non_overlapping_and_dense(const c10::TensorImpl* self) const override {
    return torch_.is_non_overlapping_and_dense(self);
  }
  c10::Device device(const c10::TensorImpl* self) const override { return torch_.device(self); }
  int64_t dim(const c10::TensorImpl* self) const override { return torch_.dim(self); }
  c10::IntArrayRef strides(const c10::TensorImpl* self) const override { return torch_.strides(self); }
  c10::IntArrayRef sizes(const c10::TensorImpl* self) const override { return torch_.sizes(self); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl* self) const override { return torch_.sym_sizes(self); }
  c10::Layout layout(const c10::TensorImpl* self) const override { return torch_.layout(self); }
  int64_t numel(const c10::TensorImpl* self) const override { return torch_.numel(self); }
  c10::SymInt sym_numel(const c10::TensorImpl* self) const override { return torch_.sym_numel(self); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl* self) const override { return torch_.sym_strides(self); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl* self) const override { return torch_.sym_storage_offset(self); }

  void trace_gpu_event_creation(c10::DeviceType type, uintptr_t event) const override {
    torch_.trace_gpu_event_creation(type, event);
  }
  void trace_gpu_event_deletion(c10::DeviceType type, uintptr_t event) const override {
    torch_.trace_gpu_event_deletion(type, event);
  }
  void trace_gpu_event_record(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    torch_.trace_gpu_event_record(type, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    torch_.trace_gpu_event_wait(type, event, stream);
  }
  void trace_gpu_memory_allocation(c10::DeviceType type, uintptr_t memory) const override {
    torch_.trace_gpu_memory_allocation(type, memory);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType type, uintptr_t memory) const override {
    torch_.trace_gpu_memory_deallocation(type, memory);
  }
  void trace_gpu_stream_creation(c10::DeviceType type, uintptr_t stream) const override {
    torch_.trace_gpu_stream_creation(type, stream);
  }
  void trace_gpu_device_synchronization(c10::DeviceType type) const override {
    torch_.trace_gpu_device_synchronization(type);
  }
  void trace_gpu_stream_synchronization(c10::DeviceType type, uintptr_t stream) const override {
    torch_.trace_gpu_stream_synchronization(type, stream);
  }
  void trace_gpu_event_synchronization(c10::DeviceType type, uintptr_t event) const override {
    torch_.trace_gpu_event_synchronization(type, event);
  }

  void reset_backward_hooks(const c10::TensorImpl* self) const override { torch_.reset_backward_hooks(self); }

 private:
  const PyInterpreterVTable& torch_;  // for the life of the process
};

}  // namespace

void see_inside_python_handlers() {
  c10::impl::PyInterpreter* const torch = getPyInterpreter();
  torch->vtable_ = new Handlers(*torch->vtable_);  // for the life of the process, as torch's own
}

}  // namespace op_tools::python
