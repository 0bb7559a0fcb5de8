#include "calls/call_meta.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <utility>

#include "base/version.h"
#include "hooks/module_path.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

using Form = JsonWriter::Form;

void add_facts(JsonWriter& json, std::string_view key, const std::vector<TensorFacts>& tensors) {
  json.begin_array(Form::kLines, key);
  for (const TensorFacts& facts : tensors) {
    json.begin_object(Form::kOneLine);
    json.add("shape", facts.shape);
    json.add("dtype", torch_name(facts.dtype));
    json.add("device", facts.device.str());
    json.add("layout", torch_name(facts.layout));
    json.add("requires_grad", facts.requires_grad);
    json.add("is_leaf", facts.is_leaf);
    if (facts.storage >= 0) {
      json.add("stride", facts.stride);
      json.add("storage", facts.storage);
      json.add("offset", facts.offset);
    }
    json.end();
  }
  json.end();
}

void add_state(JsonWriter& json, const ProgramState& state) {
  json.begin_object(Form::kOneLine, "state");
  json.add("grad_enabled", state.grad_enabled);
  json.add("inference_mode", state.inference_mode);
  json.begin_object(Form::kOneLine, "autocast");
  for (const auto& [type, dtype] : state.autocast) {
    json.add(c10::DeviceTypeName(type, /*lower_case=*/true), torch_name(dtype));
  }
  json.end();
  json.add("autocast_cache", state.autocast_cache);
  json.add("default_dtype", torch_name(state.default_dtype));
  json.add("num_threads", state.num_threads);
  json.add("deterministic", state.deterministic);
  json.add("float32_matmul_precision", state.float32_matmul_precision);
  json.end();
}

}  // namespace

ProgramState ProgramState::of(const OpCall& call) {
  ProgramState state;
  state.grad_enabled = call.grad_enabled;
  state.inference_mode = c10::InferenceMode::is_enabled();
  // Autocast is on for a device type when its dispatch key is not excluded. The hook's own guard excludes all of them,
  // so the program's set, kept with the call, is asked.
  const c10::DispatchKeySet on = c10::autocast_dispatch_keyset - call.local_keys.excluded_;
  for (const at::DeviceType type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (on.empty()) break;  // as for nearly every call
    if (!on.has(at::autocast::get_autocast_dispatch_key_from_device_type(type))) continue;
    state.autocast.emplace_back(type, at::autocast::get_autocast_dtype(type));
  }
  state.autocast_cache = at::autocast::is_autocast_cache_enabled();
  state.default_dtype = c10::get_default_dtype_as_scalartype();
  state.num_threads = at::get_num_threads();
  state.deterministic = at::globalContext().deterministicAlgorithms();
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      state.float32_matmul_precision = "highest";
      break;
    case at::Float32MatmulPrecision::HIGH:
      state.float32_matmul_precision = "high";
      break;
    case at::Float32MatmulPrecision::MEDIUM:
      state.float32_matmul_precision = "medium";
      break;
  }
  return state;
}

void pack(Packer& to, const ProgramState& state) {
  to.put(static_cast<uint32_t>(state.autocast.size()));
  for (const auto& [device, dtype] : state.autocast) {
    to.put(device);
    to.put(dtype);
  }
  to.put(state.grad_enabled);
  to.put(state.inference_mode);
  to.put(state.autocast_cache);
  to.put(state.default_dtype);
  to.put(state.num_threads);
  to.put(state.deterministic);
  to.put(state.float32_matmul_precision);
}

ProgramState unpacked_state(Unpacker& from) {
  ProgramState state;
  for (auto count = from.get<uint32_t>(); count > 0; --count) {
    const auto device = from.get<at::DeviceType>();
    state.autocast.emplace_back(device, from.get<at::ScalarType>());
  }
  state.grad_enabled = from.get<bool>();
  state.inference_mode = from.get<bool>();
  state.autocast_cache = from.get<bool>();
  state.default_dtype = from.get<at::ScalarType>();
  state.num_threads = from.get<int>();
  state.deterministic = from.get<bool>();
  state.float32_matmul_precision = from.get<const char*>();
  return state;
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
  add_facts(json, "inputs", inputs);
  add_facts(json, "outputs", outputs);
  add_state(json, state);
  json.add("rng_consumed", random);
  json.begin_array(Form::kLines, "stack");
  for (const std::string& line : stack) json.add(line);
  json.end();
  if (!unsupported.empty()) {
    json.begin_array(Form::kLines, "unsupported");
    for (const Note& note : unsupported) {
      json.begin_object(Form::kOneLine);
      json.add("where", note.where);
      json.add("type", note.type);
      json.add("why", note.why);
      json.end();
    }
    json.end();
  }
  json.add("time", time);
  json.add("torch", TORCH_VERSION);
  json.add("op_tools", version());
  json.end();
  return text;
}

}  // namespace op_tools
