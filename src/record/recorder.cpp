#include "record/recorder.h"

#include <unistd.h>

#include <algorithm>

#include "base/disk_time.h"
#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "base/run_folder.h"
#include "calls/versioned_tensor.h"
#include "hooks/backward_pass.h"
#include "hooks/collectives.h"
#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "hooks/written_inputs.h"
#include "record/jitter.h"
#include "record/json_lines.h"
#include "record/named_tensors.h"
#include "record/run_header.h"
#include "tensor/merged_dims.h"
#include "tensor/plain_tensor.h"
#include "tensor/result_numbers.h"

namespace op_tools {
namespace {

using Items = std::vector<std::pair<Value, Value>>;

constexpr size_t kBytesPerBlock = 64 << 10;  // that a killed process may lose
constexpr size_t kMostOpen = 10'000;         // questions to a device that wait for their answers

// "rank0-7.jsonl" beside "rank0-7.oprec".
std::string json_path(const std::string& path) {
  return path.substr(0, path.rfind('.')) + ".jsonl";
}

bool same_order(const at::Tensor& left, const at::Tensor& right) {
  if (left.is_contiguous() && right.is_contiguous()) return true;
  const auto has_dims = [](const at::Tensor& tensor) {
    return !tensor.is_nested() && static_cast<int64_t>(own_sizes(tensor).size()) == tensor.dim();
  };
  return has_dims(left) && has_dims(right) &&
         MergedDims(own_sizes(left), own_strides(left)) == MergedDims(own_sizes(right), own_strides(right));
}

bool same_memory_order(const at::Tensor& left, const at::Tensor& right) {
  return left.has_storage() && right.has_storage() && left.storage().is_alias_of(right.storage()) &&
         left.storage_offset() == right.storage_offset() && left.dtype() == right.dtype() &&
         left.numel() == right.numel() && left.is_neg() == right.is_neg() && left.is_conj() == right.is_conj() &&
         same_order(left, right);
}

// Of a module's backward call, by the inputs of its forward call.
void name_gradients(const Value& result, const std::vector<StringNumber>& places, Recorder::Outputs& outputs) {
  const Values* const gradients = sequence_items(result);
  if (!gradients || gradients->size() != places.size()) return;
  auto output = outputs.begin();
  for (size_t i = 0; i < places.size() && output != outputs.end(); ++i) {
    const auto* const gradient = (*gradients)[i].get_if<at::Tensor>();
    if (gradient && gradient->defined()) (output++)->place = places[i];
  }
}

// An input that was written is often the result of the call.
Recorder::Output* first_of(Recorder::Outputs& outputs, const at::Tensor& tensor) {
  return &*std::find_if(outputs.begin(), outputs.end(),
                        [&](const Recorder::Output& one) { return one.tensor.is_same(tensor); });
}

void count(const RecordedCall& call, RecordRow& counts) {
  ++(call.phase == Phase::kBackward ? counts.backward : counts.calls);
  counts.failed += call.error != 0;
}

uint64_t next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

std::string random_text(const Value& moved) {
  std::string text;
  const auto* dict = moved.get_if<Dict>();
  if (!dict) return text;
  for (const auto& [device, state] : *dict->items) {
    text.append(text.empty() ? "" : ",").append(*device.get_if<std::string>());
  }
  return text;
}

// The dtype of numbers that were read from the inputs.
c10::ScalarType dtype_read(const Recorder::State& state) {
  for (const Recorder::Input& input : state.inputs) {
    if (input.tensor.is_floating_point()) return input.tensor.scalar_type();
  }
  return at::kDouble;
}

}  // namespace

bool is_backward_at_torch(const OpCall& call) {
  return call.level == Level::kTorch && call.phase == Phase::kBackward;
}

Recorder::Recorder(const ResolvedRecordOptions& options)
    : options(options),
      rank_(distributed_rank()),
      number_in_process_(next_number()),
      seen_doubts_(StatisticsCheck::get().doubts()) {}

// Called without the lock: it reads the tensor.
std::shared_ptr<StatisticsQuery> Recorder::ask(const at::Tensor& tensor) const {
  return options.statistics ? std::make_shared<StatisticsQuery>(tensor) : nullptr;
}

// `rows`: to be filled; nullptr: they are not asked for. Of elements that were not written there are no numbers.
std::shared_ptr<StatisticsQuery> Recorder::ask(const at::Tensor& tensor, const WrittenElements& shown,
                                               std::vector<RowPrints>* rows) const {
  if (shown.part == WrittenPart::kUnknown) return nullptr;
  const bool is_part = shown.part == WrittenPart::kSome && may_have_statistics(tensor);
  const at::Tensor looked_at = is_part ? written_alone(tensor, shown.flags) : tensor;
  if (rows) *rows = row_prints(looked_at);
  return ask(looked_at);
}

// Gradients have no rows that a program without a backward pass could have.
bool Recorder::wants_rows(const OpCall& call) const {
  return options.row_hashes && phase_of(call) == Phase::kForward;
}

Recorder::KnownOp& Recorder::op_locked(const OpCall& call) {
  const auto known = ops_.find(call.name);
  if (known != ops_.end()) return known->second;
  KnownOp op{rows_.string(call.name),
             ResultSource::of(call),
             writes_uncounted(call),
             writes_declared(call),
             names_elements(call.name),
             lifts_data(call),
             call.op && makes_variable(*call.op)};
  op.counts.op = call.name;
  return ops_.emplace(call.name, std::move(op)).first->second;
}

uint32_t Recorder::thread_locked() {
  return threads_.try_emplace(std::this_thread::get_id(), static_cast<uint32_t>(threads_.size())).first->second;
}

// Where a tensor is from that no call is known to have made: the names of the program's models may tell.
TensorOrigin Recorder::named_origin(const at::Tensor& tensor, const OpCall& call, bool in_module) {
  const auto known = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.origin(tensor);
  };
  const TensorOrigin origin = known();
  if (origin.origin != Origin::kUnknown || phase_of(call) == Phase::kBackward) return origin;
  if (!in_module && !graph_ran_.exchange(false)) return origin;
  std::vector<NamedTensor> named;
  host().named_tensors(number_in_process_, &named);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const NamedTensor& tensor_of_model : named) values_.name(tensor_of_model);
  return values_.origin(tensor);
}

