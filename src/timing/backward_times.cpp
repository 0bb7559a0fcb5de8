#include "timing/backward_times.h"

#include <algorithm>
#include <utility>

namespace op_tools {

void BackwardTimes::node_starts(int task) {
  auto node = std::make_unique<Node>(*run_, task, TimedThread::current());
  if (run_->options.memory) node->memory.emplace();
  Node& started = *node;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.push_back(std::move(node));
  }
  if (run_->options.mark_ranges) started.range.begin(op_ + " backward");
  started.timer.start(devices_);
}

void BackwardTimes::node_ended(int task) {
  std::unique_ptr<Node> node;
  std::shared_ptr<BackwardPass> pass;
  const uint32_t thread = TimedThread::current().number;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The newest of this thread: others are nodes that raised, or that run on another thread.
    for (size_t i = running_.size(); i-- > 0 && !node;) {
      if (running_[i]->thread != thread || running_[i]->task != task) continue;
      node = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (!node) return;
  }
  node->timer.stop([](CallDevices&) {});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pass = pass_locked(task);
  }
  Measured measured(node->timer, id_, entry_, run_->step.load(std::memory_order_relaxed));
  if (node->memory) {
    measured.bytes.allocated = node->memory->allocated();
    measured.bytes.peak = node->memory->peak();
  }
  measured.pass = std::move(pass);
  run_->measured.add(std::move(measured));
}

void BackwardTimes::pass_ended(int task) {
  Measured end;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry =
        std::find_if(passes_.begin(), passes_.end(), [&](const auto& pass) { return pass->task == task; });
    if (entry == passes_.end()) return;
    end.pass = *entry;
    passes_.erase(entry);
  }
  if (run_->prints_lines()) end.line = std::unique_ptr<Measured::Line>(new Measured::Line{op_, ""});
  end.ends_pass = true;
  run_->measured.add(std::move(end));
}

std::shared_ptr<BackwardPass> BackwardTimes::pass_locked(int task) {
  for (const auto& pass : passes_) {
    if (pass->task == task) return pass;
  }
  passes_.push_back(std::make_shared<BackwardPass>());
  passes_.back()->task = task;
  passes_.back()->sum.pass = count_++;
  return passes_.back();
}

}  // namespace op_tools
