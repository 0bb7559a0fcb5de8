#pragma once

// Torch's table of the questions that C++ puts to Python, with each question passed on to the table that stood there
// before. Gap: PyInterpreterVTable has try_incref() and refcnt() since torch 2.10, sym_is_contiguous() since 2.9, and a
// decref() with a second argument before 2.10. A member whose signature is no virtual function of the table that is
// compiled against is an ordinary member of a template, which nothing instantiates: so the functions below that are not
// in every version do not say `override`, and a function that is missing here is a compiler error. Thread rules: those
// of torch's own table.

#include <c10/core/Layout.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>

#include <string>
#include <utility>

namespace op_tools::compat {

template <typename Table = c10::impl::PyInterpreterVTable>
class InterpreterTable : public Table {
 public:
  explicit InterpreterTable(const Table& before) : before_(before) {}

  // --- Not in every version. NOLINTBEGIN(modernize-use-override)
  void decref(PyObject* object) const { before_.decref(object); }
  void decref(PyObject* object, bool has_slot) const { before_.decref(object, has_slot); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const { return before_.try_incref(slot); }
  size_t refcnt(PyObject* object) const { return before_.refcnt(object); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl* self, at::MemoryFormat format) const {
    return before_.sym_is_contiguous(self, format);
  }

  // NOLINTEND(modernize-use-override)
  // --- In every version.
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override { before_.dispatch(op, stack); }
  std::string name() const override { return before_.name(); }
  void incref(PyObject* object) const override { before_.incref(object); }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    return before_.detach(self);
  }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    before_.reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                                         torch::jit::Stack* stack, bool with_keyset, bool with_op) const override {
    before_.python_op_registration_trampoline(op, key, keys, stack, with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    before_.throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
  void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) const override {
    before_.python_dispatcher(op, keys, stack);
  }

  bool is_contiguous(const c10::TensorImpl* self, at::MemoryFormat format) const override {
    return before_.is_contiguous(self, format);
  }
  bool is_strides_like(const c10::TensorImpl* self, at::MemoryFormat format) const override {
    return before_.is_strides_like(self, format);
  }
  bool is_non_overlapping_and_dense(const c10::TensorImpl* self) const override {
    return before_.is_non_overlapping_and_dense(self);
  }
  c10::Device device(const c10::TensorImpl* self) const override { return before_.device(self); }
  int64_t dim(const c10::TensorImpl* self) const override { return before_.dim(self); }
  c10::IntArrayRef strides(const c10::TensorImpl* self) const override { return before_.strides(self); }
  c10::IntArrayRef sizes(const c10::TensorImpl* self) const override { return before_.sizes(self); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl* self) const override { return before_.sym_sizes(self); }
  c10::Layout layout(const c10::TensorImpl* self) const override { return before_.layout(self); }
  int64_t numel(const c10::TensorImpl* self) const override { return before_.numel(self); }
  c10::SymInt sym_numel(const c10::TensorImpl* self) const override { return before_.sym_numel(self); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl* self) const override { return before_.sym_strides(self); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl* self) const override {
    return before_.sym_storage_offset(self);
  }

  void trace_gpu_event_creation(c10::DeviceType type, uintptr_t event) const override {
    before_.trace_gpu_event_creation(type, event);
  }
  void trace_gpu_event_deletion(c10::DeviceType type, uintptr_t event) const override {
    before_.trace_gpu_event_deletion(type, event);
  }
  void trace_gpu_event_record(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    before_.trace_gpu_event_record(type, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    before_.trace_gpu_event_wait(type, event, stream);
  }
  void trace_gpu_memory_allocation(c10::DeviceType type, uintptr_t memory) const override {
    before_.trace_gpu_memory_allocation(type, memory);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType type, uintptr_t memory) const override {
    before_.trace_gpu_memory_deallocation(type, memory);
  }
  void trace_gpu_stream_creation(c10::DeviceType type, uintptr_t stream) const override {
    before_.trace_gpu_stream_creation(type, stream);
  }
  void trace_gpu_device_synchronization(c10::DeviceType type) const override {
    before_.trace_gpu_device_synchronization(type);
  }
  void trace_gpu_stream_synchronization(c10::DeviceType type, uintptr_t stream) const override {
    before_.trace_gpu_stream_synchronization(type, stream);
  }
  void trace_gpu_event_synchronization(c10::DeviceType type, uintptr_t event) const override {
    before_.trace_gpu_event_synchronization(type, event);
  }

  void reset_backward_hooks(const c10::TensorImpl* self) const override { before_.reset_backward_hooks(self); }

 private:
  const Table& before_;  // for the life of the process
};

}  // namespace op_tools::compat
