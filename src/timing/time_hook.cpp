#include "timing/time_hook.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "hooks/backward_pass.h"
#include "hooks/log.h"
#include "hooks/node_watch.h"
#include "hooks/plain_tensor.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "hooks/text_table.h"
#include "timing/call_details.h"
#include "timing/call_timer.h"
#include "timing/memory_watch.h"
#include "timing/time_files.h"
#include "timing/time_records.h"

namespace op_tools {
namespace {

constexpr size_t kMostPending = 2'048;  // event marks that wait to be read
constexpr size_t kLinesAtEnd = 10;

int64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_nested() ||
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return 0;
  }
  return c10::multiply_integers(own_sizes(tensor)) * static_cast<int64_t>(tensor.element_size());
}

// A device may be named that this process has not (torch.device("xla", 0)): there is nothing to wait for.
bool is_there(c10::Device device) {
  return c10::impl::hasDeviceGuardImpl(device.type()) &&
         std::max<int>(device.index(), 0) < c10::impl::VirtualGuardImpl(device.type()).deviceCount();
}

void print_line(std::string_view op, Phase phase, int64_t nanoseconds, const std::string& values) {
  log::info(formatted("OpTimeMeasureHook: %-30.80s %s %s:  %.8f ms", std::string(op).c_str(),
                      phase == Phase::kForward ? "forward" : "backward", compat_ditorch() ? "elasped" : "elapsed",
                      static_cast<double>(nanoseconds) / 1e6) +
            values);
}

// One backward pass over one call, until it is through.
struct BackwardPass {
  int task = 0;
  TimedCall sum;
  CallBytes bytes;
  bool any = false;
};

}  // namespace

class TimeHook::Impl : public std::enable_shared_from_this<TimeHook::Impl> {
 public:
  explicit Impl(const ResolvedTimeOptions& given)
      : options(given),
        records(static_cast<size_t>(given.max_calls),
                given.files ? TimeRecords::Overflow([this](const auto& calls) { files.add_overflow(calls); })
                            : TimeRecords::Overflow()),
        files(given.output_dir, records),
        step(given.first_step) {}

  struct Line {
    std::string op, values;
  };
  // A measured stretch on its way into the records.
  struct Measured {
    TimedCall call;
    CallBytes bytes;
    std::unique_ptr<Line> line;  // to be printed; nullptr: none is wanted
    uint32_t depth = 0;
    bool has_inside = false;
    c10::Device device{c10::kCPU};
    DeviceClock::Mark first = nullptr, last = nullptr;
    std::shared_ptr<BackwardPass> pass;  // a node of it
    bool ends_pass = false;              // the pass itself
  };

  bool prints_lines() const { return options.lines && log::enabled(log::Level::kInfo); }

  // What every stretch has in common.
  static Measured measured(CallTimer& timer, uint64_t id, uint32_t entry, int64_t step) {
    Measured one;
    one.call.start = timer.start_time();
    one.call.host = one.call.nanoseconds = timer.host_time();
    one.call.id = id;
    one.call.entry = entry;
    one.call.step = step;
    one.call.thread = thread_number();
    one.depth = timer.depth();
    one.has_inside = timer.has_inside();
    if (timer.has_marks()) {
      one.device = timer.devices().first();
      timer.take_marks(&one.first, &one.last);
    }
    return one;
  }

  void add(Measured one) {
    if (options.mode != TimeMode::kEvent) return settle(one);
    // Nothing to be read, and nobody before it who waits: so it is while no device is there.
    if (!one.last && waiting.load(std::memory_order_acquire) == 0) return settle(one);
    {
      std::lock_guard<std::mutex> lock(pending_mutex);
      pending.push_back(std::move(one));
    }
    if (waiting.fetch_add(1, std::memory_order_relaxed) + 1 >= kMostPending) drain();
  }

