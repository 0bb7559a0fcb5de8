#include "memory/leak_judge.h"

#include <cstddef>

namespace op_tools {

std::optional<double> growth_of(const PlaceHistory& history, uint32_t interval, bool by_bytes) {
  const std::vector<PlaceSample>& samples = history.samples;
  if (samples.size() < kFewestSteps) return std::nullopt;
  const auto measure = [&](size_t i) { return by_bytes ? samples[i].bytes : samples[i].blocks; };
  const size_t last = samples.size() - 1, from = (samples.size() + 1) / 2 - 1;
  size_t rises = 0, last_rise = 0;
  for (size_t i = from + 1; i <= last; ++i) {
    if (measure(i) < measure(i - 1)) return std::nullopt;
    if (measure(i) == measure(i - 1)) continue;
    ++rises;
    last_rise = i;
  }
  if (rises < 2 || last_rise <= (from + last) / 2) return std::nullopt;
  return static_cast<double>(samples[last].bytes - samples[from].bytes) / static_cast<double>((last - from) * interval);
}

bool is_leaking(const PlaceHistory& history, uint32_t interval, const BlockAges& ages, const PlaceSample& now) {
  if (ages.steps() < 3 || !growth_of(history, interval, ages.by_bytes())) return false;
  const PlaceSample& last = history.samples.back();
  // Memory that was freed since was held for a while, not for ever.
  return ages.by_bytes() ? 2 * now.bytes > last.bytes : 2 * now.blocks > last.blocks;
}

LeakVerdict judge_leak(const PlaceHistory& history, uint32_t interval, const BlockAges& ages, const PlaceSample& now) {
  const bool leaks_now = is_leaking(history, interval, ages, now);
  const auto growth = growth_of(history, interval, leaks_now ? ages.by_bytes() : history.leaked_by_bytes);
  // It leaked, and grew until the last step: then the function returned whose variable held it.
  return {leaks_now || (history.leaked && growth), growth.value_or(0)};
}

}  // namespace op_tools
