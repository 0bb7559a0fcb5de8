// What meta.json says about a call, collected in the program's thread as plain data and turned into text on the
// writer thread. The file's form: docs/architecture.md.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "calls/packed_values.h"
#include "calls/snapshot.h"
#include "hooks/op_call.h"

namespace op_tools {

// The parts of the program's state that change what an operator computes. Numbers only: their names are for to_json().
struct ProgramState {
  bool grad_enabled = true;
  bool inference_mode = false;
  c10::SmallVector<std::pair<at::DeviceType, at::ScalarType>, 2> autocast;  // where it is on
  bool autocast_cache = true;
  at::ScalarType default_dtype = at::kFloat;
  int num_threads = 1;
  bool deterministic = false;
  const char* float32_matmul_precision = "highest";

  static ProgramState of(const OpCall& call);
};
void pack(Packer& to, const ProgramState& state);
ProgramState unpacked_state(Unpacker& from);

struct CallMeta {
  std::string name;
  Level level = Level::kAten;
  uint64_t id = 0;
  int64_t step = 0;
  int64_t rank = 0;
  std::string schema;     // aten level
  std::string aten_name;  // torch level: the one aten operator behind the call
  std::string error;
  bool identity = false;  // an input requires grad, yet the call made no autograd node
  bool random = false;    // the call drew random numbers; input.pth has the state
  std::vector<TensorFacts> inputs, outputs;
  std::vector<Note> unsupported;
  ProgramState state;
  std::vector<std::string> stack;
  std::string module;  // "ResNet.layer3.0.conv1"; empty: none
  double time = 0;     // seconds since 1970

  std::string to_json() const;
};

}  // namespace op_tools
