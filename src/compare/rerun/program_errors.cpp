#include "compare/rerun/program_errors.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/stop_program.h"
#include "hooks/stack_source.h"
#include "tensor/exception_text.h"
#include "timing/stopwatch.h"

namespace op_tools {

void wait_for_program(std::string_view tool, const std::vector<at::Tensor>& tensors, std::string_view when,
                      const OpCall& call) {
  std::optional<c10::Device> last;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta() || last == tensor.device()) continue;
    last = tensor.device();
    try {
      wait_for_device(*last);
    } catch (const std::exception& error) {
      std::string text = std::string(tool) + ": an error of the program's own came to light when " + last->str() +
                         " was waited for " + std::string(when) + " " + std::string(call.name) + " (call " +
                         std::to_string(call.id);
      if (const auto stack = current_stack(); !stack.empty()) text += ", " + stack.front();
      text += "), and is passed on: ";
      log::error(text + exception_text(error));
      throw StopProgram(text, std::current_exception());
    }
  }
}

// The fingerprints are asked at the end of the pass, and only where gradients differ. A report of the device about
// earlier work comes to light here, and ends the pass as it would have ended a moment later: it is no error of this
// call.
std::shared_ptr<void> WatchedForBackward::hold_during_backward() const {
  auto held = std::make_shared<std::vector<c10::Storage>>();
  std::optional<c10::Device> last;
  for (const TensorFingerprint& fingerprint : fingerprints) {
    held->push_back(fingerprint.memory());
    const c10::Storage& memory = held->back();
    if (!memory || memory.device().is_cpu() || memory.device().is_meta() || last == memory.device()) continue;
    last = memory.device();
    try {
      wait_for_device(*last);
    } catch (const std::exception& error) {
      const std::string text = std::string(tool) + ": an error of the program's own came to light when " + last->str() +
                               " was waited for before a backward, and is passed on: " + exception_text(error);
      log::error(text);
      throw StopProgram(text, std::current_exception());
    }
  }
  return held;
}

bool WatchedForBackward::is_changed() const {
  return std::any_of(fingerprints.begin(), fingerprints.end(),
                     [](const TensorFingerprint& fingerprint) { return fingerprint.changed_past_autograd(); });
}

}  // namespace op_tools
