// The aten level: calls that reach a hook, calls that pass it by, and that the program does not notice.
#include "hooks/interceptor.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "autograd/gradients.h"
#include "base/error.h"
#include "catch.h"
#include "hooks/chain.h"
#include "recording_hook.h"
#include "tensor/autocast.h"
#include "tensor/internal_guard.h"

using namespace op_tools;        // NOLINT: a test
using namespace op_tools::test;  // NOLINT

namespace {

struct On {
  explicit On(std::shared_ptr<Hook> hook, ResolvedOptions options = admitting())
      : scope(std::move(hook), std::move(options)) {
    scope.enter();
  }
  HookScope scope;
};

using Names = std::vector<std::string>;

void returns_its_argument(const c10::OperatorHandle&, torch::jit::Stack*) {}

}  // namespace

TEST_CASE("with no scope on, nothing of ours runs", "[interceptor]") {
  interceptor::install();
  const auto a = at::ones({2, 2});
  const uint64_t before = interceptor::kernel_entries();
  at::mm(a, a).add(1).relu();
  CHECK(interceptor::kernel_entries() == before);
}

TEST_CASE("a hook sees name, arguments and result of each admitted operator", "[interceptor]") {
  const auto a = at::ones({2, 2});
  auto hook = std::make_shared<RecordingHook>();
  at::Tensor result;
  {
    const On on(hook);
    result = at::mm(a, a);
  }
  at::mm(a, a);  // after the scope
  const auto seen = hook->seen();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].name == "aten::mm");
  REQUIRE(seen[0].inputs.size() == 2);
  CHECK(seen[0].inputs[0].is_same(a));
  REQUIRE(seen[0].results.size() == 1);
  CHECK(seen[0].results[0].is_same(result));
}

TEST_CASE("an operator that the filter leaves out never reaches the kernel", "[interceptor]") {
  const auto a = at::ones({2, 2});
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook, admitting("mm"));
  const uint64_t before = interceptor::kernel_entries();
  at::add(a, a);
  at::relu(a);
  CHECK(interceptor::kernel_entries() == before);
  at::mm(a, a);
  CHECK(interceptor::kernel_entries() == before + 1);
  CHECK(hook->names() == Names{"aten::mm"});
}

TEST_CASE("a composite operator is met as its parts, or as itself when the filter names it", "[interceptor]") {
  const auto x = at::rand({2, 3}), w = at::rand({4, 3}), b = at::rand({4});
  auto parts = std::make_shared<RecordingHook>();
  {
    const On on(parts);
    at::linear(x, w, b);
  }
  CHECK(parts->saw("aten::addmm"));
  CHECK_FALSE(parts->saw("aten::linear"));
  auto whole = std::make_shared<RecordingHook>();
  {
    const On on(whole, admitting("linear, addmm"));
    at::linear(x, w, b);
  }
  CHECK(whole->names() == Names{"aten::linear"});
}

TEST_CASE("under autocast an operator is met with the dtypes that really run", "[interceptor]") {
  const auto a = at::rand({2, 2});
  auto hook = std::make_shared<RecordingHook>();
  {
    const AutocastState autocast({{at::kCPU, at::kBFloat16}}, /*cache=*/false);
    const On on(hook, admitting("mm"));
    CHECK(at::mm(a, a).scalar_type() == at::kBFloat16);
  }
  const auto seen = hook->seen();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].inputs[0].scalar_type() == at::kBFloat16);
}

TEST_CASE("the backward engine's operators are operators of their own", "[interceptor]") {
  auto w = at::rand({3, 3});
  w.set_requires_grad(true);
  auto hook = std::make_shared<RecordingHook>();
  {
    const On on(hook, admitting("threshold_backward, mm"));
    at::relu(at::mm(w, w)).sum().backward();
  }
  CHECK(hook->names() == Names{"aten::mm", "aten::threshold_backward", "aten::mm", "aten::mm"});
  CHECK(w.grad().defined());
}

