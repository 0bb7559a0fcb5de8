#include "timing/time_records.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace op_tools {
namespace {

constexpr size_t kMostPlaces = 10'000;
constexpr size_t kBatch = 4'096;
constexpr const char* kOtherShapes = "(other shapes)";

uint64_t mixed(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

// The calls that a thread measured and no reader has added up yet. The thread puts calls in, the thread that holds the
// records' mutex takes them out: neither waits for the other.
class TimeRecords::ThreadQueue {
 public:
  // False when it is full.
  bool put(const TimedCall& call, const CallBytes& bytes) {
    const uint64_t filled = filled_.load(std::memory_order_relaxed);
    if (filled - taken_.load(std::memory_order_acquire) == kSlots) return false;
    slots_[filled % kSlots] = {call, bytes};
    filled_.store(filled + 1, std::memory_order_release);
    return true;
  }
  template <class Take>
  void take(Take&& take) {
    const uint64_t filled = filled_.load(std::memory_order_acquire);
    for (uint64_t at = taken_.load(std::memory_order_relaxed); at != filled; ++at) {
      take(slots_[at % kSlots].call, slots_[at % kSlots].bytes);
    }
    taken_.store(filled, std::memory_order_release);
  }
  // Its thread puts nothing more in.
  void close() { closed_.store(true, std::memory_order_release); }
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kSlots = 64;  // 7 KB: they stay in the caches
  struct Slot {
    TimedCall call;
    CallBytes bytes;
  };
  std::atomic<uint64_t> filled_{0}, taken_{0};
  std::atomic<bool> closed_{false};
  std::array<Slot, kSlots> slots_;
};

// Trivial, so finding it is cheap.
struct TimeRecords::ThisThread {
  // The rows that this thread asked for last: the same few come over and over, and need neither lock nor map.
  struct LastEntry {
    uint64_t records, key;
    const char* op;  // where its name is: names of operators stay where they are
    uint32_t entry;
  };
  static constexpr size_t kLastEntries = 64;

  uint64_t records;  // whose queue it is
  ThreadQueue* queue;
  bool ended;  // the thread's variables are being destroyed: there are no queues any more
  LastEntry last_entries[kLastEntries];

  static thread_local ThisThread tl;
};
thread_local TimeRecords::ThisThread TimeRecords::ThisThread::tl = {};

// Keeps the queues of a thread for as long as it lives.
struct TimeRecords::OwnQueues {
  std::vector<std::pair<uint64_t, std::shared_ptr<ThreadQueue>>> queues;  // by the number of the records

  ~OwnQueues() {
    ThisThread::tl.records = 0;
    ThisThread::tl.ended = true;
    for (const auto& [records, queue] : queues) queue->close();
  }
};

TimeRecords::TimeRecords(size_t max_calls, Overflow overflow)
    : number_(next_number()), max_calls_(max_calls), overflow_(std::move(overflow)) {}
TimeRecords::~TimeRecords() = default;

uint32_t TimeRecords::entry_of(std::string_view op, Phase phase, uint64_t signature, uint32_t place,
                               Describe describe) {
  const uint64_t key = mixed(signature, uint64_t{place} * 2 + (phase == Phase::kBackward ? 1 : 0));
  const uint64_t slot = mixed(key, reinterpret_cast<uintptr_t>(op.data())) >> 32;
  ThisThread::LastEntry& last = ThisThread::tl.last_entries[slot % ThisThread::kLastEntries];
  if (last.records == number_ && last.key == key && last.op == op.data()) return last.entry;
  const uint32_t entry = find_entry(op, phase, signature, place, describe);
  last = {number_, key, op.data(), entry};
  return entry;
}

TimeRecords::ThreadQueue* TimeRecords::queue_of(ThisThread& mine) {
  if (mine.records == number_) return mine.queue;
  if (mine.ended) return nullptr;
  thread_local OwnQueues own;
  auto entry =
      std::find_if(own.queues.begin(), own.queues.end(), [&](const auto& queue) { return queue.first == number_; });
  if (entry == own.queues.end()) {
    std::erase_if(own.queues,
                  [](const auto& queue) { return queue.second.use_count() == 1; });  // their records are gone
    const auto queue = std::make_shared<ThreadQueue>();
    std::lock_guard<std::mutex> lock(mutex_);
    queues_.push_back(queue);
    entry = own.queues.insert(own.queues.end(), {number_, queue});
  }
  mine.records = number_;
  mine.queue = entry->second.get();
  return mine.queue;
}

uint32_t TimeRecords::find_entry(std::string_view op, Phase phase, uint64_t signature, uint32_t place,
                                 Describe describe) {
  std::vector<TimeEntry>& entries = sums_.entries;
  const auto key_of = [&](uint64_t of_signature, uint32_t of_place) {
    uint64_t key = mixed(std::hash<std::string_view>()(op), of_signature);
    return mixed(key, uint64_t{of_place} * 2 + (phase == Phase::kBackward ? 1 : 0));
  };
  // Two keys may be equal by chance: the operator at least is compared.
  const auto find = [&](uint64_t key) -> std::unordered_map<uint64_t, uint32_t>::const_iterator {
    auto entry = entry_index_.find(key);
    while (entry != entry_index_.end() && entries[entry->second].op != op) entry = entry_index_.find(++key);
    return entry;
  };
  const auto add = [&](uint64_t key, uint32_t of_place, CallDetails details) {
    while (entry_index_.contains(key)) ++key;
    TimeEntry entry;
    entry.op = op;
    entry.phase = phase;
    entry.place = of_place;
    entry.details = std::move(details);
    entries.push_back(std::move(entry));
    return entry_index_[key] = static_cast<uint32_t>(entries.size() - 1);
  };

  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t key = key_of(signature, place);
  if (const auto entry = find(key); entry != entry_index_.end()) return entry->second;
  if (entries.size() >= kMostEntries) {
    constexpr uint64_t kOther = 0;
    if (const auto entry = find(key_of(kOther, 0)); entry != entry_index_.end()) return entry->second;
    CallDetails other;
    other.shapes = kOtherShapes;
    return add(key_of(kOther, 0), 0, std::move(other));
  }
  lock.unlock();  // reads the program's values: takes its time
  CallDetails details = describe();
  lock.lock();
  if (const auto entry = find(key); entry != entry_index_.end()) return entry->second;
  return add(key, place, std::move(details));
}

void TimeRecords::set_device(uint32_t entry, std::string device) {
  std::lock_guard<std::mutex> lock(mutex_);
  sums_.entries[entry].details.device = std::move(device);
}

uint32_t TimeRecords::place_of(CallPlace place) {
  if (place.stack.empty() && place.module.empty()) return 0;
  std::string key = place.module;
  for (const std::string& line : place.stack) key.append("\n").append(line);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = place_index_.find(key);
  if (entry != place_index_.end()) return entry->second;
  if (places_.size() >= kMostPlaces) return 0;
  places_.push_back(std::move(place));
  return place_index_[std::move(key)] = static_cast<uint32_t>(places_.size() - 1);
}

void TimeRecords::add_locked(const TimedCall& call, const CallBytes& bytes) const {
  if (!call.is_part) {
    TimeEntry& entry = sums_.entries[call.entry];
    ++(entry.phase == Phase::kForward ? sums_.forward : sums_.backward);
    entry.times.add(call.nanoseconds);
    entry.self += call.self;
    entry.failed += call.failed;
    entry.bytes.read += bytes.read;
    entry.bytes.written += bytes.written;
    entry.bytes.allocated += bytes.allocated;
    entry.bytes.peak = std::max(entry.bytes.peak, bytes.peak);
  }
  if (sums_.calls.size() < max_calls_) {
    sums_.calls.push_back(call);
  } else if (!call.is_part) {
    ++sums_.overflowed;
    if (overflow_) sums_.batch.push_back(call);
  }
}

void TimeRecords::add_queues_locked() const {
  for (const auto& queue : queues_) {
    queue->take([&](const TimedCall& call, const CallBytes& bytes) { add_locked(call, bytes); });
  }
  // Closed before it was empty: asked in this order, nothing is lost.
  std::erase_if(queues_, [&](const auto& queue) {
    if (!queue->is_closed()) return false;
    queue->take([&](const TimedCall& call, const CallBytes& bytes) { add_locked(call, bytes); });
    return true;
  });
}

void TimeRecords::add(const TimedCall& call, const CallBytes& bytes) {
  ThreadQueue* const queue = queue_of(ThisThread::tl);
  if (queue && queue->put(call, bytes)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  add_queues_locked();
  if (!queue || !queue->put(call, bytes)) add_locked(call, bytes);
  hand_over_full(std::move(lock));
}

void TimeRecords::hand_over_full(std::unique_lock<std::mutex> lock) {
  if (sums_.batch.size() < kBatch) return;
  std::vector<TimedCall> full;
  full.swap(sums_.batch);
  lock.unlock();
  overflow_(std::move(full));
}

void TimeRecords::add_step(int64_t step, int64_t start) {
  constexpr size_t kMostSteps = 100'000;
  std::lock_guard<std::mutex> lock(mutex_);
  if (steps_.size() < kMostSteps) steps_.push_back({step, start});
}

void TimeRecords::flush_overflow() {
  std::vector<TimedCall> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    add_queues_locked();
    rest.swap(sums_.batch);
  }
  if (!rest.empty()) overflow_(std::move(rest));
}

TimeRecords::Snapshot TimeRecords::snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  add_queues_locked();
  return {sums_.entries, places_, steps_, sums_.forward, sums_.backward, sums_.overflowed};
}

std::vector<TimedCall> TimeRecords::calls(size_t from) const {
  std::lock_guard<std::mutex> lock(mutex_);
  add_queues_locked();
  const std::vector<TimedCall>& calls = sums_.calls;
  return {calls.begin() + static_cast<ptrdiff_t>(std::min(from, calls.size())), calls.end()};
}

std::vector<EntryLabel> TimeRecords::labels(size_t from) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<EntryLabel> labels;
  for (size_t i = from; i < sums_.entries.size(); ++i) {
    const TimeEntry& entry = sums_.entries[i];
    const CallPlace& place = places_[entry.place];
    labels.push_back({entry.op, entry.phase, entry.details.shapes, entry.details.dtypes, entry.details.device,
                      place.line(), place.module});
  }
  return labels;
}

CallDetails TimeRecords::details(uint32_t entry) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sums_.entries[entry].details;
}

}  // namespace op_tools
