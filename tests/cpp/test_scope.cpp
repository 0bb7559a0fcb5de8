// Where scopes begin and end, and exceptions that end their hooks from outside.
#include "hooks/scope.h"

#include <ATen/ops/ones.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/host.h"
#include "base/own_command.h"
#include "base/stop_program.h"
#include "catch.h"
#include "quiet_log.h"
#include "recording_hook.h"

namespace op_tools::test {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("a scope whose thread has ended is left by any thread", "[scope]") {
  const QuietLog quiet;
  for (int i = 0; i < 8; ++i) {  // threads often get the number of the previous thread
    const auto hook = std::make_shared<RecordingHook>();
    HookScope scope(hook, admitting("relu"));
    std::thread([&] {
      scope.enter();
      at::ones({1}).relu();
    }).join();
    CHECK(scope.is_on());
    at::ones({1}).relu();
    std::thread([&] { scope.leave(); }).join();
    CHECK_FALSE(scope.is_on());
    CHECK(hook->names() == Names{"aten::relu"});
  }
}

TEST_CASE("a thread with the number of a thread that has ended has its own scopes", "[scope]") {
  const QuietLog quiet;
  for (int i = 0; i < 8; ++i) {
    const auto first = std::make_shared<RecordingHook>(), second = std::make_shared<RecordingHook>();
    HookScope old(first, admitting("relu")), own(second, admitting("relu"));
    std::thread([&] { old.enter(); }).join();
    std::thread([&] {
      own.enter();
      old.leave();
      at::ones({1}).relu();
      own.leave();
    }).join();
    CHECK(first->names().empty());
    CHECK(second->names() == Names{"aten::relu"});
  }
}

TEST_CASE("a suspended scope sees nothing, and resumes on any thread", "[scope]") {
  const auto hook = std::make_shared<RecordingHook>();
  HookScope scope(hook, admitting("relu"));
  scope.enter();
  scope.suspend();
  at::ones({1}).relu();
  CHECK(hook->names().empty());
  std::thread([&] {
    scope.resume();
    at::ones({1}).relu();
    scope.suspend();
  }).join();
  CHECK(hook->names() == Names{"aten::relu"});
  scope.resume();
  at::ones({1}).relu();
  scope.leave();
  CHECK(hook->names().size() == 2);
  at::ones({1}).relu();
  CHECK(hook->names().size() == 2);
}

struct Outside final : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Ended once by something from outside.
class Interrupted final : public Hook {
 public:
  explicit Interrupted(bool in_before) : in_before_(in_before) {}
  std::string_view name() const override { return "Interrupted"; }
  std::unique_ptr<HookState> before(OpCall&) override {
    ++asked;
    if (in_before_ && asked == 1) throw Outside("arrived");
    return nullptr;
  }
  void after(OpCall&, HookState*) override {
    ++seen;
    if (!in_before_ && asked == 1) throw Outside("arrived");
  }
  int asked = 0, seen = 0;

 private:
  const bool in_before_;
};

TEST_CASE("an exception that ends a hook from outside is thrown when the call is over, and the hook stays on",
          "[scope]") {
  struct Recognises final : Host {
    bool is_of_program(const std::exception& caught) override {
      return dynamic_cast<const Outside*>(&caught) != nullptr;
    }
  } recognises;
  Host* const before = install_host(&recognises);
  for (const bool in_before : {true, false}) {
    const auto hook = std::make_shared<Interrupted>(in_before);
    const auto other = std::make_shared<RecordingHook>();
    HookScope scope(hook, admitting("relu_")), beside(other, admitting("relu_"));
    scope.enter();
    beside.enter();
    at::Tensor x = at::ones({1}).neg();
    CHECK_THROWS_AS(x.relu_(), Outside);
    CHECK(x.item<float>() == 0);  // the operator ran
    CHECK_NOTHROW(x.relu_());
    CHECK(hook->asked == 2);
    CHECK(hook->seen == (in_before ? 1 : 2));
    CHECK(scope.hook_failures() == 0);
    CHECK(other->names().size() == 2);
    beside.leave();
    scope.leave();
  }
  install_host(before);
}

TEST_CASE("commands in messages are called as the host says, and quoted for a shell", "[host]") {
  CHECK(op_tools_line({"show", "a/b-1.zip"}) == "op-tools show a/b-1.zip");
  CHECK(replay_line({"my calls", ""}) == "run_op_from_data 'my calls' ''");
  struct Called final : Host {
    const OwnCommands& own_commands() override { return commands; }
    OwnCommands commands{"python -m op_tools", "python -m op_tools.run_op_from_data"};
  } called;
  Host* const before = install_host(&called);
  CHECK(op_tools_line({"show", "it's"}) == "python -m op_tools show 'it'\"'\"'s'");
  CHECK(replay_line({"calls", "--acc_check"}) == "python -m op_tools.run_op_from_data calls --acc_check");
  install_host(before);
}

}  // namespace
}  // namespace op_tools::test