TEST_CASE("a hook's own calls are met by no hook and recorded by no graph", "[interceptor]") {
  class Busy final : public Hook {
   public:
    std::string_view name() const override { return "Busy"; }
    void after(OpCall& call, HookState*) override {
      ++calls;
      doubled = at::mul(flatten_tensors(call.result())[0], 2);
    }
    int calls = 0;
    at::Tensor doubled;
  };
  auto w = at::rand({3});
  w.set_requires_grad(true);
  auto hook = std::make_shared<Busy>();
  {
    const On on(hook);
    at::add(w, 1);
  }
  CHECK(hook->calls == 1);
  CHECK_FALSE(hook->doubled.requires_grad());
}

TEST_CASE("an operator's own failure passes unchanged and is told to the hooks", "[interceptor]") {
  const auto a = at::ones({2, 3});
  std::string plain, watched;
  try {
    at::mm(a, a);
  } catch (const c10::Error& error) {
    plain = error.what_without_backtrace();
  }
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook);
  try {
    at::mm(a, a);
  } catch (const c10::Error& error) {
    watched = error.what_without_backtrace();
  }
  CHECK_FALSE(plain.empty());
  CHECK(watched == plain);
  REQUIRE(hook->seen().size() == 1);
  CHECK(hook->seen()[0].error.find("mat1 and mat2") != std::string::npos);
}

TEST_CASE("a hook that fails goes off and the program goes on", "[interceptor]") {
  const bool in_before = GENERATE(true, false);
  const auto a = at::ones({2, 2});
  auto failing = std::make_shared<FailingHook>(in_before);
  auto other = std::make_shared<RecordingHook>();
  HookScope first(failing, admitting("mm")), second(other, admitting("mm"));
  first.enter();
  second.enter();
  CHECK(at::equal(at::mm(a, a), at::add(a, 1)));
  CHECK(at::equal(at::mm(a, a), at::add(a, 1)));
  CHECK(failing->asked == 1);
  CHECK(first.hook_failures() == 1);
  CHECK(other->seen().size() == 2);
}

TEST_CASE("a hook that declines a call hears no more of it", "[interceptor]") {
  class Declining final : public Hook {
   public:
    std::string_view name() const override { return "Declining"; }
    std::unique_ptr<HookState> before(OpCall& call) override {
      if (++asked % 2 == 0) call.decline();
      return nullptr;
    }
    void after(OpCall&, HookState*) override { ++finished; }
    int asked = 0, finished = 0;
  };
  auto hook = std::make_shared<Declining>();
  const On on(hook, admitting("relu"));
  for (int i = 0; i < 4; ++i) at::relu(at::ones({2}));
  CHECK(hook->asked == 4);
  CHECK(hook->finished == 2);
}

TEST_CASE("an executor runs the operator in place of the dispatcher", "[interceptor]") {
  class Doubling final : public Hook {
   public:
    std::string_view name() const override { return "Doubling"; }
    bool is_executor() const override { return true; }
    void execute(OpCall& call) override {
      auto& frame = dynamic_cast<interceptor::OperatorFrame&>(call.frame());
      std::vector<c10::IValue> doubled = frame.arguments();
      for (c10::IValue& argument : doubled) {
        if (argument.isTensor()) argument = at::mul(argument.toTensor(), 2);
      }
      frame.set_arguments(std::move(doubled));
      frame.proceed();
      test::replace_results(call, [](const at::Tensor& tensor) { return at::add(tensor, 1); });
    }
  };
  const auto a = at::ones({2}), b = at::ones({2});
  auto watching = std::make_shared<RecordingHook>();
  HookScope outer(watching, admitting("add.*")), inner(std::make_shared<Doubling>(), admitting("add.*"));
  outer.enter();
  inner.enter();
  const auto sum = at::add(a, b);
  inner.leave();
  outer.leave();
  CHECK(at::equal(sum, at::ones({2}) * 5));
  REQUIRE(watching->seen().size() == 1);
  CHECK(watching->seen()[0].results[0].is_same(sum));
  CHECK(at::equal(a, at::ones({2})));
}

TEST_CASE("scopes overlap in any order", "[scope]") {
  const auto a = at::ones({2});
  auto first = std::make_shared<RecordingHook>(), second = std::make_shared<RecordingHook>();
  HookScope outer(first, admitting("relu")), inner(second, admitting("relu"));
  outer.enter();
  at::relu(a);
  inner.enter();
  at::relu(a);
  outer.leave();
  at::relu(a);
  inner.leave();
  at::relu(a);
  CHECK(first->seen().size() == 2);
  CHECK(second->seen().size() == 2);
  outer.enter();  // restartable
  at::relu(a);
  outer.leave();
  CHECK(first->seen().size() == 3);
}

