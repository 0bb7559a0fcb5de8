#include "run_op_from_data/python_names.h"

#include <unordered_map>

namespace op_tools::replay {
namespace {

// Parameters: `name`, `name=default`, `name==value` (the rule is for calls with this value only,
// which is the default
//   as well), `*name` (all positional arguments that are left). `name:kind` wants a kind of value:
//   tensor, dtype, device, int, number, str, seq.
// Target: an operator's name, with its overload where the parameters leave no choice; `[0]` takes
// the first of its
//   results, `[:2]` the first two, `[float]` and `[int]` convert the number. A name without `::` is a function of
//   compositions.cpp.
// Arguments: `argument` or `argument=value`; a value is a parameter, a literal (None, True, 1, 0.5,
// 'text', a dtype) or
//   function(parameter), as in resolve.cpp.
// A call that fits none of the rules of its name exists in Python only, legacy arguments
// (size_average, reduce) among
//   them. A row without a target says so of every call: an operator of the same name exists and
//   means another thing.
constexpr NameRule kRules[] = {
    // --- Activations and dropout: an operator, or its in-place variant.
    {"torch.nn.functional.relu", "input, inplace==False", "aten::relu", "self=input"},
    {"torch.nn.functional.relu", "input, inplace==True", "aten::relu_", "self=input"},
    {"torch.nn.functional.relu6", "input, inplace==False", "aten::relu6", "self=input"},
    {"torch.nn.functional.relu6", "input, inplace==True", "aten::relu6_", "self=input"},
    {"torch.nn.functional.selu", "input, inplace==False", "aten::selu", "self=input"},
    {"torch.nn.functional.selu", "input, inplace==True", "aten::selu_", "self=input"},
    {"torch.nn.functional.silu", "input, inplace==False", "aten::silu", "self=input"},
    {"torch.nn.functional.silu", "input, inplace==True", "aten::silu_", "self=input"},
    {"torch.nn.functional.mish", "input, inplace==False", "aten::mish", "self=input"},
    {"torch.nn.functional.mish", "input, inplace==True", "aten::mish_", "self=input"},
    {"torch.nn.functional.hardswish", "input, inplace==False", "aten::hardswish", "self=input"},
    {"torch.nn.functional.hardswish", "input, inplace==True", "aten::hardswish_", "self=input"},
    {"torch.nn.functional.hardsigmoid", "input, inplace==False", "aten::hardsigmoid", "self=input"},
    {"torch.nn.functional.hardsigmoid", "input, inplace==True", "aten::hardsigmoid_", "self=input"},
    {"torch.nn.functional.elu", "input, alpha=1.0, inplace==False", "aten::elu", "self=input, alpha"},
    {"torch.nn.functional.elu", "input, alpha=1.0, inplace==True", "aten::elu_", "self=input, alpha"},
    {"torch.nn.functional.celu", "input, alpha=1.0, inplace==False", "aten::celu", "self=input, alpha"},
    {"torch.nn.functional.celu", "input, alpha=1.0, inplace==True", "aten::celu_", "self=input, alpha"},
    {"torch.nn.functional.leaky_relu", "input, negative_slope=0.01, inplace==False", "aten::leaky_relu",
     "self=input, negative_slope"},
    {"torch.nn.functional.leaky_relu", "input, negative_slope=0.01, inplace==True", "aten::leaky_relu_",
     "self=input, negative_slope"},
    {"torch.nn.functional.hardtanh", "input, min_val=-1.0, max_val=1.0, inplace==False", "aten::hardtanh",
     "self=input, min_val, max_val"},
    {"torch.nn.functional.hardtanh", "input, min_val=-1.0, max_val=1.0, inplace==True", "aten::hardtanh_",
     "self=input, min_val, max_val"},
    {"torch.nn.functional.threshold", "input, threshold, value, inplace==False", "aten::threshold",
     "self=input, threshold, value"},
    {"torch.nn.functional.threshold", "input, threshold, value, inplace==True", "aten::threshold_",
     "self=input, threshold, value"},
    {"torch.nn.functional.rrelu", "input, lower=0.125, upper=0.3333333333333333, training=False, inplace==False",
     "aten::rrelu", "self=input, lower, upper, training"},
    {"torch.nn.functional.rrelu", "input, lower=0.125, upper=0.3333333333333333, training=False, inplace==True",
     "aten::rrelu_", "self=input, lower, upper, training"},
    {"torch.nn.functional.glu", "input, dim=-1", "aten::glu", "self=input, dim"},
    {"torch.nn.functional.logsigmoid", "input", "aten::log_sigmoid", "self=input"},
    {"torch.nn.functional.dropout", "input, p=0.5, training=True, inplace==False", "aten::dropout",
     "input, p, train=training"},
    {"torch.nn.functional.dropout", "input, p=0.5, training=True, inplace==True", "aten::dropout_",
     "self=input, p, train=training"},
    {"torch.nn.functional.dropout2d", "input, p=0.5, training=True, inplace==False", "aten::feature_dropout",
     "input, p, train=training"},
    {"torch.nn.functional.alpha_dropout", "input, p=0.5, training=False, inplace==False", "aten::alpha_dropout",
     "input, p, train=training"},
    {"torch.nn.functional.feature_alpha_dropout", "input, p=0.5, training=False, inplace==False",
     "aten::feature_alpha_dropout", "input, p, train=training"},
    {"torch.nn.functional.softmax", "input, dim:int, _stacklevel=3, dtype=None", "aten::softmax.int",
     "self=input, dim, dtype"},
    {"torch.nn.functional.log_softmax", "input, dim:int, _stacklevel=3, dtype=None", "aten::log_softmax.int",
     "self=input, dim, dtype"},

    // --- Losses: a word for the reduction.
    {"torch.nn.functional.cross_entropy",
     "input, target, weight=None, size_average==None, ignore_index=-100, reduce==None, "
     "reduction='mean', "
     "label_smoothing=0.0",
     "aten::cross_entropy_loss",
     "self=input, target, weight, reduction=reduction(reduction), ignore_index, label_smoothing"},
    {"torch.nn.functional.nll_loss",
     "input, target, weight=None, size_average==None, ignore_index=-100, reduce==None, "
     "reduction='mean'",
     "aten::nll_loss_nd", "self=input, target, weight, reduction=reduction(reduction), ignore_index"},
    {"torch.nn.functional.mse_loss", "input, target, size_average==None, reduce==None, reduction='mean', weight==None",
     "aten::mse_loss", "self=input, target, reduction=reduction(reduction)"},
    {"torch.nn.functional.l1_loss", "input, target, size_average==None, reduce==None, reduction='mean', weight==None",
     "aten::l1_loss", "self=input, target, reduction=reduction(reduction)"},
    {"torch.nn.functional.smooth_l1_loss",
     "input, target, size_average==None, reduce==None, reduction='mean', beta=1.0", "aten::smooth_l1_loss",
     "self=input, target, reduction=reduction(reduction), beta"},
    {"torch.nn.functional.huber_loss", "input, target, reduction='mean', delta=1.0, weight==None", "aten::huber_loss",
     "self=input, target, reduction=reduction(reduction), delta"},
    {"torch.nn.functional.binary_cross_entropy",
     "input, target, weight=None, size_average==None, reduce==None, reduction='mean'", "aten::binary_cross_entropy",
     "self=input, target, weight, reduction=reduction(reduction)"},
    {"torch.nn.functional.binary_cross_entropy_with_logits",
     "input, target, weight=None, size_average==None, reduce==None, reduction='mean', "
     "pos_weight=None",
     "aten::binary_cross_entropy_with_logits",
     "self=input, target, weight, pos_weight, reduction=reduction(reduction)"},
    {"torch.nn.functional.kl_div",
     "input, target, size_average==None, reduce==None, reduction='mean', log_target=False", "aten::kl_div",
     "self=input, target, reduction=reduction(reduction), log_target"},
    {"torch.nn.functional.poisson_nll_loss",
     "input, target, log_input=True, full=False, size_average==None, eps=1e-08, reduce==None, "
     "reduction='mean'",
     "aten::poisson_nll_loss", "input, target, log_input, full, eps, reduction=reduction(reduction)"},
    {"torch.nn.functional.soft_margin_loss", "input, target, size_average==None, reduce==None, reduction='mean'",
     "aten::soft_margin_loss", "self=input, target, reduction=reduction(reduction)"},
    {"torch.nn.functional.multilabel_margin_loss", "input, target, size_average==None, reduce==None, reduction='mean'",
     "aten::multilabel_margin_loss", "self=input, target, reduction=reduction(reduction)"},
    {"torch.nn.functional.multi_margin_loss",
     "input, target, p=1, margin=1.0, weight=None, size_average==None, reduce==None, "
     "reduction='mean'",
     "aten::multi_margin_loss", "self=input, target, p, margin, weight, reduction=reduction(reduction)"},
    {"torch.nn.functional.margin_ranking_loss",
     "input1, input2, target, margin=0, size_average==None, reduce==None, reduction='mean'",
     "aten::margin_ranking_loss", "input1, input2, target, margin, reduction=reduction(reduction)"},
    {"torch.nn.functional.cosine_embedding_loss",
     "input1, input2, target, margin=0, size_average==None, reduce==None, reduction='mean'",
     "aten::cosine_embedding_loss", "input1, input2, target, margin, reduction=reduction(reduction)"},
    {"torch.nn.functional.hinge_embedding_loss",
     "input, target, margin=1.0, size_average==None, reduce==None, reduction='mean'", "aten::hinge_embedding_loss",
     "self=input, target, margin, reduction=reduction(reduction)"},
    {"torch.nn.functional.triplet_margin_loss",
     "anchor, positive, negative, margin=1.0, p=2, eps=1e-06, swap=False, size_average==None, "
     "reduce==None, "
     "reduction='mean'",
     "aten::triplet_margin_loss", "anchor, positive, negative, margin, p, eps, swap, reduction=reduction(reduction)"},
    {"torch.nn.functional.ctc_loss",
     "log_probs, targets, input_lengths, target_lengths, blank=0, reduction='mean', "
     "zero_infinity=False",
     "aten::ctc_loss",
     "log_probs, targets, input_lengths, target_lengths, blank, reduction=reduction(reduction), "
     "zero_infinity"},

    // --- Normalisation.
    {"torch.nn.functional.batch_norm",
     "input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, "
     "eps=1e-05",
     "aten::batch_norm", "input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled=True"},
    {"torch.nn.functional.instance_norm",
     "input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, "
     "momentum=0.1, "
     "eps=1e-05",
     "aten::instance_norm",
     "input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, "
     "cudnn_enabled=True"},
    {"torch.nn.functional.group_norm", "input, num_groups, weight=None, bias=None, eps=1e-05", "aten::group_norm",
     "input, num_groups, weight, bias, eps"},
    {"torch.nn.functional.layer_norm", "input, normalized_shape, weight=None, bias=None, eps=1e-05", "aten::layer_norm",
     "input, normalized_shape, weight, bias, eps"},

    // --- Pooling, embedding, geometry.
    {"torch.nn.functional.max_pool1d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==False",
     "aten::max_pool1d", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool1d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==True",
     "aten::max_pool1d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool2d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==False",
     "aten::max_pool2d", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool2d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==True",
     "aten::max_pool2d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool3d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==False",
     "aten::max_pool3d", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool3d",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices==True",
     "aten::max_pool3d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool1d_with_indices",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices=False",
     "aten::max_pool1d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool2d_with_indices",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices=False",
     "aten::max_pool2d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.max_pool3d_with_indices",
     "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
     "return_indices=False",
     "aten::max_pool3d_with_indices", "self=input, kernel_size, stride=or_empty(stride), padding, dilation, ceil_mode"},
    {"torch.nn.functional.adaptive_max_pool1d", "input, output_size, return_indices==False",
     "aten::adaptive_max_pool1d[0]", "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool1d", "input, output_size, return_indices==True", "aten::adaptive_max_pool1d",
     "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool2d", "input, output_size, return_indices==False",
     "aten::adaptive_max_pool2d[0]", "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool2d", "input, output_size, return_indices==True", "aten::adaptive_max_pool2d",
     "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool3d", "input, output_size, return_indices==False",
     "aten::adaptive_max_pool3d[0]", "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool3d", "input, output_size, return_indices==True", "aten::adaptive_max_pool3d",
     "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool1d_with_indices", "input, output_size, return_indices=False",
     "aten::adaptive_max_pool1d", "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool2d_with_indices", "input, output_size, return_indices=False",
     "aten::adaptive_max_pool2d", "self=input, output_size"},
    {"torch.nn.functional.adaptive_max_pool3d_with_indices", "input, output_size, return_indices=False",
     "aten::adaptive_max_pool3d", "self=input, output_size"},
    {"torch.nn.functional.embedding",
     "input, weight, padding_idx==None, max_norm==None, norm_type=2.0, scale_grad_by_freq=False, "
     "sparse=False",
     "aten::embedding", "weight, indices=input, padding_idx=-1, scale_grad_by_freq, sparse"},
    {"torch.nn.functional.embedding",
     "input, weight, padding_idx:int, max_norm==None, norm_type=2.0, scale_grad_by_freq=False, "
     "sparse=False",
     "aten::embedding", "weight, indices=input, padding_idx=row(weight, padding_idx), scale_grad_by_freq, sparse"},
    {"torch.nn.functional.embedding_bag",
     "input, weight, offsets:tensor, max_norm==None, norm_type=2, scale_grad_by_freq=False, "
     "mode='mean', "
     "sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx==None",
     "aten::embedding_bag[0]",
     "weight, indices=input, offsets, scale_grad_by_freq, mode=bag_mode(mode), sparse, "
     "per_sample_weights, "
     "include_last_offset"},
    {"torch.nn.functional.unfold", "input, kernel_size, dilation=1, padding=0, stride=1", "aten::im2col",
     "self=input, kernel_size=pair(kernel_size), dilation=pair(dilation), padding=pair(padding), "
     "stride=pair(stride)"},
    {"torch.nn.functional.fold", "input, output_size, kernel_size, dilation=1, padding=0, stride=1", "aten::col2im",
     "self=input, output_size=pair(output_size), kernel_size=pair(kernel_size), "
     "dilation=pair(dilation), "
     "padding=pair(padding), stride=pair(stride)"},
    {"torch.nn.functional.pad", "input, pad, mode='constant', value=None", "aten::pad", "self=input, pad, mode, value"},
    {"torch.nn.functional.grid_sample", "input, grid, mode='bilinear', padding_mode='zeros', align_corners=None",
     "aten::grid_sampler",
     "input, grid, interpolation_mode=sample_mode(mode), "
     "padding_mode=sample_padding(padding_mode), "
     "align_corners=or_false(align_corners)"},
    {"torch.nn.functional.affine_grid", "theta, size, align_corners=None", "aten::affine_grid_generator",
     "theta, size, align_corners=or_false(align_corners)"},

    // --- torch.functional.
    {"torch.functional.split", "tensor, split_size_or_sections:int, dim=0", "aten::split.Tensor",
     "self=tensor, split_size=split_size_or_sections, dim"},
    {"torch.functional.split", "tensor, split_size_or_sections:seq, dim=0", "aten::split_with_sizes",
     "self=tensor, split_sizes=split_size_or_sections, dim"},
    {"torch.Tensor.split", "self, split_size:int, dim=0", "aten::split.Tensor", "self, split_size, dim"},
    {"torch.Tensor.split", "self, split_size:seq, dim=0", "aten::split_with_sizes",
     "self, split_sizes=split_size, dim"},
    {"torch.functional.norm", "input, p=='fro', dim=None, keepdim=False, out==None, dtype=None",
     "aten::linalg_vector_norm", "self=input, ord=2, dim, keepdim, dtype"},
    {"torch.functional.norm", "input, p==None, dim=None, keepdim=False, out==None, dtype=None",
     "aten::linalg_vector_norm", "self=input, ord=2, dim, keepdim, dtype"},
    {"torch.functional.norm", "input, p:number, dim=None, keepdim=False, out==None, dtype=None",
     "aten::linalg_vector_norm", "self=input, ord=p, dim, keepdim, dtype"},
    {"torch.Tensor.norm", "self, p=='fro', dim=None, keepdim=False, dtype=None", "aten::linalg_vector_norm",
     "self, ord=2, dim, keepdim, dtype"},
    {"torch.Tensor.norm", "self, p==None, dim=None, keepdim=False, dtype=None", "aten::linalg_vector_norm",
     "self, ord=2, dim, keepdim, dtype"},
    {"torch.Tensor.norm", "self, p:number, dim=None, keepdim=False, dtype=None", "aten::linalg_vector_norm",
     "self, ord=p, dim, keepdim, dtype"},
    {"torch.functional.einsum", "equation:str, *operands", "aten::einsum", "equation, tensors=flat(operands)"},
    {"torch.functional.meshgrid", "*tensors, indexing==None", "aten::meshgrid", "tensors=flat(tensors)"},
    {"torch.functional.meshgrid", "*tensors, indexing", "aten::meshgrid.indexing", "tensors=flat(tensors), indexing"},
    {"torch.functional.broadcast_tensors", "*tensors", "aten::broadcast_tensors", "tensors=flat(tensors)"},
    {"torch.functional.block_diag", "*tensors", "aten::block_diag", "tensors"},
    {"torch.functional.cartesian_prod", "*tensors", "aten::cartesian_prod", "tensors=flat(tensors)"},
    {"torch.functional.atleast_1d", "tensors:tensor", "aten::atleast_1d", "self=tensors"},
    {"torch.functional.atleast_1d", "*tensors", "aten::atleast_1d.Sequence", "tensors=flat(tensors)"},
    {"torch.functional.atleast_2d", "tensors:tensor", "aten::atleast_2d", "self=tensors"},
    {"torch.functional.atleast_2d", "*tensors", "aten::atleast_2d.Sequence", "tensors=flat(tensors)"},
    {"torch.functional.atleast_3d", "tensors:tensor", "aten::atleast_3d", "self=tensors"},
    {"torch.functional.atleast_3d", "*tensors", "aten::atleast_3d.Sequence", "tensors=flat(tensors)"},
    {"torch.functional.cdist", "x1, x2, p=2.0, compute_mode='use_mm_for_euclid_dist_if_necessary'", "aten::cdist",
     "x1, x2, p, compute_mode=cdist_mode(compute_mode)"},
    {"torch.functional.unique", "input, sorted=True, return_inverse==False, return_counts==False, dim==None",
     "aten::_unique2[0]", "self=input, sorted"},
    {"torch.functional.unique", "input, sorted=True, return_inverse==True, return_counts==True, dim==None",
     "aten::_unique2", "self=input, sorted, return_inverse=True, return_counts=True"},
    {"torch.Tensor.unique", "self, sorted=True, return_inverse==False, return_counts==False, dim==None",
     "aten::_unique2[0]", "self, sorted"},
    {"torch.Tensor.unique", "self, sorted=True, return_inverse==True, return_counts==True, dim==None", "aten::_unique2",
     "self, sorted, return_inverse=True, return_counts=True"},
    {"torch.functional.unique_consecutive", "input, return_inverse==False, return_counts==False, dim=None",
     "aten::unique_consecutive[0]", "self=input, dim"},
    {"torch.functional.unique_consecutive", "input, return_inverse==True, return_counts==False, dim=None",
     "aten::unique_consecutive[:2]", "self=input, return_inverse=True, dim"},
    {"torch.functional.unique_consecutive", "input, return_inverse==True, return_counts==True, dim=None",
     "aten::unique_consecutive", "self=input, return_inverse=True, return_counts=True, dim"},
    {"torch.Tensor.unique_consecutive", "self, return_inverse==False, return_counts==False, dim=None",
     "aten::unique_consecutive[0]", "self, dim"},
    {"torch.Tensor.unique_consecutive", "self, return_inverse==True, return_counts==False, dim=None",
     "aten::unique_consecutive[:2]", "self, return_inverse=True, dim"},
    {"torch.Tensor.unique_consecutive", "self, return_inverse==True, return_counts==True, dim=None",
     "aten::unique_consecutive", "self, return_inverse=True, return_counts=True, dim"},
    {"torch.functional.stft",
     "input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode='reflect', normalized=False, "
     "onesided=None, return_complex=None, align_to_window=None",
     "aten::stft.center",
     "self=input, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex, "
     "align_to_window"},
    {"torch.Tensor.stft",
     "self, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode='reflect', normalized=False, "
     "onesided=None, return_complex=None, align_to_window=None",
     "aten::stft.center",
     "self, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex, "
     "align_to_window"},
    {"torch.functional.lu", "A, pivot=True, get_infos==False, out==None", "aten::_lu_with_info[:2]",
     "self=A, pivot, check_errors=True"},
    {"torch.functional.lu", "A, pivot=True, get_infos==True, out==None", "aten::_lu_with_info",
     "self=A, pivot, check_errors=False"},

    // --- A few operators each.
    {"torch.Tensor.__rtruediv__", "self:tensor, other", "divided_by", "self, other"},
    {"torch.Tensor.__rdiv__", "self:tensor, other", "divided_by", "self, other"},
    {"torch.nn.functional.dropout3d", "input:tensor, p=0.5, training=True, inplace==False", "dropout3d",
     "input, p, training"},
    {"torch.nn.functional.normalize", "input:tensor, p:number=2.0, dim:int=1, eps:number=1e-12, out==None", "normalize",
     "input, p, dim, eps"},
    {"torch.nn.functional.softmin", "input:tensor, dim:int, _stacklevel=3, dtype=None", "softmin", "input, dim, dtype"},
    {"torch.nn.functional.softsign", "input:tensor", "softsign", "input"},
    {"torch.nn.functional.tanhshrink", "input:tensor", "tanhshrink", "input"},

    // --- Conversions of a tensor.
    {"torch.Tensor.to", "self, dtype:dtype, non_blocking=False, copy=False, memory_format=None", "aten::to.dtype",
     "self, dtype, non_blocking, copy, memory_format"},
    {"torch.Tensor.to", "self, other:tensor, non_blocking=False, copy=False, memory_format=None", "aten::to.other",
     "self, other, non_blocking, copy, memory_format"},
    {"torch.Tensor.to", "self, device:device, dtype=None, non_blocking=False, copy=False, memory_format=None",
     "aten::to.dtype_layout", "self, device, dtype, non_blocking, copy, memory_format"},
    {"torch.Tensor.to", "self, device=None, dtype=None, non_blocking=False, copy=False, memory_format=None",
     "aten::to.dtype_layout", "self, device, dtype, non_blocking, copy, memory_format"},
    {"torch.Tensor.type", "self, dtype:dtype, non_blocking=False", "aten::to.dtype", "self, dtype, non_blocking"},
    {"torch.Tensor.type_as", "self, other", "aten::type_as", "self, other"},
    {"torch.Tensor.cpu", "self, memory_format=None", "aten::to.dtype_layout", "self, device='cpu', memory_format"},
    {"torch.Tensor.cuda", "self, device=None, non_blocking=False, memory_format=None", "aten::to.dtype_layout",
     "self, device=device_of(self), non_blocking, memory_format"},
    {"torch.Tensor.float", "self, memory_format=None", "aten::to.dtype", "self, dtype=float32, memory_format"},
    {"torch.Tensor.double", "self, memory_format=None", "aten::to.dtype", "self, dtype=float64, memory_format"},
    {"torch.Tensor.half", "self, memory_format=None", "aten::to.dtype", "self, dtype=float16, memory_format"},
    {"torch.Tensor.bfloat16", "self, memory_format=None", "aten::to.dtype", "self, dtype=bfloat16, memory_format"},
    {"torch.Tensor.cfloat", "self, memory_format=None", "aten::to.dtype", "self, dtype=complex64, memory_format"},
    {"torch.Tensor.cdouble", "self, memory_format=None", "aten::to.dtype", "self, dtype=complex128, memory_format"},
    {"torch.Tensor.chalf", "self, memory_format=None", "aten::to.dtype", "self, dtype=complex32, memory_format"},
    {"torch.Tensor.long", "self, memory_format=None", "aten::to.dtype", "self, dtype=int64, memory_format"},
    {"torch.Tensor.int", "self, memory_format=None", "aten::to.dtype", "self, dtype=int32, memory_format"},
    {"torch.Tensor.short", "self, memory_format=None", "aten::to.dtype", "self, dtype=int16, memory_format"},
    {"torch.Tensor.char", "self, memory_format=None", "aten::to.dtype", "self, dtype=int8, memory_format"},
    {"torch.Tensor.byte", "self, memory_format=None", "aten::to.dtype", "self, dtype=uint8, memory_format"},
    {"torch.Tensor.bool", "self, memory_format=None", "aten::to.dtype", "self, dtype=bool, memory_format"},

    // --- Python's operators and properties.
    {"torch.Tensor.__add__", "self, other", "aten::add", "self, other"},
    {"torch.Tensor.__radd__", "self, other", "aten::add", "self, other"},
    {"torch.Tensor.__iadd__", "self, other", "aten::add_", "self, other"},
    {"torch.Tensor.__sub__", "self, other", "aten::sub", "self, other"},
    {"torch.Tensor.__rsub__", "self, other", "aten::rsub", "self, other"},
    {"torch.Tensor.__isub__", "self, other", "aten::sub_", "self, other"},
    {"torch.Tensor.__mul__", "self, other", "aten::mul", "self, other"},
    {"torch.Tensor.__rmul__", "self, other", "aten::mul", "self, other"},
    {"torch.Tensor.__imul__", "self, other", "aten::mul_", "self, other"},
    {"torch.Tensor.__truediv__", "self, other", "aten::div", "self, other"},
    {"torch.Tensor.__div__", "self, other", "aten::div", "self, other"},
    {"torch.Tensor.__itruediv__", "self, other", "aten::div_", "self, other"},
    {"torch.Tensor.__idiv__", "self, other", "aten::div_", "self, other"},
    {"torch.Tensor.__floordiv__", "self, other", "aten::floor_divide", "self, other"},
    {"torch.Tensor.__rfloordiv__", "self, other", "aten::floor_divide", "self=other, other=self"},
    {"torch.Tensor.__ifloordiv__", "self, other", "aten::floor_divide_", "self, other"},
    {"torch.Tensor.__mod__", "self, other", "aten::remainder", "self, other"},
    {"torch.Tensor.__rmod__", "self, other", "aten::remainder", "self=other, other=self"},
    {"torch.Tensor.__imod__", "self, other", "aten::remainder_", "self, other"},
    {"torch.Tensor.__pow__", "self, exponent", "aten::pow", "self, exponent"},
    {"torch.Tensor.__rpow__", "self, other", "aten::pow", "self=other, exponent=self"},
    {"torch.Tensor.__ipow__", "self, exponent", "aten::pow_", "self, exponent"},
    {"torch.Tensor.__matmul__", "self, other", "aten::matmul", "self, other"},
    {"torch.Tensor.__rmatmul__", "self, other", "aten::matmul", "self=other, other=self"},
    {"torch.Tensor.__neg__", "self", "aten::neg", "self"},
    {"torch.Tensor.__pos__", "self", "aten::positive", "self"},
    {"torch.Tensor.__abs__", "self", "aten::abs", "self"},
    {"torch.Tensor.__invert__", "self", "aten::bitwise_not", "self"},
    {"torch.Tensor.__rand__", "self, other", "aten::__and__", "self, other"},
    {"torch.Tensor.__ror__", "self, other", "aten::__or__", "self, other"},
    {"torch.Tensor.__rxor__", "self, other", "aten::__xor__", "self, other"},
    {"torch.Tensor.__rlshift__", "self, other", "aten::bitwise_left_shift", "self=other, other=self"},
    {"torch.Tensor.__rrshift__", "self, other", "aten::bitwise_right_shift", "self=other, other=self"},
    {"torch.Tensor.__eq__", "self, other", "aten::eq", "self, other"},
    {"torch.Tensor.__ne__", "self, other", "aten::ne", "self, other"},
    {"torch.Tensor.__lt__", "self, other", "aten::lt", "self, other"},
    {"torch.Tensor.__le__", "self, other", "aten::le", "self, other"},
    {"torch.Tensor.__gt__", "self, other", "aten::gt", "self, other"},
    {"torch.Tensor.__ge__", "self, other", "aten::ge", "self, other"},
    {"torch.Tensor.__bool__", "self", "aten::is_nonzero", "self"},
    {"torch.Tensor.__float__", "self", "aten::item[float]", "self"},
    {"torch.Tensor.__int__", "self", "aten::item[int]", "self"},
    {"torch.Tensor.__index__", "self", "aten::item[int]", "self"},
    {"torch.Tensor.T.__get__", "self", "aten::numpy_T", "self"},
    {"torch.Tensor.H.__get__", "self", "aten::matrix_H", "self"},
    {"torch.Tensor.mT.__get__", "self", "aten::mT", "self"},
    {"torch.Tensor.mH.__get__", "self", "aten::mH", "self"},
    {"torch.Tensor.real.__get__", "self", "aten::real", "self"},
    {"torch.Tensor.imag.__get__", "self", "aten::imag", "self"},
    {"torch.Tensor.data.__get__", "self", "aten::detach", "self"},
    {"torch.Tensor.data.__set__", "self, new_data", "aten::set_data", "self, new_data"},

    // --- Python only.
    {"torch.nn.functional.max_unpool1d", "", "", ""},
    {"torch.nn.functional.max_unpool2d", "", "", ""},
    {"torch.nn.functional.max_unpool3d", "", "", ""},
    {"torch.nn.functional.fractional_max_pool2d", "", "", ""},
    {"torch.nn.functional.fractional_max_pool3d", "", "", ""},
    {"torch.functional.tensordot", "", "", ""},
    {"torch.Tensor.resize", "", "", ""},
    {"torch.Tensor.backward", "", "", ""},
    {"torch.Tensor.new", "", "", ""},
    {"torch.Tensor.set_", "", "", ""},
};

}  // namespace

std::vector<const NameRule*> rules_for(std::string_view name) {
  static const auto& by_name = *[] {
    auto* index = new std::unordered_map<std::string_view, std::vector<const NameRule*>>;
    for (const auto& rule : kRules) (*index)[rule.name].push_back(&rule);
    return index;
  }();
  const auto entry = by_name.find(name);
  return entry == by_name.end() ? std::vector<const NameRule*>{} : entry->second;
}

}  // namespace op_tools::replay
