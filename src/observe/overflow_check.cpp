#include "observe/overflow_check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/op_filter.h"
#include "base/run_folder.h"
#include "calls/call_files.h"
#include "calls/retained_call.h"
#include "calls/stripped_value.h"
#include "hooks/backward_pass.h"
#include "hooks/interceptor.h"
#include "hooks/op_traits.h"
#include "hooks/stack_source.h"
#include "hooks/stop_program.h"
#include "observe/finite_cache.h"
#include "observe/nonfinite.h"
#include "report/row_file.h"
#include "tensor/copy_memory.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

constexpr size_t kMaxFindings = 1000;     // kept in memory; all are in the file and in the counts
constexpr int64_t kMostHeld = 256 << 20;  // bytes of tensors that wait to be judged
constexpr std::string_view kUninitialised =
    R"((torch\.)?(Tensor\.)?(new_)?empty.*, (torch\.Tensor\.)?(resize_.*|as_strided_))";
// They put values of the program's own into a tensor, which then comes from outside.
constexpr std::string_view kGivesData = R"(torch\.(tensor|as_tensor|asarray|from_numpy|frombuffer|Tensor\.new_tensor))";

struct Record {
  RetainedCall call;  // what is needed to save it, where that is wanted
  bool backward = false, allows_neg_inf = false;
  std::vector<FlagPtr> inputs;
  Specials numbers;              // among the arguments: fill_(nan)
  std::vector<FlagPtr> outputs;  // by tensor of the result; nullptr: not looked at
};

struct State final : HookState {
  std::vector<at::Tensor> tensors;  // all of the inputs
  struct Input {
    FlagPtr flag;
    size_t index;     // of `tensors`
    int64_t version;  // before the call
  };
  std::vector<Input> inputs;                           // those that are looked at
  std::vector<std::pair<size_t, at::Tensor>> written;  // input tensors that the call writes
  std::vector<at::Tensor> unwritten;                   // input tensors that nobody has written before it
  InputsBefore before;

  // What the input held will be neither in it nor in a copy after the call.
  bool will_lose(const Input& input, bool writes_unknown) const {
    if (before.copies.contains(input.index)) return false;
    return writes_unknown || std::any_of(written.begin(), written.end(), [&](const auto& one) {
             return share_memory(one.second, tensors[input.index]);
           });
  }
  // Asks what nobody had to know before the call, now that somebody has to.
  void ask_inputs() const {
    for (const Input& input : inputs) {
      if (!input.flag->unasked) continue;
      const auto copy = before.copies.find(input.index);
      if (copy != before.copies.end()) {
        input.flag->ask(copy->second.tensor());
      } else if (version_of(tensors[input.index]) == input.version) {  // else it wrote what nothing said that it would
        input.flag->ask(tensors[input.index]);
      }
    }
  }
};

// What the graph of a torch-level call keeps for its backward.
struct Noted final : HookState {
  Noted(OpCall& call) : inputs(std::make_shared<const NotedInputs>(call, ProgramState::of(call))) {}
  const std::shared_ptr<const NotedInputs> inputs;
};

// At the torch level only names say what is written; a call that writes lists (torch._fused_adam_) writes more of them
// than its first argument.
bool writes_lists(OpCall& call, const std::vector<bool>& written) {
  if (call.level != Level::kTorch || written.empty()) return false;
  const Values& args = *sequence_items(call.args());
  return !args.empty() && sequence_items(args.front());
}

void add_numbers(const Value& value, Specials& specials) {
  if (const auto* number = value.get_if<double>()) {
    specials.add({std::isnan(*number), *number == HUGE_VAL, *number == -HUGE_VAL});
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) add_numbers(item, specials);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) add_numbers(item, specials);
  }
}

