// The simulated device without Python: the demands of torch's C++ side, its queues and clock, memory, faults.
#include "sim_device/sim_device.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "scoped_variable.h"
#include "sim_device/faults.h"
#include "sim_device/queue.h"
#include "sim_device/values.h"

namespace op_tools::sim_device {
namespace {

using test::ScopedVariable;

const c10::Device kSim(c10::kPrivateUse1, 0);

// Loaded with the first test; the process keeps it.
struct Device {
  Device() { load(); }
  ~Device() {
    faults_clear();
    synchronize();
  }
};

bool same(const at::Tensor& result, const at::Tensor& right) {
  return at::equal(result.cpu(), right);
}

std::chrono::milliseconds milliseconds(int count) {
  return std::chrono::milliseconds(count);
}

}  // namespace

TEST_CASE("loading again is nothing, and the device has its name", "[sim]") {
  const Device device;
  load();
  CHECK(is_loaded());
  CHECK(c10::Device("sim:1") == c10::Device(c10::kPrivateUse1, 1));
  CHECK(c10::impl::VirtualGuardImpl(c10::kPrivateUse1).deviceCount() == kDevices);
}

TEST_CASE("a convolution and its gradients are those of the CPU", "[sim]") {
  const Device device;
  const at::Tensor host = at::randn({2, 1, 8, 8}), weight = at::randn({4, 1, 3, 3});
  const auto gradient = [&](c10::Device on) {
    const at::Tensor parameter = weight.to(on).detach().requires_grad_();
    at::conv2d(host.to(on), parameter).relu().sum().backward();
    return parameter.grad().cpu();
  };
  const at::Tensor right = gradient(c10::kCPU);
  for (int i = 0; i < 3; ++i) CHECK(at::equal(gradient(kSim), right));
}

TEST_CASE("an unsynchronised stopwatch is wrong by the planted latency, a synchronised stopwatch is right", "[sim]") {
  const Device device;
  const at::Tensor x = at::randn({8, 8}).to(kSim);
  at::mm(x, x);  // teaches the shapes
  synchronize();
  const Latency latency({{"mm", 50'000}});
  const auto milliseconds_of = [&x](bool synchronised) {
    const auto begin = std::chrono::steady_clock::now();
    at::mm(x, x);
    if (synchronised) c10::impl::VirtualGuardImpl(c10::kPrivateUse1).synchronizeDevice(0);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  const double wrong = milliseconds_of(false);
  const bool still_at_work = !current_queue(0).idle();
  const double right = milliseconds_of(true);
  CHECK(still_at_work);  // when the unsynchronised stopwatch stopped
  CHECK(wrong < right);
  CHECK(right >= 50);
}

TEST_CASE("events measure the device's clock, which a late worker does not change", "[sim]") {
  const Device device;
  const at::Tensor x = at::ones({4}, kSim);
  x.neg();
  synchronize();
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  c10::Event begin(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT),
      end(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  const Latency latency({{"neg", 500}});
  // Something before it, so that the first mark is not reached at once but in the queue.
  x.neg();
  begin.record(guard.getStream(kSim));
  for (int i = 0; i < 20; ++i) x.neg();
  end.record(guard.getStream(kSim));
  end.synchronize();
  // Exact, unless a kernel of a microsecond is held up for longer than its latency, on a loaded machine.
  CHECK(begin.elapsedTime(end) >= 20 * 0.5);
}

TEST_CASE("streams are independent until they wait for each other", "[sim]") {
  const Device device;
  const at::Tensor x = at::ones({4}, kSim);
  (x + 1);
  synchronize();
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  const c10::Stream side = guard.getNewStream(kSim);
  const c10::Stream main = guard.getStream(kSim);
  CHECK(side != main);
  c10::Event done(c10::kPrivateUse1);
  at::Tensor y;
  {
    const Latency latency({{"add.Tensor", 20'000}});
    const c10::StreamGuard on_side(side);
    y = x + 1;
    done.record(side);
  }
  CHECK_FALSE(side.query());
  CHECK(main.query());
  done.block(main);
  CHECK(same(y * 2, at::full({4}, 4.0)));
}

TEST_CASE("a queue runs in order, keeps going after a failure and tells of it once", "[sim][queue]") {
  Queue& queue = pool_queue(0);
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) queue.push([&order, i] { order.push_back(i); });
  queue.push([] { throw std::runtime_error("broken"); });
  queue.push([&order] { order.push_back(50); });
  CHECK_THROWS_WITH(queue.wait(), "broken");
  CHECK(queue.idle());
  CHECK_NOTHROW(queue.wait());
  REQUIRE(order.size() == 51);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("the device's clock adds up the time that items are told to take", "[sim][queue]") {
  Queue& queue = pool_queue(1);
  const auto begin = std::make_shared<Event>(), end = std::make_shared<Event>();
  queue.push([] {}, milliseconds(1));
  queue.record(begin);
  for (int i = 0; i < 10; ++i) queue.push(nullptr, milliseconds(2));
  queue.record(end);
  CHECK_FALSE(end->reached());
  end->wait();
  CHECK(end->time() - begin->time() >= milliseconds(20));  // more where this thread is late with the next operator
}

TEST_CASE("a queue that waits for an event of another goes on after it", "[sim][queue]") {
  Queue &queue = pool_queue(0), &other = pool_queue(0);
  REQUIRE(&queue != &other);
  std::atomic<int> number = 0;
  queue.push([&number] { number = 1; }, milliseconds(5));
  const auto event = std::make_shared<Event>();
  queue.record(event);
  other.wait_for(event);
  int seen = 0;
  other.push([&] { seen = number; });
  other.wait();
  CHECK(seen == 1);
  CHECK(event->reached());
}

TEST_CASE("many threads push to a single queue", "[sim][queue]") {
  Queue& queue = pool_queue(0);
  int count = 0;  // of the worker only
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) queue.push([&count] { ++count; });
      queue.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(count == 1000);
}

TEST_CASE("memory is counted, and the peak", "[sim]") {
  const Device device;
  synchronize();
  const Statistics before = statistics();
  reset_peak();
  {
    const at::Tensor x = at::empty({1000}, kSim), y = at::empty({500}, kSim);
    CHECK(statistics().allocated_bytes - before.allocated_bytes == 6000);
    CHECK(statistics().live_allocations - before.live_allocations == 2);
  }
  CHECK(statistics().allocated_bytes == before.allocated_bytes);
  CHECK(statistics().peak_bytes - before.allocated_bytes == 6000);
  CHECK_THROWS(statistics(kDevices));
}

TEST_CASE("in-place results, views and resized results are the program's own tensors", "[sim]") {
  const Device device;
  at::Tensor x = at::zeros({2, 3}, kSim);
  const at::Tensor view = x.t();
  view.fill_(2);
  CHECK(same(x, at::full({2, 3}, 2.0)));
  CHECK(x.add_(1).is_same(x));
  at::Tensor out = at::empty({0}, kSim);
  at::add_out(out, x, x);
  CHECK(same(out, at::full({2, 3}, 6.0)));
  out.resize_({6}).resize_({1});
  CHECK(same(out, at::full({1}, 6.0)));
}

TEST_CASE("random numbers are the CPU's for the same seed", "[sim]") {
  const Device device;
  manual_seed(5);
  at::Generator cpu = at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).clone();
  cpu.set_current_seed(5);
  CHECK(same(at::randn({20}, kSim), at::randn({20}, cpu)));
}

TEST_CASE("a fault hits calls, counts them, and is taken out", "[sim][faults]") {
  const Device device;
  const at::Tensor x = at::ones({4}, kSim);
  {
    Fault fault({.kind = "scale", .ops = "add", .calls = CallRange{1, 4, 2}, .scale = 3.0});
    std::vector<double> sums;
    for (int i = 0; i < 5; ++i) sums.push_back((x + 1).sum().item<double>());
    CHECK(sums == std::vector<double>{8, 24, 8, 24, 8});
    CHECK(fault.matched() == 5);
    CHECK(fault.hits() == 2);
    CHECK(fault.log() ==
          std::vector<std::pair<std::string, int64_t>>{{"aten::add.Tensor", 1}, {"aten::add.Tensor", 3}});
    fault.stop();
    CHECK(same(x + 1, at::full({4}, 2.0)));
  }
  const Fault missing({.kind = "missing", .ops = "neg"});
  CHECK_THROWS_AS(x.neg(), c10::NotImplementedError);
  faults_clear();
  CHECK(same(x.neg(), at::full({4}, -1.0)));
}

TEST_CASE("threads count a fault's calls together", "[sim][faults]") {
  const Device device;
  const Fault fault({.kind = "element", .ops = "neg", .probability = 0.5});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong] {
      const at::Tensor x = at::ones({4}, kSim);
      for (int i = 0; i < 50; ++i) wrong += !same(x.neg(), at::full({4}, -1.0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(fault.matched() == 200);
  CHECK(fault.hits() == wrong);
}

TEST_CASE("wrong options of a fault are refused by name", "[sim][faults]") {
  const Device device;
  CHECK_THROWS_WITH(Fault({.kind = "nope"}), Catch::Contains("'nope' is no kind"));
  CHECK_THROWS_WITH(Fault({.kind = "scale", .ops = "linear"}), Catch::Contains("never reach a device"));
  CHECK_THROWS_WITH(Fault({.kind = "scale", .probability = 2}), Catch::Contains("probability=2"));
  CHECK_THROWS_AS(Latency({{"mm", -1}}), Error);
}

TEST_CASE("the environment's faults are all planted or none", "[sim][faults]") {
  const Device device;
  const at::Tensor x = at::ones({4}, kSim);
  ScopedVariable faults("OP_TOOLS_SIM_FAULTS", "scale:ops=neg,scale=2;scale:ops=abs,probability=7");
  CHECK_THROWS_WITH(plant_from_environment(), Catch::Contains("OP_TOOLS_SIM_FAULTS: 'scale:ops=abs"));
  CHECK(same(x.neg(), at::full({4}, -1.0)));
  faults.set("scale : ops = neg, scale = 2 ;");
  plant_from_environment();
  CHECK(same(x.neg(), at::full({4}, -2.0)));
}

TEST_CASE("a change of values says whether a bit changed", "[sim][values]") {
  const at::Tensor zeros = at::zeros({6}), empty = at::empty({0});
  CHECK_FALSE(values::scale(zeros, 2));
  CHECK_FALSE(values::scale(at::ones({6}), 2, 6));
  CHECK(values::element(zeros, 2, 7));
  CHECK(zeros[1].item<double>() == 1);
  CHECK_FALSE(values::element(empty, 2, 0));
  CHECK_FALSE(values::swap_rows(at::ones({3, 2}), 0));
  CHECK_FALSE(values::low_precision(at::ones({3})));
  CHECK_FALSE(values::special(at::ones({3}, at::kLong), 0, 1));
  const at::Tensor column = at::arange(6, at::kDouble).view({2, 3}).t();
  CHECK(values::swap_rows(column, 1));
  CHECK(at::equal(column, at::tensor(at::ArrayRef<double>{0, 3, 2, 5, 1, 4}, at::kDouble).view({3, 2})));
}

}  // namespace op_tools::sim_device
