// Makes a failing call smaller as long as it fails: forward alone, less state, fewer arguments, memory of its own,
// smaller sizes, fewer dimensions, simpler values. Knows nothing of devices: the caller says whether a call fails.
// Plain data, a single thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calls/saved_call.h"

namespace op_tools::replay {

enum class Attempt { kFails, kPasses, kInvalid };  // kInvalid: it cannot be run in this form

// Says whether a call fails. May give the gradients of `call` another shape, as its results have.
using TryCall = std::function<Attempt(SavedCall& call, const std::string& step)>;

// "fails from 257 on; passes at 256": of a size of the call's tensors.
struct SizeLimit {
  std::string size;
  int64_t fails = 0, passes = 0;
};

struct Shrunk {
  SavedCall call;
  std::vector<SizeLimit> limits;
  std::vector<std::string> steps;  // that were taken
};

// `call` fails. Ends when no step makes it smaller, or as soon as `attempts` have been made.
Shrunk shrink(SavedCall call, const TryCall& attempt, size_t attempts);

// How many elements the tensors of a call have.
int64_t elements_of(const SavedCall& call);

// A gradient for a result of other sizes: part of it, or ones.
at::Tensor fitted_gradient(const at::Tensor& gradient, const at::Tensor& result);

}  // namespace op_tools::replay
