#include "record/record_hook.h"

#include <c10/util/SmallVector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/run_folder.h"
#include "base/stop_program.h"
#include "calls/random_state.h"
#include "hooks/argument_key.h"
#include "hooks/backward_pass.h"
#include "hooks/collectives.h"
#include "hooks/op_traits.h"
#include "hooks/written_inputs.h"
#include "record/arriving_values.h"
#include "record/call_forms.h"
#include "record/call_parts.h"
#include "record/jitter.h"
#include "record/json_lines.h"
#include "record/module_calls.h"
#include "record/named_tensors.h"
#include "record/recording_file.h"
#include "record/row_tables.h"
#include "record/run_header.h"
#include "record/value_rows.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/merged_dims.h"
#include "tensor/plain_tensor.h"
#include "tensor/statistics.h"

namespace op_tools {
namespace {

constexpr size_t kBytesPerBlock = 64 << 10;  // that a killed process may lose
constexpr size_t kMostOpen = 10'000;         // questions to a device that wait for their answers

struct Input {
  StringNumber place;
  at::Tensor tensor;
  int64_t version;
  KnownValue value;
};

// What a name says of its operator, and what is known of its calls.
struct KnownOp {
  StringNumber op;
  bool uninitialized, writes_uncounted, writes_declared, factory, collective;
  RecordRow counts = {};
  CallForms arguments = {}, results = {};
};

struct State final : HookState {
  KnownOp* op = nullptr;  // from take_inputs() on; what may change in it is guarded by the hook's lock
  c10::SmallVector<Input, 4> inputs;
  std::vector<bool> written;  // by input, where the operator writes what no counter shows; else empty
  StringNumber scalars = 0;
  std::optional<RandomWatch> random;
  std::vector<StringNumber> places;  // modules_only: "grad args[0]", of each tensor of the inputs
  bool is_late = false;              // what it gives is not there yet when it has returned
};

// Of a module's call, for its backward calls.
struct InputPlaces final : HookState {
  explicit InputPlaces(std::vector<StringNumber> places) : places(std::move(places)) {}
  const std::vector<StringNumber> places;
};

struct Output {
  StringNumber place;
  at::Tensor tensor;
  size_t where = 0;  // place_of(tensor)
  KnownValue value = {};
  bool is_new = false;  // not known before: what the call made, wrote, or shows in another way
  bool is_view = false;
};

using Outputs = c10::SmallVector<Output, 3>;

// Of a compiler or an exporter: there are no numbers in it, and nothing is computed.
bool is_of_trace(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return keys.has(c10::DispatchKey::Functionalize) ||
         (keys.has(c10::DispatchKey::Python) && keys.has_backend(c10::BackendComponent::MetaBit)) ||
         tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

bool is_backward_at_torch(const OpCall& call) {
  return call.level == Level::kTorch && call.phase == Phase::kBackward;
}

// "rank0-7.jsonl" beside "rank0-7.oprec".
std::string json_path(const std::string& path) {
  return path.substr(0, path.rfind('.')) + ".jsonl";
}

bool same_order(const at::Tensor& one, const at::Tensor& other) {
  if (one.is_contiguous() && other.is_contiguous()) return true;
  const auto has_dims = [](const at::Tensor& tensor) {
    return !tensor.is_nested() && static_cast<int64_t>(own_sizes(tensor).size()) == tensor.dim();
  };
  return has_dims(one) && has_dims(other) &&
         MergedDims(own_sizes(one), own_strides(one)) == MergedDims(own_sizes(other), own_strides(other));
}

bool same_memory_order(const at::Tensor& one, const at::Tensor& other) {
  return one.has_storage() && other.has_storage() && one.storage().is_alias_of(other.storage()) &&
         one.storage_offset() == other.storage_offset() && one.dtype() == other.dtype() &&
         one.numel() == other.numel() && one.is_neg() == other.is_neg() && one.is_conj() == other.is_conj() &&
         same_order(one, other);
}

}  // namespace

const Columns<RecordRow>& RecordRow::columns() {
  static const Columns<RecordRow> all{"RecordRow",
                                      "Calls of one operator in a recording.",
                                      {
                                          {"op", &RecordRow::op, "the operator"},
                                          {"calls", &RecordRow::calls, "forward calls"},
                                          {"backward", &RecordRow::backward, "backward calls"},
                                          {"failed", &RecordRow::failed, "calls that raised"},
                                      }};
  return all;
}

struct RecordHook::Impl {
  explicit Impl(const ResolvedRecordOptions& options) : options(options), rank(distributed_rank()) {}

