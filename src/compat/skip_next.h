#pragma once

// Skips the __torch_function__ check of a function that is written in Python, and nothing else, where torch can.
// Gap: PythonTorchFunctionTLS::exchange_skip_next, since torch 2.13. Before it the function runs as a copy whose check
// says no (op_tools/_torch/compat.py).

#include <ATen/PythonTorchFunctionTLS.h>

namespace op_tools::compat {

template <typename Stack = at::impl::PythonTorchFunctionTLS>
concept SkipsNext = requires {
  Stack::exchange_skip_next(true);
};

// Sets the mark that the next check says no, and returns the mark that was set before.
template <typename Stack = at::impl::PythonTorchFunctionTLS>
bool exchange_skip_next(bool skip) {
  if constexpr (SkipsNext<Stack>) return Stack::exchange_skip_next(skip);
  return false;
}

}  // namespace op_tools::compat
