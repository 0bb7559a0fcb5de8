// Asks, when the library is loaded, which torch the process has. The classes of torch have another layout in each minor
// version: with the wrong one the first use of a tensor ends in a signal, often in an initialiser before main(). So the
// question is put before any other initialiser of ours, needs nothing of torch but one C function, and ends the process
// with one sentence. The Python package asks before it loads the library (op_tools/_base/torch_version.py), and there
// the answer is an ImportError.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "base/version.h"

// Of torch 2.7 and newer: the major version in the highest byte, minor and patch in the next ones. Weak: an older torch
// has none.
extern "C" [[gnu::weak]] uint64_t aoti_torch_abi_version();

namespace op_tools {
namespace {

struct TorchVersion {
  int major = 0;
  int minor = 0;
  bool operator==(const TorchVersion&) const = default;
};

constexpr TorchVersion kFirstThatTells{2, 7};

TorchVersion version_built_with() {
  TorchVersion version;
  std::sscanf(built_with_torch().data(), "%d.%d", &version.major, &version.minor);  // NOLINT: a literal of the build
  return version;
}

bool is_older(TorchVersion left, TorchVersion right) {
  return left.major < right.major || (left.major == right.major && left.minor < right.minor);
}

// Not the log, no exceptions, no streams: nothing of the library is initialised yet.
[[noreturn]] void end_with(TorchVersion needed, const char* loaded, const char* file) {
  std::array<char, 1024> text{};
  const int length = std::snprintf(
      text.data(), text.size(),
      "op_tools: this build is for torch %d.%d, and the torch loaded here is %s (%s): install torch %d.%d.*, or build "
      "op_tools again with the torch that is installed.\n",
      needed.major, needed.minor, loaded, file, needed.major, needed.minor);
  const size_t written = length < 0 ? 0 : std::min<size_t>(static_cast<size_t>(length), text.size() - 1);
  if (::write(STDERR_FILENO, text.data(), written) < 0) ::_exit(3);
  ::_exit(2);
}

[[gnu::constructor(101)]] void check_loaded_torch() {
  const TorchVersion needed = version_built_with();
  if (aoti_torch_abi_version == nullptr) {
    if (is_older(needed, kFirstThatTells)) return;  // neither of the two can tell
    end_with(needed, "older than 2.7", "it has no aoti_torch_abi_version");
  }
  const uint64_t told = aoti_torch_abi_version();
  const TorchVersion loaded{static_cast<int>(told >> 56), static_cast<int>(told >> 48 & 0xff)};
  if (loaded == needed) return;
  std::array<char, 32> version{};
  std::snprintf(version.data(), version.size(), "%d.%d.%d", loaded.major, loaded.minor,
                static_cast<int>(told >> 40 & 0xff));
  Dl_info file{};
  const bool known =
      ::dladdr(reinterpret_cast<void*>(&aoti_torch_abi_version), &file) != 0 && file.dli_fname != nullptr;
  end_with(needed, version.data(), known ? file.dli_fname : "its file is not known");
}

}  // namespace
}  // namespace op_tools
