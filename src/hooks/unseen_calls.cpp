#include "hooks/unseen_calls.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "hooks/backward_pass.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"
#include "hooks/written_inputs.h"
#include "tensor/dispatch_keys.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

struct UnseenCalls::Part {
  struct Thread {
    uint64_t calls = 0, on_device = 0;

    void add(uint64_t more, bool are_on_device) {
      calls += more;
      if (are_on_device) on_device += more;
    }
  };
  std::unordered_map<uint64_t, Thread> threads;  // by their numbers
  Thread native;                                 // operators that C++ code calls in threads which are followed
  std::set<std::string> scripts;
  uint64_t processes_before = 0;
  uint64_t processes_after = 0;
  bool counts = true;
};

// Those that count.
class Watches {
 public:
  static Watches& get() {
    static auto* const watches = new Watches;  // leaked: threads may outlive static destruction
    return *watches;
  }

  static bool any() { return any_.load(std::memory_order_relaxed); }

  void add(UnseenCalls::Part& part) {
    std::lock_guard<std::mutex> lock(mutex_);
    part.processes_before = processes();
    parts_.push_back(&part);
    any_.store(true);
  }

  void remove(UnseenCalls::Part& part) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto place = std::find(parts_.begin(), parts_.end(), &part);
    if (place == parts_.end()) return;
    parts_.erase(place);
    part.processes_after = processes();
    part.counts = false;
    any_.store(!parts_.empty());
  }

  void note(uint64_t thread, uint64_t calls, bool on_device) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (UnseenCalls::Part* part : parts_) part->threads[thread].add(calls, on_device);
  }

  void note_native(uint64_t calls, bool on_device) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (UnseenCalls::Part* part : parts_) part->native.add(calls, on_device);
  }

  void note_script(const char* name) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (UnseenCalls::Part* part : parts_) part->scripts.emplace(name);
  }

  UnseenCalls::Count count(const UnseenCalls::Part& part) {
    std::lock_guard<std::mutex> lock(mutex_);
    UnseenCalls::Count all;
    for (const auto& [number, thread] : part.threads) {
      ++all.threads;
      all.calls += thread.calls;
      all.calls_on_device += thread.on_device;
    }
    all.native_calls = part.native.calls;
    all.native_calls_on_device = part.native.on_device;
    all.scripts = part.scripts.size();
    all.processes = (part.counts ? processes() : part.processes_after) - part.processes_before;
    return all;
  }

  // In a forked child: these are the parent's.
  void forget() {
    parts_.clear();
    any_.store(false);
  }

  void note_process() {
    if (shared_) shared_->fetch_add(1);
  }

 private:
  Watches() {
    keep_free_in_children([]() -> std::mutex& { return get().mutex_; });
    // Of this process and its forks together.
    void* const page =
        ::mmap(nullptr, sizeof *shared_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    if (page != MAP_FAILED) shared_ = new (page) std::atomic<uint64_t>(0);
  }

  uint64_t processes() const { return shared_ ? shared_->load() : 0; }

  static inline std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<UnseenCalls::Part*> parts_;
  std::atomic<uint64_t>* shared_ = nullptr;  // nullptr: the system has no room for a page; no process is counted
};

namespace {

thread_local bool tl_never_counts = false;
thread_local int tl_known_forks = 0;

bool on_device(const at::RecordFunction& call) {
  for (const c10::IValue& input : call.inputs()) {
    if (input.isTensor() && input.toTensor().defined()) {
      const c10::Device device = input.toTensor().device();
      if (!device.is_cpu() && !device.is_meta()) return true;
    }
  }
  return false;
}

void note(const at::RecordFunction& call, uint64_t thread, uint64_t calls) {
  // Tools' own calls, and inner calls of an operator that they follow.
  if (c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) return;
  Watches::get().note(thread, calls, on_device(call));
}

// Of a forked process: its first operator.
thread_local at::CallbackHandle tl_first_call = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> note_first_call(const at::RecordFunction& /*call*/) {
  const at::CallbackHandle own = std::exchange(tl_first_call, at::INVALID_CALLBACK_HANDLE);
  if (own == at::INVALID_CALLBACK_HANDLE) return nullptr;
  at::removeCallback(own);
  Watches::get().note_process();
  return nullptr;
}

std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction& call);

// The number of the CountedThread that this thread is, or works for (torch gives it that thread's callbacks); 0: none.
uint64_t counted_thread() {
  const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
  const auto own = std::find_if(callbacks.begin(), callbacks.end(),
                                [](const auto& entry) { return entry.callback_.start() == &count_one; });
  return own == callbacks.end() ? 0 : own->handle_;
}

