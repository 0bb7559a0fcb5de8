// Made by tools/generate_declared.py: do not edit.
#include "base/other_names.h"

namespace op_tools {

// clang-format off
const std::vector<std::pair<std::string, std::string>>& other_names_of_torch() {
  static const auto* const names = new std::vector<std::pair<std::string, std::string>>{
    {"torch.functional.atleast_1d", "torch.atleast_1d"},
    {"torch.functional.atleast_2d", "torch.atleast_2d"},
    {"torch.functional.atleast_3d", "torch.atleast_3d"},
    {"torch.functional.block_diag", "torch.block_diag"},
    {"torch.functional.broadcast_tensors", "torch.broadcast_tensors"},
    {"torch.functional.cartesian_prod", "torch.cartesian_prod"},
    {"torch.functional.cdist", "torch.cdist"},
    {"torch.functional.chain_matmul", "torch.chain_matmul"},
    {"torch.functional.einsum", "torch.einsum"},
    {"torch.functional.istft", "torch.istft"},
    {"torch.functional.lu", "torch.lu"},
    {"torch.functional.meshgrid", "torch.meshgrid"},
    {"torch.functional.norm", "torch.norm"},
    {"torch.functional.pca_lowrank", "torch.pca_lowrank"},
    {"torch.functional.split", "torch.split"},
    {"torch.functional.stft", "torch.stft"},
    {"torch.functional.svd_lowrank", "torch.svd_lowrank"},
    {"torch.functional.tensordot", "torch.tensordot"},
    {"torch.functional.unique", "torch.unique"},
    {"torch.functional.unique_consecutive", "torch.unique_consecutive"},
    {"torch.functional.unravel_index", "torch.unravel_index"},
    {"torch.nn.functional._sym_int", "torch.sym_int"},
    {"torch.nn.functional.adaptive_avg_pool1d", "torch.adaptive_avg_pool1d"},
    {"torch.nn.functional.avg_pool1d", "torch.avg_pool1d"},
    {"torch.nn.functional.bilinear", "torch.bilinear"},
    {"torch.nn.functional.channel_shuffle", "torch.channel_shuffle"},
    {"torch.nn.functional.conv1d", "torch.conv1d"},
    {"torch.nn.functional.conv2d", "torch.conv2d"},
    {"torch.nn.functional.conv3d", "torch.conv3d"},
    {"torch.nn.functional.conv_tbc", "torch.conv_tbc"},
    {"torch.nn.functional.conv_transpose1d", "torch.conv_transpose1d"},
    {"torch.nn.functional.conv_transpose2d", "torch.conv_transpose2d"},
    {"torch.nn.functional.conv_transpose3d", "torch.conv_transpose3d"},
    {"torch.nn.functional.cosine_similarity", "torch.cosine_similarity"},
    {"torch.nn.functional.hardshrink", "torch.hardshrink"},
    {"torch.nn.functional.native_channel_shuffle", "torch.native_channel_shuffle"},
    {"torch.nn.functional.pairwise_distance", "torch.pairwise_distance"},
    {"torch.nn.functional.pdist", "torch.pdist"},
    {"torch.nn.functional.pixel_shuffle", "torch.pixel_shuffle"},
    {"torch.nn.functional.pixel_unshuffle", "torch.pixel_unshuffle"},
    {"torch.nn.functional.prelu", "torch.prelu"},
  };
  return *names;
}
// clang-format on

}  // namespace op_tools
