// meta.json, both ways: the keys and their order are those of the lists of fields (CallMeta::fields, ...).
#include <c10/core/ScalarType.h>
#include <torch/version.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "calls/call_meta.h"
#include "hooks/module_path.h"
#include "pth/pth.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

using nlohmann::json;
using Form = JsonWriter::Form;
constexpr int kFormat = 1;

// `in_memory`: with the place in a storage.
template <class Self, class Visit>
void tensor_fields(Self& tensor, bool in_memory, Visit&& visit) {
  visit("shape", tensor.shape);
  visit("dtype", tensor.dtype);
  visit("device", tensor.device);
  visit("layout", tensor.layout);
  visit("requires_grad", tensor.requires_grad);
  visit("is_leaf", tensor.is_leaf);
  if (!in_memory) return;
  visit("stride", tensor.stride);
  visit("storage", tensor.storage);
  visit("offset", tensor.offset);
}

template <class Self, class Visit>
void note_fields(Self& note, Visit&& visit) {
  visit("where", note.where);
  visit("type", note.type);
  visit("why", note.why);
}

// Members of the object that is open. A text that is empty, a value that is not known and an empty list of notes are
// left out.
struct ToJson {
  JsonWriter& json;

  template <class T>
  void operator()(const char* key, const T& value) const {
    put(key, value);
  }

  template <class T>
  requires std::is_arithmetic_v<T>
  void put(const char* key, T number) const { json.add(key, number); }
  template <class T>
  void put(const char* key, const std::optional<T>& value) const {
    if (value) put(key, *value);
  }
  void put(const char* key, const std::string& text) const {
    if (!text.empty()) json.add(key, text);
  }
  void put(const char* key, const at::DimVector& numbers) const { json.add(key, numbers); }
  void put(const char* key, c10::ScalarType dtype) const { json.add(key, torch_name(dtype)); }
  void put(const char* key, c10::Layout layout) const { json.add(key, torch_name(layout)); }
  void put(const char* key, c10::Device device) const { json.add(key, device.str()); }
  void put(const char* key, Level level) const { json.add(key, to_string(level)); }
  void put(const char* key, at::Float32MatmulPrecision precision) const { json.add(key, precision_name(precision)); }
  void put(const char* key, const std::vector<std::string>& lines) const {
    json.begin_array(Form::kLines, key);
    for (const std::string& line : lines) json.add(line);
    json.end();
  }
  void put(const char* key, const std::vector<TensorMeta>& tensors) const {
    json.begin_array(Form::kLines, key);
    for (const TensorMeta& tensor : tensors) {
      json.begin_object(Form::kOneLine);
      tensor_fields(tensor, tensor.storage >= 0, *this);
      json.end();
    }
    json.end();
  }
  void put(const char* key, const std::vector<Note>& notes) const {
    if (notes.empty()) return;
    json.begin_array(Form::kLines, key);
    for (const Note& note : notes) {
      json.begin_object(Form::kOneLine);
      note_fields(note, *this);
      json.end();
    }
    json.end();
  }
  void put(const char* key, const c10::SmallVector<Autocast, 2>& autocast) const {
    json.begin_object(Form::kOneLine, key);
    for (const auto& [type, dtype] : autocast) put(c10::DeviceTypeName(type, /*lower_case=*/true).c_str(), dtype);
    json.end();
  }
  void put(const char* /*key*/, const ProcessState& process) const { ProcessState::fields(process, *this); }
  void put(const char* key, const ProgramState& state) const {
    json.begin_object(Form::kOneLine, key);
    ProgramState::fields(state, *this);
    json.end();
  }
};

// Members of an object; those that it does not have, or has as null, stay as they are.
struct FromJson {
  const json& object;

  template <class T>
  void operator()(const char* key, T& into) const {
    if constexpr (std::is_same_v<T, ProcessState>) {
      ProcessState::fields(into, *this);
    } else {
      const auto member = object.find(key);
      if (member != object.end() && !member->is_null()) get(*member, into);
    }
  }

