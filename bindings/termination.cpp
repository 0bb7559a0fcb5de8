#include "termination.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/hung_program.h"
#include "base/log.h"
#include "timing/stopwatch.h"

namespace op_tools::python {
namespace {

using std::chrono::seconds;

constexpr seconds kInterpreter{5};  // until Python's handler must have begun; launchers give 10 to 30 s until SIGKILL
constexpr seconds kTools{60};       // until it must have stopped the tools
constexpr seconds kHooks{3};        // for flushing without it

// The state that the signal handler reads; set before it is installed. It may run in any thread, at any moment.
struct sigaction pythons = {};  // NOLINT: the handler of Python's own, which only notes the signal
std::atomic<int> arrivals = -1;
std::atomic<pid_t> owner = 0;
std::atomic<bool> python_has_begun = false;

void note(int number) {
  const int problem = errno;
  // A forked child has the descriptor of its parent, whose thread it must not wake.
  if (::getpid() == owner.load(std::memory_order_relaxed)) {
    const uint64_t count = 1;
    [[maybe_unused]] const auto written = ::write(arrivals.load(std::memory_order_relaxed), &count, sizeof count);
  }
  errno = problem;
  if (pythons.sa_handler != SIG_DFL && pythons.sa_handler != SIG_IGN) pythons.sa_handler(number);
}

// Python replaces the handler when a program sets a handler of its own, and when the last tool ends.
bool is_installed() {
  struct sigaction now = {};
  return ::sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == note;
}

struct Hooks {
  std::mutex mutex;
  std::vector<std::weak_ptr<Hook>> all;
};
Hooks& hooks() {
  static auto* hooks = new Hooks;  // NOLINT: read until the process is gone
  return *hooks;
}

// Each on a thread of its own: a hook that waits for a hung device does not keep the others from their files.
void flush_hooks(std::atomic<int>& left) {
  std::vector<std::shared_ptr<Hook>> all;
  {
    const std::lock_guard lock(hooks().mutex);
    for (const std::weak_ptr<Hook>& entry : hooks().all) {
      if (std::shared_ptr<Hook> hook = entry.lock()) all.push_back(std::move(hook));
    }
  }
  left = static_cast<int>(all.size());
  for (std::shared_ptr<Hook>& hook : all) {
    // The last owner frees it with the interpreter's lock, which may never come.
    const auto* const kept = new std::shared_ptr<Hook>(std::move(hook));  // NOLINT
    std::thread([kept, &left] {
      try {
        (*kept)->flush();
      } catch (const std::exception& error) {
        log::warn(std::string("SIGTERM: ") + error.what());
      }
      --left;
    }).detach();
  }
}

// True: it is so, within the time.
template <class Test>
bool comes_true(seconds limit, Test&& test) {
  const int64_t end = clock_now() + std::chrono::nanoseconds(limit).count();
  while (!test()) {
    if (clock_now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

[[noreturn]] void end_process() {
  ::signal(SIGTERM, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::kill(::getpid(), SIGTERM);
  for (;;) ::pause();
}

// The thread that sees to it, for the rest of the process.
void watch(int descriptor) {
  for (;;) {
    uint64_t count = 0;
    if (::read(descriptor, &count, sizeof count) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    const auto is_over = [] { return !is_installed(); };
    if (comes_true(kInterpreter, [&] { return python_has_begun || is_over(); })) {
      if (!python_has_begun) continue;           // the program has its own handler now, or no tool
      comes_true(kTools, [] { return false; });  // it ends the process
      log::warn("SIGTERM: the tools could not be stopped within a minute; the program ends");
      end_process();
    }
    static std::atomic<int> left = 0;
    set_program_hangs();
    flush_hooks(left);
    if (!comes_true(kHooks, [] { return left == 0; })) log::warn("SIGTERM: the records may not be complete");
    log::warn("SIGTERM: the interpreter has not answered: the program hangs in C++, and ends now");
    end_process();
  }
}

// After Python's own handler was set: takes its place, and calls it.
void install() {
  if (owner.load() != ::getpid()) {  // the first time, also in a forked child
    const int descriptor = ::eventfd(0, EFD_CLOEXEC);
    if (descriptor < 0) return;  // none is left: as without this
    arrivals = descriptor;
    python_has_begun = false;
    owner = ::getpid();
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are none of that thread's
    std::thread(watch, descriptor).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (is_installed()) return;
  struct sigaction action = {};
  if (::sigaction(SIGTERM, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO)) return;
  pythons = action;
  action.sa_handler = note;
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void flush_at_termination(const std::shared_ptr<Hook>& hook) {
  const std::lock_guard lock(hooks().mutex);
  std::erase_if(hooks().all, [](const std::weak_ptr<Hook>& entry) { return entry.expired(); });
  hooks().all.push_back(hook);
}

void init_termination(pybind11::module_& module) {
  module.def("watch_termination", &install);
  module.def("termination_begins", [] { python_has_begun = true; });
}

}  // namespace op_tools::python
