#include "timing/tsc_clock.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "timing/stopwatch.h"

namespace op_tools {
namespace {

constexpr int64_t kHeldFor = 1'000'000;              // nanoseconds for which a reading is good
constexpr int64_t kLearnsFor = 10'000'000;           // between the readings that the first rate is taken from
constexpr uint64_t kTogether = 512;                  // ticks within which both are read: it takes some 70
constexpr int kMostDisturbed = 16;                   // times in a row: then it always takes longer
constexpr int64_t kDisturbance = 1'000;              // nanoseconds by which two readings may be off, in all
constexpr int64_t kMostChange = 512;                 // and a 512th: more than the system's clock is ever slewed
constexpr double kLeastRate = 0.05, kMostRate = 20;  // nanoseconds of a tick: of any processor there is

// Only then does the kernel vouch for it: it runs evenly, and alike on all cores.
bool system_counts_by_it() {
#if defined(C10_RDTSC)
  static const bool does = [] {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string source;
    return (file >> source) && source == "tsc";
  }();
  return does;
#else
  return false;
#endif
}

}  // namespace

void TscClock::hold(const Reading& reading) {
  span_ = 0;
  if (trust_ == Trust::kNone) return;
  if (trust_ == Trust::kUnknown) {
    trust_ = Trust::kGiven;
    first_ = reading;
  }
  if (rate_ != 0) {
    const int64_t passed = reading.time - last_.time;
    const double counted = static_cast<double>(reading.ticks - last_.ticks) * static_cast<double>(rate_) /
                           static_cast<double>(uint64_t{1} << kShift);
    if (std::abs(counted - static_cast<double>(passed)) > static_cast<double>(passed / kMostChange + kDisturbance)) {
      trust_ = Trust::kNone;
      return;
    }
  }
  last_ = reading;
  if (reading.time - first_.time < kLearnsFor) return;
  const double rate =
      static_cast<double>(reading.time - first_.time) / static_cast<double>(reading.ticks - first_.ticks);
  if (!(rate >= kLeastRate && rate <= kMostRate)) {
    trust_ = Trust::kNone;
    return;
  }
  rate_ = static_cast<uint64_t>(rate * static_cast<double>(uint64_t{1} << kShift));
  span_ = static_cast<uint64_t>(kHeldFor / rate);
}

int64_t TscClock::read() {
  if (!system_counts_by_it()) {
    trust_ = Trust::kNone;
    return clock_now();
  }
  const auto before = static_cast<uint64_t>(c10::getApproximateTime());
  const int64_t time = clock_now();
  const auto after = static_cast<uint64_t>(c10::getApproximateTime());
  if (after - before <= kTogether) {
    disturbed_ = 0;
    hold({before + (after - before) / 2, time});
  } else if (++disturbed_ == kMostDisturbed) {
    trust_ = Trust::kNone;
  }
  return time;
}

}  // namespace op_tools
