#include "sim_device/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "compat/device_capability.h"
#include "sim_device/faults.h"
#include "sim_device/memory.h"
#include "sim_device/queue.h"

namespace op_tools::sim_device {
namespace {

thread_local c10::DeviceIndex device_of_thread = 0;

c10::Device device_at(c10::DeviceIndex index) {
  return {c10::kPrivateUse1, index};
}

c10::DeviceIndex index_or_current(c10::DeviceIndex index) {
  return index < 0 ? device_of_thread : index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const c10::DeviceIndex before = device_of_thread;
  if (index >= 0) set_current_device(index);
  return before;
}

// An event of torch points to a shared event: a queue may reach it after torch destroyed its own.
using EventHandle = std::shared_ptr<Event>;

const EventHandle& event_in(void* event) {
  return *static_cast<EventHandle*>(event);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return in_forked_child() ? 0 : kDevices; }
  // NOLINTNEXTLINE(modernize-use-override): torch asks since 2.9
  compat::DeviceCapability getDeviceCapability(c10::Device /*device*/) const { return {}; }

  c10::Device getDevice() const override { return device_at(device_of_thread); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  c10::Device exchangeDevice(c10::Device device) const override { return device_at(exchange_device(device.index())); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_of_thread = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_queue(index_or_current(device.index())).stream();
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(index_or_current(device.index())));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return pool_queue(index_or_current(device.index())).stream();
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { queue_of(stream).wait(); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    wait_for_device(index_or_current(device));
    late_writes().arrive();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/, c10::EventFlag) const override {
    if (!*event) *event = std::make_unique<EventHandle>(std::make_shared<Event>()).release();
    queue_of(stream).record(event_in(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) queue_of(stream).wait_for(event_in(event));
  }
  bool queryEvent(void* event) const override { return !event || event_in(event)->reached(); }
  void synchronizeEvent(void* event) const override {
    if (event) event_in(event)->wait();
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(from && to, "sim: elapsed time between events that were not recorded");
    return std::chrono::duration<double, std::milli>(event_in(to)->time() - event_in(from)->time()).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    const std::unique_ptr<EventHandle> owned(static_cast<EventHandle*>(event));
  }
};

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device, at::Generator cpu = at::detail::createCPUGenerator())
      : GeneratorImpl(device_at(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu_(std::move(cpu)) {}

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }

  const at::Generator& cpu() const { return cpu_; }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), cpu_.clone()); }  // NOLINT: torch's

  at::Generator cpu_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return !in_forked_child(); }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return isAvailable(); }
  c10::DeviceIndex deviceCount() const override { return isAvailable() ? kDevices : 0; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(index_or_current(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(index_or_current(device));
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    wait_for_device(storage.device().index());  // queued work writes to the old bytes
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr bytes = device_allocator()->allocate(size);
    if (const size_t kept = std::min(size, impl->nbytes())) std::memcpy(bytes.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(bytes));
    impl->set_nbytes(size);
  }
};

}  // namespace

c10::DeviceIndex current_device() {
  return device_of_thread;
}

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "sim has devices 0 to ", kDevices - 1, ", not ", int{device});
  device_of_thread = device;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {  // never destroyed: torch's statics may ask late
    auto all = std::make_unique<std::array<at::Generator, kDevices>>();
    for (int i = 0; i < kDevices; ++i) {
      (*all)[static_cast<size_t>(i)] = at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i));
    }
    return all.release();
  }();
  return generators->at(static_cast<size_t>(device));
}

at::Generator cpu_generator_in(const at::Generator& generator) {
  return static_cast<const Generator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

DrawsAsTheDevice::DrawsAsTheDevice(bool draws) {
  if (!draws) return;
  cpu_ = at::detail::getDefaultCPUGenerator();
  device_ = cpu_generator_in(default_generator(current_device()));
  before_ = cpu_.get_state();
  cpu_.set_state(device_.get_state());
}

DrawsAsTheDevice::~DrawsAsTheDevice() {
  if (!cpu_.defined()) return;
  device_.set_state(cpu_.get_state());
  cpu_.set_state(before_);
}

void manual_seed(uint64_t seed) {
  for (int i = 0; i < kDevices; ++i) {
    default_generator(static_cast<c10::DeviceIndex>(i)).unsafeGetGeneratorImpl()->set_current_seed(seed);
  }
}

void synchronize() {
  for (int device = 0; device < kDevices; ++device) wait_for_device(static_cast<c10::DeviceIndex>(device));
  late_writes().arrive();
}

void register_device() {
  const std::string name = c10::is_privateuse1_backend_registered() ? c10::get_privateuse1_backend() : "";
  if (c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1) || at::isPrivateUse1HooksRegistered() ||
      !(name.empty() || name == "sim")) {
    throw Error("the device sim cannot be loaded: torch's PrivateUse1 is taken by '" +
                (name.empty() ? "another backend" : name) +
                "' in this process; use a process that does not load that backend");
  }
  const c10::impl::DeviceGuardImplRegistrar registrar(c10::kPrivateUse1, std::make_unique<Guard>().release());
  at::RegisterPrivateUse1HooksInterface(std::make_unique<Hooks>().release());
  c10::register_privateuse1_backend("sim");
}

}  // namespace op_tools::sim_device
