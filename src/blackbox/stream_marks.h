// How far the streams of devices have come: an operator returns before its kernel has run, so the call that killed a
// device's process, or hangs on the device, is a call that no event has shown to be done. Events are put into a
// stream after every few calls of it, and asked before the next such call, or by the watching thread while the
// program waits. Device-generic, through torch's events.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "blackbox/blackbox_file.h"

namespace op_tools {

class StreamMarks {
 public:
  // `every`: calls of a stream between two events; 0: streams are not looked at.
  StreamMarks(BlackBoxFile& file, int64_t every) : file_(file), every_(static_cast<uint64_t>(every)) {}

  // The calling thread's current stream of a device, as BlackBoxCall has it. The program's threads.
  uint8_t current(c10::Device device);
  // A call of that stream has returned.
  void launched(uint8_t stream);
  // Asks all streams how far they are. The watching thread, while no call begins or ends.
  void look();

 private:
  struct Marked {
    c10::Stream stream = c10::Stream(c10::Stream::DEFAULT, c10::kCPU);
    bool unable = false;                                // its backend has no events
    std::deque<std::pair<int64_t, c10::Event>> events;  // when they were put into the stream
  };
  uint8_t add(const c10::Stream& stream);
  bool is_due(uint8_t stream) const;  // after the next call the stream is marked
  void mark_locked(uint8_t stream);
  void ask_locked(uint8_t stream);

  BlackBoxFile& file_;
  const uint64_t every_;
  // Guards the streams. A thread that waits for a broken device may hold it for ever: the program's threads only try.
  std::mutex mutex_;
  std::array<Marked, BlackBoxFile::kStreams> streams_;
};

}  // namespace op_tools