  // Reads what the devices measured. In the order of the ends: self times need it.
  void drain() {
    std::lock_guard<std::mutex> one_at_a_time(drain_mutex);
    std::deque<Measured> taken;
    {
      std::lock_guard<std::mutex> lock(pending_mutex);
      taken.swap(pending);
    }
    std::optional<c10::Device> device;
    for (Measured& one : taken) {
      if (one.last) {
        const DeviceClock::Interval interval = clock.read(one.device, one.first, one.last);
        one.call.nanoseconds = interval.nanoseconds;
        one.call.device_start = interval.start;
        device = one.device;
      }
      settle(one);
    }
    waiting.fetch_sub(taken.size(), std::memory_order_release);
    if (device) clock.align(*device);
  }

  void flush_files() {
    records.flush_overflow();
    if (!options.files) return;
    const TimeRecords::Snapshot snapshot = records.snapshot();
    const uint64_t count = snapshot.calls + snapshot.backward;
    if (count == 0 || written.exchange(count) == count) return;
    files.add_kept_calls();
    files.write_summary(time_rows(snapshot, TimeGroup::kShape, flops.of(snapshot.entries)));
    files.write_trace(options.mode);
  }

  const ResolvedTimeOptions options;
  TimeRecords records;
  TimeFiles files;
  DeviceClock clock;
  FlopCounts flops;
  AliveMemory alive;
  std::atomic<int64_t> step;
  std::atomic<uint64_t> in_graph{0}, written{0};
  std::atomic<bool> told_memory{false};

 private:
  void settle(Measured& one) {
    if (one.ends_pass) {
      TimedCall& sum = one.pass->sum;
      sum.has_parts = true;
      records.add(sum, one.pass->bytes);
      if (one.line) print_line(one.line->op, Phase::kBackward, sum.nanoseconds, "");
      return;
    }
    one.call.self = one.call.nanoseconds;
    if (one.has_inside || one.depth > 0) {
      std::lock_guard<std::mutex> lock(inside_mutex);
      std::vector<int64_t>& inside = inside_of[one.call.thread];
      if (inside.size() < one.depth + 2) inside.resize(one.depth + 2);
      one.call.self = std::max<int64_t>(one.call.nanoseconds - std::exchange(inside[one.depth + 1], 0), 0);
      if (one.depth > 0) inside[one.depth] += one.call.nanoseconds;
    }
    if (BackwardPass* pass = one.pass.get()) {
      TimedCall& sum = pass->sum;
      if (!std::exchange(pass->any, true)) {
        const uint32_t number = sum.pass;
        sum = one.call;
        sum.pass = number;
        pass->bytes = one.bytes;
      } else {
        sum.nanoseconds += one.call.nanoseconds;
        sum.self += one.call.self;
        sum.host += one.call.host;
        pass->bytes.allocated += one.bytes.allocated;
        pass->bytes.peak = std::max(pass->bytes.peak, one.bytes.peak);
      }
      one.call.pass = sum.pass;
      one.call.is_part = true;
    }
    records.add(one.call, one.bytes);
    if (one.line) print_line(one.line->op, Phase::kForward, one.call.nanoseconds, one.line->values);
  }

  std::mutex pending_mutex, drain_mutex, inside_mutex;
  std::deque<Measured> pending;
  std::atomic<size_t> waiting{0};  // in `pending`, or taken from it and not settled
  // By thread and depth: time of stretches that ended inside one that has not ended yet.
  std::unordered_map<uint32_t, std::vector<int64_t>> inside_of;
};

namespace {

using Impl = TimeHook::Impl;

// While a hook runs a profiler sees nothing; this it is meant to see.
void begin_range(std::optional<at::RecordFunction>& range, const std::string& name) {
  const at::RecordFunctionGuard seen(/*is_enabled=*/true);
  range.emplace(at::RecordScope::USER_SCOPE);
  if (range->isActive()) range->before("op_tools::" + name);
}

struct TimeState final : HookState {
  TimeState(Impl& impl) : timer(impl.options.mode, impl.clock, &impl) {}

