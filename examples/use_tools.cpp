// The C++ snippets of the docs, as a program: the simulated device has a wrong mm, and OpFallback runs it on the CPU;
// OpBlackBox has the calls in a file.
//
//   use_tools
#include <op_tools.h>
#include <sim_device/sim_device.h>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <exception>
#include <iostream>
#include <string>

namespace {

at::Tensor product() {
  const at::Tensor x = at::ones({2, 2}, at::Device(at::kPrivateUse1));
  return at::mm(x, x).cpu();
}

at::Tensor product_on_cpu() {
  op_tools::FallbackOptions options;
  options.ops = "mm, addmm";
  const op_tools::OpFallback scope{options};
  return product();
}

at::Tensor product_on_cpu_if_float16() {
  auto scope = op_tools::apply_feature("fallback", op_tools::make_dict({{"ops", "mm"}}), [](op_tools::OpCall& call) {
    return op_tools::flatten_tensors(call.args()).front().scalar_type() == at::kHalf;
  });
  return product();
}

std::string last_call() {
  op_tools::BlackBoxOptions options;
  options.calls = 64;
  const op_tools::OpBlackBox scope{options};
  product();
  const op_tools::BlackBoxRow last = scope.result().rows.back();
  return last.state + ": " + last.op + " on " + last.inputs;
}

bool is_finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace

int main() {
  try {
    op_tools::sim_device::load();
    op_tools::sim_device::Fault fault({.kind = "nan", .ops = "mm", .calls = op_tools::sim_device::CallRange{0, 4}});
    const bool device = is_finite(product());
    const bool cpu = is_finite(product_on_cpu());
    const bool only_float16 = is_finite(product_on_cpu_if_float16());
    const std::string last = last_call();
    const auto text = [](bool finite) { return finite ? "finite\n" : "NaN\n"; };
    std::cout << "device: " << text(device) << "CPU: " << text(cpu)
              << "on the CPU if float16, which it is not: " << text(only_float16) << last << "\n";
    return !device && cpu && !only_float16 && last.rfind("ended: aten::", 0) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "use_tools: " << error.what() << "\n";
    return 1;
  }
}
