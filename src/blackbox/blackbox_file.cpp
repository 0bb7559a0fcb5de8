#include "blackbox/blackbox_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

constexpr size_t page_aligned(size_t bytes) {
  return (bytes + BlackBoxFile::kPage - 1) / BlackBoxFile::kPage * BlackBoxFile::kPage;
}

// Takes blocks of the disk for a part of the file, which grows by it, before anything is stored there: on a full disk a
// store to a part without blocks would end the program with SIGBUS.
bool has_room(int descriptor, size_t at, size_t bytes) {
  const int problem = ::posix_fallocate(descriptor, static_cast<off_t>(at), static_cast<off_t>(bytes));
  if (problem == 0) return true;
  static_cast<void>(!::ftruncate(descriptor, static_cast<off_t>(at)));  // of blocks that were there, the file has none
  errno = problem;
  return false;
}

thread_local std::vector<std::unique_ptr<BlackBoxFile::Thread>> tl_threads;  // of this thread, an entry per file
thread_local TscClock tl_clock = {};

std::atomic<uint64_t> files_made{0};

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

[[noreturn]] void fail(const std::string& path, const char* problem) {
  throw Error(path + ": " + problem + ": " + std::strerror(errno));
}

}  // namespace

constinit thread_local BlackBoxFile::LastThread BlackBoxFile::tl_last = {};

BlackBoxFile::BlackBoxFile(const std::string& path, const Size& size, int64_t rank, uint32_t parent)
    : path_(path), calls_(static_cast<uint32_t>(size.calls)), serial_(files_made.fetch_add(1) + 1) {
  const size_t region_bytes =
      page_aligned(offsetof(Region, ring) + static_cast<size_t>(size.calls) * sizeof(BlackBoxCall));
  const size_t table_bytes = page_aligned(static_cast<size_t>(size.kept_places) * sizeof(PageNumber));
  const size_t kept_bytes = page_aligned(sizeof(KeptPlace) + static_cast<size_t>(size.kept_bytes));
  const size_t begin_bytes = 2 * kPage + table_bytes;
  mapped_ = begin_bytes + kThreads * region_bytes + (kStringSegments + kInputsSegments) * size_t{kSegment} +
            static_cast<size_t>(size.kept_places) * kept_bytes;
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path, "cannot make the file");
  if (has_room(descriptor_, 0, begin_bytes)) {
    void* const memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
  }
  if (!memory_) {
    const int problem = errno;
    ::close(descriptor_);
    ::unlink(path.c_str());
    errno = problem;
    fail(path, "cannot map the file");
  }
  ::madvise(memory_, mapped_, MADV_DONTFORK);
  header_ = new (memory_) Header{};
  header_->header_bytes = 2 * kPage;
  header_->call_bytes = sizeof(BlackBoxCall);
  header_->pid = static_cast<uint32_t>(::getpid());
  header_->rank = static_cast<uint32_t>(rank);
  header_->parent = parent;
  header_->threads = kThreads;
  header_->nested = kMostNested;
  header_->calls = calls_;
  header_->region_bytes = region_bytes;
  header_->bytes.store(begin_bytes, std::memory_order_release);
  header_->inputs_used.store(1, std::memory_order_release);
  header_->kept_at = 2 * kPage;
  header_->kept_bytes = kept_bytes;
  header_->kept_places = static_cast<uint32_t>(size.kept_places);
  header_->clock_to_unix = clock_to_unix();
  header_->started = clock_now();
  header_->strings_used.store(sizeof(uint32_t), std::memory_order_release);  // the empty string
  header_->host = intern(host_name());
  header_->program = intern(command_line());
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, "OPTBLBX4", sizeof header_->magic);  // from here on a reader may look
}

BlackBoxFile::~BlackBoxFile() {
  if (is_parents()) return;
  ::munmap(memory_, mapped_);
  ::close(descriptor_);
}

char* BlackBoxFile::part(PageNumber& place, size_t bytes) {
  const uint32_t page = place.load(std::memory_order_relaxed);
  if (page) return at_page(page);
  const size_t at = header_->bytes.load(std::memory_order_relaxed);
  if (!has_room(descriptor_, at, bytes)) {
    const int problem = errno;
    if (!std::exchange(is_full_said_, true)) {
      log::error("OpBlackBox leaves out calls and names; the program goes on: " + path_ +
                 ": cannot grow: " + std::strerror(problem));
    }
    return nullptr;
  }
  header_->bytes.store(at + bytes, std::memory_order_release);
  place.store(static_cast<uint32_t>(at / kPage), std::memory_order_release);
  return memory_ + at;
}

