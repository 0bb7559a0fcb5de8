#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/ones_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "autograd/gradients.h"
#include "catch.h"
#include "tensor/internal_guard.h"

using namespace op_tools;
using at::Tensor;
using Tensors = std::vector<Tensor>;
using torch::autograd::backward;

namespace {

// A different number in each place, so that a mixed-up gradient shows.
Tensor distinct_values(at::IntArrayRef sizes, int seed, at::ScalarType dtype = at::kFloat) {
  const Tensor ones = at::_ops::ones::call(c10::fromIntArrayRefSlow(sizes), dtype, {}, {}, {});
  return ones.flatten().cumsum(0).mul(0.37 + 0.11 * seed).sin().reshape(sizes);
}
Tensor distinct_leaf(at::IntArrayRef sizes, int seed) {
  return distinct_values(sizes, seed).requires_grad_();
}

bool same(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() && a.equal(b);
}

// The passes that a watched call reported.
struct Watched {
  Tensors outputs;
  bool hooked = false;
  std::shared_ptr<std::vector<CallGradients>> passes = std::make_shared<std::vector<CallGradients>>();
  std::weak_ptr<int> alive;  // expired once nothing holds the on_backward closure

  const CallGradients& only() const {
    REQUIRE(passes->size() == 1);
    return passes->front();
  }
};

Watched watch(const Tensors& inputs, const std::function<Tensors()>& call, bool lends = false) {
  Watched watched;
  auto collector = GradientCollector::before_call(inputs);
  watched.outputs = call();
  REQUIRE(collector);
  const auto token = std::make_shared<int>(0);
  watched.alive = token;
  const auto mutex = std::make_shared<std::mutex>();
  GradientCollector::OnBackward on_backward(
      [passes = watched.passes, token, mutex, lends](const CallGradients& gradients) {
        std::lock_guard<std::mutex> lock(*mutex);
        passes->push_back(gradients);
        if (!lends) return;
        for (Tensors* tensors : {&passes->back().outputs, &passes->back().inputs}) {
          for (Tensor& tensor : *tensors) tensor = tensor.defined() ? tensor.clone() : tensor;
        }
      });
  on_backward.borrows = lends;
  watched.hooked = collector->after_call(watched.outputs, on_backward);
  return watched;
}

// The gradient of the call alone, from torch.
Tensors expected(const Tensors& outputs, const Tensors& inputs, const Tensors& output_gradients) {
  return torch::autograd::grad(outputs, inputs, output_gradients, /*retain_graph=*/true, false,
                               /*allow_unused=*/true);
}

// y = x W^T reshaped and activated: several nodes, the weight used in a single node.
Tensors composite(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return {at::_ops::linear::call(x.reshape({-1, x.size(-1)}), weight, bias).tanh().reshape({2, 3, 5})};
}

struct ThrowingBackward : torch::autograd::Function<ThrowingBackward> {
  static inline bool armed = false;
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    if (armed) throw std::runtime_error("no backward today");
    return gradients;
  }
};

// Runs another backward pass inside its own, as reentrant checkpointing does.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static inline std::function<Tensor(const Tensor&)> body;
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return body(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    c10::AutoGradMode grad_mode(true);
    torch::autograd::backward({body(x)}, gradients);
    return {x.grad()};
  }
};

}  // namespace

TEST_CASE("a composite call's gradients are the whole call's, not its last node's", "[gradients]") {
  const Tensor x = distinct_leaf({2, 3, 4}, 1) * 1;
  const Tensor weight = distinct_leaf({5, 4}, 2), bias = distinct_leaf({5}, 3);
  const Watched call = watch({x, weight, bias}, [&] { return composite(x, weight, bias); });
  REQUIRE(call.hooked);
  const Tensor gradient = distinct_values({2, 3, 5}, 4);
  const Tensors wanted = expected(call.outputs, {x, weight, bias}, {gradient});
  call.passes->clear();

  // Other consumers add to the same inputs' gradients: not from this call.
  backward({call.outputs[0], x.exp().sum(), weight.exp().sum()}, {gradient, {}, {}});
  const CallGradients& got = call.only();
  CHECK(got.complete);
  CHECK(same(got.outputs[0], gradient));
  for (size_t i = 0; i < 3; ++i) CHECK(same(got.inputs[i], wanted[i]));
  CHECK_FALSE(got.inputs[0].requires_grad());
  CHECK_FALSE(same(weight.grad(), wanted[1]));
}