  uint64_t signature = 0;
  uint32_t place = 0;
  uint32_t entry = 0;
  int64_t bytes_read = 0;
  std::vector<const c10::StorageImpl*> inputs;  // with memory
  std::optional<MemoryWatch> memory;
  std::optional<at::RecordFunction> range;
  CallTimer timer;  // last: nothing of ours comes between it and the operator
};

// Follows the nodes of one call through backward passes.
class BackwardTimes final : public NodeWatch {
 public:
  BackwardTimes(std::shared_ptr<Impl> impl, const OpCall& call, uint32_t entry, const CallDevices& devices)
      : impl_(std::move(impl)), id_(call.id), op_(call.name), entry_(entry), devices_(devices) {}

  void node_starts(int task) override {
    auto node = std::make_unique<Node>(*impl_, task);
    if (impl_->options.memory) node->memory.emplace();
    Node& started = *node;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      running_.push_back(std::move(node));
    }
    if (impl_->options.mark_ranges) begin_range(started.range, op_ + " backward");
    started.timer.start(devices_);
  }

  void node_ended(int task) override {
    std::unique_ptr<Node> node;
    std::shared_ptr<BackwardPass> pass;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // The newest of this thread: others are nodes that raised, or that run on another thread.
      for (size_t i = running_.size(); i-- > 0 && !node;) {
        if (running_[i]->thread != thread_number() || running_[i]->task != task) continue;
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
    Impl::Measured one = Impl::measured(node->timer, id_, entry_, impl_->step.load(std::memory_order_relaxed));
    if (node->memory) {
      one.bytes.allocated = node->memory->allocated();
      one.bytes.peak = node->memory->peak();
    }
    one.pass = std::move(pass);
    impl_->add(std::move(one));
  }

  void pass_ended(int task) override {
    Impl::Measured end;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found =
          std::find_if(passes_.begin(), passes_.end(), [&](const auto& pass) { return pass->task == task; });
      if (found == passes_.end()) return;
      end.pass = *found;
      passes_.erase(found);
    }
    if (impl_->prints_lines()) end.line = std::make_unique<Impl::Line>(op_, "");
    end.ends_pass = true;
    impl_->add(std::move(end));
  }

 private:
  struct Node {
    Node(Impl& impl, int task) : task(task), timer(impl.options.mode, impl.clock, &impl) {}
    const int task;
    const uint32_t thread = thread_number();
    std::optional<MemoryWatch> memory;
    std::optional<at::RecordFunction> range;
    CallTimer timer;
  };

  std::shared_ptr<BackwardPass> pass_locked(int task) {
    for (const auto& pass : passes_) {
      if (pass->task == task) return pass;
    }
    passes_.push_back(std::make_shared<BackwardPass>());
    passes_.back()->task = task;
    passes_.back()->sum.pass = count_++;
    return passes_.back();
  }

  const std::shared_ptr<Impl> impl_;
  const uint64_t id_;
  const std::string op_;
  const uint32_t entry_;
  const CallDevices devices_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Node>> running_;
  std::vector<std::shared_ptr<BackwardPass>> passes_;
  uint32_t count_ = 0;
};

}  // namespace

TimeHook::TimeHook(const ResolvedTimeOptions& options) : impl_(std::make_shared<Impl>(options)) {
  impl_->records.add_step(options.first_step, clock_now());
}
TimeHook::~TimeHook() = default;

std::unique_ptr<HookState> TimeHook::before(OpCall& call) {
  Impl& impl = *impl_;
  if (call.phase == Phase::kBackward) {  // another hook wanted gradients: nodes were followed already
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<TimeState>(impl);
  CallDevices devices;
  Signature signature(call.name);
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    devices.add(tensor.device());
    signature.add(tensor);
    state->bytes_read += bytes_of(tensor);
    if (impl.options.memory && tensor.has_storage()) state->inputs.push_back(tensor.storage().unsafeGetStorageImpl());
  });
  if (devices.empty()) {
    if (const auto named = call.frame().named_device(); named && is_there(*named)) devices.add(*named);
  }
  for (const c10::Device device : devices) {
    if (!is_recording_graph(device)) continue;
    impl.in_graph.fetch_add(1, std::memory_order_relaxed);
    call.decline();
    return nullptr;
  }
  state->signature = signature.value();
  if (impl.options.with_stack || impl.options.with_modules) {
    CallPlace place;
    if (impl.options.with_stack) place.stack = current_stack();
    if (impl.options.with_modules) place.module = call.module();
    state->place = impl.records.place_of(std::move(place));
  }
  state->entry = impl.records.entry_of(call.name, phase_of(call), state->signature, state->place,
                                       [&] { return describe_call(call, devices); });
  if (impl.prints_lines()) {  // after the operator they are gone
    call.args();
    call.kwargs();
  }
  if (impl.options.memory) {
    state->memory.emplace();
    if (!state->memory->sees() && !impl.told_memory.exchange(true)) {
      log::warn("OpTimeMeasure: memory is not measured while torch.profiler is on");
    }
  }
  if (impl.options.mark_ranges) begin_range(state->range, std::string(call.name));
  state->timer.start(devices);
  return state;
}

