#include "capture/capture_hook.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/text_table.h"
#include "calls/call_files.h"
#include "calls/call_meta.h"
#include "calls/packed_values.h"
#include "calls/random_state.h"
#include "capture/record_writer.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "tensor/copy_memory.h"

namespace op_tools {
namespace {

// What before() learned of a forward call. One after the other in the same memory, which is in the caches.
struct CaptureState final : HookState {
  static void* operator new(size_t size) {
    void* const spare = std::exchange(spare_memory().memory, nullptr);
    return spare ? spare : ::operator new(size);
  }
  static void operator delete(void* memory) {
    void*& spare = spare_memory().memory;
    ::operator delete(spare);
    spare = memory;
  }

  Packer record;
  c10::SmallVector<const at::Tensor*, 8> live;  // the inputs, to see after the call which of them it changed
  c10::SmallVector<int64_t, 8> versions;        // their version counters before the call; -1: the tensor has none
  std::optional<RandomWatch> random;
  Packer::Made made;

 private:
  struct Spare {
    ~Spare() { ::operator delete(std::exchange(memory, nullptr)); }
    void* memory = nullptr;
  };
  static Spare& spare_memory() {
    thread_local Spare spare;
    return spare;
  }
};

Value restrided_value(const Snapshot& snapshot) {
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [index, strides] : snapshot.restrided) {
    Values values(strides.begin(), strides.end());
    items.emplace_back(static_cast<int64_t>(index), make_tuple(std::move(values)));
  }
  return make_dict(std::move(items));
}

// The roots of the two snapshots are tuples: "[0][2]" is args[2], "[1].out" is kwargs.out.
void take_notes(std::vector<Note>& from, const char* first, const char* second, std::vector<Note>& notes) {
  for (Note& note : from) {
    note.where = (note.where.compare(0, 3, "[0]") == 0 ? first : second) + note.where.substr(3);
    notes.push_back(std::move(note));
  }
}

// A forward call's record as CaptureHook packs it, on the writer thread.
OpenRecord open_forward(const Packed& packed) {
  Unpacker from(packed);
  OpenRecord record;
  CallMeta meta;
  Snapshot inputs = from.snapshot("");
  const Values copies = std::move(from.copies());
  meta.state = unpacked_state(from);
  for (auto lines = from.get<uint32_t>(); lines > 0; --lines) meta.stack.push_back(*from.get<const std::string*>());
  meta.module = from.text();
  Snapshot outputs = from.snapshot("");
  Value aten;
  if (from.get<bool>()) {
    aten = from.snapshot("", &copies).value;
    meta.aten_name = *(*sequence_items(aten))[0].get_if<std::string>();
  }
  meta.name = from.text();
  meta.level = from.get<Level>();
  meta.id = from.get<uint64_t>();
  meta.step = from.get<int64_t>();
  meta.rank = from.get<int64_t>();
  meta.schema = *from.get<const std::string*>();
  meta.error = from.text();
  meta.identity = from.get<bool>();
  meta.time = from.get<double>();
  meta.random = from.get<bool>();
  const Value moved = meta.random ? from.value() : Value();
  meta.inputs = std::move(inputs.tensors);
  meta.outputs = std::move(outputs.tensors);
  take_notes(inputs.unsupported, "args", "kwargs", meta.unsupported);
  take_notes(outputs.unsupported, "result", "mutated", meta.unsupported);

  std::vector<std::pair<Value, Value>> more;
  if (!aten.is<None>()) more.emplace_back("aten", std::move(aten));
  if (meta.random) more.emplace_back("rng", moved);
  if (!inputs.restrided.empty()) more.emplace_back("restrided", restrided_value(inputs));
  const Values& in = *sequence_items(inputs.value);
  record.files.push_back({CallFile::kInput, in[0], in[1], std::move(more)});
  if (meta.error.empty()) {
    const Values& out = *sequence_items(outputs.value);
    std::vector<std::pair<Value, Value>> beside;
    if (!out[1].get_if<Dict>()->items->empty()) beside.emplace_back("mutated", out[1]);
    if (!outputs.restrided.empty()) beside.emplace_back("restrided", restrided_value(outputs));
    record.files.push_back({CallFile::kOutput, make_tuple({out[0]}), make_dict({}), std::move(beside)});
  }
  record.key = {meta.name, meta.id};
  record.announce = true;
  record.meta = meta.to_json();
  return record;
}

OpenRecord open_backward(const Packed& packed) {
  Unpacker from(packed);
  const Snapshot outputs = from.snapshot("");
  const Snapshot inputs = from.snapshot("");
  OpenRecord record;
  std::string name(from.text());
  record.key = {std::move(name), from.get<uint64_t>()};
  record.pass = from.get<uint32_t>();
  record.files.push_back({CallFile::kGradInputs, inputs.value, make_dict({}), {}});
  record.files.push_back({CallFile::kGradOutputs, outputs.value, make_dict({}), {}});
  return record;
}

}  // namespace

struct CaptureHook::Impl {
  explicit Impl(const ResolvedCaptureOptions& options)
      : options(options),
        rank(distributed_rank()),
        writer([format = options.format, dir = options.output_dir, dedupe = options.dedupe,
                rank = rank] { return CallStore::create(format, dir, rank, dedupe); },
               options.max_pending_mb << 20) {}

  const ResolvedCaptureOptions options;
  const int64_t rank;
  std::atomic<uint64_t> taken{0}, skipped{0}, incomplete{0};

  mutable std::mutex mutex;  // guards the two maps
  std::unordered_map<uint64_t, int64_t> per_signature;
  std::map<std::string, CaptureResult::Row, std::less<>> rows;

  RecordWriter writer;  // last: its thread uses nothing of the above, and it is the first to go

