// Another way to execute the same call, as long as the object lives: with another number of threads on the CPU, on
// another stream of a device. In the program's thread, for calls of ours.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "base/export.h"

namespace op_tools {

// The way is not there: the message says why.
class OP_TOOLS_API CannotRunSo : public Error {
 public:
  using Error::Error;
};

// torch's number of threads inside an operator becomes 1, or 2 where it is 1. It is the calling thread's, and of
// threads that compute for the first time while this lives: torch keeps it for those, too.
class OP_TOOLS_API OtherThreadCount {
 public:
  OtherThreadCount();  // CannotRunSo: torch cannot change it
  ~OtherThreadCount();
  OtherThreadCount(const OtherThreadCount&) = delete;
  OtherThreadCount& operator=(const OtherThreadCount&) = delete;

 private:
  const int before_;
};

// The calling thread's current stream of the device is another, which begins after the work of the former. A single
// stream for each device, for the whole process: libraries keep memory for each stream that they see.
class OP_TOOLS_API OtherStream {
 public:
  explicit OtherStream(c10::Device device);  // CannotRunSo: the device has no other
  ~OtherStream();
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

  // Until its work is done: results may be read on any stream.
  void wait() const;

 private:
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream before_, stream_;
};

}  // namespace op_tools