void TimeHook::after(OpCall& call, HookState* base) {
  Impl& impl = *impl_;
  auto& state = static_cast<TimeState&>(*base);
  CallBytes bytes;
  bytes.read = state.bytes_read;
  bool grows_graph = false;
  const auto look = [&](const at::Tensor& tensor) {
    bytes.written += bytes_of(tensor);
    grows_graph |= tensor.requires_grad();
    if (!impl.options.memory || !tensor.has_storage()) return;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (std::find(state.inputs.begin(), state.inputs.end(), storage) == state.inputs.end()) {
      impl.alive.add(tensor.storage(), state.entry);
    }
  };
  bool late = false;  // a tensor on a device came out of a call that named none
  bool looked = !call.error.empty();
  state.timer.stop([&](CallDevices& devices) {
    if (std::exchange(looked, true)) return;
    call.frame().visit_result([&](const at::Tensor& tensor) {
      devices.add(tensor.device());
      look(tensor);
    });
    late = !devices.empty();
  });
  state.range.reset();
  if (state.memory) {
    bytes.allocated = state.memory->allocated();
    bytes.peak = state.memory->peak();
    state.memory.reset();
  }
  if (late) impl.records.set_device(state.entry, names_of(state.timer.devices()));
  if (!looked) call.frame().visit_result(look);
  const int64_t step = impl.step.load(std::memory_order_relaxed);
  Impl::Measured one = Impl::measured(state.timer, call.id, state.entry, step);
  one.bytes = bytes;
  one.call.failed = !call.error.empty();
  if (impl.prints_lines()) one.line = std::make_unique<Impl::Line>(std::string(call.name), values_text(call));
  impl.add(std::move(one));
  if (grows_graph && call.level == Level::kTorch && call.grad_enabled) {
    const uint32_t backward = impl.records.entry_of(call.name, Phase::kBackward, state.signature, state.place,
                                                    [&] { return impl.records.details(state.entry); });
    call.watch_nodes(std::make_shared<BackwardTimes>(impl_, call, backward, state.timer.devices()));
  }
}

void TimeHook::step_begins(int64_t step) {
  step += impl_->options.first_step;
  impl_->step.store(step, std::memory_order_relaxed);
  impl_->records.add_step(step, clock_now());
  impl_->drain();
}

void TimeHook::flush() {
  impl_->drain();
  impl_->flush_files();
}

void TimeHook::scope_left() {
  flush();
  if (!log::enabled(log::Level::kInfo)) return;
  const TimeRecords::Snapshot all = impl_->records.snapshot();
  if (all.calls + all.backward == 0) return;
  std::ostringstream text;
  text << "OpTimeMeasure (" << to_string(impl_->options.mode) << "): " << all.calls << " calls, " << all.backward
       << " backward passes";
  if (const uint64_t in_graph = impl_->in_graph.load()) {
    text << "; " << in_graph << " calls left alone: their device was recording a graph";
  }
  if (all.overflowed) text << "; " << all.overflowed << " calls are not in the trace (max_calls)";
  if (const std::string root = impl_->files.root(); !root.empty()) text << "; files in " << root;
  text << "\n" << time_table(time_rows(all, TimeGroup::kOp, {}), kLinesAtEnd);
  log::info(text.str());
}

const ResolvedOptions& TimeHook::options() const {
  return impl_->options;
}