std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction& call) {
  constexpr uint64_t kCounted = uint64_t{1} << 63;  // torch's own numbers of threads are small
  if (Watches::any()) note(call, kCounted | counted_thread(), 1);
  return nullptr;
}

// An operator that makes elements of elements. Not in a compiler's trace, and no collective, whose function is seen.
bool computes(const at::RecordFunction& call) {
  const std::string_view name = call.name(), base = base_name(name);
  bool takes_tensors = false, is_left_out = is_metadata_op(name);
  const auto look = [&](const at::Tensor& tensor) {
    takes_tensors = true;
    is_left_out = is_left_out || (tensor.defined() && is_of_trace(tensor));
  };
  for (const c10::IValue& input : call.inputs()) {
    is_left_out = is_left_out || input.isObject();  // a process group
    if (input.isTensor()) look(input.toTensor());
    if (!input.isTensorList()) continue;
    for (const at::Tensor& tensor : input.toTensorVector()) look(tensor);
  }
  for (const OpTrait trait : {OpTrait::kMoves, OpTrait::kReadsValue, OpTrait::kGivesData, OpTrait::kLikeFactory,
                              OpTrait::kChangesMemory, OpTrait::kUninitializedResult, OpTrait::kRunsUnasked}) {
    is_left_out = is_left_out || has_trait(base, trait);
  }
  const auto schema = call.operator_schema();
  return takes_tensors && !is_left_out && schema && !gives_views(*schema);
}

std::unique_ptr<at::ObserverContext> count_sample(const at::RecordFunction& call) {
  if (!Watches::any() || tl_never_counts) return nullptr;
  if (follows_scopes()) {
    const bool is_ours = c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey) || Unobserved::is_on();
    // Under a mode of the dispatcher compilers trace: their functions may be on tensors that show no sign of it.
    const bool is_traced = c10::impl::TorchDispatchModeTLS::any_modes_set();
    if (!is_ours && !is_traced && is_outside_torch_functions() && !is_in_backward() && computes(call)) {
      Watches::get().note_native(UnseenCalls::kOneOf, on_device(call));
    }
    return nullptr;
  }
  if (counted_thread() != 0) return nullptr;
  note(call, at::RecordFunction::currentThreadId(), UnseenCalls::kOneOf);
  return nullptr;
}

// Under the name of `defaults` torch computes default arguments while it compiles.
std::unique_ptr<at::ObserverContext> note_script(const at::RecordFunction& call) {
  if (Watches::any() && std::string_view(call.name()) != "defaults" &&
      !c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) {
    Watches::get().note_script(call.name());
  }
  return nullptr;
}

at::RecordFunctionCallback of_operators(at::RecordFunctionCallback::StartCallback start) {
  return at::RecordFunctionCallback(start).needsInputs(true).scopes({at::RecordScope::FUNCTION});
}

}  // namespace

UnseenCalls::UnseenCalls() : part_(std::make_unique<Part>()) {
  static const bool registered = [] {
    at::addGlobalCallback(of_operators(&count_sample).samplingProb(1.0 / kOneOf));
    at::addGlobalCallback(at::RecordFunctionCallback(&note_script).scopes({at::RecordScope::TORCHSCRIPT_FUNCTION}));
    return true;
  }();
  static_cast<void>(registered);
  Watches::get().add(*part_);
}

UnseenCalls::~UnseenCalls() {
  end();
}

void UnseenCalls::end() {
  Watches::get().remove(*part_);
}

UnseenCalls::Count UnseenCalls::count() const {
  return Watches::get().count(*part_);
}

bool CountedThread::is_wanted() {
  return Watches::any();
}

CountedThread::CountedThread(bool counts)
    : callback_(counts ? at::addThreadLocalCallback(of_operators(&count_one)) : at::INVALID_CALLBACK_HANDLE) {
  tl_never_counts = !counts;
}

CountedThread::~CountedThread() {
  if (callback_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(callback_);
}

KnownFork::KnownFork() {
  ++tl_known_forks;
}

KnownFork::~KnownFork() {
  if (tl_known_forks > 0) --tl_known_forks;
}

void unseen_process_begins(bool any_hook_went_on) {
  const bool unseen = Watches::any() && std::exchange(tl_known_forks, 0) == 0;
  if (Watches::any()) Watches::get().forget();
  if (!unseen) return;
  if (any_hook_went_on) return Watches::get().note_process();  // its calls are followed, by some of the tools
  // Of the thread alone: the locks of torch's global callbacks may be a parent's thread's for ever.
  tl_first_call = at::addThreadLocalCallback(of_operators(&note_first_call));
}

}  // namespace op_tools
