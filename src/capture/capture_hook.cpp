#include "capture/capture_hook.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "capture/call_files.h"
#include "capture/call_meta.h"
#include "capture/random_state.h"
#include "capture/record_writer.h"
#include "capture/snapshot.h"
#include "hooks/copy_memory.h"
#include "hooks/log.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "hooks/text_table.h"

namespace op_tools {
namespace {

// What before() learned of a forward call.
struct CaptureState final : HookState {
  Snapshot inputs;
  std::vector<at::Tensor> live;           // the input tensors, to see after the call which of them it changed
  c10::SmallVector<int64_t, 8> versions;  // their version counters before the call; -1: the tensor has none
  std::optional<RandomWatch> random;
  std::shared_ptr<CallMeta> meta = std::make_shared<CallMeta>();
};

Value restrided_value(const Snapshot& snapshot) {
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [index, strides] : snapshot.restrided) {
    Values values(strides.begin(), strides.end());
    items.emplace_back(static_cast<int64_t>(index), make_tuple(std::move(values)));
  }
  return make_dict(std::move(items));
}

}  // namespace

struct CaptureHook::Impl {
  explicit Impl(const ResolvedCaptureOptions& options)
      : options(options),
        rank(distributed_rank()),
        writer([format = options.format, dir = options.output_dir, dedupe = options.dedupe,
                rank = rank] { return CallStore::create(format, dir, rank, dedupe); },
               options.max_pending_bytes) {}

  const ResolvedCaptureOptions options;
  const int64_t rank;
  std::atomic<uint64_t> taken{0}, skipped{0}, incomplete{0};

  mutable std::mutex mutex;  // guards the two maps
  std::unordered_map<uint64_t, int64_t> per_signature;
  std::map<std::string, CaptureResult::Row, std::less<>> rows;

  RecordWriter writer;  // last: its thread uses nothing of the above, and it is the first to go

  bool within_limits(OpCall& call) {
    if (options.max_per_signature) {
      const uint64_t signature = signature_of(call);
      std::lock_guard<std::mutex> lock(mutex);
      int64_t& count = per_signature[signature];
      if (count >= *options.max_per_signature) return false;
      ++count;
    }
    return !options.max_calls || taken.fetch_add(1) < static_cast<uint64_t>(*options.max_calls);
  }

  CaptureResult::Row& row_locked(std::string_view op) {
    const auto found = rows.find(op);
    if (found != rows.end()) return found->second;
    CaptureResult::Row& row = rows[std::string(op)];
    row.op = op;
    return row;
  }

  void forward(OpCall& call, CaptureState& state);
  void backward(OpCall& call);
};

CaptureHook::CaptureHook(const ResolvedCaptureOptions& options) : impl_(std::make_unique<Impl>(options)) {}
CaptureHook::~CaptureHook() = default;

std::unique_ptr<HookState> CaptureHook::before(OpCall& call) {
  Impl& impl = *impl_;
  if (impl.writer.failed()) {
    call.decline();
    return nullptr;
  }
  if (call.phase == Phase::kBackward) return nullptr;  // after() has everything
  if (!impl.within_limits(call)) {
    impl.skipped.fetch_add(1, std::memory_order_relaxed);
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<CaptureState>();
  const Value inputs = make_tuple({call.args(), call.kwargs()});
  state->inputs = take_snapshot(inputs, "");
  state->live = flatten_tensors(inputs);
  state->versions.reserve(state->live.size());
  for (const at::Tensor& tensor : state->live) state->versions.push_back(version_of(tensor));
  CallMeta& meta = *state->meta;
  meta.state = ProgramState::of(call);
  meta.stack = current_stack();
  meta.module = call.module();
  // Last, so that nothing of ours comes between the generator's state and the call.
  state->random.emplace(call.args(), call.kwargs());
  return state;
}

void CaptureHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (state) impl_->forward(call, static_cast<CaptureState&>(*state));
}

