#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <thread>

#include "sim_device/aliases.h"
#include "sim_device/fault_state.h"
#include "sim_device/faults.h"
#include "sim_device/queue.h"
#include "sim_device/values.h"
#include "tensor/cpu_memory.h"

namespace op_tools::sim_device {
namespace {

bool has_elements(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 && !tensor._is_zerotensor();  // zeros that have no memory
}

// The first tensor in it that has elements.
const at::Tensor* first_filled(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (has_elements(tensor)) return &tensor;
  }
  return nullptr;
}

bool share_memory(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.defined() && other.defined() && tensor.storage().is_alias_of(other.storage());
}

// The first result that no argument shares memory with gets the same values in another layout: the dimensions in
// reverse.
bool reverse_strides(torch::jit::Stack& results, const std::vector<at::Tensor>& arguments) {
  for (c10::IValue& value : results) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& right = value.toTensor();
    const auto shares = [&](const at::Tensor& argument) { return share_memory(right, argument); };
    if (std::any_of(arguments.begin(), arguments.end(), shares)) continue;
    std::vector<int64_t> strides;
    int64_t stride = 1, dimensions = 0;
    for (const int64_t size : right.sizes()) {
      strides.push_back(stride);
      stride *= size;
      dimensions += size > 1;
    }
    if (dimensions < 2 || stride == 0 || right.strides() == c10::IntArrayRef(strides)) return false;
    at::Tensor other = at::empty_strided(right.sizes(), strides, right.options());
    other.copy_(right);
    value = other;
    return true;
  }
  return false;
}

