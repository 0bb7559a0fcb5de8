#include "calls/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hooks/op_traits.h"

namespace op_tools {

namespace {

// The engine where it lies. torch hands it out by value only, 2.5 KB that every call would copy twice to look at them;
// an explicit instantiation may name private members.
const at::mt19937& engine_of(const at::CPUGeneratorImpl& generator);
template <auto kMember>
struct EngineOf {
  friend const at::mt19937& engine_of(const at::CPUGeneratorImpl& generator) { return generator.*kMember; }
};
template struct EngineOf<&at::CPUGeneratorImpl::engine_>;

bool is_same(const at::mt19937& engine, const at::mt19937& other) {
  // Equal memory is an equal state; a difference may be in bytes between the fields.
  static_assert(std::is_trivially_copyable_v<at::mt19937>);
  if (std::memcmp(&engine, &other, sizeof engine) == 0) return true;
  const at::mt19937_data_pod a = engine.data(), b = other.data();
  return a.left_ == b.left_ && a.next_ == b.next_ && a.seed_ == b.seed_ && a.state_ == b.state_;
}

}  // namespace

// The CPU generator's state as plain memory: get_state() would allocate a tensor for each of a billion calls.
struct CpuState {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  CpuState() : CpuState(at::detail::getDefaultCPUGenerator()) {}

  void write() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* cpu = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> lock(generator.mutex());
    cpu->set_engine(engine);
    cpu->set_next_float_normal_sample(next_float);
    cpu->set_next_double_normal_sample(next_double);
  }

  // The generator is in this state now.
  bool is_current() const {
    auto& cpu = *static_cast<at::CPUGeneratorImpl*>(at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl());
    const std::lock_guard<std::mutex> lock(cpu.mutex_);
    return next_float == cpu.next_float_normal_sample() && next_double == cpu.next_double_normal_sample() &&
           is_same(engine, engine_of(cpu));
  }

  at::Tensor as_tensor() const {
    thread_local at::CPUGeneratorImpl generator;  // a new generator is seeded, which takes longer than the rest
    generator.set_engine(engine);
    generator.set_next_float_normal_sample(next_float);
    generator.set_next_double_normal_sample(next_double);
    return at::Tensor(generator.get_state());
  }

 private:
  explicit CpuState(at::Generator generator)
      : CpuState(*static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()),
                 std::lock_guard<std::mutex>(generator.mutex())) {}
  CpuState(at::CPUGeneratorImpl& cpu, const std::lock_guard<std::mutex>&)
      : engine(engine_of(cpu)),
        next_float(cpu.next_float_normal_sample()),
        next_double(cpu.next_double_normal_sample()) {}
};

namespace {

// As long as no random number is drawn, a thread gets the same object each time: no memory for most calls.
std::shared_ptr<const CpuState> cpu_state() {
  thread_local std::shared_ptr<const CpuState> last;
  if (!last || !last->is_current()) last = std::make_shared<const CpuState>();
  return last;
}

at::Tensor device_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_device_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Besides the CPU's.
bool has_generator(c10::Device device) {
  return !device.is_cpu() && device.type() != c10::kMeta;
}

// Devices whose default generators a call may draw from. False: a generator is among the arguments.
bool collect_devices(const Value& value, std::set<std::string>& devices) {
  bool only_default = true;
  if (value.is<Generator>()) {
    only_default = false;
  } else if (const auto* device = value.get_if<c10::Device>()) {
    if (has_generator(*device)) devices.insert(device->str());
  } else if (const auto* tensor = value.get_if<at::Tensor>()) {
    if (has_generator(tensor->device())) devices.insert(tensor->device().str());
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) only_default &= collect_devices(item, devices);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) only_default &= collect_devices(item, devices);
  }
  return only_default;
}

}  // namespace

RandomWatch::RandomWatch(const Value& args, const Value& kwargs) : cpu_(cpu_state()) {
  std::set<std::string> devices;
  sees_all_ = collect_devices(args, devices);
  sees_all_ &= collect_devices(kwargs, devices);
  watch(devices);
}

RandomWatch::RandomWatch(c10::ArrayRef<const at::Tensor*> tensors, c10::ArrayRef<c10::Device> named)
    : cpu_(cpu_state()) {
  std::set<std::string> devices;
  const auto add = [&](c10::Device device) {
    if (has_generator(device)) devices.insert(device.str());
  };
  for (const at::Tensor* tensor : tensors) add(tensor->device());
  for (const c10::Device device : named) add(device);
  watch(devices);
}

void RandomWatch::watch(const std::set<std::string>& devices) {
  for (const std::string& device : devices) {
    try {
      devices_.emplace_back(device, device_state(c10::Device(device)));
    } catch (const std::exception&) {
      sees_all_ = false;  // a device without generators, or that does not show their state
    }
  }
}

Value RandomWatch::moved() const {
  std::vector<std::pair<Value, Value>> items;
  if (!cpu_->is_current()) items.emplace_back("cpu", cpu_->as_tensor());
  for (const auto& [device, before] : devices_) {
    if (!same_bytes(before, device_state(c10::Device(device)))) items.emplace_back(device, before);
  }
  if (items.empty()) return {};
  return make_dict(std::move(items));
}

Value RandomWatch::all() const {
  std::vector<std::pair<Value, Value>> items{{"cpu", cpu_->as_tensor()}};
  for (const auto& [device, before] : devices_) items.emplace_back(device, before);
  return make_dict(std::move(items));
}

const at::Tensor* only_cpu_state(const Value& moved) {
  const auto* dict = moved.get_if<Dict>();
  const Value* state = dict && dict->items->size() == 1 ? find_key(moved, "cpu") : nullptr;
  return state ? state->get_if<at::Tensor>() : nullptr;
}

CpuStreamGuard::CpuStreamGuard() : cpu_(cpu_state()) {}

CpuStreamGuard::~CpuStreamGuard() {
  if (!cpu_->is_current()) cpu_->write();
}

DeviceStreamGuard::DeviceStreamGuard(const Value& states) {
  const auto* dict = states.get_if<Dict>();
  if (!dict) return;
  for (const auto& [key, state] : *dict->items) {
    const auto* name = key.get_if<std::string>();
    const auto* tensor = state.get_if<at::Tensor>();
    if (!name || !tensor || *name == "cpu") continue;
    before_.emplace_back(*name, device_state(c10::Device(*name)));
    set_device_state(c10::Device(*name), *tensor);
  }
}

DeviceStreamGuard::~DeviceStreamGuard() {
  for (const auto& [device, state] : before_) set_device_state(c10::Device(device), state);
}

bool draws_unwatched(OpCall& call, const RandomWatch& watch) {
  if (draws_random_numbers(base_name(call.name), call.args(), call.kwargs())) return true;
  return !watch.sees_all_generators() && call.op && call.op->hasTag(at::Tag::nondeterministic_seeded);
}

void CpuStreamGuard::start_from(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace op_tools
