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
#include "base/read_options.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "calls/call_meta.h"
#include "calls/packed_values.h"
#include "calls/random_state.h"
#include "calls/saved_call.h"
#include "capture/record_writer.h"
#include "coverage/coverage.h"
#include "hooks/collectives.h"
#include "hooks/signature.h"
#include "hooks/written_inputs.h"
#include "tensor/copy_memory.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// The facts of before() about a forward call. In turn in the same memory, which is in the caches.
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
  Packer::Made inputs;

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

// What a forward record says besides CallBefore and CallAfter.
struct PackedValues {
  Value rng;  // None: the call drew no random numbers
  bool has_aten = false;
  bool has_unwritten = false;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("rng", self.rng);
    visit("has_aten", self.has_aten);
    visit("has_unwritten", self.has_unwritten);
  }
};

struct PackedBackward {
  std::string_view name;
  uint64_t id = 0;
  uint32_t pass = 0;
  bool incomplete = false;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("name", self.name);
    visit("id", self.id);
    visit("pass", self.pass);
    visit("incomplete", self.incomplete);
  }
};

// Puts into `outputs` those tensors of `after`, a Dict {index: input as the call left it}, that are not as before the
// call.
void add_changed(const Value& inputs, const Value& after, Value* outputs) {
  const std::vector<at::Tensor> before = flatten_tensors(inputs);
  std::vector<std::pair<Value, Value>> changed;
  for (const auto& [index, now] : *after.get_if<Dict>()->items) {
    const at::Tensor& then = before.at(static_cast<size_t>(*index.get_if<int64_t>()));
    if (!same_strided_bits(then, *now.get_if<at::Tensor>())) changed.emplace_back(index, now);
  }
  if (changed.empty()) return;
  const Values& parts = *sequence_items(*outputs);
  const auto& written = *parts[1].get_if<Dict>()->items;
  changed.insert(changed.begin(), written.begin(), written.end());
  *outputs = make_tuple({parts[0], make_dict(std::move(changed))});
}

// A forward call: snapshot of the inputs, CallBefore, snapshot of the outputs, CallAfter, PackedValues, snapshot of the
// aten call, snapshot of the inputs that the call has no right to write.
SavedCall unpack_forward(const Packed& packed) {
  Unpacker from(packed);
  Snapshot inputs = from.snapshot("");
  const Values copies = std::move(from.copies());
  auto before = from.get<CallBefore>();
  Snapshot outputs = from.snapshot("");
  const auto after = from.get<CallAfter>();
  auto values = from.get<PackedValues>();
  SavedCall call;
  call.set_call(CallMeta::of(std::move(before), after), std::move(values.rng));
  const Value before_call = inputs.value;
  call.set_inputs(std::move(inputs));
  if (values.has_aten) call.set_aten(from.snapshot("", &copies).value);
  if (values.has_unwritten) add_changed(before_call, from.snapshot("").value, &outputs.value);
  from.finish();
  call.set_output(std::move(outputs));
  if (!call.meta.error.empty()) call.output.reset();
  return call;
}

SavedCall unpack_backward(const Packed& packed) {
  Unpacker from(packed);
  SavedCall call;
  SavedBackward& backward = call.backward.emplace_back();
  backward.grad_outputs = from.snapshot("").value;
  backward.grad_inputs = from.snapshot("").value;
  const auto facts = from.get<PackedBackward>();
  from.finish();
  call.name = facts.name;
  call.id = facts.id;
  call.first_pass = facts.pass;
  backward.incomplete = facts.incomplete;
  return call;
}

}  // namespace

namespace {

DiskBudget budget_of(const ResolvedCaptureOptions& options) {
  const auto bytes = [](double gigabytes) { return static_cast<uint64_t>(std::min(gigabytes, 1e9) * 1e9); };
  return {options.max_gb.is_set() ? bytes(options.max_gb) : UINT64_MAX,
          options.min_free_gb.is_set() ? std::optional(bytes(options.min_free_gb)) : std::nullopt};
}

// Shared file systems are slow with many small files: of many ranks each writes a single file.
CaptureFormat format_of(const ResolvedCaptureOptions& options) {
  constexpr int64_t kManyRanks = 16;
  if (options.format.is_set()) return options.format;
  return launched_ranks() >= kManyRanks ? CaptureFormat::kContainer : CaptureFormat::kFolders;
}

}  // namespace

