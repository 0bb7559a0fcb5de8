#include "blackbox/blackbox_hook.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/run_folder.h"
#include "blackbox/blackbox_file.h"
#include "blackbox/kept_inputs.h"
#include "blackbox/stall_reports.h"
#include "blackbox/stall_watch.h"
#include "blackbox/stream_marks.h"
#include "coverage/coverage.h"
#include "hooks/backward_pass.h"
#include "hooks/collectives.h"
#include "hooks/signature.h"
#include "tensor/tensor_meta.h"

namespace op_tools {
namespace {

// The file's string for `key`: `text` is asked where the thread does not know it.
template <class Text>
BlackBoxFile::Thread::Known& known_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, uint64_t key, Text&& text) {
  BlackBoxFile::Thread::Known& known = thread.known(key);
  if (known.key != key) known = {key, file.intern(text()), /*is_collective=*/false};
  return known;
}

BlackBoxFile::Thread::Known op_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, const OpCall& call) {
  // At the aten level a name lives until the process ends.
  const uint64_t key =
      call.op ? reinterpret_cast<uintptr_t>(call.name.data()) : std::hash<std::string_view>()(call.name);
  BlackBoxFile::Thread::Known& known = thread.known(key);
  if (known.key != key) known = {key, file.intern(call.name), is_collective(call)};
  return known;
}

// Of a module or a line: such strings live until the process ends, so that their address stands for them. `last`: the
// place of the call before, which is often the same.
StringId place_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, BlackBoxFile::Thread::LastPlace& last,
                  const std::string& place) {
  if (last.place == &place) return last.string;
  const StringId string =
      place.empty() ? 0 : known_of(file, thread, reinterpret_cast<uintptr_t>(&place), [&]() -> std::string_view {
                            return place;
                          }).string;
  last = {&place, string};
  return string;
}

// "float32[64, 10], int64[64] cuda:0"
std::string inputs_text(OpCall& call) {
  std::string text;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    const TensorShape shape = TensorShape::of(tensor);
    if (!text.empty()) text += ", ";
    text += std::string(torch_name(shape.dtype)).substr(sizeof "torch." - 1);
    text += "[";
    for (size_t i = 0; i < shape.shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape.shape[i]);
    text += "]";
    if (!shape.device.is_cpu()) text += " " + shape.device.str();
  });
  return text;
}

// `device`: that of the first input that is not on the CPU, or which an argument names.
InputsId inputs_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, OpCall& call, c10::Device* device) {
  Signature signature;
  uint64_t devices = 0;
  bool any = false;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    any = true;
    signature.add(tensor);
    const c10::Device on = tensor.device();
    if (on.is_cpu()) return;
    if (device->is_cpu()) *device = on;
    devices = devices * 1031 + static_cast<uint64_t>(on.type()) * 64 + static_cast<uint64_t>(on.index() + 1);
  });
  if (!any) {
    *device = call.frame().named_device().value_or(*device);
    // "cuda" is the current device, which tensors name by its number.
    const bool is_elsewhere = !device->is_cpu() && !device->is_meta();
    if (is_elsewhere && !device->has_index() && c10::impl::hasDeviceGuardImpl(device->type())) {
      *device = c10::impl::VirtualGuardImpl(device->type()).getDevice();
    }
    return 0;
  }
  const uint64_t key = (signature.value() ^ (devices * 0x9E3779B97F4A7C15U)) + 1;
  BlackBoxFile::Thread::Known& known = thread.known(key);
  if (known.key != key || !file.is_fresh(known.string)) {
    known = {key, file.describe(key, [&] { return inputs_text(call); }), /*is_collective=*/false};
  }
  return known.string;
}

}  // namespace

struct BlackBoxHook::Impl {
  Impl(const ResolvedBlackBoxOptions& options, int64_t rank) : options(options), rank(rank) {}
  ~Impl() {
    if (!file || !file->is_parents()) return;
    // In a forked child there is no such thread to wait for, and devices may not be spoken to.
    static_cast<void>(watch.release());
    static_cast<void>(marks.release());
  }

  // nullptr: there is none, which was reported, or it is that of the process that this process was forked from. Made by
  // the first call: most forked children run no operator.
  BlackBoxFile* own_file() {
    // Asked at every call: std::call_once takes 70 instructions also when all is done.
    if (!is_made.load(std::memory_order_acquire)) {
      std::call_once(asked, [this] { make(); });
      is_made.store(true, std::memory_order_release);
    }
    return file && !file->is_parents() ? file.get() : nullptr;
  }

  void make() {
    try {
      if (root.empty()) root = claim_run_folder(options.output_dir, "op_blackbox_result", rank);
      const std::string path = root + "/" + std::to_string(::getpid()) + ".blackbox";
      // Beside the tensors' bytes the files of a call have their own form, its line and its module.
      const int64_t bytes = options.inputs > 0 ? (options.inputs_mb << 20) + (64 << 10) : 0;
      const BlackBoxFile::Size size{options.calls, options.inputs, bytes};
      file = std::make_unique<BlackBoxFile>(path, size, rank, parent);
    } catch (const std::exception& error) {
      log::error(std::string("OpBlackBox records nothing: ") + error.what());
      return;
    }
    if (options.inputs > 0) kept = std::make_unique<KeptInputs>(*file, options, rank);
    marks = std::make_unique<StreamMarks>(*file, options.marks);
    reports = std::make_unique<StallReports>(*file, *marks, options.stall);
    watch = std::make_unique<StallWatch>(reports->interval(), [this] { reports->check(); });
  }