TEST_CASE("several outputs, the second without gradient, the third not differentiable", "[gradients]") {
  const Tensor x = distinct_leaf({3, 4}, 1);
  const auto call = watch({x}, [&] {
    const auto [values, indices] = x.max(1);
    return Tensors{values, indices, x.exp(), x.sin()};
  });
  const Tensor gradient = distinct_values({3}, 2), other = distinct_values({3, 4}, 3);
  const Tensors wanted = expected({call.outputs[0], call.outputs[2]}, {x}, {gradient, other});
  call.passes->clear();
  backward({call.outputs[0], call.outputs[2]}, {gradient, other});
  CHECK(same(call.only().outputs[0], gradient));
  CHECK_FALSE(call.only().outputs[1].defined());
  CHECK(same(call.only().outputs[2], other));
  CHECK_FALSE(call.only().outputs[3].defined());
  CHECK(same(call.only().inputs[0], wanted[0]));
  CHECK(call.only().complete);
}

TEST_CASE("a tensor given twice has the same gradient in both places", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1);
  const Watched call = watch({x, x}, [&] { return Tensors{x.mul(x)}; });
  const Tensor gradient = distinct_values({3}, 2);
  backward({call.outputs[0]}, {gradient});
  CHECK(same(call.only().inputs[0], x.grad()));
  CHECK(same(call.only().inputs[1], x.grad()));
}

TEST_CASE("inputs that need no gradient get none", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1), constant = distinct_values({3}, 2);
  const Watched call = watch({constant, x, Tensor()}, [&] { return Tensors{constant.mul(x), constant.exp()}; });
  backward({call.outputs[0].sum()});
  CHECK_FALSE(call.only().inputs[0].defined());
  CHECK(same(call.only().inputs[1], x.grad()));
  CHECK_FALSE(call.only().inputs[2].defined());
  CHECK_FALSE(call.only().outputs[1].defined());
}

TEST_CASE("views, in-place calls and in-place calls on views", "[gradients]") {
  const Tensor x = distinct_leaf({3, 4}, 1), y = distinct_leaf({4}, 2);
  const Tensor gradient = distinct_values({4}, 3);

  SECTION("a view") {
    const Watched call = watch({x}, [&] { return Tensors{x.select(0, 1)}; });
    backward({call.outputs[0]}, {gradient});
    CHECK(same(call.only().inputs[0], x.grad()));
  }
  SECTION("in place: the input's gradient is that of the tensor before the call") {
    const Tensor h = y.exp();
    const Tensor before = h * 1;
    const Watched call = watch({before, y}, [&] { return Tensors{before.mul_(y)}; });
    backward({call.outputs[0]}, {gradient});
    CHECK(same(call.only().outputs[0], gradient));
    CHECK(same(call.only().inputs[0], gradient * y));
    CHECK(same(call.only().inputs[1], gradient * h));
  }
  SECTION("in place on a view") {
    const Tensor base = x * 1;
    const Tensor row = base.select(0, 1);
    const Tensor row_before = row.detach().clone();
    const Watched call = watch({row, y}, [&] { return Tensors{row.mul_(y)}; });
    backward({row}, {gradient});
    CHECK(same(call.only().outputs[0], gradient));
    CHECK(same(call.only().inputs[1], gradient * row_before));
  }
  SECTION("a view whose base was changed in place") {
    const Tensor base = x * 1;
    const Tensor row = base.select(0, 1);
    base.mul_(2);
    const Watched call = watch({row}, [&] { return Tensors{row.mul(3)}; });
    backward({call.outputs[0]}, {gradient});
    CHECK(same(call.only().inputs[0], gradient * 3));
  }
}

