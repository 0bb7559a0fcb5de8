#include "observe/overflow_check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/op_filter.h"
#include "base/stop_program.h"
#include "calls/random_state.h"
#include "calls/stripped_value.h"
#include "coverage/coverage.h"
#include "hooks/backward_pass.h"
#include "hooks/interceptor.h"
#include "hooks/op_traits.h"
#include "hooks/value_source.h"
#include "hooks/written_elements.h"
#include "hooks/written_inputs.h"
#include "observe/finite_cache.h"
#include "observe/nonfinite.h"
#include "observe/overflow_window.h"
#include "tensor/copy_memory.h"
#include "tensor/known_tensors.h"
#include "tensor/plain_tensor.h"
#include "tensor/result_numbers.h"
#include "tensor/unwritten_memory.h"

namespace op_tools {
namespace {

// Facts that the name of an operator tells, determined once.
struct NameRules {
  ResultSource source;
  bool shows_unwritten, allows_neg_inf;
  int workspace;  // which result is scratch memory; -1: none
  int open;       // from which result on they are for the operator's own backward, with padding; -1: none
  bool factory;   // its result is asked when it comes as an input: knowing it would hold its counter of versions
  bool changes_in_place;  // reads the elements that it writes
  bool names_elements;    // an argument tells which elements it writes
  bool lifts;             // the program wrote the memory that its argument shows
  bool writes_unnamed;    // at the torch level only names tell the written arguments; of lists more than the first
                          // argument is
};

struct State final : HookState {
  const NameRules* rules = nullptr;
  std::vector<at::Tensor> tensors;  // all of the inputs
  struct Input {
    FlagPtr flag;
    size_t index;     // of `tensors`
    int64_t version;  // before the call
  };
  std::vector<Input> inputs;                           // those that are looked at
  std::vector<std::pair<size_t, at::Tensor>> written;  // input tensors that the call writes
  std::vector<at::Tensor> unwritten;                   // input tensors that show elements which were never written
  std::optional<WrittenElements> elements;             // of the first input, that the call writes
  bool is_given = false;                               // the program's data, which no operator wrote
  bool reads_unseen = false;                           // an input has values that cannot be asked
  InputsBefore before;
  std::optional<RandomWatch> random;  // where the call may be saved, and may draw random numbers

  // The input's old elements will be neither in it nor in a copy after the call.
  bool will_lose(const Input& input, bool writes_unknown) const {
    if (before.copies.contains(input.index)) return false;
    return writes_unknown || std::any_of(written.begin(), written.end(), [&](const auto& pair) {
             return share_memory(pair.second, tensors[input.index]);
           });
  }
  bool writes(const at::Tensor& tensor) const {
    return std::any_of(written.begin(), written.end(), [&](const auto& pair) { return pair.second.is_same(tensor); });
  }
  // Asks the inputs whose answer was not needed before the call.
  void ask_inputs() const {
    for (const Input& input : inputs) {
      if (!input.flag->unasked) continue;
      const auto copy = before.copies.find(input.index);
      if (copy != before.copies.end()) {
        input.flag->ask(copy->second.tensor());
      } else if (version_of(tensors[input.index]) ==
                 input.version) {  // else the call wrote it without a sign of that beforehand
        input.flag->ask(tensors[input.index]);
      }
    }
  }
};

// Inputs and results of a torch-level call, for its backward, which reads those that the forward saved.
struct Noted final : HookState {
  struct Input {
    FlagPtr flag;
    size_t index;  // among the tensors of the arguments
  };
  Noted(OpCall& call, const State& state, std::vector<FlagPtr> results)
      : inputs(std::make_shared<const NotedInputs>(call, ProgramState::of(call))),
        results(std::move(results)),
        reads_unseen(state.reads_unseen) {
    for (const State::Input& input : state.inputs) flags.push_back({input.flag, input.index});
  }

