#include "timing/measured_calls.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/options.h"
#include "base/text_table.h"

namespace op_tools {
namespace {

constexpr size_t kMostPending = 2'048;  // event marks that wait to be read

void print_line(const Measured::Line& line, Phase phase, int64_t nanoseconds) {
  log::info(formatted("OpTimeMeasureHook: %-30.80s %s %s:  %.8f ms", line.op.c_str(), to_string(phase),
                      compat_ditorch() ? "elasped" : "elapsed", static_cast<double>(nanoseconds) / 1e6) +
            line.values);
}

}  // namespace

Measured::Measured(CallTimer& timer, uint64_t id, uint32_t entry, int64_t step)
    : depth(timer.depth()), has_inside(timer.has_inside()) {
  call.start = timer.start_time();
  call.host = call.nanoseconds = timer.host_time();
  call.id = id;
  call.entry = entry;
  call.step = step;
  call.thread = timer.thread_number();
  if (timer.has_marks()) {
    device = timer.devices().first();
    timer.take_marks(&first, &last);
  }
}

void MeasuredCalls::add(Measured&& one) {
  if (mode_ != TimeMode::kEvent) return settle(one);
  // Nothing has to be read, and nothing before it waits: so it is on the CPU.
  if (!one.last && waiting_.load(std::memory_order_acquire) == 0) return settle(one);
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    pending_.push_back(std::move(one));
  }
  if (waiting_.fetch_add(1, std::memory_order_relaxed) + 1 >= kMostPending) drain();
}

void MeasuredCalls::drain() {
  std::lock_guard<std::mutex> one_at_a_time(drain_mutex_);
  std::deque<Measured> taken;
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    taken.swap(pending_);
  }
  std::optional<c10::Device> device;
  for (Measured& one : taken) {
    if (one.last) {
      const DeviceClock::Interval interval = clock_.read(one.device, one.first, one.last);
      one.call.nanoseconds = interval.nanoseconds;
      one.call.device_start = interval.start;
      device = one.device;
    }
    settle(one);
  }
  waiting_.fetch_sub(taken.size(), std::memory_order_release);
  if (device) clock_.align(*device);
}

int64_t MeasuredCalls::self_time(const Measured& one) {
  if (!one.has_inside && one.depth == 0) return one.call.nanoseconds;
  std::lock_guard<std::mutex> lock(inside_mutex_);
  std::vector<int64_t>& inside = inside_of_[one.call.thread];
  if (inside.size() < one.depth + 2) inside.resize(one.depth + 2);
  if (one.depth > 0) inside[one.depth] += one.call.nanoseconds;
  return std::max<int64_t>(one.call.nanoseconds - std::exchange(inside[one.depth + 1], 0), 0);
}

void MeasuredCalls::settle(Measured& one) {
  if (one.ends_pass) {
    TimedCall& sum = one.pass->sum;
    sum.has_parts = true;
    records_.add(sum, one.pass->bytes);
    if (one.line) print_line(*one.line, Phase::kBackward, sum.nanoseconds);
    return;
  }
  one.call.self = self_time(one);
  if (BackwardPass* pass = one.pass.get()) {
    TimedCall& sum = pass->sum;
    if (!std::exchange(pass->any, true)) {
      const uint32_t number = sum.pass;
      sum = one.call;
      sum.pass = number;
      pass->bytes = one.bytes;
    } else {
      sum.nanoseconds += one.call.nanoseconds;
      sum.self += one.call.self;
      sum.host += one.call.host;
      pass->bytes.allocated += one.bytes.allocated;
      pass->bytes.peak = std::max(pass->bytes.peak, one.bytes.peak);
    }
    one.call.pass = sum.pass;
    one.call.is_part = true;
  }
  records_.add(one.call, one.bytes);
  if (one.line) print_line(*one.line, Phase::kForward, one.call.nanoseconds);
}

}  // namespace op_tools