BlackBoxFile::Region& BlackBoxFile::region_at(uint32_t index) const {
  return *reinterpret_cast<Region*>(at_page(header_->regions[index].load(std::memory_order_acquire)));
}

BlackBoxFile::Thread& BlackBoxFile::find_thread() {
  for (const auto& thread : tl_threads) {
    if (thread->file == serial_) return *thread;
  }
  tl_threads.erase(
      std::remove_if(tl_threads.begin(), tl_threads.end(), [](const auto& thread) { return thread->life.expired(); }),
      tl_threads.end());
  auto thread = std::make_unique<Thread>(tl_clock);
  thread->file = serial_;
  thread->life = life_;
  thread->region = take_region();
  return *tl_threads.emplace_back(std::move(thread));
}

BlackBoxFile::Region* BlackBoxFile::take_region() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Region* region = nullptr;
  const uint32_t used = header_->regions_used.load(std::memory_order_relaxed);
  if (used < kThreads) {
    region = reinterpret_cast<Region*>(part(header_->regions[used], header_->region_bytes));
    if (!region) return nullptr;
  }
  // That of a thread which has ended; the system knows.
  for (uint32_t i = 0; i < used && !region; ++i) {
    const std::string task = "/proc/self/task/" + std::to_string(region_at(i).thread);
    if (::access(task.c_str(), F_OK) != 0) region = &region_at(i);
  }
  if (!region) return nullptr;
  region->depth.store(0, std::memory_order_release);
  region->ended.store(0, std::memory_order_release);
  region->thread = static_cast<uint64_t>(::syscall(SYS_gettid));
  if (used < kThreads) header_->regions_used.store(used + 1, std::memory_order_release);
  return region;
}

BlackBoxFile::KeptPlace* BlackBoxFile::kept_place(uint32_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* const table = reinterpret_cast<PageNumber*>(memory_ + header_->kept_at);
  return reinterpret_cast<KeptPlace*>(part(table[index], header_->kept_bytes));
}

void BlackBoxFile::copy_to(const std::string& path) const {
  const std::string temporary = path + ".tmp";
  // A file that is left over, or a link that another program put there: it is not written through.
  ::unlink(temporary.c_str());
  const int to = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (to < 0) fail(temporary, "cannot make the file");
  const std::string_view all_bytes = bytes();
  bool all = true;
  for (size_t done = 0; all && done < all_bytes.size();) {
    const ssize_t written = ::pwrite(to, all_bytes.data() + done, all_bytes.size() - done, static_cast<off_t>(done));
    all = written > 0;
    if (all) done += static_cast<size_t>(written);
  }
  const int64_t now = clock_now() + header_->clock_to_unix;
  all = all && ::pwrite(to, &now, sizeof now, offsetof(Header, copied)) == sizeof now;
  const int problem = errno;
  ::close(to);
  if (all && ::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (!all) errno = problem;
  fail(temporary, "cannot write the copy");
}

InputsId BlackBoxFile::describe(uint64_t key, c10::function_ref<std::string()> text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  constexpr size_t kMostKnown = 1 << 16;
  if (described_.size() >= kMostKnown) described_.clear();
  const auto [known, is_new] = described_.try_emplace(key, InputsId{0});
  if (!is_new && is_fresh(known->second)) return known->second;
  const std::string description = text().substr(0, kLongestText);
  const auto size = static_cast<uint32_t>(description.size());
  const auto units = static_cast<uint32_t>((sizeof size + size + kUnit - 1) / kUnit);
  uint64_t at = header_->inputs_used.load(std::memory_order_relaxed);
  const uint64_t left = kSegmentUnits - at % kSegmentUnits;
  if (units > left) at += left;  // in a single piece
  if (static_cast<InputsId>(at) == 0) ++at;
  const uint64_t unit = at % kInputsUnits;
  char* const segment = part(header_->inputs[unit / kSegmentUnits], kSegment);
  if (!segment) {
    described_.erase(known);
    return 0;
  }
  // A reader must not take half written bytes for the former ones: the place counts as new from here on.
  header_->inputs_used.store(at + units, std::memory_order_release);
  char* const memory = segment + unit % kSegmentUnits * kUnit;
  std::memcpy(memory, &size, sizeof size);
  std::memcpy(memory + sizeof size, description.data(), size);
  return known->second = static_cast<InputsId>(at);
}

std::string BlackBoxFile::description(InputsId id) const {
  const auto age = static_cast<uint32_t>(header_->inputs_used.load(std::memory_order_acquire)) - id;
  if (id == 0 || age > kInputsUnits) return "";
  const uint32_t unit = id % kInputsUnits;
  std::string text(text_at(header_->inputs[unit / kSegmentUnits], size_t{unit % kSegmentUnits} * kUnit));
  const auto age_now = static_cast<uint32_t>(header_->inputs_used.load(std::memory_order_acquire)) - id;
  return age_now > kInputsUnits ? "" : text;
}

StringId BlackBoxFile::intern(std::string_view text) {
  if (text.empty()) return 0;
  text = text.substr(0, kLongestText);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = ids_.find(std::string(text));
  if (entry != ids_.end()) return entry->second;
  const auto size = static_cast<uint32_t>(text.size());
  uint64_t at = header_->strings_used.load(std::memory_order_relaxed);
  if (const uint64_t left = kSegment - at % kSegment; sizeof size + size > left) at += left;
  char* const segment = at / kSegment < kStringSegments ? part(header_->strings[at / kSegment], kSegment) : nullptr;
  if (!segment) {
    header_->names_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  char* const place = segment + at % kSegment;
  std::memcpy(place, &size, sizeof size);
  std::memcpy(place + sizeof size, text.data(), size);
  header_->strings_used.store(at + sizeof size + size, std::memory_order_release);
  return ids_.emplace(text, static_cast<StringId>(at)).first->second;
}

std::string_view BlackBoxFile::text(StringId id) const {
  return id ? text_at(header_->strings[id / kSegment], id % kSegment) : std::string_view();
}

// Of descriptions the bytes may be new ones meanwhile: they end in the segment, whatever the length.
std::string_view BlackBoxFile::text_at(const PageNumber& segment, size_t place) const {
  const char* const memory = at_page(segment.load(std::memory_order_acquire)) + place;
  uint32_t size = 0;
  std::memcpy(&size, memory, sizeof size);
  return {memory + sizeof size, std::min<size_t>(size, kSegment - place - sizeof size)};
}

uint64_t BlackBoxFile::progress() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < header_->regions_used.load(std::memory_order_acquire); ++i) {
    const Region& region = region_at(i);
    const uint64_t depth = region.depth.load(std::memory_order_acquire);
    sum += region.ended.load(std::memory_order_relaxed) * 2 + depth;
  }
  return sum;
}

