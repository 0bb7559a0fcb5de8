// meta.json of a saved call: which call it was, the program's state, what its tensors were. Collected in the program's
// thread as plain data, turned into text by the writer of the files. The file's form: docs/architecture.md. A list of
// fields is the only one of its kind: for packing (packed_values.h), for the file and for reading it.
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
#include "hooks/stack_source.h"
#include "tensor/autocast.h"

namespace op_tools {

// The part that belongs to the process.
struct ProcessState {
  std::optional<c10::ScalarType> default_dtype;
  std::optional<bool> deterministic;
  std::optional<at::Float32MatmulPrecision> float32_matmul_precision;
  std::optional<bool> cudnn_tf32;  // on CUDA, convolutions and recurrent networks of float32 in TF32: on by default

  bool operator==(const ProcessState&) const = default;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("default_dtype", self.default_dtype);
    visit("deterministic", self.deterministic);
    visit("float32_matmul_precision", self.float32_matmul_precision);
    visit("cudnn_tf32", self.cudnn_tf32);
  }
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
    visit("grad_enabled", self.grad_enabled);
    visit("inference_mode", self.inference_mode);
    visit("autocast", self.autocast);
    visit("autocast_cache", self.autocast_cache);
    visit("num_threads", self.num_threads);
    visit("process", self.process);
  }
};

// What is known of a call before it runs.
struct CallBefore {
  ProgramState state;
  StackLines stack;
  std::string_view module;  // lives until the process ends

  static CallBefore of(OpCall& call);

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("state", self.state);
    visit("stack", self.stack);
    visit("module", self.module);
  }
};

// What is known of it afterwards, or from the start; name and error live as long as the call.
struct CallAfter {
  CallPosition position;
  std::string_view name, error;
  int64_t rank = 0;
  const std::string* schema = nullptr;  // lives until the process ends; nullptr: not asked for
  bool identity = false;
  double time = 0;

  // Without schema: for calls of which few are saved, as asking for it takes a lock.
  static CallAfter of(OpCall& call, int64_t rank, bool with_schema = true);

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("position", self.position);
    visit("name", self.name);
    visit("error", self.error);
    visit("rank", self.rank);
    visit("schema", self.schema);
    visit("identity", self.identity);
    visit("time", self.time);
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
  // The only maker for a call of this process. Tensors, notes, aten_name and random follow from the values that are
  // saved (SavedCall).
  static CallMeta of(CallBefore before, const CallAfter& after);

  // Of meta.json, where `module` stands apart.
  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("name", self.name);
    visit("level", self.level);
    visit("id", self.id);
    visit("step", self.step);
    visit("rank", self.rank);
    visit("schema", self.schema);
    visit("aten", self.aten_name);
    visit("error", self.error);
    visit("identity", self.identity);
    visit("inputs", self.inputs);
    visit("outputs", self.outputs);
    visit("state", self.state);
    visit("rng_consumed", self.random);
    visit("stack", self.stack);
    visit("unsupported", self.unsupported);
    visit("time", self.time);
  }
  std::string to_json() const;  // with this process's number, torch and op_tools
  // Everything may be absent. Throws Error that names the fault of the text.
  static CallMeta from_json(std::string_view text);
};

// CUDA rounds the factors of this operator's float32 products to TF32's 10 bits of mantissa.
OP_TOOLS_API bool multiplies_in_tf32(std::string_view op_name, const ProcessState& state);

// "highest", "high", "medium", and back; Error for another name.
OP_TOOLS_API const char* precision_name(at::Float32MatmulPrecision precision);
OP_TOOLS_API at::Float32MatmulPrecision precision_from_name(std::string_view name);

}  // namespace op_tools
