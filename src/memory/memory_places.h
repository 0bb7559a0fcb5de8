// The places of a program that allocate memory, each with its figures: operator, module, line, phase and device. Under
// MemoryTable's lock.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memory/leak_judge.h"

namespace op_tools {

enum class MemoryPhase : uint8_t { kForward, kBackward, kOptimizer };
const char* to_string(MemoryPhase phase);
MemoryPhase current_memory_phase();  // of this thread

// Bytes and blocks of a place or an open call, and their numbers at the last peak of the device.
struct Account {
  int64_t bytes = 0, blocks = 0, peak_bytes = 0;
  uint64_t peak = 0;  // number of the peak that peak_bytes is of

  void change(int64_t by_bytes, int64_t by_blocks, uint64_t current_peak);
  int64_t at(uint64_t current_peak) const { return peak == current_peak ? peak_bytes : bytes; }
};

struct MemoryPlace {
  std::string_view op;                                   // of a place in the table: that place's
  const std::string *module = nullptr, *line = nullptr;  // live until the process ends; nullptr: not known
  std::string stack;
  MemoryPhase phase = MemoryPhase::kForward;
  bool grad_enabled = false;
};

// "" for nullptr.
const std::string& text_of(const std::string* text);

struct PlaceFigures {
  std::string op;
  MemoryPlace place;
  uint8_t device = 0;  // as MemoryTable numbers devices
  bool parameter = false;
  Account account;
  int64_t allocations = 0, allocated_bytes = 0;
  uint32_t first_step = 0, last_step = 0;
  std::string freed_by;
  PlaceHistory history;

  PlaceSample now() const { return {account.blocks, account.bytes}; }
};

class MemoryPlaces {
 public:
  // The number of a place; a new one where it is not known. Beyond 50,000 places further ones share a place.
  uint32_t number_of(const MemoryPlace& place, uint8_t device, bool parameter, uint32_t step);
  // Of allocations that no call made.
  uint32_t outside(const char* op, uint8_t device, bool parameter, MemoryPhase phase, uint32_t step);
  bool has(const MemoryPlace& place, uint8_t device) const;

  PlaceFigures& operator[](uint32_t number) { return places_[number]; }
  const PlaceFigures& operator[](uint32_t number) const { return places_[number]; }
  uint32_t size() const { return static_cast<uint32_t>(places_.size()); }

  // At the end of a step: notes the figures of all places, where a sample is due.
  bool sample(uint32_t step);
  // Keeps every second sample where there are 64.
  void thin_out_samples();
  uint32_t sample_interval() const { return sample_interval_; }  // steps

 private:
  // Equal strings may lie at several addresses, but an address has a single string: a place is found without reading
  // it.
  struct Addresses {
    size_t op = 0;  // its hash
    const void *module = nullptr, *line = nullptr;
    uint32_t mode = 0;  // phase, device and other keys of places
    bool operator==(const Addresses&) const = default;
  };
  struct HashAddresses {
    size_t operator()(const Addresses& addresses) const;
  };
  static Addresses addresses_of(const MemoryPlace& place, uint8_t device, bool parameter);
  static std::string key_of(const MemoryPlace& place, const Addresses& addresses);
  uint32_t add(const MemoryPlace& place, uint8_t device, bool parameter, uint32_t step, std::string key);

  std::deque<PlaceFigures> places_;  // stay where they are: a new place is often like an existing place
  std::unordered_map<std::string, uint32_t> number_by_key_;
  ska::flat_hash_map<Addresses, uint32_t, HashAddresses> number_by_addresses_;
  size_t samples_ = 0;            // in each place that is old enough
  uint32_t sample_interval_ = 1;  // steps
};

}  // namespace op_tools