TEST_CASE("lists of tensors", "[gradients]") {
  const Tensor x = distinct_leaf({2, 3}, 1), y = distinct_leaf({4, 3}, 2);
  const Watched call = watch({x, y, x}, [&] { return Tensors{at::_ops::cat::call({x, y, x}, 0)}; });
  const Tensor gradient = distinct_values({8, 3}, 3);
  backward({call.outputs[0]}, {gradient});
  CHECK(same(call.only().inputs[0], x.grad()));
  CHECK(same(call.only().inputs[1], gradient.slice(0, 2, 6)));

  const Watched split = watch({y}, [&] { return y.mul(2).unbind(0); });
  backward({split.outputs[1].sum()});
  CHECK(split.only().outputs.size() == 4);
  CHECK(split.only().outputs[1].defined());
  CHECK_FALSE(split.only().outputs[0].defined());
  CHECK(split.only().inputs[0].sum().item().toDouble() == Approx(6));
}

TEST_CASE("calls without anything to collect", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1);
  CHECK(GradientCollector::before_call({}) == nullptr);
  CHECK(GradientCollector::before_call({distinct_values({3}, 1), Tensor()}) == nullptr);
  {
    c10::NoGradGuard no_grad;
    CHECK(GradientCollector::before_call({x}) == nullptr);
  }
  const Watched identity = watch({x}, [&] { return Tensors{x.contiguous()}; });
  CHECK_FALSE(identity.hooked);
  CHECK(identity.alive.expired());
  const Watched detached = watch({x}, [&] { return Tensors{x.detach()}; });
  CHECK_FALSE(detached.hooked);
}

TEST_CASE("each backward pass over a retained graph is reported by itself", "[gradients]") {
  const Tensor x = distinct_leaf({2, 3, 4}, 1), weight = distinct_leaf({5, 4}, 2), bias = distinct_leaf({5}, 3);
  const Watched call = watch({x, weight, bias}, [&] { return composite(x, weight, bias); });
  const Tensor first = distinct_values({2, 3, 5}, 4), second = distinct_values({2, 3, 5}, 5);
  backward({call.outputs[0]}, {first}, /*retain_graph=*/true);
  const Tensor of_first = weight.grad().clone();
  weight.mutable_grad() = Tensor();
  backward({call.outputs[0]}, {second});
  REQUIRE(call.passes->size() == 2);
  CHECK(call.passes->at(0).pass == 0);
  CHECK(call.passes->at(1).pass == 1);
  CHECK(same(call.passes->at(0).outputs[0], first));
  CHECK(same(call.passes->at(0).inputs[1], of_first));
  CHECK(same(call.passes->at(1).inputs[1], weight.grad()));
}

TEST_CASE("a pass that was asked for some inputs reports those and is incomplete", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1), y = distinct_leaf({3}, 2);
  // x has a part in the node that y's gradient needs, and another in a node that it does not.
  const Watched call = watch({x, y}, [&] { return Tensors{x.mul(y).add(x.exp())}; });
  const Tensor gradient = distinct_values({3}, 3);
  const Tensors of_y = torch::autograd::grad({call.outputs[0]}, {y}, {gradient}, true);
  CHECK_FALSE(call.only().complete);
  CHECK_FALSE(call.only().inputs[0].defined());
  CHECK(same(call.only().inputs[1], of_y[0]));
  CHECK(same(call.only().outputs[0], gradient));

  const Tensors both = torch::autograd::grad({call.outputs[0]}, {x, y}, {gradient}, true);
  REQUIRE(call.passes->size() == 2);
  CHECK(call.passes->at(1).complete);
  CHECK(same(call.passes->at(1).inputs[0], both[0]));
}

TEST_CASE("double backward: the copies stand outside the graph", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1);
  const Watched call = watch({x}, [&] { return Tensors{x.mul(x).mul(x)}; });
  const Tensors first = torch::autograd::grad({call.outputs[0].sum()}, {x}, {}, true, true);
  CHECK(first[0].requires_grad());
  CHECK(same(call.only().inputs[0], first[0].detach()));
  CHECK_FALSE(call.only().inputs[0].requires_grad());
  CHECK_FALSE(call.only().outputs[0].requires_grad());
  const Tensors second = torch::autograd::grad({first[0].sum()}, {x});
  CHECK(second[0].allclose(x.detach() * 6));
}

