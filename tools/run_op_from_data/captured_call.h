// What is in the files of a captured call, in any of the forms that are read. Plain data; problems of a file's content
// are Errors that name the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls/call_store.h"
#include "run_op_from_data/program_state.h"
#include "tensor/value.h"

namespace op_tools::replay {

using Tensors = std::vector<at::Tensor>;

struct BackwardPass {
  Tensors grad_outputs, grad_inputs;  // undefined where the file has None
  bool incomplete = true;             // not every gradient was saved (a failure of OpAutoCompare says which)
};

struct SavedOutput {
  Value result;
  std::vector<std::pair<size_t, at::Tensor>> mutated;  // input tensors after the call, by index
  Value memory;                                        // of a failure (compare/saved_facts.h); None: not recorded
};

struct CapturedCall {
  std::string name;
  uint64_t id = 0;  // 0: not recorded
  Value args, kwargs, aten, rng;
  Value judged;  // of a failure (compare/saved_facts.h); None: the call was captured, not judged
  std::map<size_t, std::vector<int64_t>> restrided;
  bool from_ditorch = false;  // its gradients are the last autograd node's
  bool is_ours = false;       // written by OpCapture, which writes meta.json last
  RecordedMeta meta;
  std::optional<SavedOutput> output;
  std::vector<BackwardPass> backward;

  Level level() const { return meta.level.value_or(Level::kTorch); }
  c10::Device device() const;  // of its tensors: the CPU when all were there
  // The dtype to which autocast cast its inputs; none where it was off. At the aten level the cast is a call before it.
  std::optional<c10::ScalarType> autocast() const;
};

// The call without what it gave: input.pth and meta.json.
CapturedCall read_call(const StoredCall& stored);
// What it gave, and its backward passes; where there are no such files, nothing.
void read_output(const StoredCall& stored, CapturedCall* call);
void read_backward(const StoredCall& stored, CapturedCall* call);

// Throws Error when an input is one that no file can hold.
void refuse_unsupported(const CapturedCall& call);

// What is missing of the call's files, as read: a program that was killed while it wrote a call leaves whole files, but
// not all of them. Empty when nothing is.
std::string what_was_cut_off(const StoredCall& stored, const CapturedCall& call);

}  // namespace op_tools::replay