// The value of an input that was not known, unless the call has it twice.
KnownValue Recorder::input_value(const at::Tensor& tensor, const OpCall& call, bool in_module) {
  const size_t where = place_of(tensor);
  WrittenElements shown;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (KnownValue known = values_.find(tensor, where); known.is_known()) return known;
    shown = unwritten_.shown_by(tensor);
  }
  const TensorOrigin origin = named_origin(tensor, call, in_module);
  const bool is_there = !waits_for_collective(call);
  std::vector<RowPrints> rows;
  const bool asks_rows = wants_rows(call) && origin.origin != Origin::kParameter;
  std::shared_ptr<StatisticsQuery> question = is_there ? ask(tensor, shown, asks_rows ? &rows : nullptr) : nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  KnownValue added = values_.add(tensor, origin, shown.part, std::move(question));
  rows_.add_rows(added.number, rows);
  if (is_there) values_.know(tensor, where, added);
  return added;
}

// True: the value of this input is known.
bool Recorder::add_input_locked(State& state, StringNumber place, at::Tensor tensor) {
  KnownValue value = values_.find(tensor, place_of(tensor));
  const bool is_known = value.is_known();
  const int64_t version = version_of(tensor);
  state.inputs.push_back({place, std::move(tensor), version, std::move(value)});
  return is_known;
}

// `key`: of the arguments; nullptr: they have none. False: it is the first such call, or some value is not known.
bool Recorder::take_known_inputs(OpCall& call, const ArgumentKey* key, State& state, bool* all_known) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state.op = &op_locked(call);
  if (state.op->lifts) for_each_tensor(call.args(), [&](const at::Tensor& tensor) { unwritten_.forget(tensor); });
  const CallForm* const form = key ? state.op->arguments.find(key->bytes()) : nullptr;
  if (!form) return false;
  state.scalars = form->scalars;
  for (size_t i = 0; i < form->places.size(); ++i) {
    *all_known &= add_input_locked(state, form->places[i], *key->tensors()[i]);
  }
  return true;
}

