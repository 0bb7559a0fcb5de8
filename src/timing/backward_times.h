// Times the autograd nodes of a call, pass by pass. Owned by the graph of the call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/node_watch.h"
#include "hooks/op_call.h"
#include "tensor/memory_watch.h"
#include "tensor/profiler.h"
#include "timing/call_timer.h"
#include "timing/time_run.h"

namespace op_tools {

class BackwardTimes final : public NodeWatch {
 public:
  // `entry`: the row of the call's backward.
  BackwardTimes(std::shared_ptr<TimeRun> run, const OpCall& call, uint32_t entry, const CallDevices& devices)
      : run_(std::move(run)), id_(call.id), op_(call.name), entry_(entry), devices_(devices) {}

  void node_starts(int task) override;
  void node_ended(int task) override;
  void pass_ended(int task) override;

 private:
  struct Node {
    Node(TimeRun& run, int task, TimedThread& on)
        : task(task), thread(on.number), timer(run.options.mode, run.clock, &run, on) {}
    const int task;
    const uint32_t thread;
    std::optional<MemoryWatch> memory;
    ProfilerRange range;
    CallTimer timer;
  };

  std::shared_ptr<BackwardPass> pass_locked(int task);

  const std::shared_ptr<TimeRun> run_;
  const uint64_t id_;
  const std::string op_;
  const uint32_t entry_;
  const CallDevices devices_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Node>> running_;
  std::vector<std::shared_ptr<BackwardPass>> passes_;
  uint32_t count_ = 0;
};

}  // namespace op_tools