void BlackBoxFile::each_call(const Visit& visit) const {
  for (uint32_t i = 0; i < header_->regions_used.load(std::memory_order_acquire); ++i) {
    const Region& region = region_at(i);
    const uint64_t ended = region.ended.load(std::memory_order_acquire);
    for (uint64_t n = ended - std::min<uint64_t>(ended, header_->calls); n < ended; ++n) {
      visit(region, region.ring[n % header_->calls], /*is_open=*/false);
    }
    const uint64_t depth = region.depth.load(std::memory_order_acquire);
    for (uint64_t n = 0; n < depth; ++n) visit(region, region.open[n], /*is_open=*/true);
  }
}

std::optional<BlackBoxFile::Stuck> BlackBoxFile::stuck(int64_t since) const {
  std::optional<Stuck> open, on_stream, last;
  const auto take = [](std::optional<Stuck>& stuck, Stuck::In in, const Region& region, const BlackBoxCall& call) {
    stuck = Stuck{in, region.thread, call};
  };
  for (uint32_t i = 0; i < header_->regions_used.load(std::memory_order_acquire); ++i) {
    const Region& region = region_at(i);
    const uint64_t depth = region.depth.load(std::memory_order_acquire);
    if (depth == 0) continue;
    const BlackBoxCall& call = region.open[depth - 1];
    if (call.begin < since && (!open || call.begin < open->call.begin)) take(open, Stuck::In::kCall, region, call);
  }
  if (open) return open;
  each_call([&](const Region& region, const BlackBoxCall& call, bool is_open) {
    if (is_open || call.end >= since) return;
    if (call.stream && call.stream <= kStreams) {
      const int64_t done = header_->streams[call.stream - 1].done_until.load(std::memory_order_relaxed);
      if (call.end > done && (!on_stream || call.end < on_stream->call.end)) {
        take(on_stream, Stuck::In::kStream, region, call);
      }
    }
    if (last && call.end <= last->call.end) return;
    take(last, call.number ? Stuck::In::kCollective : Stuck::In::kProgram, region, call);
  });
  if (on_stream) return on_stream;
  return last && last->in == Stuck::In::kProgram && header_->parent ? std::nullopt : last;
}

}  // namespace op_tools
