// For tests/python/test_capture_files.py, loaded in front of the C library: ends the process in the middle of a write.
// A fatal signal ends a write between two pages, so this is like kill -9, at a place that the test chooses.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>

namespace {
uint64_t g_left = std::numeric_limits<uint64_t>::max();  // bytes; set before the writer's thread is there
}

extern "C" {

__attribute__((visibility("default"))) void cut_writes_after(uint64_t bytes) {
  g_left = bytes;
}

__attribute__((visibility("default"))) ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  ssize_t written = 0;
  for (int i = 0; i < count; ++i) {
    const size_t size = std::min<uint64_t>(parts[i].iov_len, g_left);
    const ssize_t done = ::pwrite(fd, parts[i].iov_base, size, offset + written);
    if (done < 0) return written > 0 ? written : done;
    written += done;
    g_left -= static_cast<uint64_t>(done);
    if (size < parts[i].iov_len) std::raise(SIGKILL);
    if (static_cast<size_t>(done) < size) break;
  }
  return written;
}
}
