#include "timing/time_records.h"

#include <algorithm>
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

// The rows that this thread asked for last: the same few come over and over, and need neither lock nor map.
struct LastEntry {
  uint64_t records, key;
  const char* op;  // where its name is: names of operators stay where they are
  uint32_t entry;
};
constexpr size_t kLastEntries = 64;
thread_local LastEntry tl_last_entries[kLastEntries] = {};

}  // namespace

TimeRecords::TimeRecords(size_t max_calls, Overflow overflow)
    : number_(next_number()), max_calls_(max_calls), overflow_(std::move(overflow)) {}

uint32_t TimeRecords::entry_of(std::string_view op, Phase phase, uint64_t signature, uint32_t place,
                               const std::function<CallDetails()>& describe) {
  const uint64_t key = mixed(signature, uint64_t{place} * 2 + (phase == Phase::kBackward ? 1 : 0));
  LastEntry& last = tl_last_entries[key % kLastEntries];
  if (last.records == number_ && last.key == key && last.op == op.data()) return last.entry;
  const uint32_t entry = find_entry(op, phase, signature, place, describe);
  last = {number_, key, op.data(), entry};
  return entry;
}

uint32_t TimeRecords::find_entry(std::string_view op, Phase phase, uint64_t signature, uint32_t place,
                                 const std::function<CallDetails()>& describe) {
  const auto key_of = [&](uint64_t of_signature, uint32_t of_place) {
    uint64_t key = mixed(std::hash<std::string_view>()(op), of_signature);
    return mixed(key, uint64_t{of_place} * 2 + (phase == Phase::kBackward ? 1 : 0));
  };
  // Two keys that are equal by chance: the operator at least is told apart.
  const auto find = [&](uint64_t key) -> std::unordered_map<uint64_t, uint32_t>::const_iterator {
    auto found = entry_index_.find(key);
    while (found != entry_index_.end() && entries_[found->second].op != op) found = entry_index_.find(++key);
    return found;
  };
  const auto add = [&](uint64_t key, uint32_t of_place, CallDetails details) {
    while (entry_index_.contains(key)) ++key;
    TimeEntry entry;
    entry.op = op;
    entry.phase = phase;
    entry.place = of_place;
    entry.details = std::move(details);
    entries_.push_back(std::move(entry));
    return entry_index_[key] = static_cast<uint32_t>(entries_.size() - 1);
  };

  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t key = key_of(signature, place);
  if (const auto found = find(key); found != entry_index_.end()) return found->second;
  if (entries_.size() >= kMostEntries) {
    constexpr uint64_t kOther = 0;
    if (const auto found = find(key_of(kOther, 0)); found != entry_index_.end()) return found->second;
    CallDetails other;
    other.shapes = kOtherShapes;
    return add(key_of(kOther, 0), 0, std::move(other));
  }
  lock.unlock();  // reads the program's values: takes its time
  CallDetails details = describe();
  lock.lock();
  if (const auto found = find(key); found != entry_index_.end()) return found->second;
  return add(key, place, std::move(details));
}

void TimeRecords::set_device(uint32_t entry, std::string device) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[entry].details.device = std::move(device);
}

uint32_t TimeRecords::place_of(CallPlace place) {
  if (place.stack.empty() && place.module.empty()) return 0;
  std::string key = place.module;
  for (const std::string& line : place.stack) key.append("\n").append(line);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = place_index_.find(key);
  if (found != place_index_.end()) return found->second;
  if (places_.size() >= kMostPlaces) return 0;
  places_.push_back(std::move(place));
  return place_index_[std::move(key)] = static_cast<uint32_t>(places_.size() - 1);
}

void TimeRecords::add(const TimedCall& call, const CallBytes& bytes) {
  std::vector<TimedCall> full;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!call.is_part) {
      TimeEntry& entry = entries_[call.entry];
      ++(entry.phase == Phase::kForward ? forward_ : backward_);
      entry.times.add(call.nanoseconds);
      entry.self += call.self;
      entry.failed += call.failed;
      entry.bytes.read += bytes.read;
      entry.bytes.written += bytes.written;
      entry.bytes.allocated += bytes.allocated;
      entry.bytes.peak = std::max(entry.bytes.peak, bytes.peak);
    }
    if (calls_.size() < max_calls_) {
      calls_.push_back(call);
    } else if (!call.is_part) {
      ++overflowed_;
      if (overflow_) batch_.push_back(call);
      if (batch_.size() >= kBatch) full.swap(batch_);
    }
  }
  if (!full.empty()) overflow_(std::move(full));
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
    rest.swap(batch_);
  }
  if (!rest.empty()) overflow_(std::move(rest));
}

TimeRecords::Snapshot TimeRecords::snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {entries_, places_, steps_, forward_, backward_, overflowed_};
}

std::vector<TimedCall> TimeRecords::calls(size_t from) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {calls_.begin() + static_cast<ptrdiff_t>(std::min(from, calls_.size())), calls_.end()};
}

std::vector<EntryLabel> TimeRecords::labels(size_t from) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<EntryLabel> labels;
  for (size_t i = from; i < entries_.size(); ++i) {
    const TimeEntry& entry = entries_[i];
    const CallPlace& place = places_[entry.place];
    labels.push_back({entry.op, entry.phase, entry.details.shapes, entry.details.dtypes, entry.details.device,
                      place.line(), place.module});
  }
  return labels;
}

CallDetails TimeRecords::details(uint32_t entry) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_[entry].details;
}

}  // namespace op_tools