  template <class T>
  requires std::is_arithmetic_v<T>
  static void get(const json& value, T& into) { into = value.get<T>(); }
  template <class T>
  static void get(const json& value, std::optional<T>& into) {
    get(value, into.emplace());
  }
  static void get(const json& value, std::string& into) { into = value.get<std::string>(); }
  static void get(const json& value, at::DimVector& into) {
    const auto numbers = value.get<std::vector<int64_t>>();
    into.assign(numbers.begin(), numbers.end());
  }
  static void get(const json& value, c10::ScalarType& into) {
    const auto name = value.get<std::string>();
    const auto dtype = dtype_from_name(name);
    if (!dtype) throw Error("'" + name + "' is no dtype");
    into = *dtype;
  }
  static void get(const json& value, c10::Layout& into) {
    if (const auto layout = layout_from_name(value.get<std::string>())) into = *layout;
  }
  static void get(const json& value, c10::Device& into) { into = recorded_device(value.get<std::string>()); }
  static void get(const json& value, Level& into) { into = level_from_string(value.get<std::string>()); }
  static void get(const json& value, at::Float32MatmulPrecision& into) {
    into = precision_from_name(value.get<std::string>());
  }
  static void get(const json& value, std::vector<std::string>& into) { into = value.get<std::vector<std::string>>(); }
  static void get(const json& list, std::vector<TensorMeta>& into);
  static void get(const json& list, std::vector<Note>& into) {
    for (const json& note : list) note_fields(into.emplace_back(), FromJson{note});
  }
  static void get(const json& object, c10::SmallVector<Autocast, 2>& into) {
    for (const auto& [device, dtype] : object.items()) {
      Autocast& autocast = into.emplace_back();
      autocast.device = recorded_device(device).type();
      get(dtype, autocast.dtype);
    }
  }
  static void get(const json& object, ProgramState& into) {
    ProgramState::fields(into, FromJson{object});
    if (into.num_threads && (*into.num_threads < 1 || *into.num_threads > 4096)) {
      throw Error("num_threads is " + std::to_string(*into.num_threads));
    }
  }
};

// A tensor that is not defined has no dtype, nor has a tensor whose dtype only another torch knows.
struct TensorFromJson {
  const json& object;

  template <class T>
  void operator()(const char* key, T& into) const {
    FromJson{object}(key, into);
  }
  void operator()(const char* key, c10::ScalarType& into) const {
    if (const auto dtype = dtype_from_name(object.value(key, ""))) into = *dtype;
  }
};

void FromJson::get(const json& list, std::vector<TensorMeta>& into) {
  for (const json& tensor : list) tensor_fields(into.emplace_back(), /*in_memory=*/true, TensorFromJson{tensor});
}

// The path of a module stands in two members: the class of the model, and the path below it.
void add_module(JsonWriter& json, const std::string& path) {
  if (path.empty()) return;
  json.add("module", without_model(path));
  json.add("model", std::string_view(path).substr(0, path.find('.')));
}

std::string module_in(const json& object) {
  std::string model, path;
  FromJson{object}("model", model);
  FromJson{object}("module", path);
  return model.empty() || path.empty() ? model : model + "." + path;
}

}  // namespace

std::string CallMeta::to_json() const {
  std::string text;
  JsonWriter json(text);
  json.begin_object(Form::kLines);
  json.add("format", kFormat);
  fields(*this, ToJson{json});
  add_module(json, module);
  json.add("pid", getpid());
  json.add("torch", TORCH_VERSION);
  json.add("op_tools", version());
  json.end();
  return text;
}

CallMeta CallMeta::from_json(std::string_view text) {
  try {
    const json object = json::parse(text);
    if (!object.is_object()) throw Error("not a JSON object");
    int format = kFormat;
    FromJson{object}("format", format);
    if (format != kFormat) {
      throw Error("format " + std::to_string(format) + " is of a newer op_tools; this one reads format 1");
    }
    CallMeta meta;
    meta.level = Level::kTorch;  // of files of other programs
    fields(meta, FromJson{object});
    meta.module = module_in(object);
    return meta;
  } catch (const json::exception& error) {
    throw Error(std::string("not the JSON expected: ") + error.what());
  } catch (const c10::Error& error) {  // a device that torch does not know
    throw Error(error.what_without_backtrace());
  }
}

}  // namespace op_tools