void CaptureHook::Impl::forward(OpCall& call, CaptureState& state) {
  CallMeta& meta = *state.meta;
  const Value moved = state.random->moved();

  // Tensors that the call changed, as they are now, beside the result: one snapshot, so that a result which is one of
  // them (add_) is stored once.
  // Inference tensors count no versions: one that the call returned is taken for changed.
  const std::vector<at::Tensor> returned = flatten_tensors(call.result());
  auto was_returned = [&](const at::Tensor& tensor) {
    return std::any_of(returned.begin(), returned.end(),
                       [&](const at::Tensor& other) { return other.is_same(tensor); });
  };
  const std::vector<bool> written = written_by_schema(call);
  std::vector<std::pair<Value, Value>> mutated;
  for (size_t i = 0; i < state.live.size(); ++i) {
    const int64_t version = version_of(state.live[i]);
    const bool by_schema = i < written.size() && written[i];
    if (by_schema || (version < 0 ? was_returned(state.live[i]) : version != state.versions[i])) {
      mutated.emplace_back(static_cast<int64_t>(i), state.live[i]);
    }
  }
  Snapshot outputs = take_snapshot(make_tuple({call.result(), make_dict(std::move(mutated))}), "");
  const Values& out = *sequence_items(outputs.value);

  Value aten = call.frame().aten_call();
  if (!aten.is<None>()) {
    aten = with_copies(aten, state.inputs);
    meta.aten_name = *(*sequence_items(aten))[0].get_if<std::string>();
  }

  meta.name = call.name;
  meta.level = call.level;
  meta.id = call.id;
  meta.step = call.step;
  meta.rank = rank;
  meta.schema = schema_text(call.op, meta.name);
  meta.error = call.error;
  meta.identity = call.frame().is_identity();
  meta.random = !moved.is<None>();
  meta.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  meta.inputs = std::move(state.inputs.tensors);
  meta.outputs = std::move(outputs.tensors);
  for (Note& note : state.inputs.unsupported) {
    // The root is the tuple (args, kwargs): "[0][2]" is args[2], "[1].out" is kwargs.out.
    note.where = (note.where.compare(0, 3, "[0]") == 0 ? "args" : "kwargs") + note.where.substr(3);
    meta.unsupported.push_back(std::move(note));
  }
  for (Note& note : outputs.unsupported) {
    note.where = (note.where.compare(0, 3, "[0]") == 0 ? "result" : "mutated") + note.where.substr(3);
    meta.unsupported.push_back(std::move(note));
  }

  std::vector<std::pair<Value, Value>> more;
  if (!aten.is<None>()) more.emplace_back("aten", std::move(aten));
  if (!moved.is<None>()) more.emplace_back("rng", moved);
  if (!state.inputs.restrided.empty()) more.emplace_back("restrided", restrided_value(state.inputs));

  Record record;
  record.files.reserve(2);
  record.key = {std::string(call.name), call.id};
  record.bytes = state.inputs.bytes + outputs.bytes;
  record.announce = true;
  const Values& in = *sequence_items(state.inputs.value);
  record.files.push_back({CallFile::kInput, in[0], in[1], std::move(more)});
  if (call.error.empty()) {
    std::vector<std::pair<Value, Value>> beside;
    if (!out[1].get_if<Dict>()->items->empty()) beside.emplace_back("mutated", out[1]);
    if (!outputs.restrided.empty()) beside.emplace_back("restrided", restrided_value(outputs));
    record.files.push_back({CallFile::kOutput, make_tuple({out[0]}), make_dict({}), std::move(beside)});
  }
  const uint64_t bytes = record.bytes;
  const uint64_t notes = meta.unsupported.size();
  const bool raised = !meta.error.empty();
  record.meta = [meta = state.meta] { return meta->to_json(); };
  if (!writer.submit(std::move(record))) return;

  std::lock_guard<std::mutex> lock(mutex);
  CaptureResult::Row& row = row_locked(call.name);
  ++row.calls;
  row.bytes += bytes;
  row.unsupported += notes;
  row.failed += raised;
}

