#include "compat/stream_capture.h"

#include <dlfcn.h>

namespace op_tools::compat {

bool cuda_is_capturing(c10::Stream stream) {
  // cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus*): 0 is success, and not capturing.
  using Question = int (*)(void* stream, int* status);
  static const auto ask = reinterpret_cast<Question>(dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing"));
  int status = 0;
  return ask != nullptr && ask(stream.native_handle(), &status) == 0 && status != 0;
}

}  // namespace op_tools::compat
