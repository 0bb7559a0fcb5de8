// Part of each library and program of ours on Linux: functions of glibc and libstdc++ whose newest version, which the
// linker would take, is younger than glibc 2.28 and gcc 8 (manylinux_2_28, for which torch's own wheels are made). Each
// definition is hidden, calls the older version of the same function, and does nothing else; where there is none, it
// does the same by older means. No header that declares them is included: their attributes would differ.
// tests/python/test_older_glibc.py finds what a change adds.
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#define SETNAME "GLIBC_2.12"
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
#define SETNAME "GLIBC_2.17"
#endif

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

// OLDER(type, name, version, (parameters), (arguments))
#define OLDER(type, name, version, parameters, arguments) \
  extern "C" type older_##name parameters;                \
  __asm__(".symver older_" #name ", " #name "@" version); \
  HIDDEN type name parameters {                           \
    return older_##name arguments;                        \
  }

OLDER(double, exp, BASE, (double x), (x))
OLDER(double, exp2, BASE, (double x), (x))
OLDER(double, log2, BASE, (double x), (x))
OLDER(double, pow, BASE, (double x, double y), (x, y))
OLDER(double, hypot, BASE, (double x, double y), (x, y))

OLDER(void*, dlopen, BASE, (const char* file, int mode), (file, mode))
OLDER(void*, dlsym, BASE, (void* handle, const char* symbol), (handle, symbol))
OLDER(int, dladdr, BASE, (const void* address, void* info), (address, info))
OLDER(char*, dlerror, BASE, (), ())

OLDER(int, pthread_mutex_trylock, BASE, (void* mutex), (mutex))
OLDER(int, pthread_rwlock_rdlock, BASE, (void* lock), (lock))
OLDER(int, pthread_rwlock_wrlock, BASE, (void* lock), (lock))
OLDER(int, pthread_rwlock_unlock, BASE, (void* lock), (lock))
OLDER(int, pthread_sigmask, BASE, (int how, const void* set, void* old), (how, set, old))
OLDER(int, pthread_setname_np, SETNAME, (unsigned long thread, const char* name), (thread, name))
OLDER(int, pthread_once, BASE, (int* control, void (*routine)()), (control, routine))

// The kernel's structure is the C library's.
HIDDEN int stat(const char* path, void* status) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}

HIDDEN int lstat(const char* path, void* status) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW));
}

HIDDEN int fstat(int descriptor, void* status) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, status));
}

// libstdc++'s headers ask it before they count a shared_ptr's owners without atomic instructions. 0: never.
HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

// Waiting until a time of the monotonic clock, in std::condition_variable::wait_for() and std::recursive_timed_mutex.
// Where the time of day is set meanwhile, the wait is longer or shorter; their callers look at the clock again.
extern "C" int pthread_cond_timedwait(void* condition, void* mutex, const timespec* until);
extern "C" int older_pthread_mutex_timedlock(void* mutex, const timespec* until);
__asm__(".symver older_pthread_mutex_timedlock, pthread_mutex_timedlock@" BASE);

namespace {

timespec on_clock_of_the_day(clockid_t clock, const timespec* time) {
  timespec now{}, day{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &day);
  constexpr long kSecond = 1'000'000'000;
  const long nanoseconds = (time->tv_sec - now.tv_sec) * kSecond + (time->tv_nsec - now.tv_nsec) + day.tv_nsec;
  const long seconds = nanoseconds / kSecond - (nanoseconds % kSecond < 0 ? 1 : 0);
  return {day.tv_sec + seconds, nanoseconds - seconds * kSecond};
}

}  // namespace

HIDDEN int pthread_cond_clockwait(void* condition, void* mutex, clockid_t clock, const timespec* until) {
  const timespec day = on_clock_of_the_day(clock, until);
  return pthread_cond_timedwait(condition, mutex, &day);
}

HIDDEN int pthread_mutex_clocklock(void* mutex, clockid_t clock, const timespec* until) {
  const timespec day = on_clock_of_the_day(clock, until);
  return older_pthread_mutex_timedlock(mutex, &day);
}

// std::condition_variable::wait(std::unique_lock<std::mutex>&)
extern "C" void older_wait(void* condition, void* lock);
__asm__(".symver older_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
HIDDEN void wait(void* condition, void* lock) __asm__("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void wait(void* condition, void* lock) {
  older_wait(condition, lock);
}

// std::runtime_error::runtime_error(std::runtime_error&&), as a copy.
extern "C" void copy_error(void* error, const void* from) __asm__("_ZNSt13runtime_errorC2ERKS_");
HIDDEN void move_error(void* error, void* from) __asm__("_ZNSt13runtime_errorC2EOS_");
void move_error(void* error, void* from) {
  copy_error(error, from);
}
