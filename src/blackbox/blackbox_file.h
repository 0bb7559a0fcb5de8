// The file of OpBlackBox: the calls that each thread of a process is in, and the last calls that ended.
//
// It is mapped memory of the process that writes it, shared with the file: bytes stored there stay when the process
// dies, whatever kills it, without a handler and without a system call. (It does not stay when the machine loses
// power.) Nothing is written twice or moved, so that a reader may look at any time (blackbox_content.h).
//
//   Header, two pages, with the places of the parts, which stand in the order in which they were needed:
//   Region of each thread: its number, the calls it is in (`open`, the innermost last), and a ring of those that ended
//   segments of strings: names, modules and lines, each once; a call has their places
//   segments of inputs: a ring of descriptions of inputs, of which a program with dynamic shapes makes ever more
//   stored inputs: places of equal size, each with the files of a saved call (kept_inputs.h)
//
// The file grows as parts are needed: that of a program with two threads has 0.7 MB, and no holes.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "timing/tsc_clock.h"

namespace op_tools {

// A place in the segments of strings, as if they stood behind each other; 0: the empty string, also where they are
// full.
using StringId = uint32_t;
// A place in the ring of descriptions, in units of kUnit bytes since its begin, modulo 2^32; 0: none.
using InputsId = uint32_t;
// Of a part of the file, in pages; 0: there is none yet.
using PageNumber = std::atomic<uint32_t>;

// The part of a call's inputs in the file.
enum class Kept : uint8_t {
  kNotAsked,
  kCopying,   // the call had not begun: the copy of its inputs did not come back
  kInputs,    // all: the call can be run again
  kTooLarge,  // more than inputs_mb
  kFailed,    // they could not be copied, or have no form in a file
  kNoRoom,    // the disk is full
};

// All integers are little-endian; times are nanoseconds of clock_now() (timing/stopwatch.h).
struct BlackBoxCall {
  int64_t begin;
  int64_t end;  // of calls in the ring
  uint64_t id;
  int64_t step;
  StringId op, module, line;
  InputsId inputs;
  uint8_t phase;   // 0 forward, 1 backward
  uint8_t failed;  // the operator raised
  uint8_t stream;  // the stream of a device, from 1; 0: none
  Kept kept;
  uint32_t number;     // of a collective, among those of its process group, from 1
  StringId group;      // its process group
  StringId reduction;  // of a collective: reduction_and_root_of()
};
static_assert(sizeof(BlackBoxCall) == 64);

class BlackBoxFile {
 public:
  static constexpr uint32_t kThreads = 256;    // with a region of their own
  static constexpr uint32_t kMostNested = 31;  // calls of a thread that are open at once; deeper ones are not noted
  static constexpr uint32_t kStreams = 64;
  static constexpr size_t kPage = 4096;
  static constexpr uint32_t kSegment = 64 << 10;  // bytes; a text is in one
  static constexpr uint32_t kStringSegments = 128, kInputsSegments = 64;
  static constexpr uint32_t kLongestText = kSegment - sizeof(uint32_t);  // behind its length
  static constexpr uint32_t kUnit = 8;
  static constexpr uint32_t kSegmentUnits = kSegment / kUnit;
  static constexpr uint32_t kInputsUnits = kInputsSegments * kSegmentUnits;

  // A stream of a device. The calls that had returned when the last reached event was put into it are done there.
  struct Stream {
    int64_t id;
    StringId device;
    uint32_t reserved;
    std::atomic<int64_t> done_until;  // when that was; 0: nothing is known to be done
    std::atomic<uint64_t> launched;   // calls
  };

