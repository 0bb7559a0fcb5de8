// Memory for the private copies of tensors. Small copies share blocks, large ones take over the memory of earlier large
// copies: to the program's thread, fresh pages cost several times as much as copying into them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

#include "base/export.h"

namespace op_tools {

// `size` bytes on the CPU, aligned to 64, uninitialized. Any thread may allocate and free it.
OP_TOOLS_API c10::DataPtr memory_for_copy(size_t size);
// memcpy into such memory, from its beginning.
OP_TOOLS_API void fill_copy(void* memory, const void* from, size_t size);

// The result of clone(), in such memory: for a plain, dense tensor on the CPU without dispatching an operator. Without
// history; requires_grad is false.
OP_TOOLS_API at::Tensor private_copy(const at::Tensor& tensor);

// An uninitialized CPU tensor in such memory, without history, with the sizes and strides of a tensor that is dense in
// memory. Operators may resize it.
OP_TOOLS_API at::Tensor private_empty_like(const at::Tensor& dense, c10::ScalarType dtype);

// A scope was left. The memory of large copies that are gone, at most 512 MB, goes back to the system when no copy was
// made for 1 to 2 seconds: a scope that is entered anew for each training step finds it still there. A thread of
// ours sees to it meanwhile, so the program needs to do nothing more.
OP_TOOLS_API void release_copy_memory() noexcept;

// How much waits to be taken over.
OP_TOOLS_API size_t idle_copy_memory() noexcept;

}  // namespace op_tools
