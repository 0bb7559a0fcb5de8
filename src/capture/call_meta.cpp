#include "capture/call_meta.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "hooks/module_path.h"
#include "hooks/version.h"

namespace op_tools {
namespace {

using nlohmann::json;

json facts_json(const std::vector<TensorFacts>& tensors) {
  json list = json::array();
  for (const TensorFacts& facts : tensors) {
    json item = {{"shape", at::IntArrayRef(facts.shape).vec()},
                 {"dtype", torch_name(facts.dtype)},
                 {"device", facts.device.str()},
                 {"layout", torch_name(facts.layout)},
                 {"requires_grad", facts.requires_grad},
                 {"is_leaf", facts.is_leaf}};
    if (facts.storage >= 0) {
      item["stride"] = at::IntArrayRef(facts.stride).vec();
      item["storage"] = facts.storage;
      item["offset"] = facts.offset;
    }
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

ProgramState ProgramState::of(const OpCall& call) {
  ProgramState state;
  state.grad_enabled = call.grad_enabled;
  state.inference_mode = c10::InferenceMode::is_enabled();
  // Autocast is on for a device type when its dispatch key is not excluded. The hook's own guard excludes all of them,
  // so the program's set, kept with the call, is asked.
  for (const at::DeviceType type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    const c10::DispatchKey key = at::autocast::get_autocast_dispatch_key_from_device_type(type);
    if (call.local_keys.excluded_.has(key)) continue;
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

std::string CallMeta::to_json() const {
  json autocast = json::object();
  for (const auto& [type, dtype] : state.autocast) {
    autocast[c10::DeviceTypeName(type, /*lower_case=*/true)] = torch_name(dtype);
  }
  json meta = {
      {"format", 1},
      {"name", name},
      {"level", std::string(to_string(level))},
      {"id", id},
      {"step", step},
      {"rank", rank},
      {"pid", static_cast<int64_t>(getpid())},
      {"inputs", facts_json(inputs)},
      {"outputs", facts_json(outputs)},
      {"state",
       {{"grad_enabled", state.grad_enabled},
        {"inference_mode", state.inference_mode},
        {"autocast", std::move(autocast)},
        {"autocast_cache", state.autocast_cache},
        {"default_dtype", torch_name(state.default_dtype)},
        {"num_threads", state.num_threads},
        {"deterministic", state.deterministic},
        {"float32_matmul_precision", state.float32_matmul_precision}}},
      {"rng_consumed", random},
      {"stack", stack},
      {"time", time},
      {"torch", TORCH_VERSION},
      {"op_tools", std::string(version())},
  };
  if (!schema.empty()) meta["schema"] = schema;
  if (!module.empty()) {
    meta["module"] = std::string(without_model(module));
    meta["model"] = module.substr(0, module.find('.'));
  }
  if (!aten_name.empty()) meta["aten"] = aten_name;
  if (!error.empty()) meta["error"] = error;
  if (identity) meta["identity"] = true;
  json notes = json::array();
  for (const Note& note : unsupported) notes.push_back({{"where", note.where}, {"type", note.type}, {"why", note.why}});
  if (!notes.empty()) meta["unsupported"] = std::move(notes);
  // Texts from the program (an error's, a file's name) may be no valid UTF-8: replaced rather than refused.
  return meta.dump(1, ' ', false, json::error_handler_t::replace);
}

}  // namespace op_tools