TEST_CASE("a graph that never runs backward leaves nothing behind", "[gradients]") {
  const Tensor x = distinct_leaf({2, 3, 4}, 1), weight = distinct_leaf({5, 4}, 2), bias = distinct_leaf({5}, 3);
  Watched call = watch({x, weight, bias}, [&] { return composite(x, weight, bias); });
  CHECK_FALSE(call.alive.expired());
  call.outputs.clear();
  CHECK(call.alive.expired());

  Watched run = watch({x, weight, bias}, [&] { return composite(x, weight, bias); });
  backward({run.outputs[0].sum()});
  run.outputs.clear();
  CHECK(run.alive.expired());
}

TEST_CASE("an exception in backward drops its pass, and the next is whole", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1);
  Watched call = watch({x}, [&] { return Tensors{ThrowingBackward::apply(x.mul(2)).mul(x)}; });
  ThrowingBackward::armed = true;
  CHECK_THROWS_WITH(backward({call.outputs[0].sum()}, {}, true), "no backward today");
  ThrowingBackward::armed = false;
  CHECK(call.passes->empty());
  x.mutable_grad() = Tensor();
  backward({call.outputs[0].sum()}, {}, true);
  CHECK(call.only().pass == 0);
  CHECK(same(call.only().inputs[0], x.grad()));

  ThrowingBackward::armed = true;
  CHECK_THROWS(backward({call.outputs[0].sum()}, {}, true));
  ThrowingBackward::armed = false;
  call.outputs.clear();
  CHECK(call.alive.expired());
}

TEST_CASE("a callback that throws does not reach the program", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1);
  auto collector = GradientCollector::before_call({x});
  const Tensor y = x.mul(2);
  REQUIRE(collector->after_call({y}, [](const CallGradients&) { throw std::runtime_error("x"); }));
  CHECK_NOTHROW(backward({y.sum()}));
  CHECK(same(x.grad(), at::_ops::ones::call({3}, {}, {}, {}, {}) * 2));
}

TEST_CASE("a weight that autocast casts once gives each call its own gradient", "[gradients]") {
  const Tensor weight = distinct_leaf({5, 4}, 2);
  const Tensor x = distinct_leaf({3, 4}, 1);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  const auto linear = [&] { return Tensors{at::_ops::linear::call(x, weight, {})}; };
  const Watched first = watch({x, weight}, linear);
  const Watched second = watch({x, weight}, linear);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  REQUIRE(first.outputs[0].scalar_type() == at::kBFloat16);

  const Tensor gradient = distinct_values({3, 5}, 3, at::kBFloat16),
               other_gradient = distinct_values({3, 5}, 4, at::kBFloat16);
  const Tensors of_first = expected(first.outputs, {x, weight}, {gradient});
  const Tensors of_second = expected(second.outputs, {x, weight}, {other_gradient});
  first.passes->clear();
  second.passes->clear();
  backward({first.outputs[0], second.outputs[0]}, {gradient, other_gradient});
  for (size_t i = 0; i < 2; ++i) {
    CHECK(same(first.only().inputs[i], of_first[i]));
    CHECK(same(second.only().inputs[i], of_second[i]));
  }
  CHECK(first.only().inputs[1].scalar_type() == at::kFloat);
}

