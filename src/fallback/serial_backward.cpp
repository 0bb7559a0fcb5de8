#include "fallback/serial_backward.h"

#include <c10/core/AutogradState.h>

#include <atomic>

namespace op_tools {
namespace {

// The system gives the ids of threads that ended to new ones.
uint64_t number_of_this_thread() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t number = next++;
  return number;
}

thread_local bool switched_off = false;  // by us

}  // namespace

std::shared_ptr<const SerialBackward> SerialBackward::of_this_thread() {
  thread_local std::weak_ptr<const SerialBackward> last;
  std::shared_ptr<const SerialBackward> living = last.lock();
  if (!living) {
    living.reset(new SerialBackward);
    last = living;
  }
  return living;
}

SerialBackward::SerialBackward() : thread_(number_of_this_thread()) {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  switched_off = switched_off || state.get_multithreading_enabled();
  state.set_multithreading_enabled(false);
}

SerialBackward::~SerialBackward() {
  if (thread_ != number_of_this_thread() || !switched_off) return;
  switched_off = false;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
}

}  // namespace op_tools