// A store to memory that the process must not touch: SIGSEGV, as in a kernel that follows a wrong pointer.
[[noreturn]] void crash() {
  auto* const page = static_cast<volatile char*>(::mmap(nullptr, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  *page = 1;
  std::abort();  // where a handler of that signal returned
}

// A kernel that ends only when its fault is taken out.
void hang(const std::shared_ptr<Fault::State>& fault) {
  while (planted_faults().has(fault)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The same values in memory that has room behind them: guarded memory has it, and is watched; any other would be
// destroyed by the write.
at::Tensor with_room_behind(const at::Tensor& result) {
  constexpr size_t kRoom = 64;
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  const size_t bytes = result.nbytes();
  const size_t room = cpu_memory_is_guarded() ? 0 : kRoom;
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes + room), allocator,
                             /*resizable=*/true);
  at::Tensor other = at::empty({0}, result.options());
  other.set_(storage, 0, result.sizes(), {});
  other.copy_(result);
  return other;
}

// The place behind the last element, in elements of the storage.
int64_t place_behind(const at::Tensor& tensor) {
  int64_t behind = tensor.storage_offset() + 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) behind += (tensor.size(i) - 1) * tensor.stride(i);
  return behind;
}

void invert_element(const at::Tensor& tensor, int64_t place) {
  auto* const bytes =
      static_cast<unsigned char*>(tensor.storage().mutable_data()) + static_cast<size_t>(place) * tensor.itemsize();
  for (size_t i = 0; i < tensor.itemsize(); ++i) bytes[i] = static_cast<unsigned char>(~bytes[i]);
}

// Memory of an argument cannot be replaced, and the bytes behind it may be anything.
bool write_behind_argument(const at::Tensor& argument) {
  const int64_t behind = place_behind(argument);
  if (static_cast<size_t>(behind + 1) * argument.itemsize() > argument.storage().nbytes()) return false;
  invert_element(argument, behind);
  return true;
}

// Inverts the bits of the element that lies in memory behind the last element of the first result.
bool write_behind(torch::jit::Stack& results, const std::vector<at::Tensor>& arguments,
                  const std::vector<at::Tensor>& written) {
  for (c10::IValue& value : results) {
    if (!value.isTensor() || !has_elements(value.toTensor())) continue;
    const at::Tensor result = value.toTensor();
    const auto shares = [&](const at::Tensor& argument) { return share_memory(result, argument); };
    if (std::any_of(arguments.begin(), arguments.end(), shares)) return write_behind_argument(result);
    // Its own memory may be larger than it: mse_loss reduces into the memory of all differences.
    const at::Tensor other = with_room_behind(result);
    value = other;
    invert_element(other, other.numel());
    return true;
  }
  const at::Tensor* const argument = first_filled(written);  // _foreach_add_ and others return nothing
  return argument && write_behind_argument(*argument);
}

// The elements with an address of their own: torch refuses to write where several elements share an address.
at::Tensor without_repeats(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

// Changes the first input that the call neither writes nor returns.
bool change_input(const FaultInjection::Hit& hit, const std::vector<at::Tensor>& inputs,
                  const std::vector<at::Tensor>& written, const std::vector<at::Tensor>& returned) {
  for (const at::Tensor& input : inputs) {
    if (!has_elements(input)) continue;
    const auto shares = [&](const at::Tensor& other) { return share_memory(input, other); };
    if (std::any_of(written.begin(), written.end(), shares) || std::any_of(returned.begin(), returned.end(), shares)) {
      continue;
    }
    if (values::element(without_repeats(input), hit.fault->scale(), hit.draw)) return true;
  }
  return false;
}

// Its memory begins inside of a line of the cache.
bool begins_between_lines(const at::Tensor& tensor) {
  constexpr uintptr_t kLine = 64;
  return has_elements(tensor) && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kLine != 0;
}

// Bytes between its elements belong to none of them.
bool has_gaps(const at::Tensor& tensor) {
  if (!has_elements(tensor)) return false;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last >= tensor.numel();
}

// By a factor that grows with the size; a single one changes nothing.
bool scale_by_size(const at::Tensor& result, int64_t size, double scale) {
  return size > 1 && values::scale(result, 1 + (scale - 1) * std::log2(static_cast<double>(size)));
}

// The calling thread's current stream is none of the default ones.
bool is_beside_default_stream() {
  const c10::Stream stream = queue_for_work().stream();
  return stream != c10::Stream(c10::Stream::DEFAULT, stream.device());
}

// The kinds that make a result wrong. False: it is as it was.
bool change_result(const FaultInjection::Hit& hit, const at::Tensor& result, const std::vector<at::Tensor>& inputs) {
  const double scale = hit.fault->scale();
  switch (hit.fault->facts.kind) {
    case Kind::kScale:
      return values::scale(result, scale);
    case Kind::kElement:
      return values::element(result, scale, hit.draw);
    case Kind::kLowPrecision:
      return values::low_precision(result);
    case Kind::kSwapRows:
      return values::swap_rows(result, hit.draw);
    case Kind::kNan:
      return values::special(result, std::numeric_limits<double>::quiet_NaN(), hit.draw);
    case Kind::kInf:
      return values::special(result, std::numeric_limits<double>::infinity(), hit.draw);
    case Kind::kNoncontiguous:
      return std::any_of(inputs.begin(), inputs.end(),
                         [](const at::Tensor& input) { return !input.is_contiguous(); }) &&
             values::scale(result, scale);
    case Kind::kAboveSize:
      return values::scale(result, scale, *hit.fault->options.size);
    case Kind::kNondeterministic:
      return values::noise(result, scale, hit.draw);
    case Kind::kBatchSize:
      return result.dim() > 0 && scale_by_size(result, result.size(0), scale);
    case Kind::kBatchPosition:
      return values::odd_rows(result, scale);
    case Kind::kMisaligned:
      return std::any_of(inputs.begin(), inputs.end(), begins_between_lines) && values::scale(result, scale);
    case Kind::kEverySecond:
      return hit.call % 2 == 1 && values::scale(result, scale);
    case Kind::kBitFlip:
      return values::flip_bit(result, hit.draw);
    case Kind::kNeighbour:
      return values::leaking_rows(result, scale);
    case Kind::kOtherStream:
      return is_beside_default_stream() && values::scale(result, scale);
    case Kind::kGaps:
      return std::any_of(inputs.begin(), inputs.end(), has_gaps) && values::scale(result, scale);
    case Kind::kSequenceLength:
      return result.dim() > 1 && scale_by_size(result, result.size(1), scale);
    case Kind::kRowLength:
      return result.dim() > 0 && scale_by_size(result, result.size(-1), scale);
    case Kind::kTokenPosition:
      return result.dim() > 2 && values::odd_rows(result.transpose(0, 1), scale);
    case Kind::kLeak:
      return leak(result.nbytes());
    default:
      return false;  // the other kinds do not change results, or were injected at launch
  }
}

// Some calls only are to be hit: those of the program are counted, and not a tool's own calls on the device
// meanwhile.
bool counts_calls(const FaultOptions& options) {
  return options.calls || options.probability < 1;
}

}  // namespace

FaultInjection::FaultInjection(const std::string& op, bool moves_data, bool is_of_tool) {
  if (!planted_faults().any()) return;
  op_ = op;
  for (const auto& fault : *planted_faults().list()) {
    if (!fault->matches(op)) continue;
    const Kind kind = fault->facts.kind;
    const bool at_launch = kind == Kind::kMissing || kind == Kind::kException;
    if (!moves_data && !at_launch) continue;
    if (is_of_tool && counts_calls(fault->options)) continue;
    const auto hit = fault->next_call();
    if (!hit) continue;
    const bool on_device = kind == Kind::kCrash || kind == Kind::kHang;
    if (at_launch || on_device || kind == Kind::kLatency) fault->note(op, hit->first);
    TORCH_CHECK_NOT_IMPLEMENTED(kind != Kind::kMissing, "Could not run '", op,
                                "' with arguments from the 'sim' backend: the operator is not implemented for this "
                                "device (a planted fault)");
    TORCH_CHECK(kind != Kind::kException, "sim: ", op, " failed on the device (a planted fault)");
    if (kind == Kind::kLatency) {
      latency_ += std::chrono::nanoseconds(static_cast<int64_t>(*fault->options.microseconds * 1000));
    } else if (kind == Kind::kWrongGenerator) {
      wrong_generator_.push_back({fault, hit->first, hit->second});
    } else if (on_device) {
      device_work_ = kind == Kind::kCrash ? std::function<void()>(crash) : [fault] { hang(fault); };
    } else {
      hits_.push_back({fault, hit->first, hit->second});
    }
  }
}

bool FaultInjection::draws_elsewhere() const {
  for (const Hit& hit : wrong_generator_) hit.fault->note(op_, hit.call);
  return !wrong_generator_.empty();
}

void FaultInjection::before(const std::vector<at::Tensor>& written) {
  const auto shows_old = [](const Hit& hit) {
    return hit.fault->facts.kind == Kind::kLostWrite || hit.fault->facts.kind == Kind::kLateWrite;
  };
  if (std::none_of(hits_.begin(), hits_.end(), shows_old)) return;
  for (const at::Tensor& tensor : written) contents_.push_back(tensor.defined() ? tensor.clone() : tensor);
}

void FaultInjection::after(torch::jit::Stack& results, const std::vector<at::Tensor>& inputs,
                           const std::vector<at::Tensor>& written) {
  for (const Hit& hit : hits_) {
    if (inject(hit, results, inputs, written)) hit.fault->note(op_, hit.call);
  }
}

bool FaultInjection::lose_writes(const std::vector<at::Tensor>& written) const {
  bool lost = false;
  for (size_t i = 0; i < written.size(); ++i) {
    // A result that the call resized has nothing to go back to.
    const bool comparable = written[i].defined() && written[i].sizes() == contents_[i].sizes();
    if (comparable && values::replace(written[i], contents_[i].contiguous())) lost = true;
  }
  return lost;
}

bool FaultInjection::write_late(const at::Tensor& result, const std::vector<at::Tensor>& written) const {
  at::Tensor old = at::zeros_like(result);
  for (size_t i = 0; i < written.size(); ++i) {
    if (share_memory(result, written[i]) && result.sizes() == contents_[i].sizes()) old = contents_[i];
  }
  const at::Tensor right = result.clone();
  if (!values::replace(result, old.contiguous())) return false;
  late_writes().add(result, right);
  return true;
}

bool FaultInjection::inject(const Hit& hit, torch::jit::Stack& results, const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& written) const {
  std::vector<at::Tensor> returned;
  for (const c10::IValue& value : results) {
    for (at::Tensor& tensor : tensors_in(value)) returned.push_back(std::move(tensor));
  }
  switch (hit.fault->facts.kind) {
    case Kind::kStrides:
      return reverse_strides(results, inputs);
    case Kind::kLostWrite:
      return lose_writes(written);
    case Kind::kOutOfBounds:
      return write_behind(results, inputs, written);
    case Kind::kMutateInput:
      return change_input(hit, inputs, written, returned);
    default:
      break;
  }
  const at::Tensor* result = first_filled(returned);
  if (!result) result = first_filled(written);  // _foreach_add_ and others return nothing
  if (result && hit.fault->facts.kind == Kind::kLateWrite) return write_late(*result, written);
  return result && change_result(hit, *result, inputs);
}

}  // namespace op_tools::sim_device
