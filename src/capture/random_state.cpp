#include "capture/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace op_tools {
namespace {

// The CPU generator's state as plain memory: get_state() would allocate a tensor for each of a billion calls.
struct CpuState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static CpuState read() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* cpu = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> lock(generator.mutex());
    return {cpu->engine().data(), cpu->next_float_normal_sample(), cpu->next_double_normal_sample()};
  }

  void write() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* cpu = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> lock(generator.mutex());
    at::mt19937 copy;
    copy.set_data(engine);
    cpu->set_engine(copy);
    cpu->set_next_float_normal_sample(next_float);
    cpu->set_next_double_normal_sample(next_double);
  }

  bool operator==(const CpuState& other) const {
    return engine.left_ == other.engine.left_ && engine.next_ == other.engine.next_ &&
           engine.seed_ == other.engine.seed_ && next_float == other.next_float && next_double == other.next_double &&
           engine.state_ == other.engine.state_;
  }

  at::Tensor as_tensor() const {
    at::CPUGeneratorImpl generator;
    at::mt19937 copy;
    copy.set_data(engine);
    generator.set_engine(copy);
    generator.set_next_float_normal_sample(next_float);
    generator.set_next_double_normal_sample(next_double);
    return at::Tensor(generator.get_state());
  }
};

at::Tensor device_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void collect_devices(const Value& value, std::set<std::string>& devices) {
  if (const auto* device = value.get_if<c10::Device>()) {
    if (!device->is_cpu() && device->type() != c10::kMeta) devices.insert(device->str());
  } else if (const auto* tensor = value.get_if<at::Tensor>()) {
    if (!tensor->device().is_cpu() && !tensor->is_meta()) devices.insert(tensor->device().str());
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) collect_devices(item, devices);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) collect_devices(item, devices);
  }
}

}  // namespace

struct RandomWatch::State {
  CpuState cpu;
  std::vector<std::pair<std::string, at::Tensor>> devices;
};

RandomWatch::RandomWatch(const Value& args, const Value& kwargs)
    : state_(std::make_unique<State>(State{CpuState::read(), {}})) {
  std::set<std::string> devices;
  collect_devices(args, devices);
  collect_devices(kwargs, devices);
  for (const std::string& device : devices) {
    try {
      state_->devices.emplace_back(device, device_state(c10::Device(device)));
    } catch (const std::exception&) {
      // A device without generators has no random stream to keep.
    }
  }
}

RandomWatch::~RandomWatch() = default;

Value RandomWatch::moved() const {
  std::vector<std::pair<Value, Value>> items;
  if (!(CpuState::read() == state_->cpu)) items.emplace_back("cpu", state_->cpu.as_tensor());
  for (const auto& [device, before] : state_->devices) {
    if (!same_bytes(before, device_state(c10::Device(device)))) items.emplace_back(device, before);
  }
  if (items.empty()) return {};
  return make_dict(std::move(items));
}

struct CpuStreamKept::State {
  CpuState cpu;
};

CpuStreamKept::CpuStreamKept() : state_(std::make_unique<State>(State{CpuState::read()})) {}

CpuStreamKept::~CpuStreamKept() {
  if (!(CpuState::read() == state_->cpu)) state_->cpu.write();
}

void CpuStreamKept::start_from(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace op_tools
