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

void MeasuredCalls::add(Measured&& measured) {
  if (mode_ != TimeMode::kEvent) return settle(measured);
  // Nothing has to be read, and nothing before it waits: so it is on the CPU.
  if (!measured.last && waiting_.load(std::memory_order_acquire) == 0) return settle(measured);
  {
    std::lock_guard<std::mutex> lock(pending_mutex_);
    pending_.push_back(std::move(measured));
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
  for (Measured& measured : taken) {
    if (measured.last) {
      const DeviceClock::Interval interval = clock_.read(measured.device, measured.first, measured.last);
      measured.call.nanoseconds = interval.nanoseconds;
      measured.call.device_start = interval.start;
      device = measured.device;
    }
    settle(measured);
  }
  waiting_.fetch_sub(taken.size(), std::memory_order_release);
  if (device) clock_.align(*device);
}

int64_t MeasuredCalls::self_time(const Measured& measured) {
  if (!measured.has_inside && measured.depth == 0) return measured.call.nanoseconds;
  std::lock_guard<std::mutex> lock(inside_mutex_);
  std::vector<int64_t>& inside = inside_of_[measured.call.thread];
  if (inside.size() < measured.depth + 2) inside.resize(measured.depth + 2);
  if (measured.depth > 0) inside[measured.depth] += measured.call.nanoseconds;
  return std::max<int64_t>(measured.call.nanoseconds - std::exchange(inside[measured.depth + 1], 0), 0);
}

void MeasuredCalls::settle(Measured& measured) {
  if (measured.ends_pass) {
    TimedCall& sum = measured.pass->sum;
    sum.has_parts = true;
    records_.add(sum, measured.pass->bytes);
    if (measured.line) print_line(*measured.line, Phase::kBackward, sum.nanoseconds);
    return;
  }
  measured.call.self = self_time(measured);
  if (BackwardPass* pass = measured.pass.get()) {
    TimedCall& sum = pass->sum;
    if (!std::exchange(pass->any, true)) {
      const uint32_t number = sum.pass;
      sum = measured.call;
      sum.pass = number;
      pass->bytes = measured.bytes;
    } else {
      sum.nanoseconds += measured.call.nanoseconds;
      sum.self += measured.call.self;
      sum.host += measured.call.host;
      pass->bytes.allocated += measured.bytes.allocated;
      pass->bytes.peak = std::max(pass->bytes.peak, measured.bytes.peak);
    }
    measured.call.pass = sum.pass;
    measured.call.is_part = true;
  }
  records_.add(measured.call, measured.bytes);
  if (measured.line) print_line(*measured.line, Phase::kForward, measured.call.nanoseconds);
}

}  // namespace op_tools
