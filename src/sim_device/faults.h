// Planted faults and latencies, as the kernels ask for them. Free when none is planted: an atomic load. Any thread; a
// fault's own state is locked. A fault's writes to memory bypass autograd and version counters, as a device's bug
// does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim_device/sim_device.h"

namespace op_tools::sim_device {

// The faults that hit a call. Made before the call runs, in the order in which they were planted.
class FaultInjection {
 public:
  FaultInjection() = default;  // of a call that none hits
  // Counts the call. Throws the exceptions of the kinds `missing` and `exception`.
  // `moves_data`: false for views, which run on no device: only those two kinds hit them. `is_of_tool`: not the
  // program's; faults in some calls only neither count nor hit it.
  FaultInjection(const std::string& op, bool moves_data, bool is_of_tool);

  bool any() const { return !hits_.empty(); }
  std::chrono::nanoseconds latency() const { return latency_; }
  // The device's action in place of the kernel, when the call's turn in the queue comes: it crashes, or never ends.
  // Empty: nothing.
  const std::function<void()>& device_work() const { return device_work_; }

  // Asked for a call that draws random numbers: whether it draws them from the CPU's generator.
  bool draws_elsewhere() const;

  // CPU tensors all: those that the call reads or writes in place.
  void before(const std::vector<at::Tensor>& written);
  void after(torch::jit::Stack& results, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& written);

  struct Hit {
    std::shared_ptr<Fault::State> fault;
    int64_t call;
    uint64_t draw;  // of the fault's random numbers, for this call
  };

 private:
  // False: the fault changed nothing.
  bool inject(const Hit& hit, torch::jit::Stack& results, const std::vector<at::Tensor>& inputs,
              const std::vector<at::Tensor>& written) const;
  bool lose_writes(const std::vector<at::Tensor>& written) const;
  bool write_late(const at::Tensor& result, const std::vector<at::Tensor>& written) const;

  std::string op_;
  std::vector<Hit> hits_;
  std::vector<Hit> wrong_generator_;
  std::vector<at::Tensor> contents_;  // of written arguments, for lost_write and late_write
  std::chrono::nanoseconds latency_{};
  std::function<void()> device_work_;
};

// Elements that `late_write` holds back: it arrives when the program waits for a whole device, as the work of a stream
// that no other stream waits for. Any thread.
class LateWrites {
 public:
  void add(at::Tensor result, at::Tensor right);
  void arrive();

 private:
  static constexpr size_t kMost = 64;  // earlier ones have arrived by then
  std::mutex mutex_;
  std::deque<std::pair<at::Tensor, at::Tensor>> waiting_;  // CPU sides of the results, and their right elements
};
LateWrites& late_writes();

std::chrono::nanoseconds latency_of(const std::string& op);

// Reads OP_TOOLS_SIM_FAULTS, OP_TOOLS_SIM_LATENCY and OP_TOOLS_SIM_ROUNDING, and follows them, for the rest of
// the process.
void plant_from_environment();

}  // namespace op_tools::sim_device
