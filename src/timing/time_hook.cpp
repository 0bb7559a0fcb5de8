#include "timing/time_hook.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/run_folder.h"
#include "coverage/coverage.h"
#include "hooks/backward_pass.h"
#include "hooks/graph_capture.h"
#include "hooks/signature.h"
#include "tensor/device_guard.h"
#include "tensor/memory_watch.h"
#include "tensor/plain_tensor.h"
#include "tensor/profiler.h"
#include "timing/backward_times.h"
#include "timing/call_details.h"
#include "timing/call_timer.h"
#include "timing/time_run.h"

namespace op_tools {
namespace {

constexpr size_t kLinesAtEnd = 10;

// `sizes`: its own ones.
int64_t bytes_of(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.layout() != at::kStrided || impl.has_symbolic_sizes_strides()) return 0;
  return c10::multiply_integers(sizes) * static_cast<int64_t>(impl.itemsize());
}

// Memory for the state of this thread's next call: states come in turn.
struct SpareMemory {
  void* memory = nullptr;
  ~SpareMemory() { ::operator delete(memory); }
};
thread_local SpareMemory tl_spare;

struct TimeState final : HookState {
  TimeState(TimeRun& run, TimedThread& thread) : timer(run.options.mode, run.clock, &run, thread) {}

  static void* operator new(size_t size) {
    void* const spare = std::exchange(tl_spare.memory, nullptr);
    return spare ? spare : ::operator new(size);
  }
  static void operator delete(void* memory) noexcept { ::operator delete(std::exchange(tl_spare.memory, memory)); }

  uint64_t signature = 0;
  uint32_t place = 0;
  uint32_t entry = 0;
  int64_t bytes_read = 0;
  // State that only some options ask for.
  struct More {
    std::vector<const c10::StorageImpl*> inputs;  // with memory
    std::optional<MemoryWatch> memory;
    ProfilerRange range;
  };
  std::optional<More> more;
  CallTimer timer;  // last: nothing of ours comes between it and the operator
};

}  // namespace

TimeHook::TimeHook(const ResolvedTimeOptions& options) : run_(std::make_shared<TimeRun>(options)) {
  run_->records.add_step(options.first_step, clock_now());
}
TimeHook::~TimeHook() = default;

std::unique_ptr<HookState> TimeHook::before(OpCall& call) {
  TimeRun& run = *run_;
  if (call.phase == Phase::kBackward) {  // another hook wanted gradients: nodes were followed already
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<TimeState>(run, TimedThread::current());
  if (run.options.memory || run.options.mark_ranges) state->more.emplace();
  CallDevices devices;
  Signature signature;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    devices.add(tensor.device());
    if (run.options.memory && tensor.has_storage()) {
      state->more->inputs.push_back(tensor.storage().unsafeGetStorageImpl());
    }
    if (tensor.is_nested()) return signature.add(tensor.scalar_type());
    const at::IntArrayRef sizes = own_sizes(tensor);
    signature.add(tensor.scalar_type(), sizes);
    state->bytes_read += bytes_of(tensor, sizes);
  });
  if (devices.empty()) {
    if (const auto named = call.frame().named_device(); named && is_there(*named)) devices.add(*named);
  }
  for (const c10::Device device : devices) {
    if (!is_recording_graph(device)) continue;
    run.in_graph.fetch_add(1, std::memory_order_relaxed);
    call.decline();
    return nullptr;
  }
  state->signature = signature.value();
  if (run.options.with_stack || run.options.with_modules) {
    CallPlace place;
    if (run.options.with_stack) place.stack = call.stack();
    if (run.options.with_modules) place.module = call.module();
    state->place = run.records.place_of(std::move(place));
  }
  state->entry = run.records.entry_of(call.name, phase_of(call), state->signature, state->place,
                                      [&] { return describe_call(call, devices); });
  if (run.prints_lines()) {  // after the operator they are gone
    call.args();
    call.kwargs();
  }
  if (run.options.memory) {
    state->more->memory.emplace();
    if (!state->more->memory->sees() && !run.told_memory.exchange(true)) {
      log::warn("OpTimeMeasure: memory is not measured while torch.profiler is on");
    }
  }
  if (run.options.mark_ranges) state->more->range.begin(std::string(call.name));
  state->timer.start(devices);
  return state;
}

