// The only file that includes torch's autocast header, which brings all of ATen with it: half a minute to compile.
#include <ATen/autocast_mode.h>

#include "sim_device/kernels.h"

namespace op_tools::sim_device {
namespace {

// As under torch.autocast("cuda"): in 16 bits the loss would overflow for usual values.
at::Tensor refuse_binary_cross_entropy(const at::Tensor& /*input*/, const at::Tensor& /*target*/,
                                       const std::optional<at::Tensor>& /*weight*/, int64_t /*reduction*/) {
  TORCH_CHECK(false,
              "binary_cross_entropy and BCELoss are unsafe under autocast. Use binary_cross_entropy_with_logits or "
              "BCEWithLogitsLoss, which take the output of the layer before the sigmoid.");
}

}  // namespace

void register_autocast() {
  using namespace at;            // NOLINT: torch's macros expand to names of it
  using namespace at::autocast;  // NOLINT
  // Never destroyed: that would take the kernels out again.
  [[gnu::used]] static auto* fallback =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(  // NOLINT
          c10::DispatchKey::AutocastPrivateUse1, c10::KernelFunction::makeFallthrough(), "op_tools sim device"));
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1,  // NOLINT
                         __FILE__, __LINE__);
  torch::Library& m = *library;
#define SIM_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIM_FLOAT_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SIM_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOWER_PRECISION)
  AT_FORALL_FP32(SIM_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIM_FLOAT_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(SIM_WIDEST)
#undef SIM_LOWER_PRECISION
#undef SIM_FLOAT
#undef SIM_FLOAT_RESULT
#undef SIM_WIDEST
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}

}  // namespace op_tools::sim_device
