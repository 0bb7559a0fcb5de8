#include "base/log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "scoped_variable.h"
#include "written_text.h"

namespace op_tools {  // so that log is not the logarithm
namespace {

using test::Redirected;
using test::ScopedVariable;
using test::written_by;

// The text that arrives at a terminal of `columns` columns.
template <class F>
std::string shown_by(unsigned short columns, F&& f) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  REQUIRE(end >= 0);
  winsize size{};
  size.ws_col = columns;
  REQUIRE(ioctl(end, TIOCSWINSZ, &size) == 0);
  {
    const Redirected redirected(end);
    f();
  }
  constexpr char kEnd = '|';  // the terminal hands over in its own time: read until this comes
  REQUIRE(::write(end, &kEnd, 1) == 1);
  std::string text;
  for (char c = 0; ::read(terminal, &c, 1) == 1 && c != kEnd;) text += c;
  close(end);
  close(terminal);
  return text;
}

// The level that OP_TOOLS_LOG_LEVEL gives, until the end of the block.
class WithLevel {
 public:
  explicit WithLevel(const char* level) : variable_("OP_TOOLS_LOG_LEVEL", level) { log::reload_level(); }
  ~WithLevel() {
    variable_.set("info");
    log::reload_level();
  }

 private:
  ScopedVariable variable_;
};

}  // namespace

TEST_CASE("Lines come out as they are, warnings and errors with a prefix", "[log]") {
  const WithLevel level("info");
  CHECK(written_by([] { log::info("apply OpCaptureHook on torch.Tensor.mul {} %v {0}"); }) ==
        "apply OpCaptureHook on torch.Tensor.mul {} %v {0}\n");
  CHECK(written_by([] { log::notice("3 calls in there"); }) == "3 calls in there\n");
  CHECK(written_by([] { log::warn("watch out"); }) == "op_tools warning: watch out\n");
  CHECK(written_by([] { log::error("gone"); }) == "op_tools error: gone\n");
  CHECK(written_by([] { log::write(log::Level::kCritical, "over"); }) == "op_tools critical: over\n");
  CHECK(written_by([] { log::debug("not at this level"); }).empty());
  CHECK(written_by([] { log::write(log::Level::kOff, "no level to write at"); }).empty());
}

TEST_CASE("The level decides which lines are written", "[log]") {
  const std::vector<std::string> names = {"trace", "debug", "info", "notice", "warn", "error", "critical", "off"};
  for (size_t chosen = 0; chosen < names.size(); ++chosen) {
    const WithLevel level(names[chosen].c_str());
    for (size_t asked = 0; asked + 1 < names.size(); ++asked) {
      INFO("level " << names[chosen] << ", message " << names[asked]);
      const bool expected = asked >= chosen;
      CHECK(log::enabled(static_cast<log::Level>(asked)) == expected);
      CHECK(written_by([&] { log::write(static_cast<log::Level>(asked), "x"); }).empty() != expected);
    }
  }
  const WithLevel upper("WARN");
  CHECK_FALSE(log::enabled(log::Level::kInfo));
  const WithLevel unset("");
  CHECK(log::enabled(log::Level::kNotice));
  CHECK_FALSE(log::enabled(log::Level::kInfo));
  const ScopedVariable compat("OP_TOOLS_COMPAT", "ditorch");  // which prints a line for each call
  log::reload_level();
  CHECK(log::enabled(log::Level::kInfo));
}

TEST_CASE("A value that is no level is an error and changes nothing", "[log]") {
  const WithLevel level("error");
  const ScopedVariable wrong("OP_TOOLS_LOG_LEVEL", "loud");
  CHECK_THROWS_WITH(log::reload_level(),
                    Catch::Matchers::Equals("OP_TOOLS_LOG_LEVEL: 'loud' is no level; allowed are trace, debug, "
                                            "info, notice, warn, error, critical, off"));
  CHECK_FALSE(log::enabled(log::Level::kWarn));
}

// Hidden: CTest runs it alone, in a process whose OP_TOOLS_LOG_LEVEL is wrong from the start
// (CMakeLists.txt).
TEST_CASE("A wrong level at first use is said once and counts as notice", "[.first-use]") {
  const std::string text = written_by([] {
    CHECK(log::enabled(log::Level::kNotice));
    CHECK_FALSE(log::enabled(log::Level::kInfo));
    log::notice("on");
  });
  CHECK(text ==
        "op_tools warning: OP_TOOLS_LOG_LEVEL: 'loud' is no level; allowed are trace, debug, "
        "info, notice, warn, error, critical, off; using notice\non\n");
}

TEST_CASE("Lines of many threads do not mix", "[log]") {
  const WithLevel level("info");
  const std::string text = written_by([] {
    std::vector<std::thread> threads;
    for (char name = 'a'; name < 'e'; ++name) {
      threads.emplace_back([name] {
        for (int i = 0; i < 200; ++i) log::info(std::string(60, name));
      });
    }
    for (auto& thread : threads) thread.join();
  });
  size_t lines = 0, whole = 0;
  for (size_t start = 0; start < text.size(); start = text.find('\n', start) + 1, ++lines) {
    const std::string line = text.substr(start, text.find('\n', start) - start);
    whole += line == std::string(60, line[0]);
  }
  CHECK(lines == 800);
  CHECK(whole == 800);
}

TEST_CASE("A forked child can log although another thread was logging", "[log]") {
  const WithLevel level("info");
  std::atomic<bool> stop = false;
  int failed = 0;
  written_by([&] {
    std::thread noisy([&] {
      while (!stop) log::info("noise");
    });
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);  // a lock that nobody will ever open ends here
        log::info("child");
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      failed += status != 0;
    }
    stop = true;
    noisy.join();
  });
  CHECK(failed == 0);
}

TEST_CASE("Progress is drawn on a terminal only", "[log]") {
  const WithLevel level("notice");
  CHECK(written_by([] {
          log::progress("half");
          log::notice("a line");
          log::progress("");
        }) == "a line\n");
  // (The terminal turns \n into \r\n.)
  CHECK(shown_by(80, [] {
          log::progress("half");
          log::notice("a line");
          log::progress("");
          log::progress("");
        }) == "\r\x1b[Khalf\r\x1b[Ka line\r\n\r\x1b[Khalf\r\x1b[K");
  CHECK(shown_by(10, [] {
          log::progress("0123456789abc");
          log::progress("");
        }) == "\r\x1b[K012345678\r\x1b[K");
  // A few times in a second, however many calls there are.
  const std::string drawn = shown_by(80, [] {
    for (int i = 0; i < 10'000; ++i) log::progress("half");
    log::progress("");
  });
  CHECK(drawn.size() < 5'000 * std::string("\r\x1b[Khalf").size());
  const WithLevel quiet("warn");
  CHECK(shown_by(80, [] { log::progress("half"); }).empty());
}

}  // namespace op_tools