// All input tensors of the call, whose arguments can be asked for in after() from here on.
std::vector<at::Tensor> inputs_of(OpCall& call) {
  std::vector<at::Tensor> tensors;
  const auto take = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
  auto* const frame = call.level == Level::kAten ? dynamic_cast<interceptor::OperatorFrame*>(&call.frame()) : nullptr;
  if (frame && frame->keep_arguments()) {
    frame->visit_inputs(take);
  } else {
    for_each_tensor(call.args(), take);
    for_each_tensor(call.kwargs(), take);
  }
  return tensors;
}

}  // namespace

struct OverflowHook::Impl {
  explicit Impl(const ResolvedOverflowOptions& options)
      : options(options),
        rank(distributed_rank()),
        uninitialized(kUninitialised, "", "", ""),
        gives_data(kGivesData, "", "", ""),
        allowing(options.allow.get().empty() ? "-" : options.allow.get(), "", "allow=", ""),
        archive(options.max_saved, options.max_saved_mb << 20) {}

  const ResolvedOverflowOptions options;
  const int64_t rank;
  const OpFilter uninitialized, gives_data, allowing;

  mutable std::mutex mutex;  // guards all that follows
  KnownTensors known;
  UnwrittenMemory unwritten;
  std::vector<Record> window;
  int64_t held = 0;                                        // bytes that the window keeps alive
  std::unordered_set<const c10::StorageImpl*> known_held;  // those of inputs, once
  CallArchive archive;
  int64_t step = 0;
  struct NameRules {
    bool uninitialized, gives_data, allows_neg_inf;
    int workspace;  // which result is scratch memory; -1: none
    bool factory;   // its result is asked when it comes as an input: knowing it would hold its counter of versions
  };
  std::unordered_map<std::string, NameRules> rules;
  OverflowResult result;
  std::string first_producer;  // in words
  std::unique_ptr<RowFile> file;

  NameRules rules_of(const OpCall& call) {
    const auto found = rules.find(std::string(call.name));
    if (found != rules.end()) return found->second;
    const NameRules made{uninitialized.admits(call.name), gives_data.admits(call.name), allowing.admits(call.name),
                         workspace_of(base_name(call.name)), call.op && makes_variable(*call.op)};
    return rules.emplace(call.name, made).first->second;
  }

  FlagPtr known_flag_of(const at::Tensor& tensor) {
    if (FlagPtr flag = known.find(tensor)) return flag;
    // A view of something sound is sound.
    if (tensor.is_view() && tensor.dtype() == tensor._base().dtype()) {
      FlagPtr base = known.find(at::Tensor(tensor._base()));
      if (base && base->is_sound()) return base;
    }
    return nullptr;
  }

  // The flag of an input, before the call. A tensor that came from nowhere that we saw is asked itself: on the CPU not
  // before somebody wants to know, which is when a call made special values of it.
  FlagPtr flag_of(const at::Tensor& tensor, bool owned) {
    if (unwritten.holds(tensor)) return std::make_shared<Flag>();  // no values to speak of
    if (FlagPtr flag = known_flag_of(tensor)) return flag;
    const FlagPtr flag = tensor.device().is_cpu() ? Flag::of_unasked() : std::make_shared<Flag>(tensor);
    if (!owned) known.put(tensor, flag);
    return flag;
  }

  // Of a result that the call did not make: one of its inputs or a view of one, whose values are sound. Else nullptr.
  FlagPtr flag_of_view(const State& state, const at::Tensor& tensor) {
    const auto is_alias = [&](const at::Tensor& other) { return share_memory(other, tensor); };
    if (std::any_of(state.written.begin(), state.written.end(),
                    [&](const auto& one) { return is_alias(one.second); })) {
      return nullptr;
    }
    for (const State::Input& input : state.inputs) {
      const at::Tensor& given = state.tensors[input.index];
      if (!is_alias(given)) continue;
      if (version_of(given) != input.version) return nullptr;
      if (!shows_part_of(given, tensor)) continue;
      input.flag->ask(given);
      if (input.flag->is_sound()) return input.flag;
    }
    FlagPtr flag = known_flag_of(tensor);
    return flag && flag->is_sound() ? flag : nullptr;
  }