struct CaptureHook::Impl {
  explicit Impl(const ResolvedCaptureOptions& options)
      : options(options),
        rank(distributed_rank()),
        writer([format = format_of(options), dir = options.output_dir, dedupe = options.dedupe,
                rank = rank] { return CallStore::create(format, dir, rank, dedupe); },
               options.max_pending_mb << 20, budget_of(options), std::chrono::duration<double>(options.write_timeout)) {
  }

  const ResolvedCaptureOptions options;
  const int64_t rank;
  std::atomic<uint64_t> taken{0}, skipped{0}, incomplete{0};
  std::atomic<uint64_t> after_end{0};  // calls that came when the writer was closed

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
    const auto entry = rows.find(op);
    if (entry != rows.end()) return entry->second;
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
  if (impl.writer.is_closed()) {
    if (call.phase == Phase::kForward) impl.after_end.fetch_add(1, std::memory_order_relaxed);
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
  state->inputs = record.end();
  state->live.assign(record.tensors().begin(), record.tensors().end());
  for (const at::Tensor* const tensor : state->live) state->versions.push_back(version_of(*tensor));
  record.put(CallBefore::of(call));
  record.fill();
  // Last: between this and the call no code of op_tools may draw random numbers.
  state->random.emplace(call.args(), call.kwargs());
  return state;
}

void CaptureHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (state) impl_->forward(call, static_cast<CaptureState&>(*state));
}

namespace {

// An input on an accelerator, which shows no element twice (a view by expand() may show more than fit into memory).
bool may_be_compared(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && !tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         why_not_plain(tensor, &type).empty() && is_in_storage(tensor) && tensor.nbytes() <= tensor.storage().nbytes();
}

// A Dict {index: the input as it is now}.
void pack_inputs(CaptureState& state, const c10::SmallVector<size_t, 8>& indices) {
  state.record.tree_dict(indices.size());
  for (const size_t i : indices) {
    state.record.tree_int(static_cast<int64_t>(i));
    state.record.tree_tensor(*state.live[i]);
  }
}

// The result, and beside it tensors that the call changed, as they are now: a single snapshot, so that a result which
// is one of them (add_) is stored once. `unwritten`: the others, by index, that an accelerator's kernel may have
// changed against its schema.
Packer::Made pack_outputs(OpCall& call, CaptureState& state, c10::SmallVector<size_t, 8>* unwritten) {
  Packer& record = state.record;
  record.begin();
  record.tree_tuple(2);
  const bool is_late = brings_later(call);  // nothing is stored in the place of tensors that have not arrived
  if (is_late) {
    record.tree(Value());
  } else {
    record.tree(call.result());
  }
  const auto was_returned = [returned = record.tensors()](const at::Tensor& tensor) {
    return std::any_of(returned.begin(), returned.end(),
                       [&](const at::Tensor* other) { return other->is_same(tensor); });
  };
  const std::vector<bool> written = written_inputs(call);
  c10::SmallVector<size_t, 8> changed;
  for (size_t i = 0; i < state.live.size(); ++i) {
    const int64_t version = version_of(*state.live[i]);
    const bool is_written = i < written.size() && written[i];
    // Inference tensors count no versions: a returned one is taken for changed.
    if (is_late) break;
    if (is_written || (version < 0 ? was_returned(*state.live[i]) : version != state.versions[i])) {
      changed.push_back(i);
    } else if (may_be_compared(*state.live[i])) {
      unwritten->push_back(i);
    }
  }
  pack_inputs(state, changed);
  return record.end();
}

}  // namespace