  void note_collective(OpCall& call, BlackBoxCall& record) {
    const ProcessGroupOfCall group = process_group_of(call);
    // A process that the program spawned has no RANK in its environment.
    if (group.rank) file->header().rank = static_cast<uint32_t>(*group.rank);
    record.group = file->intern(group.name);
    record.reduction = file->intern(reduction_and_root_of(call));
    const std::lock_guard lock(mutex);
    record.number = ++collectives[record.group];
  }

  const ResolvedBlackBoxOptions options;
  const int64_t rank;
  std::string root;     // the folder of the file; empty: none yet
  uint32_t parent = 0;  // the process that this process was forked from
  std::once_flag asked;
  std::atomic<bool> is_made{false};
  std::unique_ptr<BlackBoxFile> file;
  std::unique_ptr<KeptInputs> kept;  // nullptr: no inputs are stored
  std::unique_ptr<StreamMarks> marks;
  std::mutex mutex;                                    // guards the next
  std::unordered_map<StringId, uint32_t> collectives;  // by process group
  std::unique_ptr<StallReports> reports;
  std::unique_ptr<StallWatch> watch;  // asks the above: ends before them
};

BlackBoxHook::BlackBoxHook(const ResolvedBlackBoxOptions& options)
    : impl_(std::make_unique<Impl>(options, distributed_rank())) {
  impl_->own_file();
}
BlackBoxHook::~BlackBoxHook() = default;

bool BlackBoxHook::begin_in_child() {
  if (impl_->root.empty()) return false;
  const Impl& parents = *impl_.release();  // NOLINT: its locks and threads are those of the parent
  impl_ = std::make_unique<Impl>(parents.options, parents.rank);
  impl_->root = parents.root;
  impl_->parent = static_cast<uint32_t>(::getppid());
  return true;
}

std::unique_ptr<HookState> BlackBoxHook::before(OpCall& call) {
  BlackBoxFile* const file = impl_->own_file();
  if (!file) {
    call.decline();
    return nullptr;
  }
  BlackBoxFile::Thread& thread = file->thread();
  const BlackBoxFile::Thread::Known op = op_of(*file, thread, call);
  c10::Device device = c10::kCPU;
  BlackBoxCall& record = file->next(thread);
  record.id = call.id;
  record.step = call.step;
  record.phase = phase_of(call) == Phase::kBackward;
  record.op = op.string;
  record.inputs = inputs_of(*file, thread, call, &device);
  if (!device.is_cpu()) record.stream = impl_->marks->current(device);
  if (op.is_collective) impl_->note_collective(call, record);
  call.find_place(impl_->options.with_stack, impl_->options.with_modules);
  if (impl_->options.with_modules) record.module = place_of(*file, thread, thread.module, call.module());
  if (impl_->options.with_stack) record.line = place_of(*file, thread, thread.line, call.line());
  if (!impl_->kept || !impl_->kept->wants(call)) {
    file->begin(thread, record);
    return nullptr;
  }
  // The call is in the file before its inputs are copied, which may wait for a device that hangs.
  record.kept = Kept::kCopying;
  file->begin(thread, record);
  record.kept = impl_->kept->keep(call);
  return nullptr;
}

void BlackBoxHook::after(OpCall& call, HookState*) {
  BlackBoxFile* const file = impl_->own_file();
  if (!file) return;
  const uint8_t stream = file->end(file->thread(), call.id, !call.error.empty());
  if (stream) impl_->marks->launched(stream);
  if (impl_->kept) impl_->kept->ended(call.id);
}

void BlackBoxHook::scope_left() {
  const BlackBoxFile* const file = impl_->file.get();
  if (!file || file->is_parents()) return;
  file->header().closed.store(1, std::memory_order_release);
  log::debug("OpBlackBox: the last calls of each thread are in " + file->path());
}

BlackBoxResult BlackBoxHook::result() const {
  BlackBoxResult result;
  const BlackBoxFile* const file = impl_->file.get();  // a child that has made no call has none
  if (!file || file->is_parents()) return result;
  result.path = file->path();
  BlackBoxContent content = read_black_box(file->bytes(), file->path());
  result.left_out = content.left_out;
  result.rows = std::move(content.rows);
  return result;
}

void BlackBoxHook::add_coverage(Coverage& account) const {
  const BlackBoxFile* const file = impl_->file.get();
  if (file && !file->is_parents()) account.lost[Loss::kNoRoom] += file->header().left_out.load();
}

Value BlackBoxHook::report() const {
  const BlackBoxResult all = result();
  return make_dict({{"rows", BlackBoxRow::columns().values(all.rows)},
                    {"path", all.path},
                    {"left_out", static_cast<int64_t>(all.left_out)}});
}

}  // namespace op_tools
