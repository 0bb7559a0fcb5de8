#include "record/run_header.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <torch/version.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host.h"
#include "base/log.h"
#include "base/read_options.h"
#include "base/version.h"
#include "calls/call_meta.h"
#include "record/recording.h"
#include "tensor/autocast.h"
#include "tensor/exception_text.h"

namespace op_tools {
namespace {

using Items = std::vector<std::pair<Value, Value>>;

// Variables by which a run may differ from another.
Value environment_items() {
  Items items;
  for (auto& [name, value] : environment_containing("_")) {
    for (const std::string_view prefix :
         {"OMP_", "MKL_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "ASCEND_", "HCCL_", "OP_", "PYTORCH_", "TORCH_"}) {
      if (std::string_view(name).substr(0, prefix.size()) == prefix) items.emplace_back(name, value);
    }
  }
  return make_dict(std::move(items));
}

Value flags(const OpCall& call) {
  const at::Context& context = at::globalContext();
  Items autocast;
  for (const Autocast& setting : autocast_devices(call.local_keys.excluded_)) {
    autocast.emplace_back(c10::DeviceTypeName(setting.device, /*lower_case=*/true), torch_name(setting.dtype));
  }
  return make_dict({{"deterministic", context.deterministicAlgorithms()},
                    {"cudnn_deterministic", context.deterministicCuDNN()},
                    {"cudnn_benchmark", context.benchmarkCuDNN()},
                    {"float32_matmul_precision", precision_name(context.float32MatmulPrecision())},
                    {"default_dtype", torch_name(c10::get_default_dtype_as_scalartype())},
                    {"num_threads", static_cast<int64_t>(at::get_num_threads())},
                    {"autocast", make_dict(std::move(autocast))}});
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

Value run_header(const OpCall& call, int64_t rank, bool modules_only) {
  Items items{{"format", kRecordingFormat},
              {"op_tools", std::string(version())},
              {"torch", TORCH_VERSION},
              {"level", std::string(to_string(call.level))},
              {"modules_only", modules_only},
              {"rank", rank},
              {"pid", static_cast<int64_t>(::getpid())},
              {"host", host_name()},
              {"time", static_cast<int64_t>(std::time(nullptr))},
              {"flags", flags(call)},
              {"seeds", make_dict({{"cpu", std::to_string(at::detail::getDefaultCPUGenerator().current_seed())}})},
              {"environment", environment_items()}};
  try {
    Value facts;
    const auto* program = host().program_facts(&facts) ? facts.get_if<Dict>() : nullptr;
    if (program) items.insert(items.end(), program->items->begin(), program->items->end());
  } catch (const std::exception& error) {
    log::debug(std::string("OpRecord: the header says nothing of the program: ") + exception_text(error));
  }
  return make_dict(std::move(items));
}

}  // namespace op_tools
