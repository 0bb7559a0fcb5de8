#include "memory/memory_places.h"

#include <functional>
#include <utility>

#include "hooks/backward_pass.h"
#include "memory/memory_hook.h"

namespace op_tools {
namespace {

constexpr size_t kMostPlaces = 50'000;
constexpr const char* kFurtherPlaces = "(further places)";
constexpr size_t kMostSamples = 64;

thread_local bool tl_in_optimizer = false;

}  // namespace

const char* to_string(MemoryPhase phase) {
  return phase == MemoryPhase::kForward ? "forward" : phase == MemoryPhase::kBackward ? "backward" : "optimizer";
}

void set_in_optimizer(bool running) {
  tl_in_optimizer = running;
}

MemoryPhase current_memory_phase() {
  if (is_in_backward()) return MemoryPhase::kBackward;
  return tl_in_optimizer ? MemoryPhase::kOptimizer : MemoryPhase::kForward;
}

const std::string& text_of(const std::string* text) {
  static const std::string none;
  return text ? *text : none;
}

void Account::change(int64_t by_bytes, int64_t by_blocks, uint64_t current_peak) {
  peak_bytes = at(current_peak);
  peak = current_peak;
  bytes += by_bytes;
  blocks += by_blocks;
}

MemoryPlaces::Addresses MemoryPlaces::addresses_of(const MemoryPlace& place, uint8_t device, bool parameter) {
  const uint32_t mode = parameter ? 2 : place.grad_enabled ? 1 : 0;
  return {std::hash<std::string_view>()(place.op), place.module, place.line,
          (static_cast<uint32_t>(place.phase) << 16) + (uint32_t{device} << 8) + mode};
}

size_t MemoryPlaces::HashAddresses::operator()(const Addresses& addresses) const {
  size_t hash = addresses.op + addresses.mode;
  for (const void* const part : {addresses.module, addresses.line}) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(part)) * 0x9E3779B97F4A7C15U;
  }
  return hash ^ hash >> 32;
}

std::string MemoryPlaces::key_of(const MemoryPlace& place, const Addresses& addresses) {
  std::string key(place.op);
  for (const std::string* const part : {place.module, place.line}) (key += '\n') += text_of(part);
  return (key += '\n') += std::to_string(addresses.mode);
}

uint32_t MemoryPlaces::number_of(const MemoryPlace& place, uint8_t device, bool parameter, uint32_t step) {
  const Addresses addresses = addresses_of(place, device, parameter);
  const auto known = number_by_addresses_.find(addresses);
  if (known != number_by_addresses_.end() && places_[known->second].op == place.op) return known->second;
  std::string key = key_of(place, addresses);
  const auto same = number_by_key_.find(key);
  if (same == number_by_key_.end() && places_.size() >= kMostPlaces && place.op != kFurtherPlaces) {
    return outside(kFurtherPlaces, device, parameter, MemoryPhase::kForward, step);
  }
  const uint32_t number =
      same != number_by_key_.end() ? same->second : add(place, device, parameter, step, std::move(key));
  number_by_addresses_[addresses] = number;
  return number;
}

uint32_t MemoryPlaces::add(const MemoryPlace& place, uint8_t device, bool parameter, uint32_t step, std::string key) {
  const auto number = static_cast<uint32_t>(places_.size());
  PlaceFigures& figures = places_.emplace_back();
  figures.op = place.op;
  figures.place = place;
  figures.place.op = figures.op;
  figures.device = device;
  figures.parameter = parameter;
  figures.first_step = step;
  figures.history.samples.resize(samples_);
  number_by_key_.emplace(std::move(key), number);
  return number;
}

uint32_t MemoryPlaces::outside(const char* op, uint8_t device, bool parameter, MemoryPhase phase, uint32_t step) {
  return number_of({op, nullptr, nullptr, {}, phase, false}, device, parameter, step);
}

bool MemoryPlaces::has(const MemoryPlace& place, uint8_t device) const {
  return number_by_key_.contains(key_of(place, addresses_of(place, device, false)));
}

bool MemoryPlaces::sample(uint32_t step) {
  if (step % sample_interval_ != 0) return false;
  for (PlaceFigures& figures : places_) figures.history.samples.push_back(figures.now());
  ++samples_;
  return true;
}

void MemoryPlaces::thin_out_samples() {
  if (samples_ < kMostSamples) return;
  for (PlaceFigures& figures : places_) {
    std::vector<PlaceSample>& samples = figures.history.samples;
    for (size_t i = 0; 2 * i + 1 < samples_; ++i) samples[i] = samples[2 * i + 1];
    samples.resize(samples_ / 2);
  }
  samples_ /= 2;
  sample_interval_ *= 2;
}

}  // namespace op_tools
