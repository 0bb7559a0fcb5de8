#include "calls/call_meta.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <torch/version.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

using Form = JsonWriter::Form;

void add_tensors(JsonWriter& json, std::string_view key, const std::vector<TensorMeta>& tensors) {
  json.begin_array(Form::kLines, key);
  for (const TensorMeta& tensor : tensors) {
    json.begin_object(Form::kOneLine);
    json.add("shape", tensor.shape);
    json.add("dtype", torch_name(tensor.dtype));
    json.add("device", tensor.device.str());
    json.add("layout", torch_name(tensor.layout));
    json.add("requires_grad", tensor.requires_grad);
    json.add("is_leaf", tensor.is_leaf);
    if (tensor.storage >= 0) {
      json.add("stride", tensor.stride);
      json.add("storage", tensor.storage);
      json.add("offset", tensor.offset);
    }
    json.end();
  }
  json.end();
}

void add_state(JsonWriter& json, const ProgramState& state) {
  json.begin_object(Form::kOneLine, "state");
  if (state.grad_enabled) json.add("grad_enabled", *state.grad_enabled);
  json.add("inference_mode", state.inference_mode);
  json.begin_object(Form::kOneLine, "autocast");
  for (const auto& [type, dtype] : state.autocast) {
    json.add(c10::DeviceTypeName(type, /*lower_case=*/true), torch_name(dtype));
  }
  json.end();
  json.add("autocast_cache", state.autocast_cache);
  const ProcessState& process = state.process;
  if (process.default_dtype) json.add("default_dtype", torch_name(*process.default_dtype));
  if (state.num_threads) json.add("num_threads", *state.num_threads);
  if (process.deterministic) json.add("deterministic", *process.deterministic);
  if (process.float32_matmul_precision) {
    json.add("float32_matmul_precision", precision_name(*process.float32_matmul_precision));
  }
  if (process.cudnn_tf32) json.add("cudnn_tf32", *process.cudnn_tf32);
  json.end();
}

void add_unsupported(JsonWriter& json, const std::vector<Note>& notes) {
  json.begin_array(Form::kLines, "unsupported");
  for (const Note& note : notes) {
    json.begin_object(Form::kOneLine);
    json.add("where", note.where);
    json.add("type", note.type);
    json.add("why", note.why);
    json.end();
  }
  json.end();
}

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
  const std::string_view base = base_name(op_name);
  if (state.cudnn_tf32.value_or(false) && has_trait(base, OpTrait::kByCudnn)) return true;
  const auto precision = state.float32_matmul_precision.value_or(at::Float32MatmulPrecision::HIGHEST);
  return precision != at::Float32MatmulPrecision::HIGHEST && has_trait(base, OpTrait::kSumsProducts);
}

const char* precision_name(at::Float32MatmulPrecision precision) {
  for (const auto& [one, name] : kPrecisions) {
    if (one == precision) return name;
  }
  return "highest";
}

at::Float32MatmulPrecision precision_from_name(std::string_view name) {
  for (const auto& [precision, one] : kPrecisions) {
    if (one == name) return precision;
  }
  throw Error("'" + std::string(name) + "' is no float32_matmul_precision: highest, high, medium");
}

std::string CallMeta::to_json() const {
  std::string text;
  JsonWriter json(text);
  json.begin_object(Form::kLines);
  json.add("format", 1);
  json.add("name", name);
  json.add("level", to_string(level));
  json.add("id", id);
  json.add("step", step);
  json.add("rank", rank);
  json.add("pid", getpid());
  if (!schema.empty()) json.add("schema", schema);
  if (!aten_name.empty()) json.add("aten", aten_name);
  if (!module.empty()) {
    json.add("module", without_model(module));
    json.add("model", std::string_view(module).substr(0, module.find('.')));
  }
  if (!error.empty()) json.add("error", error);
  if (identity) json.add("identity", true);
  add_tensors(json, "inputs", inputs);
  add_tensors(json, "outputs", outputs);
  add_state(json, state);
  json.add("rng_consumed", random);
  json.begin_array(Form::kLines, "stack");
  for (const std::string& line : stack) json.add(line);
  json.end();
  if (!unsupported.empty()) add_unsupported(json, unsupported);
  json.add("time", time);
  json.add("torch", TORCH_VERSION);
  json.add("op_tools", version());
  json.end();
  return text;
}

}  // namespace op_tools
