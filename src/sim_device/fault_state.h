// The state of planted faults and latencies; shared by faults.cpp, which plants them, and fault_injection.cpp,
// which injects them. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/op_filter.h"
#include "sim_device/sim_device.h"

namespace op_tools::sim_device {

enum class Kind : uint8_t {
  kScale,
  kElement,
  kLowPrecision,
  kSwapRows,
  kNan,
  kInf,
  kMutateInput,
  kNoncontiguous,
  kAboveSize,
  kLostWrite,
  kMissing,
  kStrides,
  kLatency,
  kLeak,
  kException,
  kNondeterministic,
  kCrash,
  kHang,
  kOutOfBounds,
  kLateWrite,
  kWrongGenerator,
  kBatchSize,
  kBatchPosition,
  kMisaligned,
  kEverySecond,
  kBitFlip,
  kNeighbour,
  kOtherStream,
  kGaps,
  kSequenceLength,
  kRowLength,
  kTokenPosition,
};

struct KindFacts {
  std::string_view name;
  Kind kind;
  double scale;  // its default; 0: the kind has none
};

// An operator filter that is asked with every call: remembers its answer for each name.
class Matcher {
 public:
  Matcher(const std::string& ops, const std::string& source) : filter_(ops, "", source, source) {}

  bool operator()(const std::string& op) const {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = known_.try_emplace(op, false);
    if (is_new) known->second = filter_.admits(op);
    return known->second;
  }

 private:
  OpFilter filter_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, bool> known_;
};

struct Fault::State {
  // Error when an option is wrong. `source` says in messages where the fault was described.
  State(FaultOptions its_options, const std::string& source);

  double scale() const { return options.scale.value_or(facts.scale); }
  // Counts another call that matches; its number and a random draw when the fault hits it.
  std::optional<std::pair<int64_t, uint64_t>> next_call();
  void note(const std::string& op, int64_t call);  // it really changed something

  const FaultOptions options;
  const KindFacts& facts;
  const Matcher matches;

  std::mutex mutex;  // for all below
  std::mt19937_64 random;
  int64_t calls = 0;
  int64_t hits = 0;
  std::vector<std::pair<std::string, int64_t>> log;
};

struct Latency::State {
  struct Rule {
    std::unique_ptr<Matcher> matches;
    std::chrono::nanoseconds time;
  };
  std::vector<Rule> rules;
};

// The planted items at the moment. The list is replaced, never changed, so a call works with a list that stays.
template <class T>
class Planted {
 public:
  using List = std::vector<std::shared_ptr<T>>;

  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::shared_ptr<const List> list() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }
  void add(const std::shared_ptr<T>& item) {
    change([&](List& list) {
      if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
    });
  }
  bool has(const std::shared_ptr<T>& item) const {
    const auto now = list();
    return std::find(now->begin(), now->end(), item) != now->end();
  }
  bool remove(const std::shared_ptr<T>& item) {  // false: it was not there
    bool removed = false;
    change([&](List& list) { removed = std::erase(list, item) > 0; });
    return removed;
  }
  void clear() {
    change([](List& list) { list.clear(); });
  }

 private:
  template <class F>
  void change(F&& edit) {
    const std::lock_guard lock(mutex_);
    auto list = std::make_shared<List>(*list_);
    edit(*list);
    any_ = !list->empty();
    list_ = std::move(list);
  }

  std::atomic<bool> any_ = false;
  mutable std::mutex mutex_;
  std::shared_ptr<const List> list_ = std::make_shared<List>();
};

Planted<Fault::State>& planted_faults();
Planted<const Latency::State>& planted_latencies();

bool leak(size_t bytes);  // holds so much memory of the current device until faults_clear(); false for none

}  // namespace op_tools::sim_device
