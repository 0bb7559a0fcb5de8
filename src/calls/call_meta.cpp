#include "calls/call_meta.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "calls/schema_text.h"
#include "hooks/op_traits.h"

namespace op_tools {
namespace {

constexpr std::pair<at::Float32MatmulPrecision, const char*> kPrecisions[] = {
    {at::Float32MatmulPrecision::HIGHEST, "highest"},
    {at::Float32MatmulPrecision::HIGH, "high"},
    {at::Float32MatmulPrecision::MEDIUM, "medium"},
};

}  // namespace

ProgramState ProgramState::of(const OpCall& call) {
  ProgramState state;
  state.grad_enabled = call.grad_enabled;
  state.inference_mode = c10::InferenceMode::is_enabled();
  // The hook's own guard excludes autocast, so the program's own keys, which the call has, are asked.
  state.autocast = autocast_devices(call.local_keys.excluded_);
  state.autocast_cache = is_autocast_cache_enabled();
  state.num_threads = at::get_num_threads();
  state.process.default_dtype = c10::get_default_dtype_as_scalartype();
  state.process.deterministic = at::globalContext().deterministicAlgorithms();
  state.process.float32_matmul_precision = at::globalContext().float32MatmulPrecision();
  state.process.cudnn_tf32 = at::globalContext().allowTF32CuDNN();
  return state;
}

bool multiplies_in_tf32(std::string_view op_name, const ProcessState& state) {
  const auto precision = state.float32_matmul_precision.value_or(at::Float32MatmulPrecision::HIGHEST);
  return multiplies_in_tf32(base_name(op_name), Tf32Flags{.cudnn = state.cudnn_tf32.value_or(false),
                                                          .matmul = precision != at::Float32MatmulPrecision::HIGHEST});
}

const char* precision_name(at::Float32MatmulPrecision precision) {
  for (const auto& [value, name] : kPrecisions) {
    if (value == precision) return name;
  }
  return "highest";
}

at::Float32MatmulPrecision precision_from_name(std::string_view name) {
  for (const auto& [precision, known_name] : kPrecisions) {
    if (known_name == name) return precision;
  }
  throw Error("'" + std::string(name) + "' is no float32_matmul_precision: highest, high, medium");
}

CallBefore CallBefore::of(OpCall& call) {
  return {ProgramState::of(call), current_lines(), call.module()};
}

CallAfter CallAfter::of(OpCall& call, int64_t rank, bool with_schema) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.position = CallPosition::of(call),
          .name = call.name,
          .error = call.error,
          .rank = rank,
          .schema = with_schema ? &schema_text(call.op, call.name) : nullptr,
          .identity = call.frame().is_identity(),
          .time = std::chrono::duration<double>(now).count()};
}

CallMeta CallMeta::of(CallBefore before, const CallAfter& after) {
  CallMeta meta;
  static_cast<CallPosition&>(meta) = after.position;
  meta.name = after.name;
  meta.error = after.error;
  meta.rank = after.rank;
  if (after.schema) meta.schema = *after.schema;
  meta.identity = after.identity;
  meta.time = after.time;
  meta.state = std::move(before.state);
  for (const std::string* const line : before.stack) meta.stack.push_back(*line);
  meta.module = before.module;
  return meta;
}

}  // namespace op_tools