void Recorder::take_new_inputs(OpCall& call, const ArgumentKey* key, State& state, bool in_module, bool* all_known) {
  CallParts parts;
  parts.add_arguments(call.args(), call.kwargs());
  // The objects that an operator takes have no names.
  if (is_collective(call)) {
    parts.add_text("group", process_group_of(call).name);
    if (const std::string reduction = reduction_of(call); !reduction.empty()) parts.add_text("reduce_op", reduction);
  }
  if (may_jitter() && in_module) jitter_first(parts);
  const std::string scalars = parts.scalars();
  const bool is_step = is_optimizer_call(call.name);
  CallForm form;
  const std::lock_guard<std::mutex> lock(mutex_);
  form.scalars = state.scalars = rows_.passing_string(scalars);
  for (PlacedTensor& input : parts.take_tensors()) {
    if (options.modules_only) state.places.push_back(rows_.string("grad " + input.place));
    form.places.push_back(rows_.string(input.place));
    // Where modules alone are seen, operators on lists write weights and gradients unseen, and move no counters.
    if (options.modules_only && (is_step || input.is_own())) values_.forget(input.tensor);
    *all_known &= add_input_locked(state, form.places.back(), std::move(input.tensor));
  }
  if (key && key->tensors().size() == form.places.size()) state.op->arguments.add(key->bytes(), std::move(form));
}

bool Recorder::take_inputs(OpCall& call, State& state, ArgumentKey& arguments) {
  const bool in_module = options.with_modules && !call.module().empty();
  const bool has_key = !options.modules_only && !may_jitter() && call.frame().add_arguments(arguments);
  const ArgumentKey* const key = has_key ? &arguments : nullptr;
  bool all_known = true;
  if (!take_known_inputs(call, key, state, &all_known)) take_new_inputs(call, key, state, in_module, &all_known);
  if (all_known) return has_key;
  for (Input& input : state.inputs) {
    if (!input.value.is_known()) input.value = input_value(input.tensor, call, in_module);
  }
  return has_key;
}

void Recorder::take_elements(OpCall& call, State& state) {
  if (!state.op->names_elements) return;
  state.elements = elements_named(call, [&](const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return unwritten_.shown_by(tensor);
  });
}

void Recorder::jitter_first(const CallParts& parts) {
  for (const PlacedTensor& input : parts.tensors()) {
    if (!can_jitter(input.tensor)) continue;
    if (jittered_.exchange(true)) return;
    jitter(input.tensor, options.jitter);
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.forget(input.tensor);  // its version is the same
    return;
  }
}

bool Recorder::shows_awaited(const OpCall& call, const State& state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto waits = [&](const Input& input) { return arriving_.shows(input.tensor); };
  if (std::none_of(state.inputs.begin(), state.inputs.end(), waits)) return false;
  if (!state.op->views) state.op->views = gives_views(call);
  return *state.op->views;
}

void Recorder::arrive(const State& state) {
  std::vector<ArrivingValue> arrived;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Input& input : state.inputs) {
      for (ArrivingValue& value : arriving_.take(input.tensor)) arrived.push_back(std::move(value));
    }
    awaits_.store(!arriving_.empty(), std::memory_order_relaxed);
  }
  for (const ArrivingValue& value : arrived) {
    std::shared_ptr<StatisticsQuery> question = ask(value.tensor);
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.arrived(value.number, value.tensor, std::move(question));
  }
}

Recorder::Outputs Recorder::results_of(OpCall& call, State& state) {
  Outputs outputs = tensors_of(call, state);
  if (!outputs.empty() || options.modules_only || !state.op->source.reads_elements) return outputs;
  at::Tensor numbers = result_numbers(call.result(), dtype_read(state));
  if (!numbers.defined()) return outputs;
  const std::lock_guard<std::mutex> lock(mutex_);
  outputs.push_back({rows_.string("result"), std::move(numbers)});
  return outputs;
}

