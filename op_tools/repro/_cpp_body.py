"""The part that all C++ programs of op-tools repro have in common. _cpp.py writes what differs."""

INCLUDES = """\
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>
"""

DECLARED = """\
using Tensors = std::vector<at::Tensor>;
using Put = std::function<at::Tensor(at::Tensor)>;

at::Tensor reals(const std::vector<double>& numbers, at::ScalarType dtype) {
  return at::tensor(numbers, at::kDouble).to(dtype);
}
at::Tensor integers(const std::vector<int64_t>& numbers, at::ScalarType dtype) {
  return at::tensor(numbers, at::kLong).to(dtype);
}
at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, at::isIntegralType(number.type(), true) ? at::kLong : at::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}
"""

BODY = r"""
using Found = std::map<std::string, at::Tensor>;  // results by name

bool is_inexact(at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); }

at::ScalarType widened(at::ScalarType dtype) {
  return at::isComplexType(dtype) ? at::kComplexDouble : at::isFloatingType(dtype) ? at::kDouble : dtype;
}

double unit_of(at::ScalarType dtype) {
  if (at::isComplexType(dtype)) dtype = at::toRealValueType(dtype);
  return dtype == at::kDouble ? 0x1p-52 : dtype == at::kHalf ? 0x1p-10 : dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-23;
}

void collect(const c10::IValue& value, Tensors* tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors->push_back(value.toTensor());
  if (value.isList()) for (const c10::IValue& item : value.toListRef()) collect(item, tensors);
  if (value.isScalar()) tensors->push_back(at::scalar_tensor(value.toScalar()));
}

// One run: its results by name; "raised" among `raised`. wide: in float64; sample: from inputs changed by their rounding.
Found run(at::Device device, std::string* raised, bool wide = false, int sample = 0) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(sample);
  const Put put = [&](at::Tensor memory) {
    const at::ScalarType dtype = memory.scalar_type();
    if (sample && is_inexact(dtype)) {
      const double unit = std::min(0x1p-23, unit_of(dtype));
      const at::Tensor share = at::rand(memory.sizes(), random, at::kDouble) * 2 - 1;
      memory = memory.to(widened(dtype)) * (1 + (wide ? unit / 2 : unit) * share);
    }
    return memory.to(device, wide ? widened(dtype) : dtype, false, /*copy=*/true);
  };
  Tensors leaves, gradients, results;
  Found found;
  try {
    Tensors x = inputs(put, &leaves, &gradients);
    std::vector<c10::IValue> stack = arguments(x, device, wide);
    call(&stack, device, wide);
    for (const c10::IValue& value : stack) collect(value, &results);
    for (size_t i = 0; i < results.size(); ++i) found["output " + std::to_string(i)] = results[i].detach();
    for (size_t i = 0; i < x.size(); ++i) found["input " + std::to_string(i) + " after the call"] = x[i].detach();
    Tensors outputs, arriving;
    for (size_t i = 0; i < gradients.size() && i < results.size(); ++i) {
      if (!gradients[i].defined() || !results[i].requires_grad()) continue;
      outputs.push_back(results[i]);
      arriving.push_back(gradients[i].to(results[i].scalar_type()));
    }
    Tensors wanted;
    for (const at::Tensor& leaf : leaves) if (leaf.defined()) wanted.push_back(leaf);
    if (!outputs.empty() && !wanted.empty()) {
      const Tensors arrived = torch::autograd::grad(outputs, wanted, arriving, std::nullopt, false, /*allow_unused=*/true);
      for (size_t i = 0, next = 0; i < leaves.size(); ++i) {
        if (leaves[i].defined()) found["gradient of input " + std::to_string(i)] = arrived[next++];
      }
    }
  } catch (const std::exception& error) {
    *raised = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
    return {};
  }
  return found;
}

at::Tensor parts(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.cpu().resolve_conj().resolve_neg();
  return (plain.is_complex() ? at::view_as_real(plain) : plain).to(at::kDouble);
}

struct Errors {
  double rms = 0, most = 0, ulp = 0;
};
Errors errors(const at::Tensor& result, const at::Tensor& exact, double unit) {
  const at::Tensor error = (result - exact).abs(), finite = error.isfinite();
  if (!finite.any().item<bool>()) return {};
  const at::Tensor e = error.masked_select(finite);
  const at::Tensor size = exact.abs().masked_select(finite).clamp_min(unit == 0x1p-10 ? 0x1p-14 : 0x1p-103);
  return {e.square().mean().sqrt().item<double>(), e.max().item<double>(),
          (e / (at::exp2(size.log2().floor()) * unit)).max().item<double>()};
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && (x.nbytes() == 0 || !memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()));
}

// A multiple of the CPU's own error, and some units of the dtype: what another order of rounding may do.
bool wrong_values(const std::string& name, const at::Tensor& got, const at::Tensor& cpu, const Tensors& before) {
  std::string raised;
  const Found wide = run(at::kCPU, &raised, true);
  const bool has_exact = wide.count(name) && wide.at(name).defined() && wide.at(name).sizes() == got.sizes();
  const at::Tensor exact = parts(has_exact ? wide.at(name).to(widened(got.scalar_type())) : cpu);
  const at::Tensor rounded = parts((has_exact ? wide.at(name) : cpu).to(got.scalar_type()));
  const at::Tensor wanted = at::where(rounded.isfinite(), exact, rounded), device = parts(got);
  const at::Tensor host = kAlone ? rounded : parts(cpu);  // the CPU itself is asked: float64 alone judges
  const auto strange = [&](const at::Tensor& one) {
    return ((device == one) | (device.isfinite() & one.isfinite()) | (device.isnan() & one.isnan())).logical_not();
  };
  if ((strange(wanted) & strange(host)).any().item<bool>()) {
    std::printf("WRONG: %s: a NaN or infinity where neither the CPU nor float64 has one\n", name.c_str());
    return true;
  }
  const double unit = std::max(unit_of(got.scalar_type()), kCoarse);
  const Errors mine = errors(device, wanted, unit), other = has_exact && !kAlone ? errors(host, wanted, unit) : Errors();
  double largest = 1, second = 1;
  for (const at::Tensor& one : before) {
    if (!is_inexact(one.scalar_type())) continue;
    const double count = static_cast<double>(one.numel());
    second = count >= largest ? largest : std::max(second, count);
    largest = std::max(largest, count);
  }
  const double out = std::max<double>(1, static_cast<double>(got.numel()));
  const double terms = std::min(largest, std::max({1.0, largest / out, std::sqrt(largest * second / out)}));
  const at::Tensor size = wanted.masked_select(wanted.isfinite());
  const double rms = size.numel() ? size.square().mean().sqrt().item<double>() : 0;
  const double top = size.numel() ? size.abs().max().item<double>() : 0;
  const bool coarse = unit > 0x1p-23;
  const double few = wanted.numel() < 1000 ? 1.5 : 1, times = kAlone ? 4 : 1;
  const double grown = std::max(std::min(unit, 0x1p-23), kAlone ? unit / 8 : 0) * std::sqrt(terms);
  const double alone = has_exact ? 1 : coarse ? 8 : 3;
  double limit[3] = {
      alone * (2 * few * other.rms + (times * ((coarse ? 0.25 : 4) * unit + unit / std::sqrt(out)) + grown) * rms),
      alone * ((coarse ? 4 : 10) * few * other.most + (times * (coarse ? 1 : 6) * unit + grown) * top),
      other.ulp <= 4 && !kAlone ? alone * (4 * other.ulp + (coarse ? 2 : 32) + 4 * grown / unit) : INFINITY};
  const double number[3] = {mine.rms, mine.most, mine.ulp};
  const auto over = [&] { return number[0] > limit[0] || number[1] > limit[1] || number[2] > limit[2]; };
  if (over() && has_exact && (kAlone || !(other.ulp <= 0.5 && got.numel() >= 16))) {
    Errors noise, own;
    for (int sample = 1; sample <= 3; ++sample) {
      const Found moved = run(at::kCPU, &raised, true, sample), again = run(at::kCPU, &raised, false, sample);
      const auto add = [&](Errors* to, const Found& from, const at::Tensor& centre) {
        if (!from.count(name) || from.at(name).sizes() != got.sizes()) return;
        const Errors one = errors(parts(from.at(name)), centre, unit);
        *to = {std::max(to->rms, one.rms), std::max(to->most, one.most), std::max(to->ulp, one.ulp)};
      };
      add(&noise, moved, wanted);
      if (!coarse) add(&own, again, host);
    }
    limit[0] += 6 * noise.rms + 3 * own.rms;
    limit[1] += 8 * noise.most + 4 * own.most;
    limit[2] += 8 * noise.ulp + 4 * own.ulp;
  }
  if (!over()) return false;
  const int64_t at = at::nan_to_num((device - wanted).abs(), 0, 0, 0).argmax().item<int64_t>();
  const auto value = [&](const at::Tensor& tensor) { return tensor.reshape(-1)[at].item<double>(); };
  std::printf("WRONG: %s: element %lld: device %.17g, CPU %.17g, float64 %.17g\n", name.c_str(), static_cast<long long>(at),
              value(device), value(host), value(wanted));
  std::printf("    largest error against float64: %.4g, of the CPU %.4g; limit %.4g\n", mine.most, other.most, limit[1]);
  return true;
}

bool is_wrong(const std::string& name, const at::Tensor& got, const at::Tensor& cpu, const Tensors& before) {
  if (!got.defined() || !cpu.defined()) {
    const at::Tensor& there = got.defined() ? got : cpu;
    if (!there.defined() || !there.cpu().any().item<bool>()) return false;
    std::printf("WRONG: %s: %s, unlike on the CPU\n", name.c_str(), got.defined() ? "a gradient" : "no gradient");
    return true;
  }
  bool form = got.sizes() != cpu.sizes() || got.scalar_type() != cpu.scalar_type();
  for (int64_t d = 0; kStrides && !form && d < got.dim(); ++d) form = got.size(d) > 1 && got.stride(d) != cpu.stride(d);
  if (form) std::printf("WRONG: %s: another shape, dtype or other strides than on the CPU\n", name.c_str());
  const bool unchanged = name.rfind("input ", 0) == 0 && same_bits(cpu, before[std::stoul(name.substr(6))]);
  if (form || (same_bits(got, cpu) && (unchanged || !kAlone))) return form;
  if (!unchanged && is_inexact(got.scalar_type())) return wrong_values(name, got, cpu, before);
  if (same_bits(got, cpu)) return false;
  std::printf("WRONG: %s: %s\n", name.c_str(), unchanged ? "the call changed it, though it must not" : "other elements");
  return true;
}

int main(int count, char** arguments) {
  load();
  const at::Device device(count > 1 ? arguments[1] : kDevice);
  std::printf("torch %s, device %s\n", TORCH_VERSION, device.str().c_str());
  Tensors leaves, gradients;
  const Tensors before = inputs([](at::Tensor memory) { return memory.clone(); }, &leaves, &gradients);
  std::string cpu_raised, raised;
  const Found cpu = run(at::kCPU, &cpu_raised);
  bool wrong = false, judged = false;
  for (int i = 0; i < kCalls; ++i) {
    const Found got = run(device, &raised);
    if (!raised.empty() && cpu_raised.empty()) {
      std::printf("WRONG: raised: %s; the CPU returns\n", raised.c_str());
      wrong = true;
    }
    if (raised.empty() && !cpu_raised.empty()) std::printf("cannot tell: the CPU raised %s\n", cpu_raised.c_str());
    judged = judged || (!raised.empty() && !cpu_raised.empty());
    if (!raised.empty() || !cpu_raised.empty()) continue;
    for (const auto& [name, tensor] : cpu) {
      if (kLeftOut.count(name)) continue;
      judged = true;
      wrong |= is_wrong(name, got.count(name) ? got.at(name) : at::Tensor(), tensor, before);
    }
  }
  std::printf("%s\n", wrong ? "WRONG" : judged ? "right" : "NOT JUDGED: no result could be compared");
  std::fflush(stdout);
  return wrong ? 1 : judged ? 0 : 2;
}
"""

CMAKE = """\
# cmake -S . -B build -DCMAKE_PREFIX_PATH="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
# cmake --build build && build/{name}
cmake_minimum_required(VERSION 3.18)
project({name} LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(Torch REQUIRED)
add_executable({name} {name}.cpp)
target_link_libraries({name} PRIVATE ${{TORCH_LIBRARIES}} ${{CMAKE_DL_LIBS}})
"""
