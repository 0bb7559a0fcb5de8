// Backward passes that ended in an error while a node of a torch-level call ran. The engine frees such a pass in a
// destructor, where no operator may run: it is noted, and reported to the hooks where the error reaches the program.
// Any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

using FailedBackward = std::function<void(const std::string& error)>;

// Forgotten where no FailedBackwards waits for it: the error has no way past us.
void note_failed_backward(FailedBackward report);

// While an object lives, failures are noted.
class OP_TOOLS_API FailedBackwards {
 public:
  FailedBackwards();
  ~FailedBackwards();
  FailedBackwards(const FailedBackwards&) = delete;
  FailedBackwards& operator=(const FailedBackwards&) = delete;

  // Of all threads; they are forgotten. A thread of the engine's may free its pass a moment after the error is where
  // the program sees it: waits until a failure is noted, or for `most`. Without the GIL, which that thread may need.
  static std::vector<FailedBackward> take(std::chrono::milliseconds most = {});
};

}  // namespace op_tools