  const ResolvedRecordOptions options;
  const int64_t rank;
  const ForkGuard owner;
  std::atomic<bool> jittered{false}, failed{false}, awaits{false}, graph_ran{false}, has_file{false};

  mutable std::mutex mutex;  // guards all that follows
  RowTables rows;
  ValueRows values{rows};
  ArrivingValues arriving;
  ModuleCalls module_calls;
  std::unordered_map<std::string, KnownOp, StringHash, std::equal_to<>> ops;
  std::map<std::thread::id, uint32_t> threads;
  std::unique_ptr<RecordingFile> file;
  std::string failure;
  std::vector<RecordedUse> uses;  // of the call that is added
  uint64_t calls = 0;

  bool is_on() const { return !failed.load(std::memory_order_relaxed) && !owner.in_child(); }

  // Called without the lock: it reads the tensor.
  std::shared_ptr<StatisticsQuery> ask(const at::Tensor& tensor) const {
    return options.statistics ? std::make_shared<StatisticsQuery>(tensor) : nullptr;
  }

  // ---- the lock is held ----

  KnownOp& op_locked(const OpCall& call) {
    const auto found = ops.find(call.name);
    if (found != ops.end()) return found->second;
    const std::string_view base = base_name(call.name);
    KnownOp made{rows.string(call.name), returns_uninitialized(base),         writes_uncounted(call),
                 writes_declared(call),  call.op && makes_variable(*call.op), is_collective(call.name)};
    made.counts.op = call.name;
    return ops.emplace(call.name, std::move(made)).first->second;
  }

  uint32_t thread_locked() {
    return threads.try_emplace(std::this_thread::get_id(), static_cast<uint32_t>(threads.size())).first->second;
  }

  // Reads what devices have computed, and hands the rows to the system.
  void write_locked() {
    values.answer();
    if (!file || rows.pending_bytes() == 0) return;
    try {
      file->append(rows.pending());
    } catch (const Error& error) {
      stop_locked(error.what());
    }
    rows.written();
    for (const ArrivingValue& one : arriving.take_all()) values.forget(one.tensor);  // who reads it, reads it anew
  }

  void stop_locked(const std::string& why) {
    failed.store(true, std::memory_order_relaxed);
    failure = why;
    log::error("OpRecord stops recording; the program goes on: " + why);
  }

  // "<folder>/rank<R>-<pid>.oprec"; a further recording of this process gets a number.
  void make_file(const OpCall& call) {
    if (has_file.load(std::memory_order_acquire)) return;
    const Value header =
        run_header(call, rank, options.modules_only);  // asks the program's language: not under the lock
    const std::lock_guard<std::mutex> lock(mutex);
    if (file) return;
    const std::string& folder = options.output_dir.get();
    try {
      make_folders(folder);
      const std::string base = folder + "/rank" + std::to_string(rank) + "-" + std::to_string(::getpid());
      std::string path = base + ".oprec";
      for (int i = 2; ::access(path.c_str(), F_OK) == 0; ++i) path = base + "-" + std::to_string(i) + ".oprec";
      file = std::make_unique<RecordingFile>(path, header);
      has_file.store(true, std::memory_order_release);
    } catch (const Error& error) {
      stop_locked(error.what());
    }
  }

  // ---- a call ----

  // Where a tensor is from that no call is known to have made: what the program's models know of theirs may say it.
  TensorOrigin named_origin(const at::Tensor& tensor, const OpCall& call, bool in_module) {
    const auto known = [&] {
      const std::lock_guard<std::mutex> lock(mutex);
      return values.origin(tensor);
    };
    const TensorOrigin origin = known();
    if (origin.origin != Origin::kUnknown || phase_of(call) == Phase::kBackward) return origin;
    if (!in_module && !graph_ran.exchange(false)) return origin;
    const std::vector<NamedTensor> named = named_tensors();
    const std::lock_guard<std::mutex> lock(mutex);
    for (const NamedTensor& one : named) values.name(one);
    return values.origin(tensor);
  }