  static bool is_view_of_any(const std::vector<at::Tensor>& tensors, const at::Tensor& view) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const at::Tensor& tensor) { return share_memory(tensor, view); });
  }

  Specials that_count(const Specials& values) const {
    return options.inf ? values : Specials{values.nan, false, false};
  }

  void will_write(const std::vector<std::pair<size_t, at::Tensor>>& written);
  void hold(const VersionedTensor& kept);
  void judge_window();
  void judge(Record& record);
  void open_file();
  void report(OverflowResult::Finding finding);
};

OverflowHook::OverflowHook(const ResolvedOverflowOptions& options) : impl_(std::make_unique<Impl>(options)) {}
OverflowHook::~OverflowHook() = default;

std::unique_ptr<HookState> OverflowHook::before(OpCall& call) {
  Impl& impl = *impl_;
  auto state = std::make_unique<State>();
  if (call.grad_enabled) call.module();  // asked now, it is known in the call's backward as well
  state->tensors = inputs_of(call);
  const std::vector<at::Tensor>& tensors = state->tensors;
  const std::vector<bool> written = written_inputs(call);
  const std::lock_guard<std::mutex> lock(impl.mutex);
  if (call.step != impl.step) {
    impl.judge_window();
    impl.step = call.step;
  }
  if (!impl.archive.is_full()) {
    const bool saves = impl.archive.wants(call.name, call.phase);
    state->before = InputsBefore::of(tensors, saves ? written : std::vector<bool>(),
                                     [&](const at::Tensor& tensor) { return impl.unwritten.holds(tensor); });
  }
  const bool passing = call.phase == Phase::kBackward;  // gradients are shown in tensors that are not met again
  const bool writes_unknown = writes_lists(call, written);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (i < written.size() && written[i]) state->written.emplace_back(i, tensor);
    if (!may_have_specials(tensor)) continue;
    state->inputs.push_back({impl.flag_of(tensor, passing), i, version_of(tensor)});
    if (impl.unwritten.holds(tensor)) state->unwritten.push_back(tensor);
  }
  for (const State::Input& input : state->inputs) {
    if (input.flag->unasked && state->will_lose(input, writes_unknown)) input.flag->ask(tensors[input.index]);
  }
  impl.will_write(state->written);
  return state;
}

// The call is about to write into what the window remembers: copies take its place, as long as there is room for them.
void OverflowHook::Impl::will_write(const std::vector<std::pair<size_t, at::Tensor>>& written) {
  VersionedTensor::Copies copies;
  for (const auto& [index, target] : written) {
    for (Record& record : window) {
      for (auto* tensors : {&record.call.inputs, &record.call.outputs}) {
        for (VersionedTensor& kept : *tensors) held += kept.before_write(target, copies);
      }
    }
    if (held >= kMostHeld) return judge_window();
  }
}

// Parameters are there anyway; what else the window keeps alive counts once.
void OverflowHook::Impl::hold(const VersionedTensor& kept) {
  const at::Tensor& tensor = kept.tensor();
  if (!tensor.defined() || tensor.requires_grad()) return;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (known_held.insert(storage).second) held += static_cast<int64_t>(tensor.nbytes());
}

