#include "blackbox/blackbox_hook.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "blackbox/blackbox_file.h"
#include "blackbox/stall_watch.h"
#include "hooks/backward_pass.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "tensor/tensor_meta.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

std::atomic<StackDump> g_stack_dump{nullptr};

// The file's string of what `hash` stands for: `text` is asked once per thread.
template <class Text>
StringId string_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, uint64_t hash, Text&& text) {
  const auto [place, is_new] = thread.known.try_emplace(hash, 0);
  if (is_new) place->second = file.intern(text());
  return place->second;
}

StringId string_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, std::string_view text) {
  if (text.empty()) return 0;
  return string_of(file, thread, std::hash<std::string_view>()(text), [&] { return text; });
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

StringId inputs_of(BlackBoxFile& file, BlackBoxFile::Thread& thread, OpCall& call) {
  Signature signature;
  uint64_t devices = 0;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    signature.add(tensor);
    devices = devices * 1031 + static_cast<uint64_t>(tensor.device().type()) * 64 +
              static_cast<uint64_t>(tensor.device().index() + 1);
  });
  return string_of(file, thread, signature.value() ^ (devices * 0x9E3779B97F4A7C15U),
                   [&] { return inputs_text(call); });
}

StringId line_of(BlackBoxFile& file, BlackBoxFile::Thread& thread) {
  const StackLines lines = current_lines(/*most=*/1);
  if (lines.empty()) return 0;
  // The string lives until the process ends, so its address stands for it.
  return string_of(file, thread, reinterpret_cast<uintptr_t>(lines.front()), [&] { return *lines.front(); });
}

double seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

}  // namespace

void set_stack_dump(StackDump dump) {
  g_stack_dump.store(dump);
}

const Columns<BlackBoxRow>& BlackBoxRow::columns() {
  static const Columns<BlackBoxRow> all{
      "BlackBoxRow",
      "A call in the file of OpBlackBox.",
      {
          {"state", &BlackBoxRow::state, "`open`: it had begun and not ended; `ended`; `failed`: the operator raised"},
          {"op", &BlackBoxRow::op, "the operator"},
          {"phase", &BlackBoxRow::phase, "`forward` or `backward`"},
          {"module", &BlackBoxRow::module, "the module that made the call"},
          {"line", &BlackBoxRow::line, "the program's line"},
          {"inputs", &BlackBoxRow::inputs, "dtypes, shapes and devices of the tensors"},
          {"step", &BlackBoxRow::step, "the training step"},
          {"id", &BlackBoxRow::id, "the number of the call"},
          {"thread", &BlackBoxRow::thread, "the thread, as the system numbers it"},
          {"begun", &BlackBoxRow::begun, "seconds since 1970"},
          {"ms", &BlackBoxRow::ms, "how long the program's thread was in it; nothing for an open call"},
      }};
  return all;
}

struct BlackBoxHook::Impl {
  explicit Impl(const ResolvedBlackBoxOptions& options) : options(options), rank(distributed_rank()) {}

  // This process's file; nullptr where it could not be made, which was reported.
  BlackBoxFile* own_file() {
    BlackBoxFile* const now = current.load(std::memory_order_acquire);
    return now && !now->is_parents() ? now : make_file();
  }

  BlackBoxFile* make_file() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (file && !file->is_parents()) return file.get();
    if (!failure.empty()) return nullptr;
    try {
      if (root.empty()) root = claim_run_folder(options.output_dir, "op_blackbox_result", rank);
      const std::string path = root + "/" + std::to_string(::getpid()) + ".blackbox";
      file = std::make_shared<BlackBoxFile>(path, options.calls, rank);
      current.store(file.get(), std::memory_order_release);
      watch_locked();
    } catch (const std::exception& error) {
      failure = error.what();
      log::error("OpBlackBox records nothing: " + failure);
      return nullptr;
    }
    return file.get();
  }

  void watch_locked() {
    if (options.stall <= 0) return;
    const auto limit = static_cast<int64_t>(options.stall * 1e9);
    const auto interval = std::chrono::milliseconds(std::clamp<int64_t>(limit / 4'000'000, 10, 1000));
    // In a forked child the parent's watch has no thread to wait for.
    static_cast<void>(watch.release());
    watch = std::make_unique<StallWatch>(
        interval, [box = file, limit, seen = uint64_t{0}, since = clock_now(), said = uint64_t{0}]() mutable {
          const uint64_t progress = box->progress();
          if (progress != seen) {
            seen = progress;
            since = clock_now();
            return;
          }
          if (clock_now() - since < limit || said == progress) return;
          if (report_stall(*box, clock_now() - since)) said = progress;
        });
  }

  static bool report_stall(BlackBoxFile& box, int64_t waited);

  const ResolvedBlackBoxOptions options;
  const int64_t rank;
  mutable std::mutex mutex;  // guards what follows
  std::string root, failure;
  std::shared_ptr<BlackBoxFile> file;
  std::atomic<BlackBoxFile*> current{nullptr};  // `file`, to be asked without the lock
  std::unique_ptr<StallWatch> watch;
};