  // The value of an input that was not known, unless the call has it twice.
  KnownValue input_value(const at::Tensor& tensor, const OpCall& call, bool in_module) {
    const size_t where = place_of(tensor);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (KnownValue found = values.find(tensor, where); found.is_known()) return found;
    }
    const TensorOrigin origin = named_origin(tensor, call, in_module);
    const bool is_there = !waits_for_collective(call);
    std::shared_ptr<StatisticsQuery> question = is_there ? ask(tensor) : nullptr;
    const std::lock_guard<std::mutex> lock(mutex);
    KnownValue made = values.add(tensor, origin, std::move(question));
    if (is_there) values.know(tensor, where, made);
    return made;
  }

  // What collectives brought is read before the program does anything with it.
  void arrive(const at::Tensor& read) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const ArrivingValue& one : arriving.take(read)) values.arrived(one.number, one.tensor, ask(one.tensor));
    awaits.store(!arriving.empty(), std::memory_order_relaxed);
  }

  // True: the value of this input is known.
  bool add_input_locked(State& state, StringNumber place, at::Tensor tensor) {
    KnownValue value = values.find(tensor, place_of(tensor));
    const bool is_known = value.is_known();
    const int64_t version = version_of(tensor);
    state.inputs.push_back({place, std::move(tensor), version, std::move(value)});
    return is_known;
  }

  // `key`: of the arguments; nullptr: they have none. False: it is the first such call, or some value is not known.
  bool take_known_inputs(const OpCall& call, const ArgumentKey* key, State& state, bool* all_known) {
    const std::lock_guard<std::mutex> lock(mutex);
    state.op = &op_locked(call);
    const CallForm* const form = key ? state.op->arguments.find(key->bytes()) : nullptr;
    if (!form) return false;
    state.scalars = form->scalars;
    for (size_t i = 0; i < form->places.size(); ++i) {
      *all_known &= add_input_locked(state, form->places[i], *key->tensors()[i]);
    }
    return true;
  }

  void take_new_inputs(OpCall& call, const ArgumentKey* key, State& state, bool in_module, bool* all_known) {
    CallParts parts;
    parts.add_arguments(call.args(), call.kwargs());
    // The object that an operator takes has no name.
    if (is_collective(call)) parts.add_text("group", process_group_of(call).name);
    if (may_jitter() && in_module) jitter_first(parts);
    const std::string scalars = parts.scalars();
    CallForm form;
    const std::lock_guard<std::mutex> lock(mutex);
    form.scalars = state.scalars = rows.string(scalars);
    for (PlacedTensor& one : parts.take_tensors()) {
      if (options.modules_only) state.places.push_back(rows.string("grad " + one.place));
      form.places.push_back(rows.string(one.place));
      *all_known &= add_input_locked(state, form.places.back(), std::move(one.tensor));
    }
    if (key && key->tensors().size() == form.places.size()) state.op->arguments.add(key->bytes(), std::move(form));
  }

  // `given`: the call's, empty. Is it filled?
  bool take_inputs(OpCall& call, State& state, ArgumentKey& given) {
    const bool in_module = options.with_modules && !call.module().empty();
    const bool has_key = !options.modules_only && !may_jitter() && call.frame().add_arguments(given);
    const ArgumentKey* const key = has_key ? &given : nullptr;
    bool all_known = true;
    if (!take_known_inputs(call, key, state, &all_known)) take_new_inputs(call, key, state, in_module, &all_known);
    if (all_known) return has_key;
    for (Input& input : state.inputs) {
      if (!input.value.is_known()) input.value = input_value(input.tensor, call, in_module);
    }
    return has_key;
  }

  bool may_jitter() const { return options.jitter > 0 && !jittered.load(std::memory_order_relaxed); }

  void jitter_first(const CallParts& parts) {
    for (const PlacedTensor& one : parts.tensors()) {
      if (!can_jitter(one.tensor)) continue;
      if (jittered.exchange(true)) return;
      jitter(one.tensor, options.jitter);
      const std::lock_guard<std::mutex> lock(mutex);
      values.forget(one.tensor);  // its version is the same
      return;
    }
  }

  // What the call returned.
  Outputs results_of(OpCall& call, State& state) {
    Outputs outputs;
    ArgumentKey key(/*with_numbers=*/false);
    const bool has_key = !options.modules_only && call.frame().add_result(key);
    if (has_key) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (const CallForm* const form = state.op->results.find(key.bytes())) {
        for (size_t i = 0; i < form->places.size(); ++i) outputs.push_back({form->places[i], *key.tensors()[i]});
        return outputs;
      }
    }
    CallParts parts;
    parts.add_result(call.result());
    const std::lock_guard<std::mutex> lock(mutex);
    CallForm form;
    for (PlacedTensor& one : parts.take_tensors()) {
      form.places.push_back(rows.string(one.place));
      outputs.push_back({form.places.back(), std::move(one.tensor)});
    }
    const auto* const places = static_cast<const InputPlaces*>(call.saved_state());
    if (places && is_backward_at_torch(call)) name_gradients(call.result(), places->places, outputs);
    if (has_key && key.tensors().size() == form.places.size()) state.op->results.add(key.bytes(), std::move(form));
    return outputs;
  }

  // What the call returned, then the inputs that it wrote; with the values that are known.
  Outputs outputs_of(OpCall& call, State& state) {
    if (!call.error.empty()) return {};
    Outputs outputs = results_of(call, state);
    const bool writes_unseen = !state.written.empty();
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < state.inputs.size(); ++i) {
      const Input& input = state.inputs[i];
      const bool is_counted = version_of(input.tensor) != input.version;
      if (!is_counted && !(writes_unseen && state.written[i])) continue;
      values.written(input.tensor, is_counted);
      outputs.push_back({rows.written_place(input.place), input.tensor});
    }
    for (Output& output : outputs) {
      output.where = place_of(output.tensor);
      if (!writes_unseen) output.value = values.find(output.tensor, output.where);
      output.is_new = !output.value.is_known();
    }
    return outputs;
  }

  // Of a module's backward call, by the inputs of its forward call.
  static void name_gradients(const Value& result, const std::vector<StringNumber>& places, Outputs& outputs) {
    const Values* const gradients = sequence_items(result);
    if (!gradients || gradients->size() != places.size()) return;
    auto output = outputs.begin();
    for (size_t i = 0; i < places.size() && output != outputs.end(); ++i) {
      const auto* const gradient = (*gradients)[i].get_if<at::Tensor>();
      if (gradient && gradient->defined()) (output++)->place = places[i];
    }
  }

  // Reads what is new; without the lock.
  void read_outputs(const State& state, Outputs& outputs) {
    for (Output& output : outputs) {
      if (!output.is_new) continue;
      for (const Input& input : state.inputs) {
        if (!input.tensor.has_storage() || !output.tensor.has_storage() ||
            !input.tensor.storage().is_alias_of(output.tensor.storage())) {
          continue;
        }
        const bool is_written =
            !state.written.empty() && state.written[static_cast<size_t>(&input - state.inputs.begin())];
        output.is_view = output.is_view || (!is_written && version_of(input.tensor) == input.version);
        if (output.is_view && state.written.empty() && same_memory_order(input.tensor, output.tensor)) {
          output.value.question = input.value.question;  // the same elements in the same order
        }
      }
      const auto before = first_of(outputs, output.tensor);
      if (before == &output && !output.value.question && !state.op->uninitialized && !state.is_late) {
        output.value.question = ask(output.tensor);
      }
    }
  }

  // An input that was written is often what the call returned.
  static Output* first_of(Outputs& outputs, const at::Tensor& tensor) {
    return &*std::find_if(outputs.begin(), outputs.end(),
                          [&](const Output& one) { return one.tensor.is_same(tensor); });
  }

  void add_outputs_locked(Outputs& outputs, const State& state, uint32_t row, std::vector<RecordedUse>& uses) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      Output& output = outputs[i];
      if (output.is_new) {
        if (const Output* const same = first_of(outputs, output.tensor); same != &output) {
          output.value = same->value;
        } else {
          output.value = values.add_output(output.tensor, row, static_cast<uint32_t>(i), output.is_view,
                                           std::move(output.value.question));
          const bool is_known = output.value.question || state.is_late;
          if (!state.op->factory && is_known) values.know(output.tensor, output.where, output.value);
          if (state.is_late) {
            arriving.add(output.tensor, output.value.number);
            awaits.store(true, std::memory_order_relaxed);
          }
        }
      }
      uses.push_back({output.place, output.value.number});
    }
  }

  void add_call(OpCall& call, State& state, Outputs& outputs) {
    const Phase phase = phase_of(call);
    if (phase == Phase::kBackward) graph_ran.store(true, std::memory_order_relaxed);
    const std::string random = state.random ? random_text(state.random->moved()) : std::string();
    const uint64_t forward_id = call.forward_id();

    const std::lock_guard<std::mutex> lock(mutex);
    RecordedCall row;
    row.id = call.id;
    row.forward_id = forward_id;
    row.step = call.step;
    row.op = state.op->op;
    row.error = rows.string(call.error);
    row.scalars = state.scalars;
    row.random = rows.string(random);
    if (options.with_stack && !call.line().empty()) row.line = rows.lasting_string(call.line());
    row.thread = thread_locked();
    row.pass = call.pass;
    row.level = call.level;
    row.phase = phase;
    row.grad_enabled = call.grad_enabled;
    if (options.with_modules) {
      row.module = rows.lasting_string(call.module());
      row.module_call = module_calls.of(row.thread, call, phase);
    }
    uses.clear();
    for (const Input& input : state.inputs) uses.push_back({input.place, input.value.number});
    add_outputs_locked(outputs, state, rows.next_call(), uses);
    count(row, state.op->counts);
    rows.add_call(row, uses, state.inputs.size());
    ++calls;
    if (values.open() == 0 ? rows.pending_bytes() >= kBytesPerBlock : values.open() >= kMostOpen) write_locked();
  }

  static void count(const RecordedCall& call, RecordRow& counts) {
    ++(call.phase == Phase::kBackward ? counts.backward : counts.calls);
    counts.failed += call.error != 0;
  }

  static std::string random_text(const Value& moved) {
    std::string text;
    const auto* dict = moved.get_if<Dict>();
    if (!dict) return text;
    for (const auto& [device, state] : *dict->items) {
      text.append(text.empty() ? "" : ",").append(*device.get_if<std::string>());
    }
    return text;
  }
};

