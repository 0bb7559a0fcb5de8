#include "invariance/other_execution.h"

#include <ATen/Parallel.h>

#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "tensor/exception_text.h"

namespace op_tools {
namespace {

c10::Stream stream_beside(const c10::impl::VirtualGuardImpl& guard, const c10::Stream& current) {
  static auto* mutex = new std::mutex;  // NOLINT: the program's threads may run longer than our statics
  static auto* streams = new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream>;  // NOLINT: as above
  const std::lock_guard<std::mutex> lock(*mutex);
  const c10::Device device = current.device();
  const std::pair key(device.type(), device.index());
  auto entry = streams->find(key);
  try {
    if (entry == streams->end()) entry = streams->emplace(key, guard.getStreamFromGlobalPool(device)).first;
    // The program has taken the same from the device's pool.
    if (entry->second == current) entry->second = guard.getStreamFromGlobalPool(device);
  } catch (const std::exception& error) {
    throw CannotRunSo("the device gives no other stream: " + exception_text(error));
  }
  if (entry->second == current) throw CannotRunSo("the device has a single stream");
  return entry->second;
}

}  // namespace

OtherThreadCount::OtherThreadCount() : before_(at::get_num_threads()) {
  at::set_num_threads(before_ == 1 ? 2 : 1);
  if (at::get_num_threads() == before_) throw CannotRunSo("torch cannot change its number of threads");
}

OtherThreadCount::~OtherThreadCount() {
  at::set_num_threads(before_);
}

OtherStream::OtherStream(c10::Device device)
    : guard_(device.type()), before_(guard_.getStream(device)), stream_(stream_beside(guard_, before_)) {
  guard_.synchronizeStream(before_);
  guard_.exchangeStream(stream_);
}

OtherStream::~OtherStream() {
  guard_.exchangeStream(before_);
}

void OtherStream::wait() const {
  guard_.synchronizeStream(stream_);
}

}  // namespace op_tools