Recorder::Outputs Recorder::tensors_of(OpCall& call, State& state) {
  Outputs outputs;
  ArgumentKey key(/*with_numbers=*/false);
  const bool has_key = !options.modules_only && call.frame().add_result(key);
  if (has_key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const CallForm* const form = state.op->results.find(key.bytes())) {
      for (size_t i = 0; i < form->places.size(); ++i) outputs.push_back({form->places[i], *key.tensors()[i]});
      return outputs;
    }
  }
  CallParts parts;
  parts.add_result(call.result());
  const std::lock_guard<std::mutex> lock(mutex_);
  CallForm form;
  for (PlacedTensor& result : parts.take_tensors()) {
    form.places.push_back(rows_.string(result.place));
    outputs.push_back({form.places.back(), std::move(result.tensor)});
  }
  const auto* const places = static_cast<const InputPlaces*>(call.saved_state());
  if (places && is_backward_at_torch(call)) name_gradients(call.result(), places->places, outputs);
  if (has_key && key.tensors().size() == form.places.size()) state.op->results.add(key.bytes(), std::move(form));
  return outputs;
}

std::vector<bool> Recorder::running_statistics(const State& state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<bool> written;
  for (const Input& input : state.inputs) written.push_back(rows_.names_running_statistic(input.place));
  return std::find(written.begin(), written.end(), true) == written.end() ? std::vector<bool>() : written;
}

void Recorder::note_writes_locked(const OpCall& call, const State& state) {
  if (unwritten_.is_empty()) return;
  std::vector<at::Tensor> tensors;
  std::vector<bool> written;
  for (const Input& input : state.inputs) {
    const size_t i = tensors.size();
    tensors.push_back(input.tensor);
    written.push_back(version_of(input.tensor) != input.version || (!state.written.empty() && state.written[i]));
  }
  note_writes(call, tensors, written, state.elements, &unwritten_);
}

Recorder::Outputs Recorder::outputs_of(OpCall& call, State& state) {
  if (!call.error.empty()) return {};
  Outputs outputs = results_of(call, state);
  const bool writes_unseen = !state.written.empty();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    const Input& input = state.inputs[i];
    const bool is_counted = version_of(input.tensor) != input.version;
    if (!is_counted && !(writes_unseen && state.written[i])) continue;
    values_.written(input.tensor, is_counted);
    outputs.push_back({rows_.written_place(input.place), input.tensor});
  }
  note_writes_locked(call, state);
  for (Output& output : outputs) {
    output.where = place_of(output.tensor);
    // Where modules alone are seen: an optimizer writes lists of parameters, which moves no counters.
    const auto is_output = [&](const Input& input) { return input.tensor.is_same(output.tensor); };
    const bool may_be_written =
        writes_unseen || (options.modules_only && std::none_of(state.inputs.begin(), state.inputs.end(), is_output));
    if (!may_be_written) output.value = values_.find(output.tensor, output.where);
    output.is_new = !output.value.is_known();
    const auto is_its_memory = [&](const Input& input) { return share_memory(input.tensor, output.tensor); };
    // resize_ keeps the elements that were there.
    if (state.op->source.uninitialized && std::none_of(state.inputs.begin(), state.inputs.end(), is_its_memory)) {
      unwritten_.add(output.tensor);
    }
    if (output.is_new) output.shown = unwritten_.shown_by(output.tensor);
    output.shows_parameter = values_.origin(output.tensor).origin == Origin::kParameter;
  }
  return outputs;
}

void Recorder::read_outputs(const OpCall& call, const State& state, Outputs& outputs) {
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
    const bool asks_rows = wants_rows(call) && !output.shows_parameter;
    if (before == &output && !output.value.question && !state.op->source.uninitialized && !state.is_late) {
      output.value.question = ask(output.tensor, output.shown, asks_rows ? &output.rows : nullptr);
    } else if (before == &output && output.value.question && asks_rows && output.shown.is_whole()) {
      output.rows = row_prints(output.tensor);
    }
  }
}