  bool within_limits(OpCall& call) {
    if (options.max_per_signature != kNoLimit) {
      const uint64_t signature = signature_of(call);
      std::lock_guard<std::mutex> lock(mutex);
      int64_t& count = per_signature[signature];
      if (count >= options.max_per_signature) return false;
      ++count;
    }
    return options.max_calls == kNoLimit || taken.fetch_add(1) < static_cast<uint64_t>(options.max_calls.get());
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
  Packer& record = state->record;
  record.begin();
  record.tree_tuple(2);
  record.tree(call.args());
  record.tree(call.kwargs());
  state->made = record.end();
  state->live.assign(record.tensors().begin(), record.tensors().end());
  for (const at::Tensor* const tensor : state->live) state->versions.push_back(version_of(*tensor));
  pack(record, ProgramState::of(call));
  const StackLines lines = current_lines();
  record.put(static_cast<uint32_t>(lines.size()));
  for (const std::string* const line : lines) record.put(line);
  record.put_text(call.module());
  record.fill();
  // Last, so that nothing of ours comes between the generator's state and the call.
  state->random.emplace(call.args(), call.kwargs());
  return state;
}

void CaptureHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (state) impl_->forward(call, static_cast<CaptureState&>(*state));
}

void CaptureHook::Impl::forward(OpCall& call, CaptureState& state) {
  Packer& record = state.record;
  const Value moved = state.random->moved();

  // Tensors that the call changed, as they are now, beside the result: one snapshot, so that a result which is one of
  // them (add_) is stored once.
  record.begin();
  record.tree_tuple(2);
  record.tree(call.result());
  const auto was_returned = [returned = record.tensors()](const at::Tensor& tensor) {
    return std::any_of(returned.begin(), returned.end(),
                       [&](const at::Tensor* other) { return other->is_same(tensor); });
  };
  const std::vector<bool> written = written_by_schema(call);
  c10::SmallVector<size_t, 8> changed;
  for (size_t i = 0; i < state.live.size(); ++i) {
    const int64_t version = version_of(*state.live[i]);
    const bool by_schema = i < written.size() && written[i];
    // Inference tensors count no versions: one that the call returned is taken for changed.
    if (by_schema || (version < 0 ? was_returned(*state.live[i]) : version != state.versions[i])) changed.push_back(i);
  }
  record.tree_dict(changed.size());
  for (const size_t i : changed) {
    record.tree_int(static_cast<int64_t>(i));
    record.tree_tensor(*state.live[i]);
  }
  const Packer::Made outputs = record.end();

  const Value aten = call.frame().aten_call();
  const bool has_aten = !aten.is<None>();
  Packer::Made late;  // tensors that are none of the call's own
  record.put(has_aten);
  if (has_aten) {
    record.begin(/*owned=*/false, /*restride=*/true, state.live);
    record.tree(aten);
    late = record.end();
  }

  record.put_text(call.name);
  record.put(call.level);
  record.put(call.id);
  record.put(call.step);
  record.put(rank);
  record.put(&schema_text(call.op, call.name));
  record.put_text(call.error);
  record.put(call.frame().is_identity());
  record.put(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  record.put(!moved.is<None>());
  if (!moved.is<None>()) record.put_value(moved);

  const uint64_t bytes = state.made.bytes + outputs.bytes;
  Packed packed = record.finish();
  const size_t waiting = bytes + late.bytes + packed.size();
  if (!writer.submit({std::move(packed), &open_forward, waiting})) return;

  std::lock_guard<std::mutex> lock(mutex);
  CaptureResult::Row& row = row_locked(call.name);
  ++row.calls;
  row.bytes += bytes;
  row.unsupported += state.made.unsupported + outputs.unsupported;
  row.failed += !call.error.empty();
}

// Both gradient lists are private copies already, made by the collector.
void CaptureHook::Impl::backward(OpCall& call) {
  Packer record;
  size_t bytes = 0;
  for (const Value* const gradients : {&call.args(), &call.result()}) {
    record.begin(call.owns_values);
    record.tree(*gradients);
    bytes += record.end().bytes;
  }
  record.put_text(call.name);
  record.put(call.id);
  record.put(call.pass);
  if (call.incomplete) incomplete.fetch_add(1, std::memory_order_relaxed);
  Packed packed = record.finish();
  const size_t waiting = bytes + packed.size();
  if (!writer.submit({std::move(packed), &open_backward, waiting})) return;
  std::lock_guard<std::mutex> lock(mutex);
  CaptureResult::Row& row = row_locked(call.name);
  ++row.backward;
  row.bytes += bytes;
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

const Columns<CaptureResult::Row>& CaptureResult::Row::columns() {
  static const Columns<Row> all{
      "CaptureRow",
      "What was captured of one operator.",
      {
          {"op", &Row::op, "the operator"},
          {"calls", &Row::calls, "forward calls"},
          {"backward", &Row::backward, "backward passes"},
          {"bytes", &Row::bytes, "of tensors, in memory"},
          {"unsupported", &Row::unsupported, "values without a form in a file; meta.json says which"},
          {"failed", &Row::failed, "calls whose operator raised; their inputs are saved"},
      }};
  return all;
}

Value CaptureHook::report() const {
  const CaptureResult all = result();
  const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
  return make_dict({{"rows", Row::columns().values(all.rows)},
                    {"root", all.root},
                    {"bytes_on_disk", number(all.bytes_on_disk)},
                    {"skipped", number(all.skipped)},
                    {"lost", number(all.lost)},
                    {"waits", number(all.waits)},
                    {"incomplete_gradients", number(all.incomplete_gradients)},
                    {"failure", all.failure}});
}

}  // namespace op_tools
