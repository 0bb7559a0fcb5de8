#include "run_op_from_data/program_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <mutex>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pth/pth.h"

namespace op_tools::replay {
namespace {

using nlohmann::json;

c10::ScalarType dtype_from(const std::string& text) {
  const std::string_view prefix = "torch.";
  const std::string name = text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
  const auto& names = c10::getStringToDtypeMap();
  const auto found = names.find(name);
  if (found == names.end()) throw Error("'" + text + "' is no dtype");
  return found->second;
}

template <class T>
std::optional<T> optional_field(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

constexpr std::pair<at::Float32MatmulPrecision, const char*> kPrecisions[] = {
    {at::Float32MatmulPrecision::HIGHEST, "highest"},
    {at::Float32MatmulPrecision::HIGH, "high"},
    {at::Float32MatmulPrecision::MEDIUM, "medium"},
};

const at::Generator& default_generator(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

}  // namespace

RecordedMeta parse_meta(const std::string& text) {
  RecordedMeta meta;
  try {
    const json object = json::parse(text);
    if (!object.is_object()) throw Error("not a JSON object");
    const int format = optional_field<int>(object, "format").value_or(1);
    if (format != 1) {
      throw Error("format " + std::to_string(format) + " is of a newer op_tools; this one reads format 1");
    }
    if (const auto level = optional_field<std::string>(object, "level")) meta.level = level_from_string(*level);
    meta.error = optional_field<std::string>(object, "error").value_or("");
    meta.identity = optional_field<bool>(object, "identity").value_or(false);
    for (const json& note : object.value("unsupported", json::array())) {
      const std::string where = note.value("where", "");
      if (where.rfind("args", 0) != 0 && where.rfind("kwargs", 0) != 0) continue;  // of the result: the call still runs
      meta.unsupported.push_back(where + ": " + note.value("type", "") + " (" + note.value("why", "") + ")");
    }
    for (const json& input : object.value("inputs", json::array())) {
      meta.input_devices.push_back(recorded_device(input.value("device", "cpu")));
    }
    const json state = object.value("state", json::object());
    meta.grad_enabled = optional_field<bool>(state, "grad_enabled");
    meta.inference_mode = optional_field<bool>(state, "inference_mode").value_or(false);
    meta.autocast_cache = optional_field<bool>(state, "autocast_cache").value_or(true);
    const json autocast = state.value("autocast", json::object());
    for (const auto& [device, dtype] : autocast.items()) {
      meta.autocast.push_back({recorded_device(device).type(), dtype_from(dtype.get<std::string>())});
    }
    meta.num_threads = optional_field<int>(state, "num_threads");
    if (meta.num_threads && (*meta.num_threads < 1 || *meta.num_threads > 4096)) {
      throw Error("num_threads is " + std::to_string(*meta.num_threads));
    }
    if (const auto dtype = optional_field<std::string>(state, "default_dtype")) {
      meta.process.default_dtype = dtype_from(*dtype);
    }
    meta.process.deterministic = optional_field<bool>(state, "deterministic");
    meta.process.float32_matmul_precision = optional_field<std::string>(state, "float32_matmul_precision");
  } catch (const json::exception& error) {
    throw Error(std::string("not the JSON expected: ") + error.what());
  } catch (const c10::Error& error) {  // a device that torch does not know
    throw Error(error.what_without_backtrace());
  }
  return meta;
}

StateGate::StateGate() {
  original_.default_dtype = c10::get_default_dtype_as_scalartype();
  original_.deterministic = at::globalContext().deterministicAlgorithms();
  for (const auto& [precision, name] : kPrecisions) {
    if (at::globalContext().float32MatmulPrecision() == precision) original_.float32_matmul_precision = name;
  }
  current_ = original_;
}

StateGate::~StateGate() {
  apply(original_);
}

void StateGate::apply(const ProcessState& wanted) {
  if (wanted == current_) return;
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(*wanted.default_dtype));
  at::globalContext().setDeterministicAlgorithms(*wanted.deterministic, /*warn_only=*/false);
  at::globalContext().setFloat32MatmulPrecision(*wanted.float32_matmul_precision);
  current_ = wanted;
}

StateGate::Pass::Pass(StateGate& gate, const ProcessState& wanted, bool alone) : together_(gate.mutex_) {
  ProcessState complete = gate.original_;
  if (wanted.default_dtype) complete.default_dtype = wanted.default_dtype;
  if (wanted.deterministic) complete.deterministic = wanted.deterministic;
  if (wanted.float32_matmul_precision) complete.float32_matmul_precision = wanted.float32_matmul_precision;
  if (!alone && gate.current_ == complete) return;
  together_.unlock();
  alone_ = std::unique_lock(gate.mutex_);
  gate.apply(complete);
}

struct ThreadState::Saved {
  std::optional<c10::InferenceMode> inference_mode;
  bool grad_mode = c10::GradMode::is_enabled();
  bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  struct Device {
    c10::DeviceType type;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Device> autocast;
};

ThreadState::ThreadState(const RecordedMeta& meta) : saved_(std::make_unique<Saved>()) {
  if (meta.inference_mode) saved_->inference_mode.emplace(true);
  c10::GradMode::set_enabled(meta.grad_enabled.value_or(true) && !meta.inference_mode);
  for (const Autocast& autocast : meta.autocast) {
    saved_->autocast.push_back({autocast.device, at::autocast::is_autocast_enabled(autocast.device),
                                at::autocast::get_autocast_dtype(autocast.device)});
    at::autocast::set_autocast_enabled(autocast.device, true);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(meta.autocast_cache);
}

ThreadState::~ThreadState() {
  for (const auto& device : saved_->autocast) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  if (!saved_->autocast.empty()) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(saved_->autocast_cache);
  saved_->inference_mode.reset();
  c10::GradMode::set_enabled(saved_->grad_mode);
}

NumThreads::NumThreads(std::optional<int> wanted) : original_(at::get_num_threads()) {
  if (wanted && *wanted != original_) at::set_num_threads(*wanted);
}

NumThreads::~NumThreads() {
  if (at::get_num_threads() != original_) at::set_num_threads(original_);
}

std::set<c10::DeviceType> restore_random_state(const Value& rng, c10::Device device) {
  const auto* states = rng.get_if<Dict>();
  if (!states) throw Error("'rng' is " + describe(rng) + ", expected {device: state}");
  std::set<c10::DeviceType> restored;
  for (const auto& [key, value] : *states->items) {
    const auto* name = key.get_if<std::string>();
    const auto* state = value.get_if<at::Tensor>();
    if (!name || !state) throw Error("'rng' is " + describe(rng) + ", expected {device: state}");
    const c10::Device recorded = recorded_device(*name);
    if (!recorded.is_cpu() && recorded.type() != device.type()) continue;
    at::Generator generator = default_generator(recorded.is_cpu() ? recorded : device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
    restored.insert(recorded.type());
  }
  return restored;
}

void seed_generators(uint64_t seed, c10::Device device) {
  const auto set = [&](at::Generator generator) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  };
  set(default_generator(c10::kCPU));
  if (!device.is_cpu()) set(default_generator(device));
}

}  // namespace op_tools::replay
