#include "observe/observe_hook.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/run_folder.h"
#include "base/sweeps.h"
#include "calls/stripped_value.h"
#include "coverage/coverage.h"
#include "hooks/backward_pass.h"
#include "hooks/call_info.h"
#include "hooks/collectives.h"
#include "report/json_writer.h"
#include "report/row_file.h"
#include "tensor/internal_guard.h"
#include "tensor/known_tensors.h"
#include "tensor/plain_tensor.h"
#include "tensor/statistics.h"

namespace op_tools {
namespace {

Value numbers(c10::ArrayRef<int64_t> values) {
  return make_list(Values(values.begin(), values.end()));
}

Value integer(uint64_t number) {
  return static_cast<int64_t>(number);
}

// Most tensors of a program are the results of a call and the inputs of later ones. Known here, their elements are
// read again, for a write that torch does not count, but their hash alone is computed. Known by their storage: autograd
// copies a gradient whose counter of versions is held elsewhere.
class ReadTensors {
 public:
  std::shared_ptr<StatisticsQuery> ask(const at::Tensor& tensor) {
    const size_t place = tensor.defined() && tensor.device().is_cpu() ? place_of_elements(tensor) : 0;
    if (place == 0) return std::make_shared<StatisticsQuery>(tensor);
    const std::shared_ptr<StatisticsQuery> earlier = find(place);
    auto question = std::make_shared<StatisticsQuery>(tensor, earlier ? &earlier->answer() : nullptr);
    if (question->answer().known) put(place, tensor, question);
    return question;
  }

 private:
  struct Known {
    std::shared_ptr<StatisticsQuery> question;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  std::shared_ptr<StatisticsQuery> find(size_t place) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = known_.find(place);
    return entry != known_.end() && !entry->second.storage.expired() ? entry->second.question : nullptr;
  }

  void put(size_t place, const at::Tensor& tensor, const std::shared_ptr<StatisticsQuery>& question) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (sweeps_.due(known_.size(), storage_bytes(tensor))) {
      std::erase_if(known_, [](const auto& known) { return known.second.storage.expired(); });
      sweeps_.done(known_.size());
    }
    known_.insert_or_assign(place, Known{question, tensor.storage().getWeakStorageImpl()});
  }

  mutable std::mutex mutex_;
  std::unordered_map<size_t, Known> known_;  // by place_of_elements()
  Sweeps sweeps_;
};

// A tensor as it was when it was asked; holds none of its memory.
struct Described {
  Described(const at::Tensor& tensor, ReadTensors* read) : meta(TensorMeta::of(tensor)) {
    if (read) question = read->ask(tensor);
  }

  Value value() const {
    constexpr size_t kMostCells = 14;
    std::vector<std::pair<Value, Value>> items;
    items.reserve(kMostCells);
    items.emplace_back("shape", numbers(meta.shape));
    items.emplace_back("dtype", torch_name(meta.dtype));
    items.emplace_back("stride", numbers(meta.stride));
    items.emplace_back("device", meta.device.str());
    if (meta.layout != at::kStrided) items.emplace_back("layout", torch_name(meta.layout));
    if (meta.requires_grad) items.emplace_back("requires_grad", true);
    if (question && question->answer().known) add_cells(question->answer(), &items);
    return make_dict(std::move(items));
  }

  TensorMeta meta;
  std::shared_ptr<StatisticsQuery> question;
};

// Values of a call whose tensors were described and are not held.
class DescribedTree {
 public:
  // `read`: with statistics; nullptr: without.
  void take(const Value& value, ReadTensors* read) {
    tree_ = strip_tensors(value, [&](const at::Tensor& tensor) { tensors_.emplace_back(tensor, read); });
  }
  void add_open(std::vector<StatisticsQuery*>* questions) {
    for (Described& described : tensors_) {
      if (described.question && !described.question->answered()) questions->push_back(described.question.get());
    }
  }
  Value value() const {
    auto next = tensors_.begin();
    return restore_tensors(tree_, [&] { return (next++)->value(); });
  }

 private:
  Value tree_;
  std::vector<Described> tensors_;
};

// A row that is complete but for answers of a device.
struct CallRow {
  CallInfo call;
  std::string error;
  DescribedTree args, kwargs, result;

