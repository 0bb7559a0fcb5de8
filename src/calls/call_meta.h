// meta.json of a saved call: the call, the program's state, its tensors. Collected in the program's
// thread as plain data, turned into text by the writer of the files. The file's form: docs/architecture.md.
#pragma once

#include <ATen/Context.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "calls/snapshot.h"
#include "hooks/call_info.h"
#include "hooks/op_call.h"
#include "tensor/autocast.h"

namespace op_tools {

// The part that belongs to the process.
struct ProcessState {
  std::optional<c10::ScalarType> default_dtype;
  std::optional<bool> deterministic;
  std::optional<at::Float32MatmulPrecision> float32_matmul_precision;
  std::optional<bool> cudnn_tf32;  // on CUDA, convolutions and recurrent networks of float32 in TF32: on by default

  bool operator==(const ProcessState&) const = default;
};

// The parts of the program's state that change what an operator computes. A member without a value is not known: a file
// of another program may say nothing of it.
struct ProgramState {
  std::optional<bool> grad_enabled;
  bool inference_mode = false;
  c10::SmallVector<Autocast, 2> autocast;  // where it is on
  bool autocast_cache = true;
  std::optional<int> num_threads;
  ProcessState process;

  bool operator==(const ProgramState&) const = default;
  static ProgramState of(const OpCall& call);

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.grad_enabled);
    visit(self.inference_mode);
    visit(self.autocast);
    visit(self.autocast_cache);
    visit(self.num_threads);
    visit(self.process);
  }
};

struct OP_TOOLS_API CallMeta : CallInfo {
  int64_t rank = 0;
  std::string schema;     // aten level
  std::string aten_name;  // torch level: the only aten operator behind the call
  std::string error;      // the call's exception
  bool identity = false;  // an input requires grad, yet the call made no autograd node
  bool random = false;    // the call drew random numbers; input.pth has the state
  std::vector<TensorMeta> inputs, outputs;
  std::vector<Note> unsupported;
  ProgramState state;
  double time = 0;  // seconds since 1970

  bool operator==(const CallMeta&) const = default;
  std::string to_json() const;  // with this process's number, torch and op_tools
  // Everything may be absent. Throws Error that names the fault of the text.
  static CallMeta from_json(std::string_view text);
};

// "highest", "high", "medium", and back; Error for another name.
// CUDA rounds the factors of this operator's float32 products to TF32's 10 bits of mantissa.
OP_TOOLS_API bool multiplies_in_tf32(std::string_view op_name, const ProcessState& state);

OP_TOOLS_API const char* precision_name(at::Float32MatmulPrecision precision);
OP_TOOLS_API at::Float32MatmulPrecision precision_from_name(std::string_view name);

}  // namespace op_tools
