// The file of OpBlackBox: the calls that each thread of one process is in, and the last ones that ended.
//
// It is mapped memory of the process that writes it, shared with the file: what was stored there stays when the process
// dies, whatever kills it, without a handler and without a system call. (It does not stay when the machine loses
// power.) Nothing is written twice or moved, so that a reader may look at any time. op_tools/_blackbox.py reads it.
//
//   Header, one page
//   Region, one per thread: its number, the calls it is in (`open`, the innermost last), and a ring of those that ended
//   strings: names, modules, lines and descriptions of inputs, each once; a call has their places
//
// A page of the file takes disk and memory when it is first written: a region that no thread uses costs nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "timing/tsc_clock.h"

namespace op_tools {

// A place in the table of strings; 0: the empty string, also where the table is full.
using StringId = uint32_t;

// All integers are little-endian; times are nanoseconds of clock_now() (timing/stopwatch.h).
struct BlackBoxCall {
  int64_t begin;
  int64_t end;  // of calls in the ring
  uint64_t id;
  int64_t step;
  StringId op, module, line, inputs;
  uint8_t phase;   // 0 forward, 1 backward
  uint8_t failed;  // the operator raised
  uint8_t reserved[14];
};
static_assert(sizeof(BlackBoxCall) == 64);

class BlackBoxFile {
 public:
  static constexpr uint32_t kThreads = 64;     // with a region of their own
  static constexpr uint32_t kMostNested = 31;  // calls of one thread that are open at once; deeper ones are not noted
  static constexpr size_t kStringBytes = 8 << 20;

  struct Header {
    char magic[8];  // "OPTBLBX1"
    uint32_t header_bytes, call_bytes;
    uint32_t pid, rank;
    uint32_t threads, nested, calls;  // regions; open calls and ring of each
    uint32_t reserved;
    uint64_t region_bytes, strings_at, string_bytes;
    int64_t clock_to_unix, started;
    StringId host, program;
    std::atomic<uint64_t> strings_used;
    std::atomic<uint32_t> regions_used;
    std::atomic<uint32_t> closed;    // the tool was stopped
    std::atomic<uint64_t> left_out;  // calls of threads without a region, or nested too deep
  };

  struct Region {
    uint64_t thread;              // as the system numbers it
    std::atomic<uint64_t> depth;  // how many of `open` are
    std::atomic<uint64_t> ended;  // the next goes to ring[ended % calls]
    uint64_t reserved[5];
    BlackBoxCall open[kMostNested];
    BlackBoxCall ring[1];  // `calls` of them
  };
  static_assert(offsetof(Region, open) == 64);

  // `calls`: of each ring. Makes the file; throws Error with path and system message.
  BlackBoxFile(const std::string& path, int64_t calls, int64_t rank);
  ~BlackBoxFile();
  BlackBoxFile(const BlackBoxFile&) = delete;
  BlackBoxFile& operator=(const BlackBoxFile&) = delete;

  // What one thread has of the file. Used by that thread alone.
  struct Thread {
    uint64_t file = 0;         // its serial number
    Region* region = nullptr;  // nullptr: none was left
    TscClock clock{};
    std::unordered_map<uint64_t, StringId> known{};  // by a hash of what they say
  };
  Thread& thread();

  void begin(Thread& thread, const BlackBoxCall& call);
  // Ends the innermost open call of that number, and those that were begun in it and never ended.
  void end(Thread& thread, uint64_t id, bool failed);

  // Writes a string that is not there yet. Any thread.
  StringId intern(std::string_view text);
  Header& header() const { return *header_; }
  // This process was forked from the one whose file it is: it must not be touched, and is not mapped.
  bool is_parents() const { return owner_.in_child(); }
  const std::string& path() const { return path_; }
  // Grows while any thread begins or ends a call.
  uint64_t progress() const;
  // The thread that has been in one call since before `since`; nullptr: there is none.
  const Region* stuck(int64_t since) const;
  std::string_view text(StringId id) const;
  // Calls, thread by thread, the older first, the open ones last. Those that end meanwhile may be seen half.
  using Visit = std::function<void(const Region&, const BlackBoxCall&, bool is_open)>;
  void each_call(const Visit& visit) const;

 private:
  Region& region_at(uint32_t index) const;
  Region* take_region();
  bool has_room(size_t at, size_t bytes);

  const std::string path_;
  const ForkGuard owner_;
  uint64_t serial_;  // tells files of one process apart
  int descriptor_ = -1;
  size_t bytes_ = 0, string_room_ = 0;
  char* memory_ = nullptr;
  Header* header_ = nullptr;

  std::mutex mutex_;  // guards the strings' index and the giving of regions
  std::unordered_map<std::string, StringId> ids_;
};

}  // namespace op_tools
