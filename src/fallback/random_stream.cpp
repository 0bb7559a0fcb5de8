#include "fallback/random_stream.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/random_ops.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"

namespace op_tools {
namespace {

// Two streams of a generator at once would draw the same numbers; two that stand in for the default generator would
// give each other's state back. Waiting is bounded, because the waiting stream may hold a lock of the program's
// (Python's) that the other needs.
std::unique_lock<std::recursive_timed_mutex> one_stream_at_a_time() {
  static auto* mutex = new std::recursive_timed_mutex;
  constexpr std::chrono::seconds kMostWait{10};
  std::unique_lock lock(*mutex, kMostWait);
  if (!lock)
    log::warn("random numbers: another thread's operator draws for more than 10 s, and both may draw the same");
  return lock;
}

at::Tensor state_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

bool takes(at::Generator& cpu, const at::Tensor& state) {
  try {
    set_state(cpu, state);
    return true;
  } catch (const c10::Error&) {  // of another size or kind
    return false;
  }
}

uint64_t hash_of(const at::Tensor& state) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto* bytes = static_cast<const unsigned char*>(state.const_data_ptr());
  for (size_t i = 0; i < state.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

uint64_t drawn_on_device(const at::Generator& generator) {
  at::Tensor number = at::_ops::empty_memory_format::call(c10::SymIntArrayRef({c10::SymInt(1)}), at::kLong,
                                                          at::kStrided, generator.device(), std::nullopt, std::nullopt);
  at::_ops::random_::call(number, generator);
  return static_cast<uint64_t>(number.item().toLong());
}

}  // namespace

at::Tensor cpu_state_from(const at::Tensor& device_state) {
  at::Generator cpu = at::detail::createCPUGenerator();
  if (!takes(cpu, device_state)) cpu.set_current_seed(hash_of(device_state));
  return cpu.get_state();
}

RandomStream::RandomStream(at::Generator device_generator, bool as_default)
    : lock_(one_stream_at_a_time()),  // before the state is read
      device_(std::move(device_generator)),
      stream_(at::detail::createCPUGenerator()) {
  const InternalGuard guard;
  same_kind_ = takes(stream_, state_of(device_));
  if (!same_kind_) stream_.set_current_seed(drawn_on_device(device_));
  if (!as_default) return;
  const at::Generator& standard = at::detail::getDefaultCPUGenerator();
  default_before_ = state_of(standard);
  set_state(standard, stream_.get_state());
  stream_ = standard;
}

RandomStream::~RandomStream() {
  try {
    const InternalGuard guard;
    if (same_kind_) set_state(device_, state_of(stream_));
    if (default_before_.defined()) set_state(stream_, default_before_);
  } catch (const std::exception& error) {
    log::error(std::string("the state of a random generator could not be given back: ") + exception_text(error));
  }
}

}  // namespace op_tools
