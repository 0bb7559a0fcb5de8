#include "fallback/redirect_hook.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/options.h"
#include "base/text_table.h"
#include "fallback/cast_rules.h"
#include "fallback/redirect.h"
#include "hooks/call_items.h"
#include "hooks/signature.h"
#include "report/row_file.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

using interceptor::OperatorFrame;

// "The device does not have this": torch's own exception, or that of a kernel that is written in Python, which arrives
// as its text.
bool says_not_implemented(const std::exception& error) {
  constexpr std::string_view kPython = "NotImplementedError";
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
         std::string_view(error.what()).substr(0, kPython.size()) == kPython;
}

}  // namespace

struct RedirectHook::Impl {
  explicit Impl(Plan plan) : plan(std::move(plan)), rules(this->plan.cast) {}

  const Plan plan;
  const CastRules rules;

  // What an admitted name makes of one operator of the dispatcher. `name` outlives the call.
  void run(OpCall& call, std::string_view name);
  // On the device first. True when that is where it ran.
  bool ran_on_device(OpCall& call, OperatorFrame& frame, std::exception_ptr* failure);

  void note_stayed(std::string_view name, std::string_view op, const std::string& why);

  // The file has each once, and at once: the program may crash in this very call.
  void list(const OpCall& call, const CallItem& item);
  Elsewhere elsewhere(std::string_view name) const { return {plan.to_cpu, plan.on_copies, rules.for_op(name)}; }

  mutable std::mutex mutex;
  std::map<std::string, RedirectResult::Row, std::less<>> rows;
  std::set<std::string, std::less<>> reported;
  std::unordered_set<uint64_t> known_on_device;  // signatures of in-place calls that the device has done before
  CallItems items;
  std::unordered_set<uint64_t> listed;
  std::unique_ptr<RowFile> file;

  RedirectResult::Row& row_locked(std::string_view name) {
    auto entry = rows.find(name);
    if (entry == rows.end()) {
      entry = rows.emplace(name, RedirectResult::Row{}).first;
      entry->second.op = name;
      log::info("apply " + std::string(plan.name) + "Hook on " + std::string(name));
    }
    return entry->second;
  }
};

void RedirectHook::Impl::note_stayed(std::string_view name, std::string_view op, const std::string& why) {
  std::string text(op);
  text.append(": ").append(why);
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++row_locked(name).stayed[text];
    first = reported.insert(text).second;
  }
  if (first) log::notice(std::string(plan.name) + " leaves as it is " + text);
}

bool RedirectHook::Impl::ran_on_device(OpCall& call, OperatorFrame& frame, std::exception_ptr* failure) {
  // An operator in place may have done half of its work when it raises: what it changes is copied aside until the
  // device has shown that it can do a call of this kind.
  const bool in_place = changes_inputs(*call.op);
  const uint64_t signature = in_place ? signature_of(call) : 0;
  bool known = false;
  if (in_place) {
    std::lock_guard<std::mutex> lock(mutex);
    known = known_on_device.count(signature) > 0;
  }
  std::vector<c10::IValue> arguments = frame.arguments();
  std::optional<InPlaceBackup> backup;
  if (!known) backup.emplace(*call.op, arguments);
  try {
    frame.proceed();
  } catch (const std::exception& error) {
    if (!backup || !says_not_implemented(error)) throw;
    *failure = std::current_exception();
    frame.set_arguments(std::move(arguments));
    backup->restore();
    return false;
  }
  if (!in_place || known) return true;
  std::lock_guard<std::mutex> lock(mutex);
  known_on_device.insert(signature);
  return true;
}

void RedirectHook::Impl::run(OpCall& call, std::string_view name) {
  auto* const frame = dynamic_cast<OperatorFrame*>(&call.frame());
  if (!frame || !call.op) return call.frame().proceed();
  std::exception_ptr failure;
  if (plan.on_missing && ran_on_device(call, *frame, &failure)) return;

  // ditorch prints inputs and results of an operator.
  const bool prints = compat_ditorch() && log::enabled(log::Level::kInfo);
  const auto print = [&](const char* role, const std::string& values) {
    log::info(formatted("%.40sHook: %-50.200s %s: ", plan.name.data(), std::string(name).c_str(), role) + values);
  };
  if (prints) print("input", describe(call.args()));
  Stopwatch watch(c10::Device(c10::kCPU), /*synchronize=*/false);  // the moves wait for the device
  watch.start();
  const Redirected done = redirect(*call.op, *frame, elsewhere(name));
  if (done.outcome == Redirected::Outcome::kRan) {
    const double milliseconds = watch.stop();
    std::lock_guard<std::mutex> lock(mutex);
    RedirectResult::Row& row = row_locked(name);
    ++row.calls;
    ++row.ran[std::string(call.name)];
    row.bytes += done.bytes;
    row.milliseconds += milliseconds;
    if (prints) print("output", describe(call.result()));
    return;
  }
  if (done.outcome == Redirected::Outcome::kRefused) note_stayed(name, call.name, done.why);
  if (failure) std::rethrow_exception(failure);
  frame->proceed();
}

