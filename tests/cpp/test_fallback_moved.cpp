#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "catch.h"
#include "fallback/cpu_runner.h"
#include "fallback/random_stream.h"
#include "tensor/internal_guard.h"

using namespace op_tools;
using at::Tensor;

namespace {

Tensor sines(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kFloat).sin().reshape(sizes).to(dtype);
}

at::ScalarType widened(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
      return at::kDouble;
    case at::kComplexFloat:
      return at::kComplexDouble;
    default:
      return dtype;
  }
}

const Target kCopies{.device = c10::kCPU, .fresh = true};
const Target kDoubles{.device = c10::kCPU, .cast = &widened, .fresh = true};

}  // namespace

TEST_CASE("copies of a call share memory that its tensors share, and nothing with the program", "[fallback]") {
  const Tensor base = sines({4, 6});
  const Tensor column = base.slice(1, 1, 3), turned = base.t();
  const MovedCall moved(make_tuple({base, column, make_list({turned, base})}), make_dict({{"out", column}}), kCopies);
  REQUIRE(moved.tensors().size() == 5);
  const auto& tensors = moved.tensors();
  CHECK(tensors[0].is_same(tensors[3]));
  CHECK(tensors[1].is_same(tensors[4]));
  for (const Tensor& tensor : tensors) {
    CHECK(tensor.storage().data() == tensors[0].storage().data());
    CHECK(tensor.storage().data() != base.storage().data());
  }
  CHECK(tensors[1].strides() == column.strides());
  CHECK(tensors[1].equal(column));
  CHECK(tensors[2].equal(turned));
  tensors[1].zero_();
  CHECK(tensors[0].select(1, 1).abs().sum().item<double>() == 0);
  CHECK(base.select(1, 1).abs().sum().item<double>() > 0);
}

TEST_CASE("memory that is copied on write is shared further until a run writes into it", "[fallback]") {
  const Tensor original = at::_lazy_clone(sines({4, 6}));
  const Tensor part = original.slice(1, 1, 3), expected = original.clone();
  const auto memory = [](const Tensor& tensor) { return tensor.storage().data(); };  // does not make a copy
  const MovedCall moved(make_tuple({original, part}), make_dict({}), kCopies);
  const Tensor whole = moved.tensors()[0], slice = moved.tensors()[1];
  CHECK(memory(whole) == memory(original));
  CHECK(whole.storage().unsafeGetStorageImpl() == slice.storage().unsafeGetStorageImpl());
  CHECK(slice.strides() == part.strides());
  CHECK(slice.equal(part));
  slice.zero_();
  CHECK(memory(whole) != memory(original));
  CHECK(memory(slice) == memory(whole));
  CHECK(whole.select(1, 1).abs().sum().item<double>() == 0);
  CHECK(original.equal(expected));
  // Another dtype is another memory from the beginning.
  CHECK(MovedCall(make_tuple({original}), make_dict({}), kDoubles).tensors()[0].equal(expected.to(at::kDouble)));
}

TEST_CASE("a view is copied without the rest of its storage, strides kept", "[fallback]") {
  const Tensor large = sines({1000, 1000});
  const Tensor column = large.select(1, 7), row = large.select(0, 500), spread = row.slice(0, 0, 3).expand({5, 3});
  for (const Tensor& view : {column, row, spread}) {
    const MovedCall moved(make_tuple({view}), make_dict({}), kCopies);
    CHECK(moved.bytes() <= 1100 * 4);
    CHECK(moved.tensors()[0].strides() == view.strides());
    CHECK(moved.tensors()[0].equal(view));
  }
  const MovedCall overlapping(make_tuple({row.slice(0, 10, 20), row.slice(0, 15, 30)}), make_dict({}), kCopies);
  CHECK(overlapping.bytes() < 64 + 30 * 4);
  CHECK(overlapping.tensors()[0].storage().data() == overlapping.tensors()[1].storage().data());
  CHECK(overlapping.tensors()[1].equal(row.slice(0, 15, 30)));
}