  struct Header {
    char magic[8];  // "OPTBLBX4"
    uint32_t header_bytes, call_bytes;
    uint32_t pid, rank;
    uint32_t threads, nested, calls;  // regions; open calls and ring of each
    uint32_t parent;                  // the process that this process was forked from; 0: a process without the tool
    uint64_t region_bytes;
    int64_t clock_to_unix, started;
    StringId host, program;
    // Numbers of parts come before their places: a reader that copies this while it is written finds the places.
    std::atomic<uint64_t> bytes;  // of the file
    std::atomic<uint64_t> strings_used;
    std::atomic<uint32_t> regions_used;
    std::atomic<uint32_t> closed;       // the tool was stopped
    std::atomic<uint64_t> left_out;     // calls of threads without a region, or nested too deep
    std::atomic<uint64_t> inputs_used;  // units of the ring that were ever written; its first is never used
    std::atomic<uint64_t> names_lost;   // strings without a place: the table or the disk is full
    int64_t copied;       // when this copy was made, in nanoseconds since 1970; 0: it is the file of the process itself
    uint64_t kept_bytes;  // of a place of stored inputs
    uint64_t kept_at;     // where their table is, a PageNumber for each
    uint32_t kept_places;
    std::atomic<uint32_t> streams_used;
    Stream streams[kStreams];
    PageNumber regions[kThreads], strings[kStringSegments], inputs[kInputsSegments];
  };
  static_assert(sizeof(Header) <= 2 * kPage);

  // Of a call; its files follow: for each the lengths of name and contents (uint64_t), then both.
  struct KeptPlace {
    std::atomic<uint64_t> call;  // its number; 0: it is being written
    uint64_t bytes;              // of the files
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

  struct Size {
    int64_t calls = 4096;                     // of each ring
    int64_t kept_places = 0, kept_bytes = 0;  // stored inputs: how many calls', and of how many bytes each
  };
  // Makes the file; throws Error with path and system message.
  BlackBoxFile(const std::string& path, const Size& size, int64_t rank, uint32_t parent = 0);
  ~BlackBoxFile();
  BlackBoxFile(const BlackBoxFile&) = delete;
  BlackBoxFile& operator=(const BlackBoxFile&) = delete;

  // A thread's part of the file. Used by that thread alone.
  struct Thread {
    explicit Thread(TscClock& clock) : clock(clock) {}

    uint64_t file = 0;                 // its serial number
    std::weak_ptr<const bool> life{};  // of the file: this is freed with the next object that is made after its end
    Region* region = nullptr;          // nullptr: none was left
    TscClock& clock;                   // the thread's: it learns its rate once, not for each file
    uint32_t next = 0;                 // the place in the ring for the call that ends next
    BlackBoxCall unplaced{};           // the record of a call that has no place
    struct LastPlace {
      const std::string* place = nullptr;
      StringId string = 0;
    };
    LastPlace module{}, line{};  // of the last call

    // Strings that the thread wrote, by a number that stands for them; a later string may have taken the place of
    // `key`'s.
    struct Known {
      uint64_t key = 0;
      StringId string = 0;
      bool is_collective = false;  // of operators
    };
    Known& known(uint64_t key) { return known_[(key * 0x9E3779B97F4A7C15U) >> (64 - kKnownBits)]; }

   private:
    static constexpr int kKnownBits = 11;
    std::vector<Known> known_ = std::vector<Known>(size_t{1} << kKnownBits);
  };
  Thread& thread();

  // Where the thread's next call is written, all zero: readers see it from begin() on. A call that has no place in the
  // file is counted, and goes nowhere.
  BlackBoxCall& next(Thread& thread);
  void begin(Thread& thread, BlackBoxCall& call);
  // Ends the innermost open call of that number, and those that were begun in it and never ended. Its stream; 0: none.
  uint8_t end(Thread& thread, uint64_t id, bool failed);

  // The place number `index` for stored inputs; nullptr: the disk is full. Any thread.
  KeptPlace* kept_place(uint32_t index);
  // Writes the file into another file, which takes the place of an existing file. Throws Error.
  void copy_to(const std::string& path) const;

