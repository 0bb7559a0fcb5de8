#include "tensor/quiet.h"

#include <mutex>

#include "base/host.h"

namespace op_tools {
namespace {

class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// With "always", torch does not note that it has given a warning. It is a setting of the process: runs on several
// threads share it, and the last run puts it back.
class WarnsAlways {
 public:
  static WarnsAlways& get() {
    static WarnsAlways* always = new WarnsAlways;  // leaked: threads may outlive static destruction
    return *always;
  }
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (runs_++ > 0) return;
    before_ = c10::WarningUtils::get_warnAlways();
    c10::WarningUtils::set_warnAlways(true);
  }
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--runs_ == 0) c10::WarningUtils::set_warnAlways(before_);
  }

 private:
  std::mutex mutex_;
  int runs_ = 0;
  bool before_ = false;
};

}  // namespace

c10::WarningHandler& QuietOperators::silent() {
  static Silent* silent = new Silent;  // leaked: threads may outlive static destruction
  return *silent;
}

QuietRun::QuietRun(bool in_python) : python_(in_python ? host().quiet() : nullptr) {
  WarnsAlways::get().begin();
}

QuietRun::~QuietRun() {
  WarnsAlways::get().end();
}

}  // namespace op_tools