void TimeHook::after(OpCall& call, HookState* base) {
  TimeRun& run = *run_;
  auto& state = static_cast<TimeState&>(*base);
  CallBytes bytes;
  bytes.read = state.bytes_read;
  const bool may_grow_graph = call.level == Level::kTorch && call.grad_enabled;
  bool grows_graph = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!tensor.is_nested()) bytes.written += bytes_of(tensor, own_sizes(tensor));
    grows_graph = grows_graph || (may_grow_graph && tensor.requires_grad());
    if (!run.options.memory || !tensor.has_storage()) return;
    const std::vector<const c10::StorageImpl*>& inputs = state.more->inputs;
    if (std::find(inputs.begin(), inputs.end(), tensor.storage().unsafeGetStorageImpl()) == inputs.end()) {
      run.alive.add(tensor.storage(), state.entry);
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
  if (state.more) {
    state.more->range.end();
    if (const auto& memory = state.more->memory) {
      bytes.allocated = memory->allocated();
      bytes.peak = memory->peak();
    }
    state.more->memory.reset();
  }
  if (late) run.records.set_device(state.entry, names_of(state.timer.devices()));
  if (!looked) call.frame().visit_result(look);
  Measured measured(state.timer, call.id, state.entry, run.step.load(std::memory_order_relaxed));
  measured.bytes = bytes;
  measured.call.failed = !call.error.empty();
  if (run.prints_lines())
    measured.line = std::unique_ptr<Measured::Line>(new Measured::Line{std::string(call.name), values_text(call)});
  run.measured.add(std::move(measured));
  if (grows_graph) {
    const uint32_t backward = run.records.entry_of(call.name, Phase::kBackward, state.signature, state.place,
                                                   [&] { return run.records.details(state.entry); });
    call.watch_nodes(std::make_shared<BackwardTimes>(run_, call, backward, state.timer.devices()));
  }
}

void TimeHook::step_begins(int64_t step) {
  step += run_->options.first_step;
  run_->step.store(step, std::memory_order_relaxed);
  run_->records.add_step(step, clock_now());
  run_->measured.drain();
}

void TimeHook::flush() {
  run_->measured.drain();
  run_->flush_files();
}

void TimeHook::scope_left() {
  flush();
  if (!log::enabled(log::Level::kNotice)) return;
  const TimeRecords::Snapshot records = run_->records.snapshot();
  if (records.calls + records.backward == 0) return;
  std::ostringstream text;
  text << "OpTimeMeasure (" << to_string(run_->options.mode) << "): " << records.calls << " calls, " << records.backward
       << " backward passes";
  if (const uint64_t in_graph = run_->in_graph.load()) {
    text << "; " << in_graph << " calls left alone: their device was recording a graph";
  }
  if (records.overflowed) text << "; " << records.overflowed << " calls are not in the trace (max_calls)";
  if (const std::string root = run_->files.root(); !root.empty()) text << "; files in " << shown_path(root);
  text << "\n" << time_table(time_rows(records, TimeGroup::kOp, {}), kLinesAtEnd);
  log::notice(text.str());
}

TimeResult TimeHook::result() const {
  run_->measured.drain();
  const TimeRecords::Snapshot snapshot = run_->records.snapshot();
  const std::vector<int64_t> flops = run_->flops.of(snapshot.entries);
  TimeResult result;
  result.by_op = time_rows(snapshot, TimeGroup::kOp, flops);
  result.by_shape = time_rows(snapshot, TimeGroup::kShape, flops);
  if (run_->options.with_stack) result.by_line = time_rows(snapshot, TimeGroup::kLine, flops);
  if (run_->options.with_modules) result.by_module = time_rows(snapshot, TimeGroup::kModule, flops);
  result.root = run_->files.root();
  result.calls = snapshot.calls;
  result.backward = snapshot.backward;
  result.in_graph = run_->in_graph.load();
  result.overflowed = snapshot.overflowed;

  std::map<std::string, TimeResult::Alive> alive;
  for (const AliveMemory::Alive& block : run_->alive.alive()) {
    const TimeEntry& entry = snapshot.entries[block.owner];
    const std::string line = snapshot.places[entry.place].line();
    TimeResult::Alive& sum = alive[line.empty() ? entry.op : line];
    sum.count += block.count;
    sum.bytes += block.bytes;
  }
  for (auto& [where, row] : alive) {
    row.where = where;
    result.alive.push_back(row);
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

void TimeHook::add_coverage(Coverage& account) const {
  account.lost[Loss::kInGraph] += run_->in_graph.load();
}

std::string TimeHook::folder() const {
  return run_->files.root();
}

Value TimeHook::report() const {
  const TimeResult summary = result();
  const auto integer = [](uint64_t number) { return Value(static_cast<int64_t>(number)); };
  const auto rows = [](const std::vector<TimeRow>& from) { return TimeRow::columns().values(from); };
  Values alive, stacks;
  for (const TimeResult::Alive& row : summary.alive) {
    alive.push_back(make_dict({{"where", row.where}, {"count", row.count}, {"bytes", row.bytes}}));
  }
  for (const TimeResult::Stack& stack : summary.stacks) {
    stacks.push_back(make_dict({{"frames", make_list(Values(stack.frames.begin(), stack.frames.end()))},
                                {"total_ms", stack.total_ms},
                                {"self_ms", stack.self_ms}}));
  }
  return make_dict({{"rows", rows(summary.by_op)},
                    {"by_shape", rows(summary.by_shape)},
                    {"by_line", rows(summary.by_line)},
                    {"by_module", rows(summary.by_module)},
                    {"alive", make_list(std::move(alive))},
                    {"stacks", make_list(std::move(stacks))},
                    {"mode", std::string(to_string(run_->options.mode))},
                    {"root", summary.root},
                    {"calls", integer(summary.calls)},
                    {"backward", integer(summary.backward)},
                    {"in_graph", integer(summary.in_graph)},
                    {"overflowed", integer(summary.overflowed)}});
}

}  // namespace op_tools