RecordHook::RecordHook(const ResolvedRecordOptions& options) : impl_(std::make_unique<Impl>(options)) {
  StatisticsQuery::begin_run();
  if (options.modules_only && options.scope.level != Level::kTorch) {
    throw Error("modules_only= records calls of modules, which the aten level has none of: level=\"torch\"");
  }
}
RecordHook::~RecordHook() = default;

Wants RecordHook::wants() const {
  return {.gradients = true, .borrows_gradients = true, .modules = impl_->options.modules_only, .progress = true};
}

// A recording that its own failure ends is not complete, and says why.
template <class Work>
auto RecordHook::contained(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const StopProgram&) {
    throw;
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) {
      const std::lock_guard<std::mutex> lock(impl_->mutex);
      impl_->stop_locked(exception_text(error));
    }
  }
  return decltype(work())();
}

std::unique_ptr<HookState> RecordHook::before(OpCall& call) {
  return contained([&] { return take(call); });
}

void RecordHook::after(OpCall& call, HookState* state) {
  contained([&] { note(call, state); });
}

std::unique_ptr<HookState> RecordHook::take(OpCall& call) {
  Impl& impl = *impl_;
  if (!impl.is_on()) {
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<State>();
  if (is_backward_at_torch(call)) return state;  // its gradients are read in after()
  impl.make_file(call);
  call.forward_id();  // asked now, they are known in the call's backward as well
  call.find_place(impl.options.with_stack, impl.options.with_modules);
  ArgumentKey key;
  const bool has_key = impl.take_inputs(call, *state, key);
  if (std::any_of(state->inputs.begin(), state->inputs.end(),
                  [](const Input& input) { return is_of_trace(input.tensor); })) {
    call.decline();
    return nullptr;
  }
  if (impl.awaits.load(std::memory_order_relaxed) && !state->op->collective) {
    for (const Input& input : state->inputs) impl.arrive(input.tensor);
  }
  // Writes to tensors of inference mode, and below autograd's keys, are not counted.
  const bool is_below = state->op->writes_declared && call.local_keys.excluded_.has(c10::DispatchKey::ADInplaceOrView);
  const bool is_uncounted = is_below || std::any_of(state->inputs.begin(), state->inputs.end(),
                                                    [](const Input& input) { return input.tensor.is_inference(); });
  if (is_uncounted || state->op->writes_uncounted || writes_lists(call)) state->written = written_inputs(call);
  if (has_key) {
    state->random.emplace(key.tensors(), key.devices());
  } else {
    state->random.emplace(call.args(), call.kwargs());
  }
  return state;
}

void RecordHook::note(OpCall& call, HookState* given) {
  Impl& impl = *impl_;
  if (!given || !impl.is_on()) return;
  State& state = static_cast<State&>(*given);
  if (is_backward_at_torch(call)) {
    ArgumentKey key;
    impl.take_inputs(call, state, key);
  }
  if (state.op->collective && waits_for_collective(call)) {
    for (const Input& input : state.inputs) impl.arrive(input.tensor);
  }
  state.is_late = state.op->collective && call.error.empty() && brings_later(call);
  Outputs outputs = impl.outputs_of(call, state);
  if (std::any_of(outputs.begin(), outputs.end(), [](const Output& one) { return is_of_trace(one.tensor); })) return;
  impl.read_outputs(state, outputs);
  impl.add_call(call, state, outputs);
  if (!state.places.empty() && call.phase == Phase::kForward) {
    call.save_for_backward(std::make_shared<InputPlaces>(std::move(state.places)));
  }
}

void RecordHook::step_begins(int64_t) {
  if (!impl_->is_on()) return;
  const InternalGuard ours;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->module_calls.step_begins();
  impl_->write_locked();
}

void RecordHook::flush() {
  if (!impl_->is_on()) return;
  const InternalGuard ours;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->write_locked();
}

void RecordHook::scope_left() {
  flush();
  if (!impl_->is_on()) return;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (!impl_->file) return;
    try {
      impl_->file->end();
      if (impl_->options.format == RecordFormat::kJsonLines) {
        write_json_lines(read_recording(impl_->file->path()), json_path(impl_->file->path()));
      }
    } catch (const Error& error) {
      impl_->stop_locked(error.what());
      return;
    }
  }
  if (impl_->options.jitter > 0 && !impl_->jittered) {
    log::warn("OpRecord: jitter= changed nothing: no module was called with a floating-point tensor");
  }
  const RecordResult all = result();
  log::notice("OpRecord: " + std::to_string(all.calls) + " calls in " + all.path + ", " +
              std::to_string(all.bytes / 1000) + " kB");
}

RecordResult RecordHook::result() const {
  RecordResult result;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& [name, op] : impl_->ops) {
    if (op.counts.calls + op.counts.backward > 0) result.rows.push_back(op.counts);
  }
  std::sort(result.rows.begin(), result.rows.end(), [](const RecordRow& one, const RecordRow& other) {
    return std::pair(-(one.calls + one.backward), one.op) < std::pair(-(other.calls + other.backward), other.op);
  });
  if (impl_->file) {
    result.path = impl_->file->path();
    result.bytes = impl_->file->bytes();
  }
  result.failure = impl_->failure;
  result.calls = impl_->calls;
  result.values = impl_->values.count();
  result.read_backs = impl_->values.read_backs();
  return result;
}

Value RecordHook::report() const {
  const RecordResult all = result();
  return make_dict({{"rows", RecordRow::columns().values(all.rows)},
                    {"path", all.path},
                    {"failure", all.failure},
                    {"calls", static_cast<int64_t>(all.calls)},
                    {"values", static_cast<int64_t>(all.values)},
                    {"bytes", static_cast<int64_t>(all.bytes)},
                    {"read_backs", static_cast<int64_t>(all.read_backs)}});
}

}  // namespace op_tools