// Nothing is asked of the stuck threads: they may hold any lock, Python's too.
bool BlackBoxHook::Impl::report_stall(BlackBoxFile& box, int64_t waited) {
  const BlackBoxFile::Region* const region = box.stuck(clock_now() - waited + 1);
  if (!region) return false;
  const uint64_t depth = region->depth.load(std::memory_order_acquire);
  if (depth == 0) return false;
  const BlackBoxCall call = region->open[depth - 1];
  const std::string path = box.path() + ".stacks";
  std::string text = "OpBlackBox: no call has begun or ended for " + formatted("%.1f", seconds(waited)) +
                     " s: thread " + std::to_string(region->thread) + " is in " + std::string(box.text(call.op));
  if (call.module) text += ", module " + std::string(box.text(call.module));
  if (call.line) text += ", line " + std::string(box.text(call.line));
  const StackDump dump = g_stack_dump.load();
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor >= 0) {
    const std::string title = text + "\n";
    const bool written = ::write(descriptor, title.data(), title.size()) == static_cast<ssize_t>(title.size());
    if (dump && written) dump(descriptor);
    ::close(descriptor);
  }
  log::warn(text + "; op-tools blackbox " + box.path() + " shows the calls, " + path + " has the stacks");
  return true;
}

BlackBoxHook::BlackBoxHook(const ResolvedBlackBoxOptions& options) : impl_(std::make_unique<Impl>(options)) {
  impl_->make_file();
}

BlackBoxHook::~BlackBoxHook() {
  if (impl_->file && impl_->file->is_parents()) static_cast<void>(impl_->watch.release());
}

std::unique_ptr<HookState> BlackBoxHook::before(OpCall& call) {
  BlackBoxFile* const file = impl_->own_file();
  if (!file) {
    call.decline();
    return nullptr;
  }
  BlackBoxFile::Thread& thread = file->thread();
  BlackBoxCall record{};
  record.id = call.id;
  record.step = call.step;
  record.phase = phase_of(call) == Phase::kBackward;
  record.op = string_of(*file, thread, call.name);
  record.inputs = inputs_of(*file, thread, call);
  if (impl_->options.with_modules) record.module = string_of(*file, thread, call.module());
  if (impl_->options.with_stack) record.line = line_of(*file, thread);
  file->begin(thread, record);
  return nullptr;
}

void BlackBoxHook::after(OpCall& call, HookState*) {
  if (BlackBoxFile* const file = impl_->own_file()) file->end(file->thread(), call.id, !call.error.empty());
}

void BlackBoxHook::scope_left() {
  const BlackBoxFile* const file = impl_->own_file();
  if (!file) return;
  file->header().closed.store(1, std::memory_order_release);
  log::debug("OpBlackBox: the last calls of each thread are in " + file->path());
}

BlackBoxResult BlackBoxHook::result() const {
  BlackBoxResult result;
  const BlackBoxFile* const file = impl_->own_file();
  if (!file) return result;
  result.path = file->path();
  result.left_out = file->header().left_out.load();
  const int64_t to_unix = file->header().clock_to_unix;
  const auto text = [&](StringId id) { return std::string(file->text(id)); };
  file->each_call([&](const BlackBoxFile::Region& region, const BlackBoxCall& call, bool is_open) {
    BlackBoxRow& row = result.rows.emplace_back();
    row.state = is_open ? "open" : call.failed ? "failed" : "ended";
    row.op = text(call.op);
    row.phase = to_string(call.phase ? Phase::kBackward : Phase::kForward);
    row.module = text(call.module);
    row.line = text(call.line);
    row.inputs = text(call.inputs);
    row.step = call.step;
    row.id = static_cast<int64_t>(call.id);
    row.thread = static_cast<int64_t>(region.thread);
    row.begun = seconds(call.begin + to_unix);
    if (!is_open) row.ms = static_cast<double>(call.end - call.begin) / 1e6;
  });
  std::stable_sort(result.rows.begin(), result.rows.end(),
                   [](const BlackBoxRow& one, const BlackBoxRow& other) { return one.begun < other.begun; });
  return result;
}

Value BlackBoxHook::report() const {
  const BlackBoxResult all = result();
  return make_dict({{"rows", BlackBoxRow::columns().values(all.rows)},
                    {"path", all.path},
                    {"left_out", static_cast<int64_t>(all.left_out)}});
}

}  // namespace op_tools
