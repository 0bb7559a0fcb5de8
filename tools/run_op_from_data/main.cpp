// The stand-alone replay program. It is bound to no C++ of torch, so that it can be started beside any torch:
// loaded_torch.cpp has asked for torch's version before main, and only then the library with the program is loaded.
#include <dlfcn.h>

#include <cstdio>

namespace {
constexpr const char* kLibrary = "libop_tools_replay_program.so";
constexpr const char* kProgram = "op_tools_run_op_from_data";  // program.cpp
constexpr int kNotLoaded = 2;
}  // namespace

int main(int argc, char** argv) {
  // Global: libraries that --library loads find the symbols of this one's dependencies.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  void* const program = library == nullptr ? nullptr : ::dlsym(library, kProgram);
  if (program == nullptr) {
    std::fprintf(stderr, "run_op_from_data: %s\n", ::dlerror());
    return kNotLoaded;
  }
  return reinterpret_cast<int (*)(int, char**)>(program)(argc, argv);
}
