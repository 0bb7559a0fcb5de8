#include "memory/memory_hook.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "hooks/graph_capture.h"
#include "memory/memory_table.h"
#include "report/row_file.h"
#include "tensor/device_guard.h"
#include "tensor/memory_watch.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

constexpr size_t kLinesAtEnd = 5;

struct State final : HookState {
  State(MemoryTable& table, std::string_view op) : call(table, op) {}
  MemoryTable::OpenCall call;
  c10::SmallVector<c10::Device, 2> devices;  // besides the CPU
  std::optional<MemoryWatch> watch;
};

std::string place_text(const MemoryRow& row) {
  std::string text = row.op;
  if (!row.module.empty()) text += " in " + row.module;
  if (!row.line.empty()) text += ", " + row.line;
  return text;
}

}  // namespace

struct MemoryHook::Impl {
  explicit Impl(const ResolvedMemoryOptions& options)
      : options(options), table(std::make_shared<MemoryTable>(options.backtrace)) {
    watch.emplace(table, options.guard);
    if (!watch->sees()) log::warn("OpMemoryCheck: the program's own CPU allocator is in place; its memory is not seen");
  }
  ~Impl() {
    // A forked child frees nothing of its parent's: the lock may be held by a thread that is not there.
    if (process.in_child()) static_cast<void>(new std::shared_ptr<MemoryTable>(std::move(table)));  // NOLINT
  }

  MemoryPlace place_of(OpCall& call) const {
    MemoryPlace place{call.name, nullptr, nullptr, {}, current_memory_phase(), call.grad_enabled};
    if (options.with_modules) place.module = &call.module();
    if (options.with_stack) place.line = &call.line();
    if (!options.backtrace) return place;
    for (const std::string& line : call.stack()) place.stack += line + "\n";
    return place;
  }

  void look_at_guards(const MemoryPlace& writer) {
    const std::vector<Overwrite> found = overwrites();
    if (found.empty()) return;
    table->add(found, writer);
    for (const Overwrite& one : found) {
      log::error("OpMemoryCheck: " + std::string(writer.op) + " wrote " + std::to_string(one.bytes) + " bytes " +
                 (one.offset < 0 ? "before" : "behind") + " a block of " + std::to_string(one.block_bytes) + " bytes" +
                 (writer.line && !writer.line->empty() ? ", at " + *writer.line : ""));
    }
  }

  void write_files(MemoryResult* all) const;

  const ResolvedMemoryOptions options;
  const ForkGuard process;
  std::shared_ptr<MemoryTable> table;
  std::optional<CpuMemoryWatch> watch;
  mutable std::mutex mutex;            // guards the members below
  std::optional<MemoryResult> at_end;  // of the scope
};

MemoryHook::MemoryHook(const ResolvedMemoryOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MemoryHook::~MemoryHook() = default;

std::unique_ptr<HookState> MemoryHook::before(OpCall& call) {
  if (call.phase == Phase::kBackward || impl_->process.in_child()) {  // another hook wanted gradients
    call.decline();
    return nullptr;
  }
  // Asked now, they are known in the call's backward as well.
  call.find_place(impl_->options.with_stack, impl_->options.with_modules);
  auto state = std::make_unique<State>(*impl_->table, call.name);
  const auto add_device = [&](c10::Device device) {
    if (device.is_cpu() || device.is_meta()) return;
    if (std::find(state->devices.begin(), state->devices.end(), device) == state->devices.end()) {
      state->devices.push_back(device);
    }
  };
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    add_device(tensor.device());
    if (tensor.is_meta() || !tensor.has_storage()) return;
    state->call.takes(tensor.storage());
    const bool parameter = tensor.requires_grad() && tensor.is_leaf();
    if (parameter || !tensor.is_cpu()) impl_->table->given(tensor.storage(), parameter);
  });
  if (const auto named = call.frame().named_device(); named && is_there(*named)) add_device(*named);
  if (!state->devices.empty()) {
    state->watch.emplace([one = state.get(), table = impl_->table.get()](const MemoryReport& report) {
      table->reported(one->call, report);
    });
  }
  return state;
}

