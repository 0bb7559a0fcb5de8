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
#include "base/own_command.h"
#include "base/printable.h"
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
  std::vector<const void*> used;  // guard: blocks that the operator was given or made
};

std::string place_text(const MemoryRow& row) {
  std::string text = row.op;
  if (!row.module.empty()) text += " in " + row.module;
  if (!row.line.empty()) text += ", " + row.line;
  return printable(text);
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

  void report(const std::vector<Overwrite>& damage, const MemoryPlace& writer) {
    if (damage.empty()) return;
    table->add(damage, writer);
    for (const Overwrite& overwrite : damage) {
      const std::string who =
          overwrite.operators > 1 ? "an operator of the last " + std::to_string(overwrite.operators) + " up to " : "";
      log::error("OpMemoryCheck: " + who + std::string(writer.op) + " wrote " + std::to_string(overwrite.bytes) +
                 " bytes " + (overwrite.offset < 0 ? "before" : "behind") + " a block of " +
                 std::to_string(overwrite.block_bytes) + " bytes" +
                 (writer.line && !writer.line->empty() ? ", at " + *writer.line : ""));
    }
  }

  void write_files(MemoryResult* summary) const;

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
    if (impl_->options.guard) state->used.push_back(tensor.storage().data());
    state->call.takes(tensor.storage());
    const bool parameter = tensor.requires_grad() && tensor.is_leaf();
    if (parameter || !tensor.is_cpu()) impl_->table->takes(tensor.storage(), parameter);
  });
  if (const auto named = call.frame().named_device(); named && is_there(*named)) add_device(*named);
  if (!state->devices.empty()) {
    state->watch.emplace([open = state.get(), table = impl_->table.get()](const MemoryReport& report) {
      table->reported(open->call, report);
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
    if (call.error.empty()) {
      call.frame().visit_result([&](const at::Tensor& tensor) {
        if (!tensor.is_meta() && tensor.has_storage()) state.used.push_back(tensor.storage().data());
      });
    }
    impl_->report(overwrites(state.used), *place);
  }
  impl_->table->end(state.call, std::move(place).value_or(MemoryPlace{}));
}

void MemoryHook::step_begins(int64_t step) {
  impl_->table->step_ended(step);
}

void MemoryHook::scope_left() {
  if (impl_->process.in_child()) return;
  if (impl_->options.guard)
    impl_->report(overwrites(), {"(end of the scope)", nullptr, nullptr, {}, MemoryPhase::kForward, false});
  MemoryResult summary = result();
  impl_->watch.reset();
  if (impl_->options.files && !summary.rows.empty()) impl_->write_files(&summary);
  std::string text = "OpMemoryCheck:";
  for (const DeviceMemoryRow& device : summary.devices) {
    text += " " + device.device + ": " + bytes_text(static_cast<uint64_t>(device.alive_bytes)) + " in use, at most " +
            bytes_text(static_cast<uint64_t>(device.peak_bytes)) + " (step " + std::to_string(device.peak_step) + ", " +
            device.peak_op + ")";
    if (device.unused_bytes.value_or(0) > 0) {
      text += ", its allocator had " + bytes_text(static_cast<uint64_t>(*device.reserved_peak_bytes)) + ", " +
              bytes_text(static_cast<uint64_t>(*device.unused_bytes)) + " of them unused";
    }
    text += ";";
  }
  size_t leaks = 0;
  for (const MemoryRow& row : summary.rows) {
    if (!row.leaks || ++leaks > kLinesAtEnd) continue;
    text +=
        "\n  grows by " + bytes_text(static_cast<uint64_t>(std::max(row.growth, 0.0))) + " a step: " + place_text(row);
    if (row.alive == 0) text += "; freed after the last step";
  }
  text += "\n  " + count_text(leaks, "leaking place") + ", " + count_text(summary.overwrites.size(), "write") +
          " outside of a block";
  if (!summary.root.empty()) text += "; files in " + shown_path(summary.root);
  if (summary.steps < kFewestSteps) {
    text += "\n  growth was not judged: " + count_text(static_cast<size_t>(summary.steps), "step") + " ended, " +
            std::to_string(kFewestSteps) + " are needed; step() ends a step, as an optimizer's step does in " +
            op_tools_line({"run"});
  }
  log::notice(text);
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->at_end = std::move(summary);
}

void MemoryHook::Impl::write_files(MemoryResult* summary) const {
  try {
    const std::string root = claim_run_folder(options.output_dir, "op_memory_check_result", distributed_rank());
    RowFile csv(root + "/memory.csv", MemoryRow::columns().names()), lines(root + "/memory.jsonl");
    for (const MemoryRow& row : summary->rows) {
      const Value value = MemoryRow::columns().value(row);
      csv.add(value);
      lines.add(value);
    }
    csv.flush();
    lines.flush();
    if (!summary->overwrites.empty()) {
      RowFile overwrites(root + "/overwrites.jsonl");
      for (const OverwriteRow& row : summary->overwrites) overwrites.add(OverwriteRow::columns().value(row));
      overwrites.flush();
    }
    summary->root = root;
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
  const MemoryResult summary = result();
  return make_dict({{"rows", MemoryRow::columns().values(summary.rows)},
                    {"overwrites", OverwriteRow::columns().values(summary.overwrites)},
                    {"blocks", BlockRow::columns().values(summary.blocks)},
                    {"devices", DeviceMemoryRow::columns().values(summary.devices)},
                    {"steps", summary.steps},
                    {"root", summary.root}});
}

}  // namespace op_tools
