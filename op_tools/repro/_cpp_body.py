"""The common part of all C++ programs of op-tools repro. _cpp.py writes the rest."""

INCLUDES = """\
#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>
"""

DECLARED = """\
using Tensors = std::vector<at::Tensor>;
using Put = std::function<at::Tensor(at::Tensor)>;

// A result as it has to be: each element as near to that of any of the values as the limit says. No values: an input that
// stays as it was.
struct Expected {
  Tensors values;
  at::Tensor limit;
  double rmse;
  std::optional<at::ScalarType> dtype;
  std::vector<std::vector<int64_t>> strides;
  std::optional<std::vector<int64_t>> aliases;
  bool only_sizes;
};

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

void collect(const c10::IValue& value, Tensors* tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors->push_back(value.toTensor());
  if (value.isList()) for (const c10::IValue& item : value.toListRef()) collect(item, tensors);
  if (!value.isScalar()) return;
  const at::Tensor number = c10::scalar_to_tensor(value.toScalar());
  tensors->push_back(number.scalar_type() == at::kDouble ? number.to(at::kFloat) : number);
}

// A run: its results by name; "raised" among `raised`. `aliases`: the inputs whose memory each shows.
Found run(at::Device device, std::string* raised, std::map<std::string, std::vector<int64_t>>* aliases) {
  const Put put = [&](at::Tensor memory) { return memory.to(device, memory.scalar_type(), false, /*copy=*/true); };
  Tensors leaves, gradients, results;
  Found found;
  try {
    Tensors x = inputs(put, &leaves, &gradients);
    std::vector<c10::IValue> stack = arguments(x, device);
    call(&stack, device);
    for (const c10::IValue& value : stack) collect(value, &results);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = results.size() > 1 ? "output " + std::to_string(i) : "output";
      found[name] = results[i].layout() == at::kStrided ? results[i].detach() : results[i].detach().to_dense();
      for (size_t k = 0; k < x.size() && results[i].numel() > 0; ++k) {
        if (results[i].is_alias_of(x[k])) (*aliases)[name].push_back(static_cast<int64_t>(k));
      }
    }
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

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && (x.nbytes() == 0 || !memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()));
}

// Of each element: 0 for the same infinity and for NaN twice, infinite where only one of them is finite or NaN.
at::Tensor distance(const at::Tensor& got, const at::Tensor& value) {
  if (!value.is_floating_point() && !value.is_complex()) return got.ne(value).to(at::kDouble);
  const at::Tensor wide = got.to(value.scalar_type()), both_nan = wide.isnan() & value.isnan();
  if (!value.is_complex()) {
    return (wide - value).abs().masked_fill((wide == value) | both_nan, 0).nan_to_num(INFINITY, INFINITY, INFINITY);
  }
  const at::Tensor parts = distance(at::view_as_real(wide), at::view_as_real(value));
  return parts.square().sum(-1).sqrt().masked_fill(both_nan, 0);
}

std::vector<int64_t> strides_of(const at::Tensor& tensor) {
  std::vector<int64_t> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d) if (tensor.numel() && tensor.size(d) > 1) strides.push_back(tensor.stride(d));
  return strides;
}

bool is_wrong(const std::string& name, at::Tensor got, const Expected& wanted, const at::Tensor& before,
              const std::vector<int64_t>& aliases) {
  const auto wrong = [&](const char* text) {
    std::printf("WRONG: %s: %s\n", name.c_str(), text);
    return true;
  };
  if (wanted.values.empty()) return !same_bits(got, before) && wrong("the call changed it, though it must not");
  const at::Tensor& first = wanted.values[0];
  if (!got.defined()) return first.any().item<bool>() && wrong("there is none");
  if (got.sizes() != first.sizes()) return wrong("another shape than on the CPU");
  if (wanted.dtype && got.scalar_type() != *wanted.dtype) return wrong("another dtype than on the CPU");
  bool has_strides = wanted.strides.empty();
  for (const auto& strides : wanted.strides) has_strides = has_strides || strides == strides_of(got);
  if (!has_strides) return wrong("other strides than on the CPU");
  if (wanted.aliases && *wanted.aliases != aliases) return wrong("it shows the memory of other inputs than on the CPU");
  if (got.numel() == 0) return false;
  got = got.cpu().resolve_conj().resolve_neg();
  if (wanted.only_sizes) got = got.abs();
  std::vector<at::Tensor> errors;
  for (const at::Tensor& value : wanted.values) errors.push_back(distance(got, value));
  const auto [error, nearest] = at::stack(errors).min(0);
  const at::Tensor limit = wanted.limit.expand(error.sizes());
  const at::Tensor limited = error.masked_fill(limit == std::numeric_limits<double>::max(), 0);
  const double most = limited.max().item<double>();
  const double rmse = most > 0 && most < INFINITY ? most * (limited / most).square().mean().sqrt().item<double>() : most;
  const int64_t over = (error > limit).sum().item<int64_t>();
  if (over == 0 && rmse <= wanted.rmse) return false;
  const int64_t at = (error / limit).nan_to_num(0, INFINITY).argmax().item<int64_t>();
  const auto element = [at](const at::Tensor& tensor) { return tensor.reshape(-1)[at]; };
  const at::Tensor value = wanted.values[element(nearest).item<int64_t>()];
  const auto number = [&](const at::Tensor& tensor) {
    return (tensor.is_complex() ? at::real(element(tensor)) : element(tensor)).to(at::kDouble).item<double>();
  };
  std::printf("WRONG: %s: element %lld: %.17g instead of %.17g\n", name.c_str(), static_cast<long long>(at), number(got),
              number(value));
  std::printf("    its error %.4g, limit %.4g; %lld elements are over their limits; root mean square error %.4g, limit %.4g\n",
              number(error), number(limit), static_cast<long long>(over), rmse, wanted.rmse);
  return true;
}

int main(int count, char** arguments) {
  load();
  const at::Device device(count > 1 ? arguments[1] : kDevice);
  std::printf("torch %s, device %s\n", TORCH_VERSION, device.str().c_str());
  Tensors leaves, gradients;
  const Tensors before = inputs([](at::Tensor memory) { return memory.clone(); }, &leaves, &gradients);
  const std::map<std::string, Expected> all = expected();
  bool wrong = false, judged = false;
  for (int i = 0; i < kCalls; ++i) {
    std::string raised;
    std::map<std::string, std::vector<int64_t>> aliases;
    const Found got = run(device, &raised, &aliases);
    if (kRaises || !raised.empty()) {
      judged = true;
      if (kRaises && !raised.empty()) continue;
      std::printf("WRONG: the call: %s, unlike on the CPU\n", raised.empty() ? "returned" : raised.c_str());
      wrong = true;
      continue;
    }
    for (const auto& [name, wanted] : all) {
      judged = true;
      const at::Tensor then = wanted.values.empty() ? before[std::stoul(name.substr(6))] : at::Tensor();
      wrong |= is_wrong(name, got.count(name) ? got.at(name) : at::Tensor(), wanted, then, aliases[name]);
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