void MemoryHook::after(OpCall& call, HookState* base) {
  auto& state = static_cast<State&>(*base);
  state.watch.reset();
  if (!state.devices.empty() && call.error.empty()) {
    call.frame().visit_result([&](const at::Tensor& tensor) {
      if (tensor.is_cpu() || tensor.is_meta() || !tensor.has_storage()) return;
      impl_->table->returned(state.call, tensor.storage());
    });
  }
  std::optional<MemoryPlace> place;
  if (state.call.any() || impl_->options.guard) place = impl_->place_of(call);
  if (impl_->options.guard) {
    for (const c10::Device device : state.devices) {
      if (!is_recording_graph(device)) wait_for_device(device);
    }
    impl_->look_at_guards(*place);
  }
  impl_->table->end(state.call, std::move(place).value_or(MemoryPlace{}));
}

void MemoryHook::step_begins(int64_t step) {
  impl_->table->step_ended(step);
}

void MemoryHook::scope_left() {
  if (impl_->process.in_child()) return;
  MemoryResult all = result();
  impl_->watch.reset();
  if (impl_->options.files && !all.rows.empty()) impl_->write_files(&all);
  std::string text = "OpMemoryCheck:";
  for (const DeviceMemoryRow& one : all.devices) {
    text += " " + one.device + ": " + bytes_text(static_cast<uint64_t>(one.alive_bytes)) + " in use, at most " +
            bytes_text(static_cast<uint64_t>(one.peak_bytes)) + " (step " + std::to_string(one.peak_step) + ", " +
            one.peak_op + ")";
    if (one.unused_bytes.value_or(0) > 0) {
      text += ", its allocator had " + bytes_text(static_cast<uint64_t>(*one.reserved_peak_bytes)) + ", " +
              bytes_text(static_cast<uint64_t>(*one.unused_bytes)) + " of them unused";
    }
    text += ";";
  }
  size_t leaks = 0;
  for (const MemoryRow& row : all.rows) {
    if (!row.leaks || ++leaks > kLinesAtEnd) continue;
    text +=
        "\n  grows by " + bytes_text(static_cast<uint64_t>(std::max(row.growth, 0.0))) + " a step: " + place_text(row);
    if (row.alive == 0) text += "; freed after the last step";
  }
  text += "\n  " + count_text(leaks, "leaking place") + ", " + count_text(all.overwrites.size(), "write") +
          " outside of a block";
  if (!all.root.empty()) text += "; files in " + all.root;
  if (all.steps < kFewestSteps) {
    text += "\n  what grows was not judged: " + count_text(static_cast<size_t>(all.steps), "step") + " ended, " +
            std::to_string(kFewestSteps) + " are needed; step() ends one, as an optimizer's step does in op-tools run";
  }
  log::notice(text);
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->at_end = std::move(all);
}

void MemoryHook::Impl::write_files(MemoryResult* all) const {
  try {
    const std::string root = claim_run_folder(options.output_dir, "op_memory_check_result", distributed_rank());
    RowFile csv(root + "/memory.csv", MemoryRow::columns().names()), lines(root + "/memory.jsonl");
    for (const MemoryRow& row : all->rows) {
      const Value value = MemoryRow::columns().value(row);
      csv.add(value);
      lines.add(value);
    }
    csv.flush();
    lines.flush();
    if (!all->overwrites.empty()) {
      RowFile overwrites(root + "/overwrites.jsonl");
      for (const OverwriteRow& row : all->overwrites) overwrites.add(OverwriteRow::columns().value(row));
      overwrites.flush();
    }
    all->root = root;
  } catch (const std::exception& error) {
    log::error(std::string("OpMemoryCheck writes no files: ") + error.what());
  }
}

MemoryResult MemoryHook::result() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->at_end) return *impl_->at_end;
  MemoryTable::Snapshot now = impl_->table->snapshot(impl_->options.cpu);
  return {std::move(now.rows), std::move(now.overwrites), std::move(now.blocks), std::move(now.devices), now.steps, {}};
}

std::string MemoryHook::folder() const {
  return result().root;
}

Value MemoryHook::report() const {
  const MemoryResult all = result();
  return make_dict({{"rows", MemoryRow::columns().values(all.rows)},
                    {"overwrites", OverwriteRow::columns().values(all.overwrites)},
                    {"blocks", BlockRow::columns().values(all.blocks)},
                    {"devices", DeviceMemoryRow::columns().values(all.devices)},
                    {"steps", all.steps},
                    {"root", all.root}});
}

}  // namespace op_tools
