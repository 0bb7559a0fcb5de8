#include "hooks/op_traits.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>

namespace op_tools {
namespace {

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
bool has_one_of(const std::string_view (&parts)[N], std::string_view name) {
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// Each element of the result is a sum over products of two inputs.
constexpr std::string_view kProducts[] = {"mm",        "mv",   "dot", "linear", "matmul", "conv", "einsum",
                                          "attention", "lstm", "gru", "rnn",    "addr",   "outer"};

}  // namespace

std::string_view base_name(std::string_view name) {
  if (const auto colons = name.find("::"); colons != std::string_view::npos) {
    name = name.substr(colons + 2);
    return name.substr(0, name.find('.'));
  }
  constexpr std::string_view kPacket = "torch.ops.";  // torch.ops.aten.add.Tensor
  if (name.starts_with(kPacket)) {
    name.remove_prefix(std::min(name.find('.', kPacket.size()), name.size() - 1) + 1);
    return name.substr(0, name.find('.'));
  }
  constexpr std::string_view kGetter = ".__get__";
  if (name.ends_with(kGetter)) name.remove_suffix(kGetter.size());
  if (const auto dot = name.rfind('.'); dot != std::string_view::npos) name = name.substr(dot + 1);
  return name;
}

bool is_collective(std::string_view name) {
  constexpr std::string_view kSpaces[] = {
      "c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"};
  constexpr std::string_view kPacket = "torch.ops.";
  if (name.starts_with("torch.distributed.")) return true;
  if (name.starts_with(kPacket)) {
    name.remove_prefix(kPacket.size());
    return is_one_of(kSpaces, name.substr(0, name.find('.')));
  }
  return is_one_of(kSpaces, name.substr(0, name.find("::")));
}

bool returns_uninitialized(std::string_view name) {
  return name.starts_with("empty") || name.starts_with("new_empty") || name.starts_with("_empty") ||
         name == "resize_" || name == "resize_as_" || name == "resize";
}

int workspace_of(std::string_view name) {
  if (name == "_ctc_loss") return 1;
  if (name == "mkldnn_rnn_layer") return 3;
  if (name == "_cudnn_rnn" || name == "miopen_rnn") return 4;
  return -1;
}

bool backend_picks_strides(std::string_view name) {
  constexpr std::string_view kParts[] = {"conv", "linalg", "fft", "attention", "lstm", "gru", "rnn", "cudnn", "mkldnn"};
  return has_one_of(kParts, name) || returns_uninitialized(name);
}

bool asks_about_device(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "_has_compatible_shallow_copy_type", "_parse_to", "is_pinned", "type", "get_device", "_backend_extension"};
  return is_one_of(kNames, name);
}

bool returns_unordered(std::string_view name) {
  constexpr std::string_view kNames[] = {"_unique",         "_unique2", "unique_dim", "unique",
                                         "_return_inverse", "eig",      "linalg_eig"};
  return is_one_of(kNames, name);
}

bool is_sign_ambiguous(std::string_view name) {
  constexpr std::string_view kNames[] = {"eigh",      "linalg_eigh", "_linalg_eigh", "svd",         "linalg_svd",
                                         "_svd",      "_linalg_svd", "svd_lowrank",  "pca_lowrank", "qr",
                                         "linalg_qr", "lobpcg",      "geqrf"};
  return is_one_of(kNames, name);
}

bool returns_indices(std::string_view name) {
  constexpr std::string_view kNames[] = {"max",    "min",       "argmax", "argmin",   "sort",   "argsort", "topk",
                                         "median", "nanmedian", "mode",   "kthvalue", "cummax", "cummin",  "aminmax"};
  return is_one_of(kNames, name);
}

bool makes_variable(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || !op.schema().argumentIndexWithName("pin_memory")) return false;
  const std::string& name = op.operator_name().name;
  return !op.schema().argumentIndexWithName("self") || name.ends_with("_like");
}

int64_t reduced_elements(std::string_view name, const std::vector<at::Tensor>& inputs, const at::Tensor& result) {
  const double out = std::max<double>(1, static_cast<double>(result.numel()));
  double largest = 1, second = 1;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !(input.is_floating_point() || input.is_complex())) continue;
    const double numel = static_cast<double>(input.numel());
    if (numel >= largest) {
      second = largest;
      largest = numel;
    } else {
      second = std::max(second, numel);
    }
  }
  double reduced = largest / out;
  if (has_one_of(kProducts, name)) reduced = std::max(reduced, std::sqrt(largest * second / out));
  return static_cast<int64_t>(std::clamp(reduced, 1.0, largest));
}

}  // namespace op_tools