void RedirectHook::Impl::list(const OpCall& call, const CallItem& item) {
  if (call.level != Level::kAten || !call.op) return;
  const auto* const frame = dynamic_cast<OperatorFrame*>(&const_cast<OpCall&>(call).frame());
  if (!frame || would_redirect(*call.op, *frame, elsewhere(call.name)).outcome != Redirected::Outcome::kRan) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!listed.insert(item.hashes.back()).second) return;
  if (!file) file = std::make_unique<RowFile>(plan.list + "." + std::to_string(distributed_rank()));
  file->put("op", item.op);
  file->put("module", item.module);
  file->put("line", item.line);
  file->put("phase", to_string(item.phase));
  file->put("occurrence", item.occurrence);
  constexpr std::array kColumns{"of_op", "of_line", "of_call"};
  for (size_t i = 0; i < kColumns.size(); ++i) file->put(kColumns[i], item_text(item.hashes[i]));
  file->end_row();
  file->flush();
}

RedirectHook::RedirectHook(Plan plan) : impl_(std::make_unique<Impl>(std::move(plan))) {}
RedirectHook::~RedirectHook() = default;

std::string_view RedirectHook::name() const {
  return impl_->plan.name;
}

// Not for the aten call itself: a Detour, too, needs all operators open.
Wants RedirectHook::wants() const {
  return {.aten_ops = true, .device_values = true, .progress = true};
}

std::unique_ptr<HookState> RedirectHook::before(OpCall& call) {
  // At the aten level, where every call has its own item and the other forms of the call are not asked for.
  if (!impl_->plan.list.empty()) {
    const CallItem item = impl_->items.next(call, call.step);
    impl_->list(call, item);
    if (!impl_->plan.moved || !item.is_in(*impl_->plan.moved)) call.decline();
  }
  return nullptr;
}

void RedirectHook::execute(OpCall& call) {
  if (call.phase == Phase::kBackward) return call.frame().proceed();  // it ran where its forward ran
  // A composite operator that stays (reshape, to) still calls others that need not.
  const auto opened = [](const c10::OperatorHandle& op) {
    return !why_not_redirected(op).empty() && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  };
  if (call.level == Level::kAten && !(call.op && opened(*call.op))) return impl_->run(call, call.name);
  const interceptor::Detour detour([&](const c10::OperatorHandle& op) { return !opened(op); },
                                   [&](OpCall& inner) { impl_->run(inner, call.name); });
  call.frame().proceed();
}

RedirectResult RedirectHook::result() const {
  RedirectResult result;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& [name, row] : impl_->rows) result.rows.push_back(row);
  return result;
}

const Columns<RedirectResult::Row>& RedirectResult::Row::columns() {
  static const Columns<Row> all{
      "RedirectRow",
      "The calls of an operator that were run elsewhere, and those that stayed.",
      {
          {"op", &Row::op, "the operator, as the filter admitted it"},
          {"calls", &Row::calls, "operators of the dispatcher that ran elsewhere: a torch function may make several"},
          {"ran", &Row::ran, "which ones, and how often"},
          {"bytes", &Row::bytes, "moved or cast, both ways"},
          {"milliseconds", &Row::milliseconds, "moves and operators"},
          {"stayed", &Row::stayed, "calls that ran as without the tool, with the reason, and how often"},
      }};
  return all;
}

Value RedirectHook::report() const {
  return make_dict({{"rows", Row::columns().values(result().rows)}});
}

void RedirectHook::scope_left() {
  RedirectResult all = result();
  std::sort(all.rows.begin(), all.rows.end(),
            [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  std::vector<std::vector<std::string>> cells;
  uint64_t calls = 0;
  for (const RedirectResult::Row& row : all.rows) {
    calls += row.calls;
    if (row.calls == 0) continue;
    std::string milliseconds = std::to_string(row.milliseconds);
    milliseconds.resize(milliseconds.find('.') + 4);
    cells.push_back({row.op, std::to_string(row.calls), bytes_text(row.bytes), milliseconds});
  }
  std::string text(impl_->plan.name);
  text += ": " + std::to_string(calls) +
          (impl_->plan.to_cpu      ? " operators ran on the CPU"
           : impl_->plan.on_copies ? " operators ran on copies"
                                   : " operators ran in other dtypes");
  if (!cells.empty()) text += "\n" + text_table({{"op"}, {"calls", true}, {"moved", true}, {"ms", true}}, cells);
  log::notice(text);
}

FallbackHook::FallbackHook(const ResolvedFallbackOptions& options)
    : RedirectHook({.name = kNames.tool,
                    .cast = cast_settings(options.cast),
                    .to_cpu = options.target == FallbackTarget::kCpu,
                    .on_copies = options.target == FallbackTarget::kSame,
                    .on_missing = options.on_missing,
                    .list = options.list_calls,
                    .moved = options.moved_calls()}) {}

DtypeCastHook::DtypeCastHook(const ResolvedDtypeCastOptions& options)
    : RedirectHook({.name = kNames.tool,
                    .cast = cast_settings(options.cast),
                    .to_cpu = false,
                    .list = options.list_calls,
                    .moved = options.moved_calls()}) {}

}  // namespace op_tools
