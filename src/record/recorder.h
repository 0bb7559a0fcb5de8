// The rows of a recording while its program runs: the known values of a call's tensors, the values that have to be
// read, and the file. For record_hook.cpp alone. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "calls/random_state.h"
#include "hooks/argument_key.h"
#include "hooks/hook.h"
#include "hooks/value_source.h"
#include "hooks/written_elements.h"
#include "record/arriving_values.h"
#include "record/call_forms.h"
#include "record/call_parts.h"
#include "record/module_calls.h"
#include "record/record_hook.h"
#include "record/recording_file.h"
#include "record/row_tables.h"
#include "record/value_rows.h"
#include "tensor/statistics_check.h"
#include "tensor/unwritten_memory.h"

namespace op_tools {

class Recorder {
 public:
  struct Input {
    StringNumber place;
    at::Tensor tensor;
    int64_t version;
    KnownValue value;
  };

  // The operator of a name, and facts about its calls.
  struct KnownOp {
    StringNumber op;
    ResultSource source;
    bool writes_uncounted, writes_declared, names_elements, lifts, factory;
    std::optional<bool> views = std::nullopt;  // gives_views(), once it was asked
    RecordRow counts = {};
    CallForms arguments = {}, results = {};
  };

  struct State final : HookState {
    KnownOp* op = nullptr;  // from take_inputs() on; its members that change are guarded by the lock
    c10::SmallVector<Input, 4> inputs;
    std::vector<bool> written;                // by input, where the operator writes without a counter; else empty
    std::optional<WrittenElements> elements;  // of the first argument: elements_named()
    StringNumber scalars = 0;
    std::optional<RandomWatch> random;
    std::vector<StringNumber> places;  // modules_only: "grad args[0]", of each tensor of the inputs
    bool is_late = false;              // its result has not arrived yet when it has returned
    bool shows_late = false;           // it gives views of a result that has not arrived yet
  };

  struct Output {
    StringNumber place;
    at::Tensor tensor;
    size_t where = 0;  // place_of(tensor)
    KnownValue value = {};
    bool is_new = false;  // not known before: made, written or shown in another way by the call
    bool is_view = false;
    bool shows_parameter = false;
    WrittenElements shown = {};  // of a new value
    std::vector<RowPrints> rows = {};
  };
  using Outputs = c10::SmallVector<Output, 3>;

  explicit Recorder(const ResolvedRecordOptions& options);

  const ResolvedRecordOptions options;

  bool is_on() const { return !failed_.load(std::memory_order_relaxed) && !owner_.in_child(); }

  // "<folder>/rank<R>-<pid>.oprec"; a further recording of this process gets a number.
  void make_file(const OpCall& call);

  // `key`: the call's, empty. Is it filled?
  bool take_inputs(OpCall& call, State& state, ArgumentKey& key);
  // Results of collectives are read before the program does anything with it.
  bool awaits() const { return awaits_.load(std::memory_order_relaxed); }
  void arrive(const State& state);
  // A view may be made before the program waits: its elements are not there either.
  bool shows_awaited(const OpCall& call, const State& state);
  // The results of the call, then the inputs that it wrote; with the values that are known.
  Outputs outputs_of(OpCall& call, State& state);
  // Of a module's call: by input, the running statistics, which an operator inside writes without a sign. Empty: none.
  std::vector<bool> running_statistics(const State& state);
  // Before a call that is told which elements it writes.
  void take_elements(OpCall& call, State& state);
  // Reads new values.
  void read_outputs(const OpCall& call, const State& state, Outputs& outputs);
  void add_call(OpCall& call, State& state, Outputs& outputs);

  void step_begins();
  // Reads the devices' answers, and hands the rows to the system.
  void write();
  void flush();  // and waits until the system has them
  // The tool stops; false: the recording ended before. `account`: of the run, for the header.
  bool end(const Value& account);
  // No more is recorded, after a failure of op_tools.
  void fail(const std::string& why);
  bool has_jittered() const { return jittered_.load(); }

  RecordResult result() const;

 private:
  std::shared_ptr<StatisticsQuery> ask(const at::Tensor& tensor) const;
  std::shared_ptr<StatisticsQuery> ask(const at::Tensor& tensor, const WrittenElements& shown,
                                       std::vector<RowPrints>* rows) const;
  bool wants_rows(const OpCall& call) const;
  TensorOrigin named_origin(const at::Tensor& tensor, const OpCall& call, bool in_module);
  KnownValue input_value(const at::Tensor& tensor, const OpCall& call, bool in_module);
  bool take_known_inputs(OpCall& call, const ArgumentKey* key, State& state, bool* all_known);
  void take_new_inputs(OpCall& call, const ArgumentKey* key, State& state, bool in_module, bool* all_known);
  bool may_jitter() const { return options.jitter > 0 && !jittered_.load(std::memory_order_relaxed); }
  void jitter_first(const CallParts& parts);
  Outputs tensors_of(OpCall& call, State& state);
  Outputs results_of(OpCall& call, State& state);

  // The lock is held.
  KnownOp& op_locked(const OpCall& call);
  uint32_t thread_locked();
  bool add_input_locked(State& state, StringNumber place, at::Tensor tensor);
  void note_writes_locked(const OpCall& call, const State& state);
  void add_outputs_locked(Outputs& outputs, const State& state, uint32_t row);
  void note_doubts_locked();
  void write_locked();
  void stop_locked(EndedEarly reason, const std::string& why);

  const int64_t rank_;
  const uint64_t number_in_process_;
  const ForkGuard owner_;
  std::atomic<bool> jittered_{false}, failed_{false}, awaits_{false}, graph_ran_{false}, has_file_{false};

  mutable std::mutex mutex_;  // guards all that follows
  RowTables rows_;
  ValueRows values_{rows_};
  UnwrittenMemory unwritten_;
  ArrivingValues arriving_;
  ModuleCalls module_calls_;
  std::unordered_map<std::string, KnownOp, StringHash, std::equal_to<>> ops_;
  std::map<std::thread::id, uint32_t> threads_;
  std::unique_ptr<RecordingFile> file_;
  EndedEarly ended_early_ = EndedEarly::kNo;
  std::string failure_;
  std::vector<RecordedUse> uses_;  // of the call that is added
  uint64_t calls_ = 0;
  size_t seen_doubts_ = 0;
  std::map<c10::DeviceType, Value> on_host_;  // devices that are trusted no more, and the header's entry for each
  bool has_new_doubts_ = false;               // that the file does not know of
};

// Of a module's call, for its backward calls.
struct InputPlaces final : HookState {
  explicit InputPlaces(std::vector<StringNumber> places) : places(std::move(places)) {}
  const std::vector<StringNumber> places;
};

bool is_backward_at_torch(const OpCall& call);

}  // namespace op_tools
