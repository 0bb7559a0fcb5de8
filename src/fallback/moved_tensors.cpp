#include "fallback/moved_tensors.h"

#include <ATen/ops/_efficientzerotensor_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/impl/COW.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "autograd/gradients.h"
#include "base/error.h"
#include "compat/autograd_node.h"
#include "fallback/serial_backward.h"
#include "tensor/copy_memory.h"
#include "tensor/float_conversion.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr size_t kAlign = 64;  // kernels take other paths, with other rounding, by the alignment within this

at::Tensor moved_plainly(const at::Tensor& tensor, at::ScalarType dtype, c10::Device device) {
  return at::_ops::_to_copy::call(tensor, dtype, std::nullopt, device, std::nullopt, false, std::nullopt);
}

// Stands between a copy and its original. Its backward is the move the other way.
class MoveNode final : public Node {
 public:
  // Not joined to anything: the gradient stays as it arrives.
  MoveNode() = default;
  MoveNode(const at::Tensor& original, std::shared_ptr<const SerialBackward> serial)
      : back_(original.options()), serial_(std::move(serial)) {
    set_next_edges({torch::autograd::impl::gradient_edge(original)});
  }

  variable_list apply(variable_list&& gradients) override {
    if (!back_ || !gradients[0].defined()) return std::move(gradients);
    // An operator of ours, yet autograd records it when backward is to be differentiated.
    c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
    return {gradients[0].to(back_->device(), c10::typeMetaToScalarType(back_->dtype()))};
  }
  std::string name() const override { return "OpToolsMove"; }

 private:
  std::optional<at::TensorOptions> back_;
  std::shared_ptr<const SerialBackward> serial_;  // between devices
};

// A writer gets a copy first (torch's copy on write), so that another tensor may share it.
bool is_shared_until_written(const at::Tensor& tensor) {
  return c10::impl::cow::is_cow_data_ptr(tensor.storage().data_ptr());
}

bool shows_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor._is_zerotensor() && !is_copied_by_its_device(tensor);
}

constexpr size_t kMostOfOurs = size_t{512} << 10;