TEST_CASE("a backward pass inside a backward pass is a pass of its own", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1), weight = distinct_leaf({3}, 2);
  auto inner = std::make_shared<std::vector<Watched>>();
  Checkpoint::body = [&weight, inner](const Tensor& input) {
    if (!c10::GradMode::is_enabled()) return input.mul(weight).sin();
    inner->push_back(watch({input, weight}, [&] { return Tensors{input.mul(weight).sin()}; }));
    return inner->back().outputs[0];
  };
  const Watched outer = watch({x}, [&] { return Tensors{Checkpoint::apply(x)}; });
  const Tensor gradient = distinct_values({3}, 3);
  backward({outer.outputs[0]}, {gradient});
  Checkpoint::body = nullptr;
  CHECK(same(outer.only().inputs[0], x.grad()));
  REQUIRE(inner->size() == 1);
  CHECK(same(inner->front().only().inputs[0], x.grad()));
  CHECK(same(inner->front().only().inputs[1], weight.grad()));
  CHECK(same(inner->front().only().outputs[0], gradient));
}

TEST_CASE("two threads that run backward over a graph at once do not mix", "[gradients]") {
  const Tensor x = distinct_leaf({3}, 1), y = distinct_leaf({3}, 2);
  const Watched call = watch({x, y}, [&] { return Tensors{x.mul(y).sin().add(x.exp())}; });
  constexpr int kPasses = 100;
  const auto work = [&](double scale) {
    for (int i = 0; i < kPasses; ++i) {
      torch::autograd::grad(call.outputs, {x, y}, {distinct_values({3}, 3).mul(scale)}, true);
    }
  };
  std::thread other(work, 1.0);
  work(1000.0);
  other.join();

  REQUIRE(call.passes->size() == 2 * kPasses);
  const Tensor gradient = distinct_values({3}, 3);
  size_t large = 0;
  std::vector<bool> numbered(2 * kPasses);
  for (const CallGradients& pass : *call.passes) {
    const bool is_large = !same(pass.outputs[0], gradient);
    large += is_large;
    const double scale = is_large ? 1000.0 : 1.0;
    REQUIRE(same(pass.outputs[0], gradient.mul(scale)));
    REQUIRE(pass.inputs[1].allclose(gradient * scale * x.detach() * (x * y).detach().cos()));
    numbered.at(pass.pass) = true;
  }
  CHECK(large == kPasses);
  CHECK(numbered == std::vector<bool>(2 * kPasses, true));
}

TEST_CASE("sparse gradients, alone and beside dense ones", "[gradients]") {
  const Tensor table = distinct_leaf({6, 3}, 1);
  const Tensor rows = at::_ops::ones::call({2}, at::kLong, {}, {}, {}).cumsum(0);
  const auto lookup = [&] { return at::_ops::embedding::call(table, rows, -1, false, true); };
  const Watched sparse = watch({table}, [&] { return Tensors{lookup()}; });
  backward({sparse.outputs[0].sum()});
  CHECK(sparse.only().inputs[0].is_sparse());
  CHECK(same(sparse.only().inputs[0].to_dense(), table.grad().to_dense()));

  table.mutable_grad() = Tensor();
  const Watched mixed = watch({table}, [&] { return Tensors{lookup().sum().add(table.mul(table).sum())}; });
  backward({mixed.outputs[0]});
  CHECK(mixed.only().inputs[0].allclose(table.grad()));
}

TEST_CASE("copies keep strides and hold no more than the elements shown", "[gradients]") {
  const Tensor x = distinct_leaf({200, 300}, 1) * 1;
  const Watched call = watch({x}, [&] { return Tensors{x.mul(2)}; });

  SECTION("an expanded gradient stays expanded") {
    backward({call.outputs[0].sum()});
    CHECK(call.only().outputs[0].strides() == at::IntArrayRef{0, 0});
    CHECK(call.only().outputs[0].storage().nbytes() == 4);
  }
  SECTION("a transposed gradient stays transposed") {
    const Tensor gradient = distinct_values({300, 200}, 2).t();
    backward({call.outputs[0]}, {gradient});
    CHECK(call.only().outputs[0].strides() == gradient.strides());
    CHECK(same(call.only().outputs[0], gradient));
    CHECK(call.only().outputs[0].data_ptr() != gradient.data_ptr());
  }
  SECTION("a slice keeps its strides, a thin slice does not keep the matrix") {
    const Tensor gradient = distinct_values({200, 600}, 2).slice(1, 0, 300);
    backward({call.outputs[0]}, {gradient}, true);
    CHECK(call.only().outputs[0].strides() == gradient.strides());
    CHECK(same(call.only().outputs[0], gradient));
    const Watched thin = watch({x}, [&] { return Tensors{x.select(1, 0).mul(2)}; });
    const Tensor column = distinct_values({200, 600}, 3).select(1, 7);
    backward({thin.outputs[0]}, {column});
    CHECK(same(thin.only().outputs[0], column));
    CHECK(thin.only().outputs[0].storage().nbytes() == 200 * 4);
  }
}

