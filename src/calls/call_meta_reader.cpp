#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "calls/call_meta.h"
#include "pth/pth.h"

namespace op_tools {
namespace {

using nlohmann::json;

template <class T>
std::optional<T> optional_field(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

template <class T>
void read(const json& object, const char* key, T& into) {
  if (auto value = optional_field<T>(object, key)) into = std::move(*value);
}

c10::ScalarType dtype_from(const std::string& text) {
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw Error("'" + text + "' is no dtype");
}

at::DimVector dims(const json& object, const char* key) {
  const auto numbers = optional_field<std::vector<int64_t>>(object, key).value_or(std::vector<int64_t>());
  return at::DimVector(numbers.begin(), numbers.end());
}

std::vector<TensorMeta> tensors(const json& list) {
  std::vector<TensorMeta> tensors;
  for (const json& object : list) {
    TensorMeta& tensor = tensors.emplace_back();
    tensor.shape = dims(object, "shape");
    tensor.stride = dims(object, "stride");
    if (const auto dtype = dtype_from_name(object.value("dtype", ""))) tensor.dtype = *dtype;
    tensor.device = recorded_device(object.value("device", "cpu"));
    if (const auto layout = layout_from_name(object.value("layout", ""))) tensor.layout = *layout;
    read(object, "requires_grad", tensor.requires_grad);
    read(object, "is_leaf", tensor.is_leaf);
    read(object, "storage", tensor.storage);
    read(object, "offset", tensor.offset);
  }
  return tensors;
}

ProgramState state_from(const json& object) {
  ProgramState state;
  state.grad_enabled = optional_field<bool>(object, "grad_enabled");
  read(object, "inference_mode", state.inference_mode);
  read(object, "autocast_cache", state.autocast_cache);
  const json autocast = object.value("autocast", json::object());
  for (const auto& [device, dtype] : autocast.items()) {
    state.autocast.push_back({recorded_device(device).type(), dtype_from(dtype.get<std::string>())});
  }
  state.num_threads = optional_field<int>(object, "num_threads");
  if (state.num_threads && (*state.num_threads < 1 || *state.num_threads > 4096)) {
    throw Error("num_threads is " + std::to_string(*state.num_threads));
  }
  if (const auto dtype = optional_field<std::string>(object, "default_dtype")) {
    state.process.default_dtype = dtype_from(*dtype);
  }
  state.process.deterministic = optional_field<bool>(object, "deterministic");
  if (const auto precision = optional_field<std::string>(object, "float32_matmul_precision")) {
    state.process.float32_matmul_precision = precision_from_name(*precision);
  }
  state.process.cudnn_tf32 = optional_field<bool>(object, "cudnn_tf32");
  return state;
}

void read_module(const json& object, CallMeta& meta) {
  const auto model = optional_field<std::string>(object, "model");
  if (!model) return;
  const std::string path = optional_field<std::string>(object, "module").value_or("");
  meta.module = path.empty() ? *model : *model + "." + path;
}

CallMeta meta_from(const json& object) {
  CallMeta meta;
  read(object, "name", meta.name);
  meta.level = level_from_string(optional_field<std::string>(object, "level").value_or("torch"));
  read(object, "id", meta.id);
  read(object, "step", meta.step);
  read(object, "rank", meta.rank);
  read(object, "schema", meta.schema);
  read(object, "aten", meta.aten_name);
  read_module(object, meta);
  read(object, "error", meta.error);
  read(object, "identity", meta.identity);
  meta.inputs = tensors(object.value("inputs", json::array()));
  meta.outputs = tensors(object.value("outputs", json::array()));
  meta.state = state_from(object.value("state", json::object()));
  read(object, "rng_consumed", meta.random);
  read(object, "stack", meta.stack);
  for (const json& note : object.value("unsupported", json::array())) {
    meta.unsupported.push_back({note.value("where", ""), note.value("type", ""), note.value("why", "")});
  }
  read(object, "time", meta.time);
  return meta;
}

}  // namespace

CallMeta CallMeta::from_json(std::string_view text) {
  try {
    const json object = json::parse(text);
    if (!object.is_object()) throw Error("not a JSON object");
    const int format = optional_field<int>(object, "format").value_or(1);
    if (format != 1) {
      throw Error("format " + std::to_string(format) + " is of a newer op_tools; this one reads format 1");
    }
    return meta_from(object);
  } catch (const json::exception& error) {
    throw Error(std::string("not the JSON expected: ") + error.what());
  } catch (const c10::Error& error) {  // a device that torch does not know
    throw Error(error.what_without_backtrace());
  }
}

}  // namespace op_tools