  // Inputs that the forward call had no need to ask: those that are unchanged.
  void ask_inputs() const {
    if (std::none_of(flags.begin(), flags.end(), [](const Input& input) { return input.flag->unasked; })) return;
    Value args, kwargs;
    if (!inputs->recall(&args, &kwargs)) return;
    std::vector<at::Tensor> tensors = flatten_tensors(args);
    for_each_tensor(kwargs, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    for (const Input& input : flags) {
      if (input.index < tensors.size()) input.flag->ask(tensors[input.index]);
    }
  }

  const std::shared_ptr<const NotedInputs> inputs;
  std::vector<Input> flags;
  const std::vector<FlagPtr> results;  // nullptr: not asked
  const bool reads_unseen;
};

// At the torch level that is not known before the call.
bool may_draw(const OpCall& call) {
  return !call.op || call.op->hasTag(at::Tag::nondeterministic_seeded);
}

void add_scalars(const Value& value, Specials& specials) {
  if (const auto* number = value.get_if<double>()) {
    specials.add({std::isnan(*number), *number == HUGE_VAL, *number == -HUGE_VAL});
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) add_scalars(item, specials);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) add_scalars(item, specials);
  }
}

// All input tensors of the call, whose arguments can be asked for in after() from here on.
std::vector<at::Tensor> inputs_of(OpCall& call) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(8);  // most calls have fewer
  const auto take = [&](const at::Tensor& tensor) { tensors.push_back(tensor); };
  auto* const frame = call.level == Level::kAten ? dynamic_cast<interceptor::OperatorFrame*>(&call.frame()) : nullptr;
  if (frame && frame->copy_arguments()) {
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
        allowing(options.allow.get().empty() ? "-" : options.allow.get(), "", "allow=", ""),
        window(this->options, rank) {}

  const ResolvedOverflowOptions options;
  const int64_t rank;
  const OpFilter allowing;

  mutable std::mutex mutex;  // guards all that follows
  KnownTensors<FlagPtr> known;
  UnwrittenMemory unwritten;
  OverflowWindow window;
  int64_t step = 0;
  std::map<std::string, NameRules, std::less<>> rules;

  // Valid until the process ends; its contents do not change.
  const NameRules& rules_of(const OpCall& call) {
    const auto entry = rules.find(call.name);
    if (entry != rules.end()) return entry->second;
    const std::string_view base = base_name(call.name);
    const ResultSource source = ResultSource::of(call);
    const OpFamily* const open = family_of(base, OpTrait::kOpenResult);
    const NameRules fresh{source,
                          source.uninitialized || has_trait(base, OpTrait::kShowsUnwrittenMemory),
                          allowing.admits(call.name),
                          workspace_of(base),
                          open == nullptr ? -1 : open->place,
                          call.op && makes_variable(*call.op),
                          has_trait(base, OpTrait::kChangesInPlace),
                          names_elements(call.name),
                          lifts_data(call),
                          call.level == Level::kTorch && writes_lists(call)};
    return rules.emplace(std::string(call.name), fresh).first->second;
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

  // The flag of an input, before the call. A tensor that no call made that we saw is asked itself: on the CPU not
  // before the answer is needed, which is when a call made special values of it.
  FlagPtr flag_of(const at::Tensor& tensor, const WrittenElements& shown, bool owned) {
    if (!has_written(shown)) return Flag::of_sound();  // no values to speak of
    if (FlagPtr flag = shown.is_whole() ? known_flag_of(tensor) : known.find(tensor)) return flag;
    const FlagPtr flag =
        tensor.device().is_cpu() ? Flag::of_unasked(shown.flags) : std::make_shared<Flag>(tensor, shown.flags);
    if (!owned) known.put(tensor, flag);
    return flag;
  }

  // A part of it at least, and it is known which.
  static bool has_written(const WrittenElements& shown) { return shown.is_whole() || shown.part == WrittenPart::kSome; }

  void note_writes_of(const OpCall& call, const State& state) {
    if (unwritten.is_empty() || state.written.empty()) return;
    std::vector<bool> written(state.tensors.size());
    for (const auto& [index, tensor] : state.written) {
      // detach_ and similar operators change a tensor's description, not its elements, and count no version.
      written[index] = version_of(tensor) != 0;
    }
    note_writes(call, state.tensors, written, state.elements, &unwritten);
  }

  // Of a result that the call did not make: an input or a view of an input, whose values are sound. Else nullptr.
  FlagPtr flag_of_view(const State& state, const at::Tensor& tensor) {
    const auto is_alias = [&](const at::Tensor& other) { return share_memory(other, tensor); };
    if (std::any_of(state.written.begin(), state.written.end(),
                    [&](const auto& pair) { return is_alias(pair.second); })) {
      return nullptr;
    }
    for (const State::Input& input : state.inputs) {
      const at::Tensor& input_tensor = state.tensors[input.index];
      if (!is_alias(input_tensor)) continue;
      if (version_of(input_tensor) != input.version) return nullptr;
      if (!shows_part_of(input_tensor, tensor)) continue;
      input.flag->ask(input_tensor);
      if (input.flag->is_sound()) return input.flag;
    }
    FlagPtr flag = known_flag_of(tensor);
    return flag && flag->is_sound() ? flag : nullptr;
  }

  // The results of the call, while after() looks at them.
  struct Results {
    std::vector<FlagPtr> flags;  // by tensor; nullptr: not asked
    std::vector<at::Tensor> tensors;
    size_t returned = 0;                             // the others are inputs that it wrote without returning them
    std::vector<std::pair<size_t, size_t>> written;  // (input tensor, where in `tensors`)
    bool open = false, unsound = false, requires_grad = false;
  };
  Results look_at_results(OpCall& call, const State& state, const NameRules& rules);
  void look(const at::Tensor& tensor, const OpCall& call, const State& state, const NameRules& rules, Results& results);
  static void look_at_numbers(const at::Tensor& numbers, Results& results);
  // `waits`: it is judged after the call has returned.
  OverflowRecord record_of(OpCall& call, State& state, const NameRules& rules, Results results, bool saves, bool waits);
};

OverflowHook::OverflowHook(const ResolvedOverflowOptions& options) : impl_(std::make_unique<Impl>(options)) {}
OverflowHook::~OverflowHook() = default;

std::unique_ptr<HookState> OverflowHook::before(OpCall& call) {
  Impl& impl = *impl_;
  auto state = std::make_unique<State>();
  if (call.grad_enabled) {  // asked now, they are known in the call's backward as well
    call.find_place(/*line=*/true, /*module=*/true);
  }
  state->tensors = inputs_of(call);
  const std::vector<at::Tensor>& tensors = state->tensors;
  const std::vector<bool> written = written_inputs(call);
  const std::lock_guard<std::mutex> lock(impl.mutex);
  if (call.step != impl.step) {
    impl.window.judge();
    impl.step = call.step;
  }
  const NameRules& rules = impl.rules_of(call);
  state->rules = &rules;
  state->inputs.reserve(tensors.size());
  state->reads_unseen = rules.source.collective;  // its result comes from other ranks
  const bool saves = !rules.source.collective && impl.window.saves(call.name, call.phase);
  if (impl.window.saves_any()) {
    state->before = InputsBefore::of(tensors, saves ? written : std::vector<bool>(),
                                     [&](const at::Tensor& tensor) { return impl.unwritten.holds(tensor); });
  }
  const bool passing = call.phase == Phase::kBackward;  // gradients come in tensors that no other call is given
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (i < written.size() && written[i]) state->written.emplace_back(i, tensor);
    if (!may_have_specials(tensor)) {
      state->reads_unseen |= has_unseen_values(tensor);
      continue;
    }
    if (rules.lifts && impl.unwritten.holds(tensor)) {
      impl.unwritten.forget(tensor);
      state->is_given = true;
    }
    const WrittenElements shown = impl.unwritten.shown_by(tensor);
    state->inputs.push_back({impl.flag_of(tensor, shown, passing), i, version_of(tensor)});
    if (!shown.is_whole()) state->unwritten.push_back(tensor);
  }
  for (const State::Input& input : state->inputs) {
    if (input.flag->unasked && state->will_lose(input, rules.writes_unnamed)) input.flag->ask(tensors[input.index]);
  }
  impl.window.before_write(state->written);
  if (rules.names_elements) {
    state->elements = elements_named(call, [&](const at::Tensor& tensor) { return impl.unwritten.shown_by(tensor); });
  }
  // Last: between this and the call no code of op_tools may draw random numbers.
  if (saves && !passing && may_draw(call)) state->random.emplace(call.args(), call.kwargs());
  return state;
}

void OverflowHook::Impl::look(const at::Tensor& tensor, const OpCall& call, const State& state, const NameRules& rules,
                              Results& results) {
  results.tensors.push_back(tensor);
  results.requires_grad |= tensor.requires_grad();
  if (!may_have_specials(tensor)) return results.flags.push_back(nullptr);
  const int place = static_cast<int>(results.tensors.size()) - 1;
  const bool scratch = place == rules.workspace;
  const bool is_open = rules.open >= 0 && place >= rules.open;
  const bool is_new_memory = (rules.shows_unwritten || is_open) && !scratch;
  if (is_new_memory) unwritten.add(tensor);
  const WrittenElements shown = unwritten.shown_by(tensor);
  const bool is_unwritten = is_new_memory || scratch || !has_written(shown);
  FlagPtr flag = is_unwritten ? Flag::of_sound() : shown.is_whole() ? flag_of_view(state, tensor) : nullptr;
  if (!flag) flag = Flag::of_result(tensor, shown.flags);
  if ((!is_unwritten || scratch) && call.phase != Phase::kBackward && !rules.factory) {
    known.put(tensor, flag);
  }
  results.flags.push_back(flag);
  if (!flag->question) return;
  results.open |= !flag->question->answered();
  results.unsound |= flag->question->answered() && flag->question->answer().any();
}

// A number that the program reads of a device may be another one than the tensor's.
void OverflowHook::Impl::look_at_numbers(const at::Tensor& numbers, Results& results) {
  if (!may_have_specials(numbers)) return;
  const auto flag = std::make_shared<Flag>(numbers);
  if (flag->is_sound()) return;
  results.tensors.push_back(numbers);
  results.flags.push_back(flag);
  results.unsound = true;
}

OverflowHook::Impl::Results OverflowHook::Impl::look_at_results(OpCall& call, const State& state,
                                                                const NameRules& rules) {
  Results results;
  call.frame().visit_result([&](const at::Tensor& tensor) { look(tensor, call, state, rules, results); });
  results.returned = results.tensors.size();
  if (results.tensors.empty() && !state.inputs.empty() && rules.source.reads_elements) {
    look_at_numbers(result_numbers(call.result(), at::kDouble), results);
  }
  // A tensor that it wrote is a result as well, whether or not it was returned (_foreach_add_, __setitem__).
  for (const auto& [index, tensor] : state.written) {
    const at::Tensor& target = tensor;
    const auto entry = std::find_if(results.tensors.begin(), results.tensors.end(),
                                    [&](const at::Tensor& other) { return other.is_same(target); });
    results.written.emplace_back(index, static_cast<size_t>(entry - results.tensors.begin()));
    if (entry == results.tensors.end()) look(tensor, call, state, rules, results);
  }
  return results;
}

OverflowRecord OverflowHook::Impl::record_of(OpCall& call, State& state, const NameRules& rules, Results results,
                                             bool saves, bool waits) {
  OverflowRecord record;
  record.outputs = std::move(results.flags);
  for (State::Input& input : state.inputs) record.inputs.push_back(std::move(input.flag));
  // It read memory that was never written: its contents were not made by this call.
  for (const at::Tensor& tensor : state.unwritten) record.inputs.push_back(std::make_shared<Flag>(tensor));
  for (const Value& values : {call.args(), call.kwargs()}) add_scalars(values, record.scalars);
  record.backward = phase_of(call) == Phase::kBackward;
  record.allows_neg_inf = rules.allows_neg_inf;
  RetainedCall& retained = record.call;
  retained.take_call(call);
  retained.written = std::move(results.written);
  // torch.jit.trace knows the result of a factory as long as nothing else holds it, and torch's own factories give the
  // program another tensor where something does, for which a mode of the dispatcher sees a detach.
  const bool is_traced = call.local_keys.included_.has(c10::DispatchKey::Tracer);
  const bool holds_result = !rules.factory || !(waits || is_traced);
  retained.result = strip_tensors(call.result(), [&](const at::Tensor& tensor) {
    retained.outputs.push_back(holds_result ? VersionedTensor(tensor) : VersionedTensor());
  });
  for (size_t i = results.returned; i < results.tensors.size(); ++i) retained.outputs.emplace_back(results.tensors[i]);
  retained.meta.stack = call.stack();
  retained.meta.module = call.module();
  record.reads_unseen = state.reads_unseen;
  const auto* const noted = static_cast<const Noted*>(call.saved_state());
  if (noted && call.phase == Phase::kBackward) {
    retained.forward = noted->inputs;
    record.reads_unseen |= noted->reads_unseen;
    for (const Noted::Input& input : noted->flags) record.inputs.push_back(input.flag);
    for (const FlagPtr& flag : noted->results) {
      if (flag) record.inputs.push_back(flag);
    }
  }
  if (saves) retained.take_inputs(call, std::move(state.before));
  return record;
}

void OverflowHook::after(OpCall& call, HookState* any_state) {
  Impl& impl = *impl_;
  if (!call.error.empty() || !any_state) return;
  State& state = static_cast<State&>(*any_state);
  Value rng = state.random ? state.random->moved() : Value();
  const std::lock_guard<std::mutex> lock(impl.mutex);
  OverflowWindow& window = impl.window;
  ++window.result().calls;
  const NameRules& rules = *state.rules;
  for (const auto& [index, tensor] : state.written) {
    impl.known.written(tensor, /*counted=*/false);
  }
  impl.note_writes_of(call, state);
  const ValueSource source = rules.source.of_results(call);
  // A call that reads it asks it then, as a value from outside.
  if (rules.source.collective && source == ValueSource::kUnknown) {
    const auto forget = [&](const at::Tensor& tensor) {
      impl.known.forget(tensor);
      impl.known.written(tensor, /*counted=*/false);
    };
    std::for_each(state.tensors.begin(), state.tensors.end(), forget);
    return call.frame().visit_result(forget);
  }
  std::erase_if(state.unwritten, [&](const at::Tensor& tensor) {
    return impl.unwritten.shown_by(tensor).is_whole() || (!rules.changes_in_place && state.writes(tensor));
  });
  Impl::Results results = impl.look_at_results(call, state, rules);
  const bool saves = window.saves_any();
  if (results.requires_grad && call.level == Level::kTorch && call.phase == Phase::kForward) {
    call.save_for_backward(std::make_shared<Noted>(call, state, results.flags));
  }
  bool open = results.open;
  for (const State::Input& input : state.inputs) open |= input.flag->question && !input.flag->question->answered();
  if (rules.source.gives_data || state.is_given) {
    for (const FlagPtr& flag : results.flags) {
      if (flag && flag->question) flag->by_program = true;
    }
    return;
  }
  if (!open && !results.unsound) return;  // sound, whatever the inputs are
  state.ask_inputs();
  if (const auto* const noted = static_cast<const Noted*>(call.saved_state())) noted->ask_inputs();
  OverflowRecord record = impl.record_of(call, state, rules, std::move(results), saves, open);
  record.call.rng = std::move(rng);
  window.add(std::move(record));
  if (!open || window.is_full() || impl.options.immediate) window.judge();
  if (!impl.options.immediate) return;
  if (const std::string producer = window.take_first_producer(); !producer.empty()) {
    throw StopProgram("OpOverflowCheck: " + producer);
  }
}

void OverflowHook::flush() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->window.judge();
  impl_->window.flush_file();
}

void OverflowHook::scope_left() {
  flush();
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->window.write_summary();
  }
  const OverflowResult all = result();
  (all.ok() ? log::notice : log::warn)(closing_line(all) + untold_text());
}

std::string OverflowHook::untold_text() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->window.untold_text();
}

OverflowResult OverflowHook::result() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->window.result();
}

void OverflowHook::add_coverage(Coverage& account) const {
  account.judged += result().calls;
}

std::string OverflowHook::folder() const {
  return result().root;
}

Value OverflowHook::report() const {
  return to_value(result());
}

}  // namespace op_tools
