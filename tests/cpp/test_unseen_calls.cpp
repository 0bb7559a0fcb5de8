// Operators of threads that no tool follows are counted.
#include "hooks/unseen_calls.h"

#include <ATen/ops/ones.h>

#include <future>
#include <memory>
#include <thread>

#include "catch.h"
#include "hooks/scope.h"
#include "quiet_log.h"
#include "recording_hook.h"

namespace op_tools::test {
namespace {

constexpr uint64_t kCalls = 5000;

void work() {
  const at::Tensor x = at::ones({1});
  for (uint64_t i = 0; i < kCalls; ++i) x.relu();
}

TEST_CASE("a thread of C++ that was there before is counted, about as often as it calls", "[unseen]") {
  std::promise<void> begun;
  std::thread earlier([&] {
    begun.get_future().wait();
    work();
  });
  UnseenCalls unseen;
  begun.set_value();
  earlier.join();
  const UnseenCalls::Count count = unseen.count();
  CHECK(count.threads == 1);
  CHECK(count.calls > kCalls / 2);
  CHECK(count.calls < 4 * kCalls);  // relu calls another operator
  CHECK(count.calls_on_device == 0);
  std::thread(work).join();
  CHECK(unseen.count().threads == 2);
  unseen.end();
  std::thread(work).join();
  CHECK(unseen.count().threads == 2);
}

TEST_CASE("threads that entered a scope are not counted", "[unseen]") {
  const QuietLog quiet;
  const UnseenCalls unseen;
  std::thread([] {
    HookScope scope(std::make_shared<RecordingHook>(), admitting("exp"));
    scope.enter();
    work();
    scope.leave();
  }).join();
  CHECK(unseen.count().threads == 0);
}

TEST_CASE("a thread whose begin is known is counted exactly, or not at all", "[unseen]") {
  const UnseenCalls unseen;
  for (const bool counts : {true, false}) {
    std::thread([counts] {
      const CountedThread counted(counts);
      const at::Tensor x = at::ones({1});
      for (int i = 0; i < 10; ++i) x.relu();
    }).join();
    CHECK(unseen.count().threads == 1);
    CHECK(unseen.count().calls >= 11);  // their inner calls come on top
    CHECK(unseen.count().calls < 50);
  }
}

}  // namespace
}  // namespace op_tools::test