void OverflowHook::after(OpCall& call, HookState* given) {
  Impl& impl = *impl_;
  if (!call.error.empty() || !given) return;
  State& state = static_cast<State&>(*given);
  const std::lock_guard<std::mutex> lock(impl.mutex);
  ++impl.result.calls;
  const Impl::NameRules rules = impl.rules_of(call);
  for (const auto& [index, tensor] : state.written) impl.unwritten.may_have_written(tensor);
  std::erase_if(state.unwritten, [&](const at::Tensor& tensor) { return !impl.unwritten.holds(tensor); });
  Record record;
  bool open = false, unsound = false, wants_gradients = false;
  std::vector<at::Tensor> results;
  const auto look = [&](const at::Tensor& tensor) {
    results.push_back(tensor);
    wants_gradients |= tensor.requires_grad();
    if (!may_have_specials(tensor)) return record.outputs.push_back(nullptr);
    const bool scratch = static_cast<int>(results.size()) - 1 == rules.workspace;
    const bool unwritten = rules.uninitialized || scratch || impl.is_view_of_any(state.unwritten, tensor);
    FlagPtr flag = unwritten ? std::make_shared<Flag>() : impl.flag_of_view(state, tensor);
    if (!flag) flag = std::make_shared<Flag>(tensor);
    if (unwritten && !scratch) {
      impl.unwritten.add(tensor);
    } else if (call.phase != Phase::kBackward && !rules.factory) {
      impl.known.put(tensor, flag);
    }
    record.outputs.push_back(flag);
    if (!flag->question) return;
    open |= !flag->question->answered();
    unsound |= flag->question->answered() && flag->question->answer().any();
  };
  call.frame().visit_result(look);
  const size_t returned = results.size();
  // What it wrote is a result as well, whether or not it was returned (_foreach_add_, __setitem__).
  for (const auto& [index, tensor] : state.written) {
    const at::Tensor& target = tensor;
    const auto found =
        std::find_if(results.begin(), results.end(), [&](const at::Tensor& other) { return other.is_same(target); });
    record.call.written.emplace_back(index, static_cast<size_t>(found - results.begin()));
    if (found == results.end()) look(tensor);
  }
  const bool saves = !impl.archive.is_full();
  if (saves && wants_gradients && call.level == Level::kTorch && call.phase == Phase::kForward) {
    call.keep(std::make_shared<Noted>(call));
  }
  for (const State::Input& input : state.inputs) open |= input.flag->question && !input.flag->question->answered();
  if (rules.gives_data) return;
  if (!open && !unsound) return;  // sound, whatever the inputs are
  state.ask_inputs();
  for (State::Input& input : state.inputs) record.inputs.push_back(std::move(input.flag));
  // It read memory as it was found: what that holds was not made by this call.
  for (const at::Tensor& tensor : state.unwritten) record.inputs.push_back(std::make_shared<Flag>(tensor));
  for (const Value& given : {call.args(), call.kwargs()}) add_numbers(given, record.numbers);
  record.backward = phase_of(call) == Phase::kBackward;
  record.allows_neg_inf = rules.allows_neg_inf;
  record.call.take_call(call);
  record.call.result =
      strip_tensors(call.result(), [&](const at::Tensor& tensor) { record.call.outputs.emplace_back(tensor); });
  for (size_t i = returned; i < results.size(); ++i) record.call.outputs.emplace_back(results[i]);
  record.call.stack = current_stack();
  record.call.module = call.module();
  if (const auto* noted = static_cast<Noted*>(call.kept())) record.call.forward = noted->inputs;
  if (saves) record.call.take_inputs(call, std::move(state.before));
  for (const VersionedTensor& kept : record.call.inputs) impl.hold(kept);
  for (const VersionedTensor& kept : record.call.outputs) impl.hold(kept);
  impl.window.push_back(std::move(record));
  const bool full = static_cast<int64_t>(impl.window.size()) >= impl.options.every || impl.held >= kMostHeld;
  if (!open || full || impl.options.immediate) impl.judge_window();
  if (impl.options.immediate && !impl.first_producer.empty()) {
    throw StopProgram("OpOverflowCheck: " + std::exchange(impl.first_producer, {}));
  }
}

void OverflowHook::Impl::judge_window() {
  std::vector<NonFiniteQuery*> questions;
  for (Record& record : window) {
    for (const FlagPtr& flag : record.inputs) {
      if (flag->question) questions.push_back(&*flag->question);
    }
    for (const FlagPtr& flag : record.outputs) {
      if (flag && flag->question) questions.push_back(&*flag->question);
    }
  }
  const InternalGuard ours;  // also where no chain has put one: at the end of a step, of the scope
  std::sort(questions.begin(), questions.end());
  questions.erase(std::unique(questions.begin(), questions.end()), questions.end());
  NonFiniteQuery::answer_all(questions);
  for (Record& record : window) judge(record);
  window.clear();
  known_held.clear();
  held = 0;
}

