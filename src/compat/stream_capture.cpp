#include "compat/stream_capture.h"

#include <dlfcn.h>

namespace op_tools::compat {
namespace {

// Gap: c10::Stream::native_handle(), since torch 2.11. Before it CUDA's own stream class is asked, whose only member is
// a c10::Stream: c10::cuda::CUDAStream::stream() const.
template <typename Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    using Handle = void* (*)(const Stream*);
    static const auto ask = reinterpret_cast<Handle>(dlsym(RTLD_DEFAULT, "_ZNK3c104cuda10CUDAStream6streamEv"));
    return ask == nullptr ? nullptr : ask(&stream);  // null: the default stream, which cannot be captured
  }
}

}  // namespace

bool cuda_is_capturing(c10::Stream stream) {
  // cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus*): 0 is success, and not capturing.
  using Question = int (*)(void* stream, int* status);
  static const auto ask = reinterpret_cast<Question>(dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing"));
  int status = 0;
  return ask != nullptr && ask(handle_of(stream), &status) == 0 && status != 0;
}

}  // namespace op_tools::compat