  Value value(int64_t detail) const {
    const std::string line = call.line();
    constexpr size_t kMostCells = 11;
    std::vector<std::pair<Value, Value>> items;
    items.reserve(kMostCells);
    items.emplace_back("op", call.name);
    items.emplace_back("id", integer(call.id));
    items.emplace_back("step", call.step);
    items.emplace_back("level", std::string(to_string(call.level)));
    items.emplace_back("phase", std::string(to_string(call.phase)));
    items.emplace_back("line", line.empty() ? Value() : Value(line));
    items.emplace_back("module", call.module.empty() ? Value() : Value(call.module));
    if (!error.empty()) items.emplace_back("error", error);
    if (detail >= 2) {
      items.emplace_back("args", args.value());
      items.emplace_back("kwargs", kwargs.value());
      items.emplace_back("result", error.empty() ? result.value() : Value());
    }
    return make_dict(std::move(items));
  }
};

struct State final : HookState {
  std::vector<TensorShape> inputs;
  std::unique_ptr<CallRow> row;  // detail 1 and up
};

}  // namespace

struct ObserveHook::Impl {
  explicit Impl(const ResolvedObserveOptions& options) : options(options), rank(distributed_rank()) {}

  const ResolvedObserveOptions options;
  const int64_t rank;
  ShapeStatistics shape_statistics;
  std::atomic<uint64_t> calls{0}, rows{0};
  ReadTensors read;

  mutable std::mutex mutex;  // guards all that follows
  std::deque<std::unique_ptr<CallRow>> waiting;
  std::unique_ptr<RowFile> file;
  std::string root;
  uint64_t written = 0, read_backs = 0;

  // Reads the devices' answers, and writes the rows.
  void settle_locked() {
    const InternalGuard ours;
    std::vector<StatisticsQuery*> open;
    for (const auto& row : waiting) {
      for (DescribedTree* tree : {&row->args, &row->kwargs, &row->result}) tree->add_open(&open);
    }
    if (!open.empty()) {
      StatisticsQuery::answer_all(open);
      ++read_backs;
    }
    while (!waiting.empty()) {
      const std::unique_ptr<CallRow> row = std::move(waiting.front());
      waiting.pop_front();
      write_locked(*row);
    }
  }

  void write_locked(const CallRow& row) {
    if (!file) {
      root = claim_run_folder(options.output_dir, "op_observe_result", rank);
      file = std::make_unique<RowFile>(root + "/calls.jsonl");
    }
    const Value value = row.value(options.detail);
    file->add(value);
    ++written;
    if (!options.lines) return;
    std::string text = "OpObserveHook: " + row.call.name + " ";
    text += to_string(row.call.phase);
    if (options.detail >= 2) {
      for (const char* part : {"args", "kwargs", "result"}) {
        const Value* member = find_key(value, part);
        const auto* dict = member->get_if<Dict>();
        if (dict && dict->items->empty()) continue;
        text.append(" ").append(part).append(": ").append(json_text(*member));
      }
    }
    log::notice(text);
  }
};

ObserveHook::ObserveHook(const ResolvedObserveOptions& options) : impl_(std::make_unique<Impl>(options)) {
  StatisticsQuery::begin_run();
}
ObserveHook::~ObserveHook() = default;

Wants ObserveHook::wants() const {
  return {.gradients = true, .graphs = true, .device_values = impl_->options.detail >= 3, .progress = true};
}

std::unique_ptr<HookState> ObserveHook::before(OpCall& call) {
  Impl& impl = *impl_;
  auto state = std::make_unique<State>();
  call.frame().visit_inputs([&](const at::Tensor& tensor) { state->inputs.push_back(TensorShape::of(tensor)); });
  const ResolvedObserveOptions& options = impl.options;
  // Asked now, they are known in the call's backward as well.
  call.find_place(/*line=*/options.with_stack, /*module=*/options.detail > 0);
  if (options.detail == 0) return state;
  if (impl.rows.fetch_add(1) >= static_cast<uint64_t>(options.max_calls.get())) return state;
  state->row = std::make_unique<CallRow>();
  if (options.detail < 2) return state;
  ReadTensors* const read = options.detail >= 3 ? &impl.read : nullptr;
  state->row->args.take(call.args(), read);
  state->row->kwargs.take(call.kwargs(), read);
  return state;
}