void Recorder::add_outputs_locked(Outputs& outputs, const State& state, uint32_t row) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    Output& output = outputs[i];
    if (output.is_new) {
      if (const Output* const same = first_of(outputs, output.tensor); same != &output) {
        output.value = same->value;
      } else {
        output.value = values_.add_output(output.tensor, row, static_cast<uint32_t>(i), output.is_view,
                                          output.shown.part, std::move(output.value.question));
        rows_.add_rows(output.value.number, output.rows);
        const bool is_known = output.value.question || state.is_late;
        if (!state.op->factory && is_known) values_.know(output.tensor, output.where, output.value);
        if (state.is_late) {
          arriving_.add(output.tensor, output.value.number);
          awaits_.store(true, std::memory_order_relaxed);
        }
      }
    }
    uses_.push_back({output.place, output.value.number});
  }
}

void Recorder::add_call(OpCall& call, State& state, Outputs& outputs) {
  const Phase phase = phase_of(call);
  if (phase == Phase::kBackward) graph_ran_.store(true, std::memory_order_relaxed);
  const std::string random = state.random ? random_text(state.random->moved()) : std::string();
  const uint64_t forward_id = call.forward_id();

  std::unique_lock<std::mutex> lock(mutex_);
  RecordedCall row;
  row.id = call.id;
  row.forward_id = forward_id;
  row.step = call.step;
  row.op = state.op->op;
  row.error = rows_.passing_string(call.error);
  row.scalars = state.scalars;
  row.random = rows_.passing_string(random);
  if (options.with_stack && !call.line().empty()) row.line = rows_.lasting_string(call.line());
  row.thread = thread_locked();
  row.pass = call.pass;
  row.level = call.level;
  row.phase = phase;
  row.grad_enabled = call.grad_enabled;
  if (options.with_modules) {
    row.module = rows_.lasting_string(call.module());
    row.module_call = module_calls_.of(row.thread, call, phase);
  }
  uses_.clear();
  for (const Input& input : state.inputs) uses_.push_back({input.place, input.value.number});
  add_outputs_locked(outputs, state, rows_.next_call());
  count(row, state.op->counts);
  rows_.add_call(row, uses_, state.inputs.size());
  ++calls_;
  if (StatisticsCheck::get().doubts() != seen_doubts_) note_doubts_locked();
  const bool is_full = values_.open() == 0 ? rows_.pending_bytes() >= kBytesPerBlock : values_.open() >= kMostOpen;
  lock.unlock();
  if (is_full) write();
}

// ---- the file ----

void Recorder::make_file(const OpCall& call) {
  if (has_file_.load(std::memory_order_acquire)) return;
  // Asks the program's language: not under the lock.
  const Value header = run_header(call, rank_, options.modules_only);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_) return;
  const std::string& folder = options.output_dir.get();
  try {
    const std::chrono::duration<double> time_limit(options.write_timeout);
    const std::string path = in_time(folder, time_limit, [folder, rank = rank_] {
      make_folders(folder);
      const std::string base = folder + "/rank" + std::to_string(rank) + "-" + std::to_string(::getpid());
      std::string free_path = base + ".oprec";
      for (int i = 2; ::access(free_path.c_str(), F_OK) == 0; ++i)
        free_path = base + "-" + std::to_string(i) + ".oprec";
      return free_path;
    });
    file_ = std::make_unique<RecordingFile>(path, header, time_limit);
    has_file_.store(true, std::memory_order_release);
  } catch (const Error& error) {
    stop_locked(EndedEarly::kFailure, error.what());
  }
}

void Recorder::step_begins() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    module_calls_.step_begins();
  }
  write();
}

void Recorder::write() {
  constexpr int kMostRounds = 3;  // other threads go on asking meanwhile
  std::unique_lock<std::mutex> lock(mutex_);
  for (int round = 0; values_.open() > 0 && round < kMostRounds; ++round) {
    OpenValues open = values_.open_values();
    lock.unlock();  // a device that hangs must not hold up who ends the program
    open.statistics.read();
    lock.lock();
    values_.answer(open);
  }
  write_locked();
}

