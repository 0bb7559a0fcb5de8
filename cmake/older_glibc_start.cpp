// Part of each program of ours on Linux, as older_glibc.cpp is of each library. The start file of glibc 2.34 and newer
// calls a version of __libc_start_main that runs the program's constructors itself; an older one runs the function that
// it is given.
#include <cstddef>

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
#endif

using Main = int (*)(int, char**, char**);
using Constructor = void (*)(int, char**, char**);
using Destructor = void (*)();

// Of the linker.
extern "C" __attribute__((visibility("hidden"))) const Constructor __init_array_start[], __init_array_end[];

extern "C" int older_start(Main, int, char**, Constructor, Destructor, Destructor, void*);
__asm__(".symver older_start, __libc_start_main@" BASE);

namespace {

void construct(int count, char** arguments, char** environment) {
  const auto constructors = static_cast<size_t>(__init_array_end - __init_array_start);
  for (size_t i = 0; i < constructors; ++i) __init_array_start[i](count, arguments, environment);
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) int __libc_start_main(Main main, int count, char** arguments,
                                                                       Constructor init, Destructor fini,
                                                                       Destructor loader_fini, void* stack) {
  return older_start(main, count, arguments, init != nullptr ? init : construct, fini, loader_fini, stack);
}
