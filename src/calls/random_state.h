// Finds out whether a call drew random numbers, and saves the state that the generators had before it, so that the call
// can be replayed. Made before the call, asked after it, on the program's thread. The random stream is only read.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "hooks/op_call.h"
#include "tensor/value.h"

namespace op_tools {

struct CpuState;

class OP_TOOLS_API RandomWatch {
 public:
  // Watches the CPU's default generator and those of the devices that occur in the arguments.
  RandomWatch(const Value& args, const Value& kwargs);
  // The same of arguments without generators, where only their tensors and devices are known.
  RandomWatch(c10::ArrayRef<const at::Tensor*> tensors, c10::ArrayRef<c10::Device> named);
  RandomWatch(const RandomWatch&) = delete;
  RandomWatch& operator=(const RandomWatch&) = delete;

  // Dict {device: state before the call} of the generators that moved; None when none did.
  Value moved() const;
  // The same of all generators that are watched, whether or not they moved: for who cannot ask after the call.
  Value all() const;
  // False where the call may draw from a generator that is not watched: an argument, or that of a device which does not
  // show the state of its own.
  bool sees_all_generators() const { return sees_all_; }

 private:
  void watch(const std::set<std::string>& devices);

  bool sees_all_ = true;
  const std::shared_ptr<const CpuState> cpu_;
  std::vector<std::pair<std::string, at::Tensor>> devices_;
};

// The CPU's state among `moved` (RandomWatch::moved()) where no other generator moved: a run that starts from it draws
// the same numbers. nullptr otherwise.
OP_TOOLS_API const at::Tensor* only_cpu_state(const Value& moved);

// While it lives, op_tools may draw random numbers; the CPU's default generator then continues from where it was.
// Another thread that draws meanwhile is given numbers from that stream.
class OP_TOOLS_API CpuStreamGuard {
 public:
  CpuStreamGuard();
  ~CpuStreamGuard();
  CpuStreamGuard(const CpuStreamGuard&) = delete;
  CpuStreamGuard& operator=(const CpuStreamGuard&) = delete;

  void start_from(const at::Tensor& state);  // later draws come from this state

 private:
  const std::shared_ptr<const CpuState> cpu_;
};

// While it lives, the default generators of these devices (Dict {device: state}, as RandomWatch::moved() gives it; the
// CPU's apart, which CpuStreamGuard has) are in the states of the Dict; then they go on from where they were.
class OP_TOOLS_API DeviceStreamGuard {
 public:
  explicit DeviceStreamGuard(const Value& states);
  ~DeviceStreamGuard();
  DeviceStreamGuard(const DeviceStreamGuard&) = delete;
  DeviceStreamGuard& operator=(const DeviceStreamGuard&) = delete;

 private:
  std::vector<std::pair<std::string, at::Tensor>> before_;
};

// A call, in after(), that moved no generator that was watched: did it draw random numbers? Torch's tag says that an
// operator may draw in some of its calls (dropout in evaluation draws nothing): it decides only where a generator could
// not be watched.
OP_TOOLS_API bool draws_unwatched(OpCall& call, const RandomWatch& watch);

}  // namespace op_tools