TEST_CASE("a scope that is on cannot be entered again, nor left by another thread", "[scope]") {
  HookScope scope(std::make_shared<RecordingHook>(), admitting());
  scope.enter();
  CHECK_THROWS_AS(scope.enter(), Error);
  std::string told;
  std::thread([&] {
    try {
      scope.leave();
    } catch (const Error& error) {
      told = error.what();
    }
  }).join();
  CHECK(told.find("stop it in the thread that started it") != std::string::npos);
  CHECK(scope.is_on());
  scope.leave();
  CHECK_FALSE(scope.is_on());
}

TEST_CASE("another thread is not met unless it works for this thread", "[scope]") {
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook, admitting("relu"));
  std::thread([] { at::relu(at::ones({2})); }).join();
  CHECK(hook->seen().empty());
}

TEST_CASE("all_threads meets threads that entered no scope, and lets them go", "[scope][threads]") {
  auto options = admitting("relu");
  options.all_threads = true;
  auto hook = std::make_shared<RecordingHook>();
  HookScope scope(hook, options);
  scope.enter();
  std::atomic<int> stage{0};
  uint64_t entries_after_leaving = 0;
  std::thread worker([&] {
    const auto a = at::ones({2});  // the first operator of a thread arms it
    at::relu(a);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    at::relu(a);  // still armed: disarms itself
    const uint64_t before = interceptor::kernel_entries();
    at::relu(a);
    entries_after_leaving = interceptor::kernel_entries() - before;
  });
  while (stage != 1) std::this_thread::yield();
  scope.leave();
  stage = 2;
  worker.join();
  CHECK(hook->names() == Names{"aten::relu"});
  CHECK(entries_after_leaving == 0);
}

TEST_CASE("steps choose the calls that a hook gets", "[scope]") {
  auto options = admitting("relu");
  options.steps = {{1, 3}};
  auto hook = std::make_shared<RecordingHook>();
  HookScope scope(hook, options);
  scope.enter();
  for (int step = 0; step < 5; ++step) {
    at::relu(at::ones({step + 1}));
    scope.step();
  }
  scope.leave();
  const auto seen = hook->seen();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].inputs[0].size(0) == 2);
  CHECK(seen[1].inputs[0].size(0) == 4);
}

TEST_CASE("skip_cpu passes over calls whose tensors are all on the CPU", "[scope]") {
  auto options = admitting("relu, ones");
  options.skip_cpu = true;
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook, options);
  at::relu(at::ones({2}));
  CHECK(hook->names() == Names{"aten::ones"});  // no tensor comes in: not all of nothing
}

TEST_CASE("an operator that is registered while a scope is on is met", "[interceptor]") {
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook);
  torch::Library library(torch::Library::DEF, "op_tools_test", std::nullopt, __FILE__, __LINE__);
  library.def("late(Tensor x) -> Tensor");
  library.impl("late", c10::DispatchKey::CompositeExplicitAutograd,
               torch::CppFunction::makeFromBoxedFunction<&returns_its_argument>());
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools_test::late", "");
  torch::jit::Stack stack{at::ones({2})};
  op.callBoxed(&stack);
  CHECK(hook->saw("op_tools_test::late"));
}

TEST_CASE("operators that were registered before a scope are met, and may go while it is on", "[interceptor]") {
  auto library =
      std::make_unique<torch::Library>(torch::Library::DEF, "op_tools_gone", std::nullopt, __FILE__, __LINE__);
  library->def("early(Tensor x) -> Tensor");
  library->impl("early", c10::DispatchKey::CompositeExplicitAutograd,
                torch::CppFunction::makeFromBoxedFunction<&returns_its_argument>());
  auto hook = std::make_shared<RecordingHook>();
  const On on(hook);
  const auto call = [] {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("op_tools_gone::early", "");
    torch::jit::Stack stack{at::ones({2})};
    op.callBoxed(&stack);
  };
  call();
  CHECK(hook->saw("op_tools_gone::early"));
  library.reset();
  CHECK_THROWS(call());
  // Of the same name again, after its table was gone.
  library = std::make_unique<torch::Library>(torch::Library::DEF, "op_tools_gone", std::nullopt, __FILE__, __LINE__);
  library->def("early(Tensor x) -> Tensor");
  library->impl("early", c10::DispatchKey::CompositeExplicitAutograd,
                torch::CppFunction::makeFromBoxedFunction<&returns_its_argument>());
  const size_t before = hook->seen().size();
  call();
  CHECK(hook->seen().size() == before + 2);  // ones, and the operator
}