void Recorder::flush() {
  write();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!file_ || failed_.load()) return;
  try {
    file_->flush();
  } catch (const Error& error) {
    stop_locked(file_->is_full() ? EndedEarly::kDiskFull : EndedEarly::kFailure, error.what());
  }
}

void Recorder::write_locked() {
  if (values_.open() > 0) {
    OpenValues open = values_.open_values();
    open.statistics.read();
    values_.answer(open);
  }
  note_doubts_locked();
  if (!file_) return;
  try {
    if (rows_.pending_bytes() > 0) file_->append(rows_.pending());
    if (has_new_doubts_) {
      Items devices;
      for (const auto& [device, facts] : on_host_) devices.emplace_back(device_name(device), facts);
      file_->note(make_dict({{kStatisticsOnHost, make_dict(std::move(devices))}}));
    }
    has_new_doubts_ = false;
  } catch (const Error& error) {
    stop_locked(file_->is_full() ? EndedEarly::kDiskFull : EndedEarly::kFailure, error.what());
  }
  rows_.written();
  if (rows_.is_full()) {
    stop_locked(EndedEarly::kFailure, file_->path() + ": has " + std::to_string(RowTables::kMostRows) +
                                          " calls, values or uses of values, and can have no more; record a part of "
                                          "the run with steps= or ops=");
  }
  for (const ArrivingValue& value : arriving_.take_all()) values_.forget(value.tensor);  // who reads it, reads it anew
}

// Values that devices have computed before are in doubt, and later values are not.
void Recorder::note_doubts_locked() {
  for (const DeviceDoubt& doubt : StatisticsCheck::get().doubts_after(seen_doubts_)) {
    ++seen_doubts_;
    has_new_doubts_ = true;
    on_host_.insert_or_assign(doubt.device, make_dict({{"from_call", static_cast<int64_t>(rows_.next_call())},
                                                       {"differs", std::string(to_string(doubt.differs))},
                                                       {"dtype", torch_name(doubt.dtype)},
                                                       {"elements", doubt.elements}}));
  }
}

void Recorder::stop_locked(EndedEarly reason, const std::string& why) {
  if (failed_.exchange(true)) return;
  ended_early_ = reason;
  failure_ = why;
  log::error("OpRecord stops recording; the program goes on: " + why);
  if (!file_) return;
  try {
    file_->note(make_dict({{kEndedEarly, std::string(to_string(reason))}, {"failure", why}}));
  } catch (const Error& error) {  // no room is left for that either: the file has no end
    log::debug(error.what());
  }
}

void Recorder::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    write_locked();
  } catch (const std::exception& error) {
    log::debug(std::string("OpRecord: the last rows are lost: ") + error.what());
  }
  stop_locked(EndedEarly::kFailure, why);
}

bool Recorder::end(const Value& account) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!file_ || !is_on()) return false;
  try {
    if (account.is<Dict>()) file_->note(make_dict({{kAccount, account}}));
    file_->end();
    if (options.format == RecordFormat::kJsonLines) {
      write_json_lines(read_recording(file_->path()), json_path(file_->path()));
    }
  } catch (const Error& error) {
    stop_locked(EndedEarly::kFailure, error.what());
    return false;
  }
  return true;
}

RecordResult Recorder::result() const {
  RecordResult result;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, op] : ops_) {
    if (op.counts.calls + op.counts.backward > 0) result.rows.push_back(op.counts);
  }
  std::sort(result.rows.begin(), result.rows.end(), [](const RecordRow& left, const RecordRow& right) {
    return std::pair(-(left.calls + left.backward), left.op) < std::pair(-(right.calls + right.backward), right.op);
  });
  if (file_) {
    result.path = file_->path();
    result.bytes = file_->bytes();
  }
  result.failure = failure_;
  result.ended_early = to_string(ended_early_);
  for (const auto& [device, facts] : on_host_) {
    result.statistics_on_host.push_back(device_name(device));
    result.statistics_in_doubt += values_.by_device(device);
  }
  result.calls = calls_;
  result.values = values_.count();
  result.read_backs = values_.read_backs();
  return result;
}

}  // namespace op_tools