void OverflowHook::Impl::judge(Record& record) {
  // An input that no judged call made came from outside: -inf alone is taken for a mask, the rest counts.
  Specials given, given_allowed;
  for (const FlagPtr& flag : record.inputs) {
    if (!flag->judged && flag->question) {
      const Specials values = that_count(flag->question->answer());
      (values.only_neg_inf() ? flag->allowed : flag->unsound) = values;
      flag->judged = true;
    }
    given.add(flag->unsound);
    given_allowed.add(flag->allowed);
  }
  if (!record.numbers.only_neg_inf()) given.add(that_count(record.numbers));  // which -inf is meant, `allow` says
  const RetainedCall& call = record.call;
  std::string saved, not_saved;  // one folder, whichever of its outputs
  for (size_t i = 0; i < record.outputs.size(); ++i) {
    if (!record.outputs[i] || !record.outputs[i]->question || record.outputs[i]->judged) continue;
    Flag& flag = *record.outputs[i];
    flag.judged = true;
    const Specials values = that_count(flag.question->answer());
    if (!values.any()) continue;
    if (values.only_neg_inf() && !given.any() && (record.allows_neg_inf || given_allowed.any())) {
      flag.allowed = values;
      continue;
    }
    flag.unsound = values;

    OverflowResult::Finding finding;
    finding.producer = !given.any();
    finding.expected = record.backward && options.allow_in_backward_with_scaler;
    finding.op = call.op;
    finding.id = call.id;
    finding.step = call.step;
    finding.backward = record.backward;
    finding.output = i;
    const VersionedTensor& output = call.outputs[i];
    finding.dtype = torch_name(output.tensor().scalar_type());
    finding.shape = output.tensor().sizes().vec();
    finding.stack = call.stack;
    finding.module = call.module;
    if (output.is_what_it_was() && (finding.producer || result.findings.size() < kMaxFindings)) {
      const SpecialsCount count = count_specials(output.tensor());
      finding.nan = count.nan;
      finding.pos_inf = count.pos_inf;
      finding.neg_inf = count.neg_inf;
      finding.first = count.first;
    }
    open_file();
    if (finding.producer && !finding.expected && options.max_saved > 0) {
      if (saved.empty() && not_saved.empty()) {
        if (call.inputs.empty() && archive.is_full()) {
          not_saved = "max_saved_mb is reached";
        } else {
          saved = archive.save(call, result.root, rank, &not_saved);
        }
      }
      finding.saved = saved;
      finding.not_saved = not_saved;
    }
    report(std::move(finding));
  }
}

void OverflowHook::Impl::open_file() {
  if (file) return;
  result.root = claim_run_folder(options.output_dir, "op_overflow_check_result", rank);
  file = std::make_unique<RowFile>(result.root + "/overflow.jsonl");
}

void OverflowHook::Impl::report(OverflowResult::Finding finding) {
  ++(finding.expected ? result.expected : finding.producer ? result.producers : result.propagators);
  if (finding.producer && !finding.expected) {
    const std::string text = sentence_of(finding);
    if (first_producer.empty()) first_producer = text;
    log::warn("OpOverflowCheckHook: " + text);
  }
  file->add(OverflowResult::Finding::columns().value(finding));
  if (result.findings.size() < kMaxFindings) result.findings.push_back(std::move(finding));
}

void OverflowHook::flush() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->judge_window();
  if (impl_->file) impl_->file->flush();
}

void OverflowHook::scope_left() {
  flush();
  release_copy_memory();
  const OverflowResult all = result();
  (all.ok() ? log::info : log::warn)(closing_line(all));
}

OverflowResult OverflowHook::result() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->result;
}

Value OverflowHook::report() const {
  return to_value(result());
}

}  // namespace op_tools
