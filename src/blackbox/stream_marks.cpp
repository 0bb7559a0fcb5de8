#include "blackbox/stream_marks.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "compat/stream_capture.h"
#include "timing/stopwatch.h"

namespace op_tools {

uint8_t StreamMarks::current(c10::Device device) {
  if (every_ == 0 || device.is_meta() || !c10::impl::hasDeviceGuardImpl(device.type())) return 0;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  // Entries below the number in use are never changed.
  const uint32_t used = file_.header().streams_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; ++i) {
    if (streams_[i].stream != stream) continue;
    const auto number = static_cast<uint8_t>(i + 1);
    if (is_due(number)) {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (lock.owns_lock()) ask_locked(number);
    }
    return number;
  }
  return add(stream);
}

bool StreamMarks::is_due(uint8_t stream) const {
  return (file_.header().streams[stream - 1].launched.load(std::memory_order_relaxed) + 1) % every_ == 0;
}

uint8_t StreamMarks::add(const c10::Stream& stream) {
  const StringId device = file_.intern(stream.device().str());
  const std::unique_lock lock(mutex_, std::try_to_lock);
  BlackBoxFile::Header& header = file_.header();
  const uint32_t used = header.streams_used.load(std::memory_order_relaxed);
  if (!lock.owns_lock() || used == BlackBoxFile::kStreams) return 0;
  for (uint32_t i = 0; i < used; ++i) {
    if (streams_[i].stream == stream) return static_cast<uint8_t>(i + 1);  // another thread was first
  }
  streams_[used].stream = stream;
  header.streams[used].id = stream.id();
  header.streams[used].device = device;
  header.streams_used.store(used + 1, std::memory_order_release);
  return static_cast<uint8_t>(used + 1);
}

void StreamMarks::launched(uint8_t stream) {
  if (stream == 0) return;
  const bool marks = is_due(stream);
  file_.header().streams[stream - 1].launched.fetch_add(1, std::memory_order_relaxed);
  if (!marks) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  mark_locked(stream);
}

void StreamMarks::mark_locked(uint8_t stream) {
  Marked& stream_state = streams_[stream - 1];
  constexpr size_t kMostWaiting = 64;  // a device that far behind is marked again when it comes on
  if (stream_state.unable || stream_state.events.size() >= kMostWaiting) return;
  try {
    const c10::impl::VirtualGuardImpl guard(stream_state.stream.device_type());
    if (compat::is_capturing(guard, stream_state.stream)) return;
    c10::Event event(stream_state.stream.device_type());
    const int64_t now = clock_now();
    event.record(stream_state.stream);
    stream_state.events.emplace_back(now, std::move(event));
  } catch (const std::exception&) {
    stream_state.unable = true;
  }
}

void StreamMarks::ask_locked(uint8_t stream) {
  Marked& stream_state = streams_[stream - 1];
  try {
    while (!stream_state.unable && !stream_state.events.empty() && stream_state.events.front().second.query()) {
      file_.header().streams[stream - 1].done_until.store(stream_state.events.front().first, std::memory_order_release);
      stream_state.events.pop_front();
    }
  } catch (const std::exception&) {
    stream_state.unable = true;  // the device is broken
  }
}

void StreamMarks::look() {
  const std::lock_guard lock(mutex_);
  BlackBoxFile::Header& header = file_.header();
  const uint32_t used = header.streams_used.load(std::memory_order_relaxed);
  const auto captures = [](const Marked& stream_state) {
    return compat::is_capturing(c10::impl::VirtualGuardImpl(stream_state.stream.device_type()), stream_state.stream);
  };
  try {
    // A question to any stream would end the capture of a graph.
    if (std::any_of(streams_.begin(), streams_.begin() + used, captures)) return;
  } catch (const std::exception&) {
    return;
  }
  for (uint32_t i = 0; i < used; ++i) {
    Marked& stream_state = streams_[i];
    try {
      const int64_t now = clock_now();
      if (!stream_state.unable &&
          c10::impl::VirtualGuardImpl(stream_state.stream.device_type()).queryStream(stream_state.stream)) {
        header.streams[i].done_until.store(now, std::memory_order_release);
        stream_state.events.clear();
        continue;
      }
    } catch (const std::exception&) {
      stream_state.unable = true;
    }
    ask_locked(static_cast<uint8_t>(i + 1));
  }
}

}  // namespace op_tools