TEST_CASE("threads enter and leave scopes while others run operators", "[scope][threads]") {
  constexpr int kThreads = 12;
  constexpr int kRounds = 60;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto a = at::ones({4});
      for (int round = 0; round < kRounds; ++round) {
        const char* const filters[] = {"", "relu", "add.*", "mul.*, relu"};
        auto hook = std::make_shared<RecordingHook>();
        HookScope scope(hook, admitting(filters[(t + round) % 4]));
        const bool watched = t % 3 != 0;  // every third thread never enters a scope
        if (watched) scope.enter();
        const auto result = at::relu(at::add(a, a));
        if (watched) scope.leave();
        if (result.size(0) != 4 || result.const_data_ptr<float>()[0] != 2.0F) ++wrong;
        const size_t expected[] = {2, 1, 1, 1};
        if (watched && hook->seen().size() != expected[(t + round) % 4]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a forked child starts without hooks and leaves its parent's scopes in peace", "[scope][fork]") {
  auto hook = std::make_shared<RecordingHook>();
  HookScope scope(hook, admitting("relu"));
  scope.enter();
  at::relu(at::ones({2}));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    at::relu(at::ones({2}));
    bool good = hook->seen().size() == 1 && !scope.is_on();
    scope.leave();
    auto own = std::make_shared<RecordingHook>();
    HookScope inner(own, admitting("relu"));
    inner.enter();
    at::relu(at::ones({2}));
    inner.leave();
    good = good && own->seen().size() == 1;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  at::relu(at::ones({2}));
  scope.leave();
  CHECK(hook->seen().size() == 2);
}

TEST_CASE("a watch names the only aten operator behind a call", "[interceptor][watch]") {
  const interceptor::OpenOps open([](std::string_view, bool) { return true; });
  const auto x = at::rand({2, 3}), w = at::rand({4, 3});
  {
    const interceptor::AtenWatch watch;
    const auto y = at::linear(x, w);
    const Value whole = watch.whole_call(y);
    REQUIRE(sequence_items(whole) != nullptr);
    CHECK(*(*sequence_items(whole))[0].get_if<std::string>() == "aten::linear");
    CHECK(flatten_tensors(whole)[0].is_same(x));
  }
  {
    const interceptor::AtenWatch watch;
    const auto y = at::relu(at::linear(x, w));  // two operators
    CHECK(watch.whole_call(y).is<None>());
  }
  {
    const interceptor::AtenWatch watch;
    at::linear(x, w);
    CHECK(watch.whole_call(x).is<None>());  // the returned value is another
  }
  const uint64_t before = interceptor::kernel_entries();
  at::relu(x);
  CHECK(interceptor::kernel_entries() == before);
}

TEST_CASE("backward of a torch-level call comes to the same hooks as a second call", "[chain]") {
  class Backward final : public Hook {
   public:
    std::string_view name() const override { return "Backward"; }
    void after(OpCall& call, HookState*) override {
      phase = call.phase;
      id = call.id;
      if (call.phase == Phase::kForward) {
        call.save_for_backward(kept);
        kept.reset();
        return;
      }
      gradients = flatten_tensors(call.result());
      kept_in_backward = call.saved_state();
    }
    Phase phase = Phase::kForward;
    uint64_t id = 0;
    std::shared_ptr<HookState> kept = std::make_shared<HookState>();
    HookState* kept_in_backward = nullptr;
    std::vector<at::Tensor> gradients;
  };
  auto hook = std::make_shared<Backward>();
  auto options = admitting();
  options.level = Level::kTorch;
  const auto chain = std::make_shared<const Chain>(
      std::vector<std::shared_ptr<ActiveHook>>{std::make_shared<ActiveHook>(hook, options)});
  auto x = at::ones({2});
  x.set_requires_grad(true);
  const std::weak_ptr<HookState> kept = hook->kept;
  HookState* const state = hook->kept.get();
  at::Tensor y;

  // A torch-level source: the gradients' collector round the operator.
  class Source final : public Frame {
   public:
    Source(const at::Tensor& x, const Chain& chain, at::Tensor* y) : x_(x), chain_(chain), y_(y) {}
    Value args() override { return make_tuple({x_, 3}); }
    Value kwargs() override { return make_dict({}); }
    Value result() override { return *y_; }
    void proceed() override {
      auto collector = GradientCollector::before_call({x_});
      REQUIRE(collector);
      *y_ = at::mul(x_, 3);
      CHECK(collector->after_call({*y_}, chain_.backward_of(*call)));
    }
    OpCall* call = nullptr;

   private:
    const at::Tensor x_;
    const Chain& chain_;
    at::Tensor* const y_;
  };
  {
    Source source(x, *chain, &y);
    const GuardedState thread;
    OpCall call(77, Level::kTorch, Phase::kForward, "torch.mul", source, thread);
    source.call = &call;
    chain->run(1, call);
  }
  CHECK_FALSE(kept.expired());  // the graph holds it, nobody else does
  y.sum().backward();
  CHECK(hook->kept_in_backward == state);
  y.reset();
  CHECK(kept.expired());
  CHECK(hook->phase == Phase::kBackward);
  CHECK(hook->id == 77);
  REQUIRE(hook->gradients.size() == 1);
  CHECK(at::equal(hook->gradients[0], at::ones({2}) * 3));
}

TEST_CASE("a call's operator can be run again on other values, after the call and unseen", "[interceptor]") {
  class Keeping final : public Hook {
   public:
    std::string_view name() const override { return "Keeping"; }
    std::unique_ptr<HookState> before(OpCall& call) override {
      if (ask_early) call.args(), call.kwargs();
      return nullptr;
    }
    void after(OpCall& call, HookState*) override {
      ++calls;
      runner = call.frame().runner();
      args = call.args();
      kwargs = call.kwargs();
    }
    bool ask_early = true;
    int calls = 0;
    std::shared_ptr<const OpRunner> runner;
    Value args, kwargs;
  };
  const auto hook = std::make_shared<Keeping>();
  HookScope scope(hook, admitting("add.Tensor"));
  scope.enter();
  const auto x = at::ones({3});
  at::add(x, x, 2);
  REQUIRE(hook->runner);
  const auto doubled = map_tensors(hook->args, [](const at::Tensor& tensor) { return Value(tensor.to(at::kDouble)); });
  const Value again = hook->runner->run(doubled, hook->kwargs);
  CHECK(at::equal(*again.get_if<at::Tensor>(), at::ones({3}, at::kDouble) * 3));
  CHECK(hook->calls == 1);
  CHECK_THROWS_AS(hook->runner->run(make_tuple({x, "two"}), hook->kwargs), Error);
  hook->ask_early = false;  // too late in after(): the stack holds the result
  at::add(x, x, 2);
  CHECK(scope.hook_failures() == 1);
  scope.leave();
  CHECK(at::equal(*hook->runner->run(hook->args, hook->kwargs).get_if<at::Tensor>(), at::ones({3}) * 3));
}

TEST_CASE("a hook is told the training step of its own scope", "[chain]") {
  class Steps final : public Hook {
   public:
    std::string_view name() const override { return "Steps"; }
    std::unique_ptr<HookState> before(OpCall& call) override {
      steps.push_back(call.step);
      return nullptr;
    }
    void after(OpCall& call, HookState*) override { steps.push_back(call.step); }
    std::vector<int64_t> steps;
  };
  const auto inner = std::make_shared<Steps>(), outer = std::make_shared<Steps>();
  HookScope outer_scope(outer, admitting("neg")), inner_scope(inner, admitting("neg"));
  outer_scope.enter();
  inner_scope.enter();
  at::neg(at::ones({1}));
  outer_scope.step();
  at::neg(at::ones({1}));
  CHECK(outer->steps == std::vector<int64_t>{0, 0, 1, 1});
  CHECK(inner->steps == std::vector<int64_t>{0, 0, 0, 0});
}