TEST_CASE("a cast keeps strides and aliasing, and leaves numbers and integers alone", "[fallback]") {
  const Tensor base = sines({6, 4}, at::kBFloat16);
  const Tensor index = at::arange(3), number = at::scalar_tensor(2.5, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  const MovedCall moved(make_tuple({base.t(), base.select(0, 2), index, number, at::kFloat}), make_dict({}), kDoubles);
  const auto& tensors = moved.tensors();
  CHECK(tensors[0].scalar_type() == at::kDouble);
  CHECK(tensors[0].strides() == base.t().strides());
  CHECK(tensors[0].equal(base.t().to(at::kDouble)));
  CHECK(tensors[0].storage().data() == tensors[1].storage().data());
  CHECK(tensors[2].scalar_type() == at::kLong);
  CHECK(tensors[3].unsafeGetTensorImpl()->is_wrapped_number());
  CHECK(*sequence_items(moved.args())->at(4).get_if<at::ScalarType>() == at::kDouble);
}

TEST_CASE("tensors of several dtypes over one storage stay there", "[fallback]") {
  const Tensor complex = at::complex(sines({5}), sines({5}).cos());
  const MovedCall moved(make_tuple({at::view_as_real(complex), complex, complex.conj()}), make_dict({}), kCopies);
  const auto& tensors = moved.tensors();
  CHECK(tensors[0].storage().data() == tensors[1].storage().data());
  CHECK(tensors[1].equal(complex));
  CHECK(tensors[2].is_conj());
  CHECK(tensors[2].equal(complex.conj()));
  tensors[0].zero_();
  CHECK(tensors[1].abs().sum().item<double>() == 0);
}

TEST_CASE("empty, sparse and zero tensors are copied; without a plain form they are refused", "[fallback]") {
  const Tensor sparse = sines({3, 3}).to_sparse(), none = at::empty({0, 3}), zero = at::_efficientzerotensor({2});
  const MovedCall moved(make_tuple({sparse, none, zero, none.t()}), make_dict({}), kDoubles);
  CHECK(moved.tensors()[0].is_sparse());
  CHECK(moved.tensors()[0].scalar_type() == at::kDouble);
  CHECK(moved.tensors()[0].to_dense().equal(sparse.to_dense().to(at::kDouble)));
  CHECK(moved.tensors()[1].sizes() == none.sizes());
  CHECK(moved.tensors()[2]._is_zerotensor());
  CHECK_THROWS_AS(MovedCall(make_tuple({at::empty({2}, at::kMeta)}), make_dict({}), kCopies), Error);
  Tensor freed = sines({4}).clone();
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  CHECK_THROWS_AS(MovedCall(make_tuple({freed}), make_dict({}), kCopies), Error);
}

TEST_CASE("gradients of a moved call arrive by tensor index and touch nothing of the program", "[fallback]") {
  const Tensor weight = sines({3, 4}).requires_grad_(), input = sines({4});
  const Tensor twice = sines({3}).requires_grad_();
  const Tensor bias = twice * 1;  // of a graph of the program's
  for (const Target& target : {kCopies, kDoubles}) {
    std::optional<MovedCall> moved;
    {
      const InternalGuard guard;  // as in a hook
      moved.emplace(make_tuple({weight, input, bias, bias}), make_dict({}), target);
    }
    const auto& t = moved->tensors();
    CHECK(t[2].is_same(t[3]));
    const Tensor changed = t[2].mul_(2);  // no leaf: may be changed in place
    const Tensor result = at::mv(t[0], t[1]) * changed + t[3];
    const auto gradients = moved->gradients({result}, {at::ones({3})}, false);
    REQUIRE(gradients.size() == 4);
    CHECK(gradients[0].scalar_type() == t[0].scalar_type());
    CHECK(at::allclose(gradients[0].to(at::kFloat), (bias * 2).detach().unsqueeze(1) * input));
    CHECK(!gradients[1].defined());
    CHECK(at::allclose(gradients[2].to(at::kFloat), (at::mv(weight, input) * 2 + 2).detach()));
    CHECK(gradients[2].equal(gradients[3]));
  }
  CHECK(!weight.grad().defined());
  CHECK(!twice.grad().defined());
}

TEST_CASE("copies towards the program hand gradients on, and may be differentiated twice", "[fallback]") {
  const Tensor x = sines({4}).requires_grad_();
  const Tensor y = x * 1;
  const MovedTensors moved({y}, kDoubles, GradientsGo::kToOriginals);
  const Tensor cubed = moved.copy_of(y).pow(3);
  const MovedTensors back({cubed}, {.device = c10::kCPU, .cast = [](at::ScalarType) { return at::kFloat; }},
                          GradientsGo::kToOriginals);
  const Tensor result = back.copy_of(cubed);
  CHECK(result.scalar_type() == at::kFloat);
  const Tensor first = torch::autograd::grad({result.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  CHECK(at::allclose(first, 3 * x * x));
  const Tensor second = torch::autograd::grad({first.sum()}, {x})[0];
  CHECK(second.scalar_type() == at::kFloat);
  CHECK(at::allclose(second, 6 * x));
  CHECK(moved.original_of(moved.copy_of(y)).is_same(y));
  CHECK(!moved.original_of(y).defined());
}

TEST_CASE("a long chain of moves is freed without deep recursion", "[fallback]") {
  Tensor x = at::ones({1}).requires_grad_();
  for (int i = 0; i < 100'000; ++i) {
    x = MovedTensors({x}, kCopies, GradientsGo::kToOriginals).copy_of(x);
  }
  CHECK(x.requires_grad());
  x.reset();
}

TEST_CASE("a view of a copy is the same view of the original", "[fallback]") {
  const Tensor base = sines({3, 8}).requires_grad_();
  const Tensor part = base.slice(1, 2, 6);
  const MovedTensors moved({part}, kCopies, GradientsGo::kToOriginals);
  const Tensor shown = moved.copy_of(part).t().select(0, 1);
  const Tensor view = moved.view_of_original(shown);
  CHECK(view.storage().data() == base.storage().data());
  CHECK(view.equal(part.t().select(0, 1)));
  CHECK(view.strides() == shown.strides());
  CHECK(torch::autograd::grad({view.sum()}, {base})[0].select(1, 3).sum().item<double>() == 3);
  CHECK(!moved.view_of_original(sines({3})).defined());
}

TEST_CASE("tangents of forward-mode differentiation go along", "[fallback]") {
  const uint64_t level = torch::autograd::forward_ad::enter_dual_level();
  Tensor x = sines({3});
  x._set_fw_grad(at::ones({3}), level, false);
  const MovedTensors moved({x}, kDoubles, GradientsGo::kToOriginals);
  const Tensor doubled = moved.copy_of(x) * 2;
  REQUIRE(doubled._fw_grad(0).defined());
  CHECK(doubled._fw_grad(0).equal(at::full({3}, 2, at::kDouble)));
  torch::autograd::forward_ad::exit_dual_level(level);
}

TEST_CASE("a random stream is the generator's and leaves the CPU's own alone", "[fallback]") {
  at::Generator device = at::detail::createCPUGenerator();
  device.set_current_seed(7);
  const at::Generator same = device.clone();
  at::Generator standard = at::detail::getDefaultCPUGenerator();
  const Tensor before = standard.get_state();
  Tensor drawn;
  {
    const RandomStream stream(device, /*as_default=*/true);
    drawn = at::randn({5});
  }
  CHECK(standard.get_state().equal(before));
  CHECK(drawn.equal(at::randn({5}, same)));
  {
    const RandomStream stream(device, /*as_default=*/false);
    drawn = at::randn({5}, stream.generator());
  }
  CHECK(drawn.equal(at::randn({5}, same)));
  {
    RandomStream stream(device, /*as_default=*/true);
    at::randn({5});
    stream.take_back();
  }
  CHECK(at::randn({5}, device).equal(at::randn({5}, same)));
  CHECK(standard.get_state().equal(before));
}

TEST_CASE("a generator state of another kind seeds the CPU's", "[fallback]") {
  const Tensor ones = at::full({16}, 1, at::kByte), other = at::full({16}, 2, at::kByte);
  CHECK(cpu_state_from(ones).equal(cpu_state_from(ones)));
  CHECK(!cpu_state_from(ones).equal(cpu_state_from(other)));
  const Tensor own = at::detail::createCPUGenerator(11).get_state();
  CHECK(cpu_state_from(own).equal(own));
}

TEST_CASE("the device of a call is that of its tensors that are not on the CPU", "[fallback]") {
  const Tensor cpu = at::ones({1}), meta = at::empty({1}, at::kMeta);
  CHECK(device_of({cpu, Tensor()}) == c10::Device(c10::kCPU));
  CHECK(device_of({cpu, meta, cpu}) == c10::Device(c10::kMeta));
  CHECK(is_same_device(c10::Device("cuda"), c10::Device("cuda:1")));
  CHECK(!is_same_device(c10::Device("cuda:0"), c10::Device("cuda:1")));
}
