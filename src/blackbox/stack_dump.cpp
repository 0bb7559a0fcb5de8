#include "blackbox/stack_dump.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/host.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

constexpr int64_t kLimit = 5'000'000'000;  // nanoseconds
constexpr int kAttempts = 100;

[[noreturn]] void dump_and_exit(Host::StackDump dump, int descriptor) {
  ::prctl(PR_SET_DUMPABLE, 0);  // no core file
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT}) ::signal(number, SIG_DFL);
  dump(descriptor);
  ::_exit(0);
}

// True when the child ended by itself before `limit`.
bool ended_well(pid_t child, int64_t limit) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, __WCLONE | WNOHANG)) == 0) {
    if (clock_now() >= limit) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

// A child without SIGCHLD (the first argument of clone): the program's own handlers and wait() never meet it. fork()
// would run the handlers that the program's libraries have registered for it.
bool write_stacks(int descriptor) {
  const Host::StackDump dump = host().stack_dump();
  if (!dump) return true;
  const int64_t limit = clock_now() + kLimit;
  const off_t begin = ::lseek(descriptor, 0, SEEK_END);
  for (int attempt = 0; attempt < kAttempts && clock_now() < limit; ++attempt) {
    const auto child = static_cast<pid_t>(::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, 0));
    if (child == 0) dump_and_exit(dump, descriptor);
    if (child < 0) return false;
    if (ended_well(child, limit)) return true;
    if (::ftruncate(descriptor, begin) != 0) return false;
  }
  return false;
}

}  // namespace op_tools