TEST_CASE("gradients are bit for bit as without hooks", "[gradients]") {
  const auto train = [](bool watched) {
    const Tensor x = distinct_leaf({2, 3, 4}, 1), weight = distinct_leaf({5, 4}, 2), bias = distinct_leaf({5}, 3);
    std::vector<Watched> calls;
    Tensors losses;
    // Three consumers of each tensor: the order of accumulation shows in the last bits.
    for (int i = 0; i < 3; ++i) {
      const auto call = [&] { return composite(x * (i + 0.1), weight.sin(), bias * x.sum()); };
      if (watched) {
        calls.push_back(watch({x, weight, bias}, call));
        losses.push_back(calls.back().outputs[0].exp().sum());
      } else {
        losses.push_back(call()[0].exp().sum());
      }
    }
    backward(losses);
    if (watched) CHECK(calls[2].only().complete);
    return Tensors{x.grad(), weight.grad(), bias.grad()};
  };
  const Tensors without = train(false), with = train(true);
  for (size_t i = 0; i < without.size(); ++i) {
    CHECK(same(with[i], without[i]));
    CHECK(with[i].strides() == without[i].strides());
  }
}

TEST_CASE("under the internal guard nothing is recorded, cast or met", "[gradients]") {
  const Tensor x = distinct_leaf({3, 3}, 1);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  {
    InternalGuard guard;
    const Tensor y = at::_ops::linear::call(x, x, {});
    CHECK_FALSE(y.requires_grad());
    CHECK(y.scalar_type() == at::kFloat);
    CHECK(c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey));
  }
  CHECK(at::_ops::linear::call(x, x, {}).scalar_type() == at::kBFloat16);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  CHECK_FALSE(c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey));
  CHECK(x.mul(2).requires_grad());
}

TEST_CASE("Lent gradients are this call's when they are reported, and the program's are unchanged", "[gradients]") {
  Tensors reported[2], left[2];
  for (const bool lends : {false, true}) {
    const Tensor x = distinct_leaf({2, 3, 4}, 1), weight = distinct_leaf({5, 4}, 2), bias = distinct_leaf({5}, 3);
    const Tensor inner = x * 1;
    // The weight's gradient is summed up in place over three calls, the input's over two.
    std::vector<Watched> calls;
    Tensors outputs;
    for (int i = 0; i < 3; ++i) {
      calls.push_back(watch(
          {inner, weight, bias}, [&] { return composite(inner, weight, bias); }, lends));
      outputs.push_back(calls.back().outputs[0]);
    }
    calls.push_back(watch(
        {inner, inner}, [&] { return Tensors{inner + inner}; }, lends));
    outputs.push_back(calls.back().outputs[0]);
    backward(outputs, {distinct_values({2, 3, 5}, 4), distinct_values({2, 3, 5}, 5), distinct_values({2, 3, 5}, 6),
                       distinct_values({2, 3, 4}, 7)});
    for (const Watched& call : calls) {
      const CallGradients& only = call.only();
      reported[lends].insert(reported[lends].end(), only.outputs.begin(), only.outputs.end());
      reported[lends].insert(reported[lends].end(), only.inputs.begin(), only.inputs.end());
    }
    left[lends] = {x.grad(), weight.grad(), bias.grad()};
  }
  REQUIRE(reported[0].size() == reported[1].size());
  for (size_t i = 0; i < reported[0].size(); ++i) CHECK(same(reported[0][i], reported[1][i]));
  for (size_t i = 0; i < left[0].size(); ++i) CHECK(same(left[0][i], left[1][i]));
}