  // Writes a string that is not there yet. Any thread.
  StringId intern(std::string_view text);
  // A description of inputs that `key` stands for. It stays for as long as no half of the ring was written since.
  InputsId describe(uint64_t key, c10::function_ref<std::string()> text);
  // It is in the first half of its life: a call that is made now may have it.
  bool is_fresh(InputsId id) const {
    return static_cast<uint32_t>(header_->inputs_used.load(std::memory_order_relaxed)) - id <= kInputsUnits / 2;
  }
  // "": none, or no longer there.
  std::string description(InputsId id) const;
  Header& header() const { return *header_; }
  // This process was forked from the process whose file it is: it must not be touched, and is not mapped.
  bool is_parents() const { return owner_.in_child(); }
  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {memory_, header_->bytes.load(std::memory_order_acquire)}; }
  // Grows while any thread begins or ends a call.
  uint64_t progress() const;
  // Where the process stands when no call has begun or ended since before `since`: the call that is open, else the
  // first that a stream has not done, else the last: a collective, which may be waited for, or the place of the program
  // outside of any operator. (Forked processes are no program: a worker that is outside waits for work.)
  struct Stuck {
    enum class In : uint8_t { kCall, kStream, kCollective, kProgram } in = In::kCall;
    uint64_t thread = 0;
    BlackBoxCall call{};
  };
  std::optional<Stuck> stuck(int64_t since) const;
  std::string_view text(StringId id) const;
  // Calls, thread by thread, the older first, the open ones last. Those that end meanwhile may be seen half.
  using Visit = c10::function_ref<void(const Region&, const BlackBoxCall&, bool is_open)>;
  void each_call(const Visit& visit) const;

 private:
  // The entry that this thread asked for last.
  struct LastThread {
    uint64_t file;
    Thread* thread;
  };
  static constinit thread_local LastThread tl_last;

  Region& region_at(uint32_t index) const;
  Thread& find_thread();
  Region* take_region();
  // The part that has that place; makes it at the file's end. nullptr: the disk is full. With the lock held.
  char* part(PageNumber& place, size_t bytes);
  char* at_page(uint32_t page) const { return memory_ + size_t{page} * kPage; }
  // Of a text that is there.
  std::string_view text_at(const PageNumber& segment, size_t place) const;

  const std::string path_;
  const uint32_t calls_;  // of each ring
  const ForkGuard owner_;
  uint64_t serial_;  // tells files of a process apart
  const std::shared_ptr<const bool> life_ = std::make_shared<const bool>(true);
  int descriptor_ = -1;
  size_t mapped_ = 0;  // bytes: as large as the file can become
  char* memory_ = nullptr;
  Header* header_ = nullptr;

  std::mutex mutex_;  // guards the file's growth and the next
  std::unordered_map<std::string, StringId> ids_;
  std::unordered_map<uint64_t, InputsId> described_;  // by key
  bool is_full_said_ = false;
};

// The work of every call.

inline BlackBoxFile::Thread& BlackBoxFile::thread() {
  LastThread& last = tl_last;
  if (last.file != serial_) last = {serial_, &find_thread()};
  return *last.thread;
}

inline BlackBoxCall& BlackBoxFile::next(Thread& thread) {
  Region* const region = thread.region;
  const uint64_t depth = region ? region->depth.load(std::memory_order_relaxed) : kMostNested;
  BlackBoxCall* call = &thread.unplaced;
  if (depth < kMostNested) {
    call = &region->open[depth];
    __builtin_prefetch(&region->ring[thread.next], /*rw=*/1);  // end() writes there, seldom to memory that is near
  } else {
    header_->left_out.fetch_add(1, std::memory_order_relaxed);
  }
  *call = {};
  return *call;
}

inline void BlackBoxFile::begin(Thread& thread, BlackBoxCall& call) {
  call.begin = thread.clock.now();
  if (&call == &thread.unplaced) return;
  std::atomic<uint64_t>& depth = thread.region->depth;
  depth.store(depth.load(std::memory_order_relaxed) + 1,
              std::memory_order_release);  // a reader sees all of it, or none
}

inline uint8_t BlackBoxFile::end(Thread& thread, uint64_t id, bool failed) {
  Region* const region = thread.region;
  if (!region) return 0;
  uint64_t depth = region->depth.load(std::memory_order_relaxed);
  while (depth > 0 && region->open[depth - 1].id != id) --depth;
  if (depth == 0) return 0;  // it was nested too deep
  const uint64_t ended = region->ended.load(std::memory_order_relaxed);
  BlackBoxCall& done = region->ring[thread.next];
  if (++thread.next == calls_) thread.next = 0;
  done = region->open[depth - 1];
  done.end = thread.clock.now();
  done.failed = failed;
  region->ended.store(ended + 1, std::memory_order_release);
  region->depth.store(depth - 1, std::memory_order_release);
  return done.stream;
}

}  // namespace op_tools
