// Backward passes of a graph whose operators were moved to the CPU run in a single thread.
//
// Autograd runs the nodes of a device in a thread of that device, and those of the CPU in the thread that called
// backward. A program on a single device so has its backward in a single thread, and with some operators moved it would
// have two at once. Both run code of the program: checkpoints that compute again, hooks, Python functions. Two
// checkpoints that restore the same random generators would take each other's numbers, and gradients would be wrong.
#pragma once

#include <cstdint>
#include <memory>

namespace op_tools {

// While it lives, the thread that made it has torch.autograd.set_multithreading_enabled(False): backward passes that
// this thread starts use no other. Held by the autograd nodes of moves; may be freed by any thread, but only its own
// can be given its setting back.
class SerialBackward {
 public:
  static std::shared_ptr<const SerialBackward> of_this_thread();
  ~SerialBackward();
  SerialBackward(const SerialBackward&) = delete;
  SerialBackward& operator=(const SerialBackward&) = delete;

 private:
  SerialBackward();
  const uint64_t thread_;
};

}  // namespace op_tools
