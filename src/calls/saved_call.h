// A call in its files: their contents, their only writer and their only reader. Written by OpCapture, OpAutoCompare
// (failures), OpOverflowCheck (producers) and OpInvariance (findings), and by the export; read by the replay, the
// export and Python's load_call. The form of the files: docs/architecture.md. Where they lie: call_store.h.
//
// Plain data; nothing is shared between threads. Errors name the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "calls/call_meta.h"
#include "calls/call_store.h"
#include "calls/snapshot.h"
#include "tensor/value.h"

namespace op_tools {

// Strides of tensors that were stored contiguous, because theirs span far more memory than their elements: by index.
using OriginalStrides = std::map<size_t, std::vector<int64_t>>;

struct SavedOutput {
  Value result;
  std::vector<std::pair<size_t, Value>> mutated;  // input tensors after the call, by index
  OriginalStrides restrided;                      // of the tensors of (result, mutated)
  Value memory;                                   // of a failure (compare/saved_facts.h); None: not recorded
};

struct SavedBackward {
  Value grad_outputs, grad_inputs;  // sequences: a tensor, None where there is no gradient, Unsupported
  bool incomplete = true;           // not every gradient was saved (known of a failure of OpAutoCompare only)
};

// The facts of a call that the file of another tool does not have. A result that may differ for want of it is not
// judged.
struct Lacks {
  bool arguments = false;      // some may be missing that are no tensors
  bool inputs_before = false;  // the inputs may be as the call left them
  bool inputs_after = false;   // the inputs after the call
};
// Of a sequence of names, as input.pth has it.
OP_TOOLS_API Lacks lacks_of(const Value& names);

struct SavedCall {
  std::string name;
  uint64_t id = 0;
  Value args = {}, kwargs = {};  // Tuple, Dict; None: they are in the call's folder already, backward is added to them
  Value aten = {};               // torch level: Tuple (name, args) of the only aten call behind it; None: not known
  Value rng = {};                // Dict {device: state before the call}; None: the call drew no random numbers
  Value judged = {};             // of a failure: the facts by which it was judged (compare/saved_facts.h)
  Value variation = {};          // of a finding of OpInvariance (invariance/run_changes.h); None: it is none
  OriginalStrides restrided;     // of the tensors of (args, kwargs)
  std::optional<SavedOutput> output;
  std::vector<SavedBackward> backward;
  uint32_t first_pass = 0;  // the number of backward[0]
  CallMeta meta = {};
  bool has_meta = false;  // else there is no meta.json

  // Of a call that was read.
  std::string meta_text;  // meta.json as it is; written again as it is
  std::string cut_off;  // the parts that are missing because the program ended while it wrote the call; empty: nothing
  bool is_ours = true;  // written by op_tools
  bool from_ditorch = false;  // its result is unpacked
  Lacks lacks;
  // Its gradients are those that the result's last autograd node gave, in that node's order, not a gradient for each
  // tensor argument: ditorch and msprobe save these.
  bool node_gradients = false;

  // Which call it is, and the state of the generators that it moved (None: none).
  OP_TOOLS_API void set_call(CallMeta of_call, Value random_state);
  // From snapshots, whose notes and tensors become those of `meta`; there is a meta.json then.
  OP_TOOLS_API void set_inputs(Snapshot inputs);  // of Tuple (args, kwargs)
  void set_aten(Value tree);  // None, or Tuple (name, args) over the same tensors as args and kwargs
  OP_TOOLS_API void set_output(Snapshot outputs);  // of Tuple (result, Dict {index: tensor that the call changed})
};

// Writes the existing parts. `side`: a folder below the call's own. Returns the call's folder as people see it.
OP_TOOLS_API std::string write_call(CallStore& store, const SavedCall& call, const std::string& side = {});

// Reads a call, in any of the forms that are read: its inputs (input.pth, meta.json), then its results, so that
// a reader who wants a single operator of many does not read the tensors of all.
OP_TOOLS_API SavedCall read_input(const StoredCall& stored);
OP_TOOLS_API void read_output(const StoredCall& stored, SavedCall* call);    // where there is no such file: nothing
OP_TOOLS_API void read_backward(const StoredCall& stored, SavedCall* call);  // the whole passes
OP_TOOLS_API SavedCall read_call(const StoredCall& stored);                  // all three

}  // namespace op_tools