void CaptureHook::Impl::forward(OpCall& call, CaptureState& state) {
  Packer& record = state.record;
  Value moved = state.random->moved();
  c10::SmallVector<size_t, 8> unwritten;
  const Packer::Made outputs = pack_outputs(call, state, &unwritten);
  const Value aten = call.frame().aten_call();
  const bool has_aten = !aten.is<None>();
  record.put(CallAfter::of(call, rank));
  record.put(PackedValues{std::move(moved), has_aten, !unwritten.empty()});
  Packer::Made late;  // tensors that are none of the call's own
  if (has_aten) {
    record.begin(/*owned=*/false, /*restride=*/true, state.live);
    record.tree(aten);
    late = record.end();
  }
  Packer::Made looked_at;  // given back once they are compared
  if (!unwritten.empty()) {
    record.begin();
    pack_inputs(state, unwritten);
    looked_at = record.end();
  }

  const uint64_t bytes = state.inputs.bytes + outputs.bytes;
  Packed packed = record.finish();
  const size_t waiting = bytes + late.bytes + looked_at.bytes + packed.size();
  if (!writer.submit({std::move(packed), &unpack_forward, waiting})) return;

  std::lock_guard<std::mutex> lock(mutex);
  CaptureResult::Row& row = row_locked(call.name);
  ++row.calls;
  row.bytes += bytes;
  row.unsupported += state.inputs.unsupported + outputs.unsupported;
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
  record.put(PackedBackward{call.name, call.id, call.pass, call.incomplete});
  if (call.incomplete) incomplete.fetch_add(1, std::memory_order_relaxed);
  Packed packed = record.finish();
  const size_t waiting = bytes + packed.size();
  if (!writer.submit({std::move(packed), &unpack_backward, waiting})) return;
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
  log::progress("");
  const CaptureResult summary = result();
  uint64_t calls = 0, backward = 0, unsupported = 0;
  for (const CaptureResult::Row& row : summary.rows) {
    calls += row.calls;
    backward += row.backward;
    unsupported += row.unsupported;
  }
  std::ostringstream text;
  text << "OpCapture: " << calls << " calls of " << summary.rows.size() << " ops, " << backward << " backward passes, "
       << bytes_text(summary.bytes_on_disk) << (summary.root.empty() ? "" : " in " + shown_path(summary.root));
  if (summary.skipped) text << "; " << summary.skipped << " calls left out by the limits";
  if (!summary.limit.empty()) text << "; it stopped before the end: " << summary.limit;
  if (unsupported) text << "; " << unsupported << " values had no form in a file (meta.json says which)";
  const bool failed = !summary.failure.empty();
  if (failed) text << "; writing FAILED, " << summary.lost << " calls lost: " << summary.failure;
  (failed ? log::warn : log::notice)(text.str());
}

CaptureResult CaptureHook::result() const {
  CaptureResult result;
  const RecordWriter::Progress progress = impl_->writer.progress();
  result.root = progress.root;
  result.bytes_on_disk = progress.bytes;
  result.lost = progress.lost;
  result.waits = progress.waits;
  result.failure = progress.failure;
  result.limit = progress.limit;
  result.skipped = impl_->skipped.load() + progress.left_out;
  if (!result.limit.empty()) result.skipped += impl_->after_end.load();
  result.incomplete_gradients = impl_->incomplete.load();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& [op, row] : impl_->rows) result.rows.push_back(row);
  return result;
}

const Columns<CaptureResult::Row>& CaptureResult::Row::columns() {
  static const Columns<Row> all{
      "CaptureRow",
      "The captured calls of an operator.",
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

void CaptureHook::add_coverage(Coverage& account) const {
  const CaptureResult summary = result();
  account.lost[Loss::kLimits] += summary.skipped;
  // A container that cannot be closed has no call that can be read, though each was written.
  account.lost[Loss::kNotWritten] += std::max<uint64_t>(summary.lost, summary.failure.empty() ? 0 : 1);
  for (const CaptureResult::Row& row : summary.rows) account.bytes += row.bytes;
}

std::string CaptureHook::folder() const {
  return impl_->writer.progress().root;
}

Value CaptureHook::report() const {
  const CaptureResult summary = result();
  const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
  return make_dict({{"rows", Row::columns().values(summary.rows)},
                    {"root", summary.root},
                    {"bytes_on_disk", number(summary.bytes_on_disk)},
                    {"skipped", number(summary.skipped)},
                    {"lost", number(summary.lost)},
                    {"waits", number(summary.waits)},
                    {"incomplete_gradients", number(summary.incomplete_gradients)},
                    {"failure", summary.failure},
                    {"limit", summary.limit}});
}

}  // namespace op_tools