// Both gradient lists are private copies already, made by the collector.
void CaptureHook::Impl::backward(OpCall& call) {
  Snapshot outputs = take_snapshot(call.args(), "", call.owns_values);
  Snapshot inputs = take_snapshot(call.result(), "", call.owns_values);
  Record record;
  record.key = {std::string(call.name), call.id};
  record.pass = call.pass;
  record.bytes = outputs.bytes + inputs.bytes;
  record.files.push_back({CallFile::kGradInputs, inputs.value, make_dict({}), {}});
  record.files.push_back({CallFile::kGradOutputs, outputs.value, make_dict({}), {}});
  if (call.incomplete) incomplete.fetch_add(1, std::memory_order_relaxed);
  const uint64_t bytes = record.bytes;
  if (!writer.submit(std::move(record))) return;
  std::lock_guard<std::mutex> lock(mutex);
  CaptureResult::Row& row = row_locked(call.name);
  ++row.backward;
  row.bytes += bytes;
}

const ResolvedOptions& CaptureHook::options() const {
  return impl_->options;
}

void CaptureHook::flush() {
  impl_->writer.flush();
}

void CaptureHook::scope_left() {
  flush();
  release_copy_memory();
  const CaptureResult all = result();
  uint64_t calls = 0, backward = 0, unsupported = 0;
  for (const CaptureResult::Row& row : all.rows) {
    calls += row.calls;
    backward += row.backward;
    unsupported += row.unsupported;
  }
  std::ostringstream text;
  text << "OpCapture: " << calls << " calls of " << all.rows.size() << " ops, " << backward << " backward passes, "
       << bytes_text(all.bytes_on_disk) << (all.root.empty() ? "" : " in " + all.root);
  if (all.skipped) text << "; " << all.skipped << " calls left out by the limits";
  if (unsupported) text << "; " << unsupported << " values had no form in a file (meta.json says which)";
  const bool failed = !all.failure.empty();
  if (failed) text << "; writing FAILED, " << all.lost << " calls lost: " << all.failure;
  (failed ? log::warn : log::info)(text.str());
}

CaptureResult CaptureHook::result() const {
  CaptureResult result;
  const RecordWriter::Progress progress = impl_->writer.progress();
  result.root = progress.root;
  result.bytes_on_disk = progress.bytes;
  result.lost = progress.lost;
  result.waits = progress.waits;
  result.failure = progress.failure;
  result.skipped = impl_->skipped.load();
  result.incomplete_gradients = impl_->incomplete.load();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& [op, row] : impl_->rows) result.rows.push_back(row);
  return result;
}

Value CaptureHook::report() const {
  const CaptureResult all = result();
  const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
  Values rows;
  for (const CaptureResult::Row& row : all.rows) {
    rows.push_back(make_dict({{"op", row.op},
                              {"calls", number(row.calls)},
                              {"backward", number(row.backward)},
                              {"bytes", number(row.bytes)},
                              {"unsupported", number(row.unsupported)},
                              {"failed", number(row.failed)}}));
  }
  return make_dict({{"rows", make_list(std::move(rows))},
                    {"root", all.root},
                    {"bytes_on_disk", number(all.bytes_on_disk)},
                    {"skipped", number(all.skipped)},
                    {"lost", number(all.lost)},
                    {"waits", number(all.waits)},
                    {"incomplete_gradients", number(all.incomplete_gradients)},
                    {"failure", all.failure}});
}

void read_into(Settings& settings, CaptureOptions& options) {
  settings.read("format", options.format);
  settings.read("dedupe", options.dedupe);
  settings.read("max_calls", options.max_calls);
  settings.read("max_per_signature", options.max_per_signature);
  settings.read("max_pending_mb", options.max_pending_mb);
}

}  // namespace op_tools