bool is_widened_fast(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// No two elements share a place in memory, as far as the strides show.
bool shows_each_once(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return true;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dims.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

bool copies_keep_offsets(const std::vector<at::Tensor>& originals) {
  return std::all_of(originals.begin(), originals.end(), [](const at::Tensor& original) {
    return !original.defined() || original.layout() == at::kStrided;
  });
}

class MovedTensors::Copier {
 public:
  Copier(const std::vector<at::Tensor>& originals, const Target& target, GradientsGo gradients)
      : target_(target), gradients_(gradients), keeps_offsets_(copies_keep_offsets(originals)) {
    for (const at::Tensor& original : originals) add(original);
    {
      const InternalGuard guard;
      for (Entry& entry : entries_) entry.copy = copy_of(entry);
    }
    for (Entry& entry : entries_) {
      by_copy_.emplace(entry.copy.unsafeGetTensorImpl(), &entry);
      if (!entry.copy.is_same(entry.original)) join(entry);
    }
  }

  struct Entry {
    at::Tensor original;
    at::ScalarType dtype;  // of the copy
    c10::Device device;    // of the copy
    at::Tensor copy{};
    GradientEdge edge = nullptr;
  };
  // Memory of copies, and where its begin was in the originals' storage.
  struct Memory {
    const Entry* entry;
    size_t base;
  };

  const Entry& entry_of(const at::Tensor& original) const { return *by_original_.at(original.unsafeGetTensorImpl()); }
  const Entry* entry_of_copy(const at::TensorBase& tensor) const {
    const auto entry = by_copy_.find(tensor.unsafeGetTensorImpl());
    return entry == by_copy_.end() ? nullptr : entry->second;
  }
  const Memory* memory_of(const at::Tensor& tensor) const {
    if (tensor.layout() != at::kStrided || !tensor.has_storage()) return nullptr;
    const auto entry = memory_.find(tensor.storage().unsafeGetStorageImpl());
    return entry == memory_.end() ? nullptr : &entry->second;
  }
  size_t bytes() const { return bytes_; }

 private:
  // The bytes of a storage that the originals show, of all dtypes together; with a cast by dtype, because the copies
  // differ then.
  struct Region {
    size_t begin = std::numeric_limits<size_t>::max();
    size_t end = 0;
    int tensors = 0;
    const at::Tensor* finest = nullptr;  // of the smallest elements: all others start at a whole element of it
    c10::Storage copy{};
    size_t base = 0;
  };

  void add(const at::Tensor& original) {
    if (by_original_.count(original.unsafeGetTensorImpl())) return;
    std::string type;
    const std::string why = why_not_copied(original, &type);
    if (!why.empty()) throw Error("a " + type + " cannot be moved: " + why);
    const bool number = original.unsafeGetTensorImpl()->is_wrapped_number();
    const at::ScalarType dtype =
        target_.cast && !number ? target_.cast(original.scalar_type()) : original.scalar_type();
    entries_.push_back({original, dtype, target_.device_of ? target_.device_of(original) : target_.device});
    by_original_.emplace(original.unsafeGetTensorImpl(), &entries_.back());
    if (shows_memory(original)) add_range(entries_.back().original);
  }

  Region& region_of(const at::Tensor& original) {
    const at::ScalarType dtype = target_.cast ? original.scalar_type() : at::ScalarType::Undefined;
    return regions_[{original.storage().unsafeGetStorageImpl(), dtype}];
  }

  void add_range(const at::Tensor& original) {
    Region& region = region_of(original);
    ++region.tensors;
    if (!region.finest || original.itemsize() < region.finest->itemsize()) region.finest = &original;
    if (original.numel() == 0) return;
    int64_t last = original.storage_offset();
    for (int64_t d = 0; d < original.dim(); ++d) last += (original.size(d) - 1) * original.stride(d);
    const size_t end = static_cast<size_t>(last + 1) * original.itemsize();
    if (end > original.storage().nbytes()) {
      throw Error("a tensor cannot be moved: its storage was freed or resized, it shows memory that it does not have");
    }
    region.begin = std::min(region.begin, static_cast<size_t>(original.storage_offset()) * original.itemsize());
    region.end = std::max(region.end, end);
  }

  at::Tensor copy_of(const Entry& entry) {
    const at::Tensor& from = entry.original;
    const bool in_place = from.device() == entry.device && from.scalar_type() == entry.dtype;
    if (in_place && !target_.fresh) return from;
    at::Tensor copy;
    if (from._is_zerotensor()) {
      copy = at::_ops::_efficientzerotensor::call(from.sym_sizes(), entry.dtype, at::kStrided, entry.device, false);
    } else if (!shows_memory(from)) {
      copy = moved_plainly(from, entry.dtype, entry.device);
    } else {
      Region& region = region_of(from);
      // A tensor that is contiguous in memory from an odd place on is copied as a region, for its alignment.
      const bool as_it_lies =
          keeps_offsets_ && ((in_place && is_shared_until_written(from)) ||
                             (region.begin % kAlign != 0 && from.is_non_overlapping_and_dense() && from.numel() != 0));
      const bool alone = region.tensors == 1 && shows_each_once(from) && !as_it_lies;
      copy = alone ? copy_alone(entry) : copy_shared(entry, region);
      if (from.is_conj()) copy._set_conj(true);
      if (from.is_neg()) copy._set_neg(true);
    }
    if (from.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  }

  // The elements only, without the gaps between them in memory.
  at::Tensor copy_alone(const Entry& entry) {
    const at::Tensor& from = entry.original;
    // In memory of ours where no program gets to hold it. Not the largest: malloc, which gets less to do then, would
    // give memory back to the system that the operators want again.
    const bool ours = target_.fresh && entry.device.is_cpu() && from.is_non_overlapping_and_dense() &&
                      static_cast<size_t>(from.numel()) * c10::elementSize(entry.dtype) <= kMostOfOurs;
    at::Tensor copy = ours ? private_empty_like(from, entry.dtype)
                           : at::_ops::empty_strided::call(from.sym_sizes(), from.sym_strides(), entry.dtype,
                                                           at::kStrided, entry.device, std::nullopt);
    if (from.is_cpu() && entry.device.is_cpu() && entry.dtype == at::kDouble && from.is_non_overlapping_and_dense() &&
        is_widened_fast(from.scalar_type())) {
      load_float64(from.scalar_type(), without_bits(from).const_data_ptr(), 0, from.numel(),
                   copy.mutable_data_ptr<double>());
    } else {
      at::_ops::copy_::call(copy, without_bits(from), /*non_blocking=*/false);
    }
    bytes_ += copy.nbytes();
    if (entry.dtype == from.scalar_type()) {
      const size_t base = static_cast<size_t>(from.storage_offset()) * from.itemsize();
      memory_.emplace(copy.storage().unsafeGetStorageImpl(), Memory{&entry, base});
    }
    return copy;
  }

  at::Tensor copy_shared(const Entry& entry, Region& region) {
    const at::Tensor& from = entry.original;
    if (!region.copy) copy_region(entry, region);
    at::Tensor copy = at::_ops::empty_memory_format::call(c10::SymIntArrayRef({c10::SymInt(0)}), entry.dtype,
                                                          at::kStrided, entry.device, std::nullopt, std::nullopt);
    const int64_t offset =
        from.numel() == 0 ? 0 : from.storage_offset() - static_cast<int64_t>(region.base / from.itemsize());
    copy.unsafeGetTensorImpl()->set_storage_keep_dtype(region.copy);
    copy.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), offset);
    return copy;
  }

  // Through the device's own operators, so that vendors with memory formats of their own give plain numbers: a flat
  // view over the range.
  void copy_region(const Entry& entry, Region& region) {
    if (keeps_offsets_ && entry.dtype == entry.original.scalar_type() && entry.original.device() == entry.device &&
        is_shared_until_written(entry.original)) {
      region.copy = c10::Storage(c10::impl::cow::lazy_clone_storage(*entry.original.storage().unsafeGetStorageImpl()));
      memory_.emplace(region.copy.unsafeGetStorageImpl(), Memory{&entry, region.base});
      return;
    }
    const size_t item = region.finest->itemsize();
    const at::ScalarType dtype = target_.cast ? entry.dtype : region.finest->scalar_type();
    const size_t align = keeps_offsets_ ? kAlign : item;
    region.base = region.begin < region.end ? region.begin / align * align : 0;
    const auto count = region.begin < region.end ? static_cast<int64_t>((region.end - region.base) / item) : 0;
    const at::Tensor flat = at::_ops::as_strided::call(
        without_bits(*region.finest), c10::SymIntArrayRef({c10::SymInt(count)}), c10::SymIntArrayRef({c10::SymInt(1)}),
        c10::SymInt(static_cast<int64_t>(region.base / item)));
    const at::Tensor memory =
        at::_ops::empty_memory_format::call(c10::SymIntArrayRef({c10::SymInt(keeps_offsets_ ? count : 2 * count)}),
                                            dtype, at::kStrided, entry.device, std::nullopt, std::nullopt);
    const at::Tensor copy = keeps_offsets_ ? memory : memory.narrow(0, 0, count);
    at::_ops::copy_::call(const_cast<at::Tensor&>(copy), flat, /*non_blocking=*/false);
    bytes_ += copy.nbytes();
    region.copy = copy.storage();
    if (entry.dtype == entry.original.scalar_type()) {
      memory_.emplace(region.copy.unsafeGetStorageImpl(), Memory{&entry, region.base});
    }
  }

  void join(Entry& entry) {
    if (gradients_ == GradientsGo::kNowhere) return;
    const bool to_originals = gradients_ == GradientsGo::kToOriginals;
    if (entry.original.requires_grad() && (!to_originals || at::GradMode::is_enabled())) {
      const auto node = to_originals
                            ? compat::make_node<decltype(Edge::function), MoveNode>(entry.original, serial_for(entry))
                            : compat::make_node<decltype(Edge::function), MoveNode>();
      entry.edge = std::make_shared<const Edge>(node, node->add_input_metadata(entry.copy));
      torch::autograd::impl::set_gradient_edge(entry.copy, *entry.edge);
    }
    const at::Tensor& tangent = entry.original._fw_grad(/*level=*/0);
    if (!to_originals || !tangent.defined()) return;
    c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
    entry.copy._set_fw_grad(moved_plainly(tangent, entry.dtype, entry.device), /*level=*/0, /*is_inplace_op=*/false);
  }

  static std::shared_ptr<const SerialBackward> serial_for(const Entry& entry) {
    return entry.original.device() == entry.copy.device() ? nullptr : SerialBackward::of_this_thread();
  }

  const Target target_;
  const GradientsGo gradients_;
  // False: the range begins at the copy's first element, and has room behind it for tensors that begin within it.
  const bool keeps_offsets_;
  std::deque<Entry> entries_;  // stable addresses
  std::unordered_map<const void*, const Entry*> by_original_, by_copy_;
  std::map<std::pair<const void*, at::ScalarType>, Region> regions_;
  std::unordered_map<const void*, Memory> memory_;
  size_t bytes_ = 0;
};

MovedTensors::MovedTensors(const std::vector<at::Tensor>& originals, const Target& target, GradientsGo gradients)
    : copier_(std::make_unique<Copier>(originals, target, gradients)) {}
MovedTensors::~MovedTensors() = default;

at::Tensor MovedTensors::copy_of(const at::Tensor& original) const {
  return copier_->entry_of(original).copy;
}

at::Tensor MovedTensors::original_of(const at::Tensor& tensor) const {
  const auto* entry = copier_->entry_of_copy(tensor);
  return entry ? entry->original : at::Tensor();
}

at::Tensor MovedTensors::view_of_original(const at::Tensor& tensor) const {
  const auto* memory = copier_->memory_of(tensor);
  if (!memory) return {};
  const auto* base = tensor.is_view() ? copier_->entry_of_copy(tensor._base()) : nullptr;
  const at::Tensor& original = (base ? base : memory->entry)->original;
  if (tensor.scalar_type() != original.scalar_type() || tensor.is_conj() != original.is_conj() ||
      tensor.is_neg() != original.is_neg()) {
    return {};
  }
  const auto offset = tensor.storage_offset() + static_cast<int64_t>(memory->base / tensor.itemsize());
  c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
  return at::_ops::as_strided::call(original, tensor.sym_sizes(), tensor.sym_strides(), c10::SymInt(offset));
}

GradientEdge MovedTensors::edge_of(const at::Tensor& copy) const {
  const auto* entry = copier_->entry_of_copy(copy);
  return entry ? entry->edge : nullptr;
}

size_t MovedTensors::bytes() const {
  return copier_->bytes();
}

std::vector<at::Tensor> gradients_at(const std::vector<GradientEdge>& edges, const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& output_gradients, bool keep_graph,
                                     bool create_graph) {
  torch::autograd::edge_list roots, wanted;
  variable_list arriving;
  for (size_t i = 0; i < outputs.size() && i < output_gradients.size(); ++i) {
    if (!output_gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    at::Tensor gradient = output_gradients[i].to(outputs[i].device(), outputs[i].scalar_type());
    // The next run starts from the same gradients.
    const bool may_write = gradient.is_same(output_gradients[i]) && !preserves_gradients(*roots.back().function);
    arriving.push_back(may_write ? private_copy(gradient) : std::move(gradient));
  }
  for (const GradientEdge& edge : edges) {
    if (edge) wanted.push_back(*edge);
  }
  std::vector<at::Tensor> result(edges.size());
  if (roots.empty() || wanted.empty()) return result;
  const variable_list arrived = torch::autograd::Engine::get_default_engine().execute(
      roots, arriving, keep_graph, create_graph, /*accumulate_grad=*/false, wanted);
  size_t next = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    if (edges[i]) result[i] = arrived[next++];
  }
  return result;
}

}  // namespace op_tools
