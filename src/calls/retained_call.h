// A call that may have to be saved after the fact: when its effect is known, its inputs must still be as they were
// before it ran. Only memory that is about to be written is copied for that: by the call itself (its in-place and out
// arguments), or a later call while this call waits. All copies are made in the device's order of work, without
// waiting.
//
// Called under InternalGuard; one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calls/call_store.h"
#include "calls/saved_call.h"
#include "calls/versioned_tensor.h"

namespace op_tools {

// The inputs of a torch-level call for its backward, without keeping them: autograd's graph may, or the program.
class NotedInputs {
 public:
  explicit NotedInputs(OpCall& call, ProgramState state);
  // False when any of them is gone or was written.
  bool recall(Value* args, Value* kwargs) const;
  const ProgramState& state() const { return state_; }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Noted {
    std::optional<WeakStorage> storage;  // nullopt: the tensor has no plain memory
    c10::VariableVersion version_counter;
    uint32_t version = 0;
    bool has_version = false, requires_grad = false;
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
  };
  Value args_, kwargs_;  // without their tensors
  std::vector<Noted> tensors_;
  ProgramState state_;
};

// The work of before() for a call that may be saved: copies of tensors that it is about to write, by input tensor.
struct InputsBefore {
  std::vector<int64_t> versions;
  std::unordered_map<size_t, VersionedTensor> copies;
  bool too_large = false;  // more than kMostCopied bytes would have had to be copied

  static constexpr int64_t kMostCopied = 64 << 20;
  // `inputs`: all input tensors. `is_unwritten`: this tensor's memory was not written yet (bernoulli_ of an empty
  // tensor): nothing to copy.
  static InputsBefore of(const std::vector<at::Tensor>& inputs, const std::vector<bool>& written,
                         const std::function<bool(const at::Tensor&)>& is_unwritten);
};

// A call with its values.
struct RetainedCall {
  CallMeta meta;                              // without schema, which is printed when the call is saved
  std::optional<c10::OperatorHandle> handle;  // aten level
  Value rng;  // Dict {device: state before the call}; None: it drew no random numbers, or was not watched
  Value args, kwargs, result;  // without their tensors
  // Their tensors; backward: gradients of outputs, of inputs. After the results stand written inputs that are none.
  std::vector<VersionedTensor> inputs, outputs;
  std::vector<std::pair<size_t, size_t>> written;  // (input tensor, where in `outputs` it is as the call left it)
  bool too_large = false;
  std::shared_ptr<const NotedInputs> forward;  // backward at the torch level

  // Both in after(). Outputs, result, rng, and the stack and module in `meta` are the caller's to fill.
  void take_call(OpCall& call);
  void take_inputs(OpCall& call, InputsBefore before);

  std::string why_not_saved() const;  // empty: its inputs are unchanged
  // The contents of the files, and how many bytes of tensors they have. Nothing: the inputs of the forward call are
  // gone.
  std::optional<SavedCall> saved_call(size_t* bytes) const;
};

// Saves calls into a folder: the first few of each operator, until they are too many bytes together.
class CallArchive {
 public:
  CallArchive(int64_t per_op, int64_t bytes) : per_op_(per_op), bytes_left_(bytes) {}

  bool wants(std::string_view op, Phase phase) const;
  bool is_full() const { return per_op_ == 0 || bytes_left_ <= 0; }
  // The call's folder; empty, and `why_not` says why, when it was not saved. Throws Error when a file cannot be
  // written.
  std::string save(const RetainedCall& call, const std::string& root, int64_t rank, std::string* why_not);

 private:
  const int64_t per_op_;
  int64_t bytes_left_;
  std::map<std::pair<std::string, Phase>, int64_t> saved_;
  std::unique_ptr<CallStore> store_;
};

}  // namespace op_tools