void ObserveHook::after(OpCall& call, HookState* any_state) {
  if (!any_state) return;
  Impl& impl = *impl_;
  State& state = static_cast<State&>(*any_state);
  impl.calls.fetch_add(1, std::memory_order_relaxed);
  CallInfo info = CallInfo::of(call);
  info.phase = phase_of(call);
  if (impl.options.with_stack) info.stack = call.stack();
  std::vector<TensorShape> outputs;
  if (call.error.empty()) {
    call.frame().visit_result([&](const at::Tensor& tensor) { outputs.push_back(TensorShape::of(tensor)); });
  }
  impl.shape_statistics.add(info.name, info.phase, info.line(), std::move(state.inputs), std::move(outputs));
  if (!state.row) return;
  CallRow& row = *state.row;
  info.module = call.module();
  row.call = std::move(info);
  row.error = call.error;
  std::vector<StatisticsQuery*> open;
  if (impl.options.detail >= 2) {
    row.result.take(call.result(), impl.options.detail >= 3 && !brings_later(call) ? &impl.read : nullptr);
    for (DescribedTree* tree : {&row.args, &row.kwargs, &row.result}) tree->add_open(&open);
  }
  const std::lock_guard<std::mutex> lock(impl.mutex);
  const bool others_wait = !impl.waiting.empty();
  if (!open.empty() || others_wait) {
    impl.waiting.push_back(std::move(state.row));
    if (impl.waiting.size() >= kMaxWaiting) impl.settle_locked();
  } else {
    impl.write_locked(row);
  }
}

void ObserveHook::step_begins(int64_t) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->settle_locked();
}

void ObserveHook::flush() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->settle_locked();
  if (impl_->file) impl_->file->flush();
}

void ObserveHook::scope_left() {
  flush();
  const ObserveResult summary = result();
  std::vector<std::string> ops, dynamic;
  for (const CallShapes& row : summary.rows) ops.push_back(row.op);
  for (const DynamicDim& dim : summary.varying) dynamic.push_back(dim.op);
  const auto different = [](std::vector<std::string>& names) {
    std::sort(names.begin(), names.end());
    return std::to_string(std::unique(names.begin(), names.end()) - names.begin());
  };
  std::string text = "OpObserve: " + std::to_string(summary.calls) + " calls of " + different(ops) + " ops, " +
                     std::to_string(summary.rows.size()) + " different in shapes and dtypes, " + different(dynamic) +
                     " ops with dynamic shapes";
  if (summary.left_out)
    text += "; " + std::to_string(summary.left_out) + " calls of further kinds are not in the table";
  if (!summary.root.empty())
    text += "; " + std::to_string(summary.written) + " rows in " + shown_path(summary.root) + "/calls.jsonl";
  log::notice(text);
}

ObserveResult ObserveHook::result() const {
  ObserveResult result;
  result.rows = impl_->shape_statistics.kinds();
  result.varying = impl_->shape_statistics.varying();
  result.left_out = impl_->shape_statistics.left_out();
  result.calls = impl_->calls.load();
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  result.written = impl_->written;
  result.read_backs = impl_->read_backs;
  result.root = impl_->root;
  return result;
}

void ObserveHook::add_coverage(Coverage& account) const {
  account.lost[Loss::kNoRoom] += impl_->shape_statistics.left_out();
}

std::string ObserveHook::folder() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->root;
}

Value ObserveHook::report() const {
  const ObserveResult summary = result();
  return make_dict({{"rows", CallShapes::columns().values(summary.rows)},
                    {"varying", DynamicDim::columns().values(summary.varying)},
                    {"calls", integer(summary.calls)},
                    {"written", integer(summary.written)},
                    {"left_out", integer(summary.left_out)},
                    {"read_backs", integer(summary.read_backs)},
                    {"root", summary.root}});
}

}  // namespace op_tools