TimeResult TimeHook::result() const {
  impl_->drain();
  const TimeRecords::Snapshot snapshot = impl_->records.snapshot();
  const std::vector<int64_t> flops = impl_->flops.of(snapshot.entries);
  TimeResult result;
  result.by_op = time_rows(snapshot, TimeGroup::kOp, flops);
  result.by_shape = time_rows(snapshot, TimeGroup::kShape, flops);
  if (impl_->options.with_stack) result.by_line = time_rows(snapshot, TimeGroup::kLine, flops);
  if (impl_->options.with_modules) result.by_module = time_rows(snapshot, TimeGroup::kModule, flops);
  result.root = impl_->files.root();
  result.calls = snapshot.calls;
  result.backward = snapshot.backward;
  result.in_graph = impl_->in_graph.load();
  result.overflowed = snapshot.overflowed;

  std::map<std::string, TimeResult::Alive> alive;
  for (const AliveMemory::Alive& one : impl_->alive.alive()) {
    const TimeEntry& entry = snapshot.entries[one.owner];
    const std::string line = snapshot.places[entry.place].line();
    TimeResult::Alive& sum = alive[line.empty() ? entry.op : line];
    sum.count += one.count;
    sum.bytes += one.bytes;
  }
  for (auto& [where, one] : alive) {
    one.where = where;
    result.alive.push_back(one);
  }
  std::stable_sort(result.alive.begin(), result.alive.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });

  std::map<std::vector<std::string>, TimeResult::Stack> stacks;
  for (const TimeEntry& entry : snapshot.entries) {
    const std::vector<std::string>& lines = snapshot.places[entry.place].stack;
    if (lines.empty() || entry.times.count() == 0) continue;
    std::vector<std::string> frames = {entry.op + (entry.phase == Phase::kBackward ? " backward" : "")};
    frames.insert(frames.end(), lines.begin(), lines.end());
    TimeResult::Stack& stack = stacks[frames];
    stack.total_ms += static_cast<double>(entry.times.total()) / 1e6;
    stack.self_ms += static_cast<double>(entry.self) / 1e6;
  }
  for (auto& [frames, stack] : stacks) {
    stack.frames = frames;
    result.stacks.push_back(std::move(stack));
  }
  return result;
}

Value TimeHook::report() const {
  const TimeResult all = result();
  const auto whole = [](uint64_t number) { return Value(static_cast<int64_t>(number)); };
  const auto rows = [](const std::vector<TimeRow>& from) {
    Values values;
    for (const TimeRow& row : from) values.push_back(to_value(row));
    return make_list(std::move(values));
  };
  Values alive, stacks;
  for (const TimeResult::Alive& one : all.alive) {
    alive.push_back(make_dict({{"where", one.where}, {"count", one.count}, {"bytes", one.bytes}}));
  }
  for (const TimeResult::Stack& stack : all.stacks) {
    stacks.push_back(make_dict({{"frames", make_list(Values(stack.frames.begin(), stack.frames.end()))},
                                {"total_ms", stack.total_ms},
                                {"self_ms", stack.self_ms}}));
  }
  return make_dict({{"rows", rows(all.by_op)},
                    {"by_shape", rows(all.by_shape)},
                    {"by_line", rows(all.by_line)},
                    {"by_module", rows(all.by_module)},
                    {"alive", make_list(std::move(alive))},
                    {"stacks", make_list(std::move(stacks))},
                    {"mode", std::string(to_string(impl_->options.mode))},
                    {"root", all.root},
                    {"calls", whole(all.calls)},
                    {"backward", whole(all.backward)},
                    {"in_graph", whole(all.in_graph)},
                    {"overflowed", whole(all.overflowed)}});
}

void read_into(Settings& settings, TimeOptions& options) {
  settings.read("mode", options.mode);
  settings.read("max_calls", options.max_calls);
  settings.read("with_stack", options.with_stack);
  settings.read("with_modules", options.with_modules);
  settings.read("memory", options.memory);
  settings.read("mark_ranges", options.mark_ranges);
  settings.read("lines", options.lines);
  settings.read("files", options.files);
  settings.read("first_step", options.first_step);
}

}  // namespace op_tools
