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

// In a thread that is there before; `begin` is called in between.
template <class Begin>
void in_earlier_thread(Begin&& begin) {
  std::promise<void> begun;
  std::thread thread([&] {
    work();
    begun.get_future().wait();
    work();
  });
  begin();
  begun.set_value();
  thread.join();
}

TEST_CASE("a thread of C++ is counted while somebody counts, about as often as it calls", "[unseen]") {
  const UnseenCalls before;
  UnseenCalls::Count count;
  in_earlier_thread([] {});
  const UnseenCalls during;
  in_earlier_thread([] {});
  count = during.count();
  CHECK(count.threads == 1);
  CHECK(count.calls > kCalls / 2);
  CHECK(count.calls < 6 * kCalls);
  CHECK(count.calls_on_device == 0);
  CHECK(before.count().threads == 2);
}

TEST_CASE("what was counted stays when nobody counts any more", "[unseen]") {
  UnseenCalls unseen;
  in_earlier_thread([] {});
  unseen.end();
  const uint64_t calls = unseen.count().calls;
  in_earlier_thread([] {});
  CHECK(unseen.count().calls == calls);
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
    CHECK(unseen.count().calls >= 11);  // what they call inside comes on top
    CHECK(unseen.count().calls < 50);
  }
}

}  // namespace
}  // namespace op_tools::test
