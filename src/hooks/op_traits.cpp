#include "hooks/op_traits.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "hooks/python_arguments.h"

namespace op_tools {
namespace {

using enum OpTrait;

// Families of several rows.
constexpr std::string_view kConvolutions =
    "convolution convolution_overrideable convolution_backward convolution_backward_overrideable _convolution "
    "_convolution_mode _convolution_double_backward conv1d conv2d conv3d conv_tbc conv_tbc_backward conv_transpose1d "
    "conv_transpose2d conv_transpose3d _conv_depthwise2d conv_depthwise3d slow_conv3d slow_conv3d_forward "
    "_slow_conv2d_forward _slow_conv2d_backward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d "
    "slow_conv_transpose3d thnn_conv2d _nnpack_spatial_convolution cudnn_convolution cudnn_convolution_add_relu "
    "cudnn_convolution_relu cudnn_convolution_transpose miopen_convolution miopen_convolution_add_relu "
    "miopen_convolution_relu miopen_convolution_transpose miopen_depthwise_convolution mkldnn_convolution "
    "_mps_convolution _mps_convolution_transpose mps_convolution_backward mps_convolution_transpose_backward "
    "_convolution_pointwise _convolution_pointwise_ _convolution_transpose_pointwise";
constexpr std::string_view kAttentions =
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward "
    "_efficient_attention_forward _efficient_attention_backward _flash_attention_forward _flash_attention_backward "
    "_flash_attention_forward_no_dropout_inplace _cudnn_attention_forward _cudnn_attention_backward "
    "_native_multi_head_attention _triton_multi_head_attention _triton_scaled_dot_attention "
    "multi_head_attention_forward";
constexpr std::string_view kFouriers =
    "_fft_c2c _fft_c2r _fft_r2c fft_c2c fft_c2r fft_r2c fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn "
    "fft_rfft fft_rfft2 fft_rfftn fft_irfft fft_irfft2 fft_irfftn fft_hfft fft_hfft2 fft_hfftn fft_ihfft fft_ihfft2 "
    "fft_ihfftn fft_fftshift fft_ifftshift fft fft2 fftn ifft ifft2 ifftn rfft rfft2 rfftn irfft irfft2 irfftn hfft "
    "hfft2 hfftn ihfft ihfft2 ihfftn fftshift ifftshift";
constexpr std::string_view kRecurrents =
    "lstm lstm_cell gru gru_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell _lstm_mps lstm_mps_backward _cudnn_rnn "
    "_cudnn_rnn_backward miopen_rnn miopen_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
    "_thnn_fused_gru_cell_backward _thnn_differentiable_lstm_cell_backward _thnn_differentiable_gru_cell_backward "
    "quantized_lstm quantized_gru quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell "
    "quantized_rnn_tanh_cell";

constexpr OpFamily kFamilies[] = {
    // --- Random numbers
    {kDrawsRandomNumbers, "a new tensor of random numbers",
     "rand rand_like randn randn_like randint randint_like randperm normal normal_functional"},
    {kDrawsRandomNumbers, "fills a tensor with random numbers, or gives a tensor of the same shape",
     "normal_ uniform uniform_ random random_ exponential exponential_ geometric geometric_ cauchy cauchy_ log_normal "
     "log_normal_"},
    {kDrawsRandomNumbers, "samples from a distribution that its input gives",
     "bernoulli bernoulli_ binomial multinomial poisson _standard_gamma _sample_dirichlet gumbel_softmax"},
    {kDrawsRandomNumbers, "its argument is a probability above 0; it has no argument for training", "_fused_dropout"},
    {kDrawsRandomNumbers, "starts from a random projection", "svd_lowrank pca_lowrank"},
    {kDrawsInTraining, "drops elements in training, with a probability above 0",
     "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout feature_dropout_ "
     "feature_alpha_dropout feature_alpha_dropout_ native_dropout"},
    {kDrawsInTraining, "draws slopes in training", "rrelu rrelu_ rrelu_with_noise rrelu_with_noise_"},
    {kDrawsInTraining, "drops attention weights, with a probability above 0", "scaled_dot_product_attention"},
    {kDrawsInTraining, "drops elements between its layers, with a probability above 0",
     "lstm gru rnn_tanh rnn_relu _cudnn_rnn"},

    // --- Contents of results
    {kUninitializedResult, "memory with undefined values",
     "empty empty_like empty_strided empty_permuted empty_quantized _empty_affine_quantized "
     "_empty_per_channel_affine_quantized new_empty new_empty_strided"},
    {kUninitializedResult, "memory for what all ranks have, of which the rank's own part is written",
     "all_gather_copy_in"},
    {kUninitializedResult, "memory behind the old elements has undefined values", "resize resize_ resize_as_"},
    {kShowsUnwrittenMemory, "sizes and strides may reach memory that was never written", "as_strided_"},
    {kShowsStorage, "a storage that the program gives it", "set_"},
    {kChangesInPlace, "arithmetic in place",
     "add_ sub_ subtract_ mul_ multiply_ div_ divide_ true_divide_ floor_divide_ remainder_ fmod_ pow_ float_power_ "
     "addcmul_ addcdiv_ addmm_ addmv_ addbmm_ baddbmm_ addr_ lerp_ sqrt_ rsqrt_ square_ reciprocal_ abs_ absolute_ "
     "neg_ "
     "negative_ sign_ sgn_ exp_ exp2_ expm1_ log_ log2_ log10_ log1p_ sin_ cos_ tan_ sinh_ cosh_ tanh_ asin_ acos_ "
     "atan_ erf_ erfc_ erfinv_ sigmoid_ logit_ relu_ relu6_ leaky_relu_ elu_ selu_ celu_ silu_ mish_ hardtanh_ "
     "hardswish_ hardsigmoid_ threshold_ clamp_ clamp_min_ clamp_max_ clip_ round_ floor_ ceil_ trunc_ fix_ frac_ "
     "nan_to_num_ cumsum_ cumprod_ tril_ triu_ renorm_ bitwise_and_ bitwise_or_ bitwise_xor_ bitwise_not_ "
     "logical_and_ logical_or_ logical_xor_ logical_not_ dropout_ __iadd__ __isub__ __imul__ __itruediv__ "
     "__ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__"},
    {kChangesInPlace, "arithmetic in place, with the elements that indices name",
     "index_add_ index_reduce_ scatter_add_ scatter_reduce_"},
    {kChangesInPlace, "another shape, place or graph of the same elements",
     "as_strided_ transpose_ t_ squeeze_ unsqueeze_ swapdims_ swapaxes_ detach_ requires_grad_ set_ "
     "share_memory_"},
    {kChangesInPlace, "arithmetic in place, on lists",
     "_foreach_add_ _foreach_sub_ _foreach_mul_ _foreach_div_ _foreach_addcmul_ _foreach_addcdiv_ _foreach_lerp_ "
     "_foreach_sqrt_ _foreach_neg_ _foreach_abs_ _foreach_exp_ _foreach_pow_ _foreach_reciprocal_ "
     "_foreach_clamp_min_ _foreach_clamp_max_ _foreach_maximum_ _foreach_minimum_"},
    {kGivesData, "makes a tensor of the program's own values",
     "tensor as_tensor asarray from_numpy frombuffer new_tensor"},
    {kGivesData, "torch.tensor([1, 2]) at the aten level: the program wrote the memory, which no operator shows",
     "lift lift_fresh"},
    {kWorkspaceResult, "log_alpha: written up to each target's length", "_ctc_loss", 1},
    {kWorkspaceResult, "workspace for backward, padded", "mkldnn_rnn_layer", 3},
    {kWorkspaceResult, "reserve space for backward, padded", "_cudnn_rnn miopen_rnn", 4},
    {kOpenResult, "what its backward wants to know; empty on some backends", "log_sigmoid_forward", 1},
    {kOpenResult, "sums of exponentials, padded with infinities, and states of generators, for its backward",
     "_scaled_dot_product_efficient_attention _efficient_attention_forward _scaled_dot_product_flash_attention "
     "_flash_attention_forward _scaled_dot_product_cudnn_attention",
     1},
    {kOpenResult, "offsets and sizes of the bags and their largest rows, for its backward",
     "embedding_bag _embedding_bag _embedding_bag_forward_only", 1},
    {kTakesWorkspace, "uses the workspace of the forward operator as it likes",
     "_ctc_loss_backward mkldnn_rnn_layer_backward _cudnn_rnn_backward miopen_rnn_backward"},
    {kTakesWorkspace, "reads those of the forward operator's results that are for its backward",
     "_scaled_dot_product_efficient_attention_backward _efficient_attention_backward "
     "_scaled_dot_product_flash_attention_backward _flash_attention_backward "
     "_scaled_dot_product_cudnn_attention_backward log_sigmoid_backward _embedding_bag_backward "
     "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward"},
    {kResultOnCpu, "batch sizes are read by the program", "_pack_padded_sequence", 1},
    {kResultOnCpu, "lengths are made of batch sizes", "_pad_packed_sequence", 1},
    {kAsksAboutDevice, "answers about the device or its memory",
     "_has_compatible_shallow_copy_type _parse_to is_pinned type get_device"},
    {kUnorderedResult, "sets of values have no order",
     "_unique _unique2 unique_dim unique _return_inverse eig linalg_eig"},
    {kSignAmbiguous, "each backend may give an eigenvector or a singular vector another sign or phase",
     "eigh linalg_eigh _linalg_eigh svd_lowrank pca_lowrank lobpcg"},
    {kSignAmbiguous,
     "each backend may give a singular vector another sign or phase; the product of the factors is the input",
     "svd linalg_svd _linalg_svd", 3},
    {kSignAmbiguous, "each backend may give a column of Q another sign or phase; Q R is the input", "qr linalg_qr", 2},
    {kSignAmbiguous, "each backend may give a column of Q another sign or phase", "geqrf"},
    {kReturnsIndices, "equal elements may be named in any order",
     "max min argmax argmin sort argsort median nanmedian mode cummax cummin aminmax", 1},
    {kReturnsIndices, "equal elements may be named in any order", "topk kthvalue", 2},
    {kNamesEachOnce, "an order of elements, or some of them", "sort argsort topk"},
    {kNamesEarlier, "the largest or smallest element so far", "cummax cummin"},
    {kOrdersOnRequest, "sorted=False leaves the order open", "unique _unique _unique2 _return_inverse", 1},
    {kOrdersOnRequest, "sorted=False leaves the order open", "unique_dim", 2},
    {kOrdersOnRequest, "sorted=False leaves the order open", "topk", 4},
    {kHasFirstDtype, "a normalisation has its input's dtype, whatever its weights and statistics have",
     "batch_norm _batch_norm_impl_index native_batch_norm _native_batch_norm_legit "
     "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm "
     "miopen_batch_norm batch_norm_elemt batch_norm_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts "
     "batch_norm_update_stats instance_norm group_norm native_group_norm layer_norm native_layer_norm rms_norm "
     "_fused_rms_norm _weight_norm _weight_norm_interface"},
    {kHasFirstDtype, "the gradient of a normalisation has the dtype of the gradient that arrives",
     "_batch_norm_impl_index_backward native_batch_norm_backward batch_norm_backward batch_norm_backward_elemt "
     "batch_norm_backward_reduce cudnn_batch_norm_backward miopen_batch_norm_backward native_group_norm_backward "
     "native_layer_norm_backward _fused_rms_norm_backward _weight_norm_interface_backward "
     "_weight_norm_differentiable_backward"},

    // --- Strides that a backend's library picks
    {kBackendPicksStrides, "a convolution library picks the memory format", kConvolutions},
    {kBackendPicksStrides, "a linear algebra library gives matrices by columns or by rows",
     "_linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd linalg_cholesky "
     "linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh "
     "linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve "
     "linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matmul linalg_matrix_exp "
     "linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_qr "
     "linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv "
     "linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm linalg_cross cholesky cholesky_inverse "
     "cholesky_solve geqrf orgqr ormqr lu_solve triangular_solve"},
    {kBackendPicksStrides, "a library for Fourier transforms picks the order of the dimensions", kFouriers},
    {kBackendPicksStrides, "an attention kernel picks the order of heads and positions", kAttentions},
    {kBackendPicksStrides, "a kernel for recurrent networks picks the order of steps and batches", kRecurrents},
    {kBackendPicksStrides, "cuDNN packs the weights", "_cudnn_rnn_flatten_weight"},
    {kBackendPicksStrides, "a vendor's library picks the memory format",
     "cudnn_affine_grid_generator cudnn_affine_grid_generator_backward cudnn_batch_norm cudnn_batch_norm_backward "
     "cudnn_grid_sampler cudnn_grid_sampler_backward _cudnn_ctc_loss mkldnn_adaptive_avg_pool2d "
     "mkldnn_adaptive_avg_pool2d_backward mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input "
     "mkldnn_linear_backward_weights mkldnn_max_pool2d mkldnn_max_pool2d_backward mkldnn_max_pool3d "
     "mkldnn_max_pool3d_backward _mkldnn_reshape _mkldnn_transpose _mkldnn_transpose_ to_mkldnn to_mkldnn_backward"},

    // --- How many elements go into an element
    {kSumsProducts, "a product of matrices or vectors",
     "mm _int_mm bmm addmm addmm_ _addmm_activation addmv addmv_ addbmm addbmm_ baddbmm baddbmm_ addr addr_ mv dot "
     "vdot outer inner matmul matmul_backward __matmul__ __rmatmul__ linalg_matmul linalg_multi_dot linalg_vecdot "
     "multi_dot "
     "vecdot chain_matmul tensordot einsum linear linear_backward linear_cross_entropy bilinear _trilinear _foreach_mm "
     "_grouped_mm _scaled_mm _scaled_mm_v2 _scaled_grouped_mm _scaled_grouped_mm_v2 _mixed_dtypes_linear "
     "_compute_linear_combination mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input "
     "mkldnn_linear_backward_weights _linear_pointwise _mkl_linear _mm_plus_mm"},
    {kMixesElements, "a Fourier transform", kFouriers},
    {kMixesElements, "a running sum", "cumsum cumsum_"},
    {kMixesElements, "adds up what its indices bring together, in any order",
     "scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ index_put index_put_ "
     "_index_put_impl_ _unsafe_index_put _unsafe_masked_index_put_accumulate index_reduce index_reduce_ "
     "embedding_backward embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward"},
    {kSumsProducts, "a product with a sparse or packed matrix",
     "_sparse_mm _sparse_addmm _sparse_sparse_matmul _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward "
     "sparse_sampled_addmm _sparse_semi_structured_addmm _sparse_semi_structured_linear _sparse_semi_structured_mm "
     "_cslt_sparse_mm smm dsmm hsmm saddmm spmm sspaddmm hspmm _dyn_quant_matmul_4bit _weight_int4pack_mm "
     "_weight_int4pack_mm_for_cpu "
     "_weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm"},
    {kSumsProducts, "a convolution", kConvolutions},
    {kSumsProducts, "attention: products of queries, keys and values", kAttentions},
    {kSumsProducts, "a recurrent network: products of states and weights", kRecurrents},
    {kByCudnn, "a convolution", kConvolutions},
    {kByCudnn, "a recurrent network", kRecurrents},
    {kApproximatedByCudnn, "its sigmoid and tanh", kRecurrents},

    // --- Operators that cannot run elsewhere
    {kForwardMode, "it belongs to forward-mode differentiation, which ends with its level",
     "_make_dual _unpack_dual _fw_primal"},
    {kReadsValue, "it hands a value to the program: there is nothing to compute",
     "_local_scalar_dense item is_nonzero"},
    {kChangesMemory, "it changes a tensor's memory or its place, not its numbers",
     "set_ resize_ resize_as_ _resize_output_ record_stream pin_memory _pin_memory set_data"},
    {kReadsStorageOffset, "it names places in a tensor's memory",
     "as_strided as_strided_ as_strided_copy as_strided_scatter"},
    {kUndeclaredView, "it gives a view of its input: nothing is computed", "_unsafe_view"},
    {kShowsElements, "it mostly shows its input in another way", "__getitem__ data T H mT mH"},
    {kTakesCpuTensors, "indices or lengths may be on the CPU",
     "index index_put index_put_ _index_put_impl_ _pack_padded_sequence tensor_split _ctc_loss"},
    {kDeviceKernelOfComposite, "the parts would ask their tensors for a backend that only one kernel has",
     "convolution convolution_backward kaiser_window"},

    // --- Forms of calls
    {kLikeFactory, "sizes and dtype of a tensor, values of its own",
     "empty_like full_like ones_like rand_like randint_like randn_like zeros_like"},
    {kWritesFirstArgument, "an assignment, or an operator with an assignment",
     "__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ "
     "__ilshift__ __irshift__ __setitem__ __set__"},
    {kStepsByDtype, "its result is a step between numbers of the dtype", "nextafter nextafter_"},
    {kBetweenTwoRanks, "one rank sends, one receives", "send recv_ recv_any_source_"},
    {kGivesAllRanksTheSame, "a sum over all ranks",
     "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_"},
    {kGivesAllRanksTheSame, "what one rank has", "broadcast_ broadcast"},
    {kGivesAllRanksTheSame, "what all ranks have",
     "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ all_gather all_gather_single "
     "all_gather_into_tensor all_gather_into_tensor_out all_gather_into_tensor_coalesced"},
    {kJumps, "a gradient that is another one on the other side of a threshold",
     "threshold_backward leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
     "softshrink_backward hardshrink_backward elu_backward rrelu_with_noise_backward max_pool2d_with_indices_backward "
     "max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
     "smooth_l1_loss_backward huber_loss_backward"},
    {kGivesIntegers, "a quotient without its fraction",
     "floor_divide floor_divide_ __floordiv__ __rfloordiv__ __ifloordiv__"},
    {kDivides, "a quotient, whose divisor may be next to nothing",
     "div div_ divide divide_ true_divide addcdiv addcdiv_ _foreach_div _foreach_div_ _foreach_addcdiv "
     "_foreach_addcdiv_ _fused_adam_ _fused_adamw_ _fused_adagrad_",
     1},
    {kDivides, "a quotient, whose divisor may be next to nothing",
     "reciprocal reciprocal_ rsqrt rsqrt_ _foreach_reciprocal _foreach_rsqrt", 0},
    {kAddsTerm, "the first input and a term",
     "add add_ sub sub_ subtract subtract_ rsub addcmul addcmul_ addcdiv addcdiv_ _foreach_add _foreach_add_ "
     "_foreach_sub _foreach_sub_ _foreach_addcmul _foreach_addcmul_ _foreach_addcdiv _foreach_addcdiv_"},
    {kStepsParameters, "a fused optimizer", "_fused_adam_ _fused_adamw_ _fused_adagrad_ _fused_sgd_"},
    {kExponentiates, "exponentials",
     "exp exp_ exp2 exp2_ expm1 expm1_ softmax _softmax _safe_softmax _masked_softmax log_softmax _log_softmax "
     "logsumexp _foreach_exp _foreach_exp_ cross_entropy"},
    {kJumps, "steps, signs, remainders and choices",
     "sign sgn round floor ceil trunc frac fmod remainder floor_divide heaviside threshold hardshrink topk sort "
     "argsort where masked_fill bernoulli multinomial fake_quantize_per_tensor_affine "
     "fake_quantize_per_channel_affine"},
    {kGradientJumps, "its formula has a step or a corner",
     "relu relu_ relu6 relu6_ leaky_relu leaky_relu_ rrelu rrelu_ prelu threshold threshold_ hardtanh hardtanh_ "
     "hardswish hardswish_ hardsigmoid hardsigmoid_ softshrink hardshrink elu elu_ celu selu clamp clamp_ clip clip_ "
     "clamp_min clamp_max abs abs_ absolute l1_loss smooth_l1_loss huber_loss hinge_embedding_loss margin_ranking_loss "
     "multi_margin_loss multilabel_margin_loss triplet_margin_loss triplet_margin_with_distance_loss "
     "cosine_embedding_loss fmod remainder rnn_relu rnn_relu_cell grid_sample grid_sampler renorm norm dist cdist "
     "pairwise_distance linalg_norm linalg_vector_norm where"},
    {kGradientJumps, "it gives the gradient to the elements that it chose",
     "max min amax amin aminmax maximum minimum fmax fmin sort msort topk kthvalue median nanmedian mode quantile "
     "nanquantile cummax cummin logcumsumexp scatter_reduce scatter_reduce_ index_reduce index_reduce_ segment_reduce "
     "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
     "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
     "max_unpool1d max_unpool2d max_unpool3d embedding_bag"},
    {kNormalizes, "a mean and a spread, a norm, or a sum of exponentials is taken out",
     "layer_norm native_layer_norm batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
     "miopen_batch_norm instance_norm group_norm native_group_norm rms_norm _fused_rms_norm local_response_norm "
     "normalize _weight_norm _weight_norm_interface softmax _softmax _safe_softmax softmin log_softmax "
     "_log_softmax gumbel_softmax logsumexp std var std_mean var_mean cosine_similarity cosine_embedding_loss "
     "linalg_cross"},
    {kNormalizes, "attention: softmax between two products", kAttentions},
    {kNormalizes, "the gradient of one that does",
     "native_layer_norm_backward native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward "
     "miopen_batch_norm_backward native_group_norm_backward _fused_rms_norm_backward _weight_norm_interface_backward "
     "_weight_norm_differentiable_backward _softmax_backward_data _log_softmax_backward_data"},
    {kNormalizesBatch, "a channel's mean and spread are sums over the whole batch",
     "batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm "
     "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"},
    {kMultiplies, "a product, a quotient or a power of elements",
     "mul mul_ multiply multiply_ div div_ divide divide_ true_divide neg neg_ negative negative_ square square_ sqrt "
     "sqrt_ rsqrt rsqrt_ reciprocal reciprocal_ pow pow_ abs abs_ masked_fill masked_fill_ where clone detach t "
     "transpose permute view reshape expand _foreach_mul _foreach_mul_ _foreach_div _foreach_div_ _foreach_sqrt "
     "_foreach_sqrt_ _foreach_neg _foreach_neg_"},
    {kAddsProduct, "a product or quotient is added, in a single rounding (FMA) or in two",
     "addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ _foreach_addcmul _foreach_addcmul_ _foreach_addcdiv "
     "_foreach_addcdiv_ _foreach_lerp _foreach_lerp_"},
    {kDistance, "a distance", "cdist _cdist_forward _euclidean_dist pdist _pdist_forward pairwise_distance dist"},
    {kSelects, "elements of its input",
     "gather index index_select select slice narrow split split_with_sizes chunk unbind unsafe_split unsafe_chunk "
     "unsafe_split_with_sizes tensor_split take take_along_dim masked_select amax amin aminmax max min topk sort msort "
     "kthvalue median nanmedian mode cummax cummin unfold as_strided diagonal diag tril triu flip roll __getitem__ "
     "embedding max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d "
     "adaptive_max_pool2d adaptive_max_pool3d"},
    {kSelects, "elements of several inputs, or in another order",
     "cat concat concatenate stack hstack vstack dstack row_stack column_stack clone contiguous repeat tile "
     "repeat_interleave expand expand_as permute transpose t view reshape flatten movedim rot90 fliplr flipud squeeze "
     "unsqueeze ravel unflatten swapaxes swapdims diag_embed diagflat block_diag cartesian_prod combinations "
     "meshgrid pixel_shuffle pixel_unshuffle channel_shuffle scatter index_copy index_fill masked_fill masked_scatter"},
    {kSelects, "views, copied",
     "alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy "
     "split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy "
     "view_copy"},
    {kSelects, "elements of the inputs or their negatives, or zeros",
     "minimum maximum fmin fmax relu abs absolute neg negative"},
    {kNeedsNoRounding, "integers, signs, bounds and remainders of real numbers",
     "floor floor_ ceil ceil_ trunc trunc_ fix fix_ round round_ frac frac_ fmod fmod_ remainder remainder_ __mod__ "
     "sign sign_ sgn sgn_ heaviside heaviside_ threshold threshold_ hardshrink hardtanh hardtanh_ clamp clamp_ clip "
     "clip_ clamp_min clamp_min_ clamp_max clamp_max_ relu_ relu6 relu6_ copysign copysign_ abs_ neg_"},
    {kMoves, "the tensor's elements in another place or form", "_to_copy to cpu cuda xpu ipu type_as type"},
    {kHasDefaultByDtype, "eps is the dtype's", "rms_norm _fused_rms_norm"},
    {kHasDefaultByDtype, "infinities become the largest numbers of the dtype", "nan_to_num nan_to_num_"},
    {kHasDefaultByDtype, "singular values below the dtype's precision count as zero",
     "linalg_pinv pinv linalg_matrix_rank matrix_rank linalg_lstsq lstsq"},
    {kRoundsNearOne, "the sum of a softmax, a probability of which one is taken off",
     "log_softmax _log_softmax cross_entropy cross_entropy_loss binary_cross_entropy_with_logits"},
    {kRoundsNearOne, "a probability times the sum of the gradients that arrive", "_log_softmax_backward_data", 0},
    {kGradientReadsResult, "its gradient is made of its result",
     "tanh tanh_ sigmoid sigmoid_ exp exp_ exp2 exp2_ expm1 expm1_ sqrt sqrt_ rsqrt rsqrt_ reciprocal reciprocal_ tan "
     "tan_ erfinv erfinv_ hypot hypot_ prod cumprod cumprod_ softmax softmin log_softmax gumbel_softmax logsumexp "
     "logcumsumexp std std_mean norm linalg_norm linalg_vector_norm dist cdist pairwise_distance"},

    // --- Metadata. item(), tolist(), detach(), data, T, real and indexing have no row here, nor has type(), which
    // converts when it is given a dtype. repr and format read elements, but only to show them to people.
    {kReadsMetadata, "sizes and places in memory",
     "_debug_has_internal_overlap _dimI _dimV _nested_get_ragged_idx _nnz const_data_ptr data_ptr dense_dim dim "
     "dim_order element_size itemsize nbytes ndim ndimension nelement numel shape size sparse_dim storage_offset "
     "stride sym_numel sym_size sym_storage_offset sym_stride __len__"},
    {kReadsMetadata, "storages and the tensors that share them",
     "_has_same_storage_numel _is_view is_set_to is_shared is_storage is_tensor storage storage_type untyped_storage "
     "_typed_storage _base _cdata _version"},
    {kReadsMetadata, "form, dtype and device",
     "_assert_tensor_metadata _has_compatible_shallow_copy_type _is_zerotensor _parse_to can_cast device dtype "
     "get_device is_coalesced is_complex is_conj is_contiguous is_cpu is_cuda is_distributed is_floating_point "
     "is_hpu is_inference is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_neg is_nested "
     "is_non_overlapping_and_dense is_pinned is_quantized is_same_size is_signed is_sparse is_sparse_csr "
     "is_strides_like_format is_vulkan is_xla is_xpu layout has_names name names promote_types q_per_channel_axis "
     "q_scale q_zero_point qscheme result_type sym_is_contiguous __cuda_array_interface__ __dlpack_device__"},
    {kReadsMetadata, "whether a backend has a kernel, and the plans that it keeps",
     "_cufft_clear_plan_cache _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size "
     "_cufft_set_plan_cache_max_size _fused_sdp_choice _nnpack_available _use_cudnn_ctc_loss "
     "_use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss cudnn_is_acceptable is_vulkan_available"},
    {kReadsMetadata, "autograd's wiring",
     "_backward _backward_hooks _grad _grad_fn _post_accumulate_grad_hooks _set_grad_enabled "
     "_set_view_replay_enabled backward grad "
     "grad_dtype grad_fn is_leaf output_nr register_hook register_post_accumulate_grad_hook requires_grad "
     "requires_grad_ retain_grad retains_grad volatile"},
    {kReadsMetadata, "numbers that stand for sizes, and conditions on them",
     "_assert sym_constrain_range sym_constrain_range_for_size sym_float sym_int sym_ite sym_max sym_min sym_not "
     "sym_sqrt sym_sum"},
    {kReadsMetadata, "the tensor as an object of Python's", "__dir__ __format__ __hash__ __repr__ __str__"},
    {kReadsMetadata, "marks of the profiler",
     "_record_function_enter _record_function_enter_new _record_function_exit"},
    {kOnDefaultDevice, "torch.set_default_device decides about it",
     "empty empty_permuted empty_strided empty_quantized ones zeros full eye scalar_tensor tensor as_tensor asarray "
     "arange range linspace logspace tril_indices triu_indices rand randn randint randperm bartlett_window "
     "blackman_window hamming_window hann_window kaiser_window fftfreq rfftfreq fft_fftfreq fft_rfftfreq "
     "sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor "
     "sparse_bsc_tensor"},
    {kOpensFile, "it opens a file by its name, and may write it", "from_file _from_file"},
    {kRunsUnasked, "a copy, or a value for each element",
     "copy_ _copy_from _copy_from_and_resize _foreach_copy_ clone contiguous cat fill_ zero_ detach_"},
    {kKeepsNumbers, "detached from its graph, on another device, or another object", "detach cpu cuda __deepcopy__"},

    // --- Values that arguments may have
    {kTakesPositive, "a root, a logarithm, a power or a reciprocal",
     "sqrt rsqrt log log2 log10 log1p pow __pow__ reciprocal", 0},
    {kTakesDivisor, "a quotient or a remainder",
     "div divide true_divide __truediv__ __div__ floor_divide __floordiv__ remainder", 1},
    {kTakesDivisor, "the number is divided by the tensor", "__rtruediv__", 0},
    {kTakesIndices, "places along a dimension", "gather scatter scatter_add index_select index_add", 2},
    {kTakesIndices, "places along a dimension", "take_along_dim", 1},
    {kNeedsCpuTensors, "the indices say how many tensors it gives", "tensor_split"},
};

// When a call of a family of kDrawsInTraining draws: where each of the named parameters, as given or by default, is
// true or above 0.
struct DrawsWhen {
  std::string_view names;
  std::string_view parameters;  // in order
  struct {
    std::string_view name;
    bool otherwise;  // without the argument
  } needs[2];
};

constexpr DrawsWhen kDrawsWhen[] = {
    {"dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_",
     "input p training",
     {{"p", true}, {"training", true}}},
    {"alpha_dropout alpha_dropout_ feature_alpha_dropout feature_alpha_dropout_",
     "input p training",
     {{"p", true}, {"training", false}}},
    {"native_dropout", "input p train", {{"p", true}, {"train", true}}},
    {"rrelu rrelu_", "input lower upper training", {{"training", false}, {}}},
    {"rrelu_with_noise rrelu_with_noise_", "input noise lower upper training", {{"training", false}, {}}},
    // In the form with batch_sizes each stands a place later: there a probability above 0 is enough.
    {"lstm gru rnn_tanh rnn_relu",
     "input hx params has_biases num_layers dropout train",
     {{"dropout", false}, {"train", false}}},
    {"_cudnn_rnn",
     "input weight weight_stride0 weight_buf hx cx mode hidden_size proj_size num_layers batch_first dropout train",
     {{"dropout", false}, {"train", false}}},
    {"scaled_dot_product_attention", "query key value attn_mask dropout_p", {{"dropout_p", false}, {}}},
};

// Results that a call may ask for, and which are anything where it does not.
struct OnRequest {
  std::string_view names;
  std::string_view parameters;  // in order
  struct {
    int place;  // of the result
    std::string_view parameter;
  } results[2];
};

constexpr OnRequest kOnRequest[] = {
    {"unique_consecutive", "self return_inverse return_counts dim", {{1, "return_inverse"}, {2, "return_counts"}}},
    {"unique_dim_consecutive", "self dim return_inverse return_counts", {{1, "return_inverse"}, {2, "return_counts"}}},
    {"unique_dim", "self dim sorted return_inverse return_counts", {{1, "return_inverse"}, {2, "return_counts"}}},
    {"_unique2", "self sorted return_inverse return_counts", {{1, "return_inverse"}, {2, "return_counts"}}},
};

// Arguments with a default by dtype. tests/proofs/golden_defaults.py finds them, and looks for others.
struct DefaultByDtype {
  std::string_view names;
  std::string_view parameters;  // in order
  std::string_view parameter;   // has the default ...
  std::string_view unless;      // ... where none of these is given
  OpenArgument::Default value;
};

constexpr DefaultByDtype kDefaultsByDtype[] = {
    {"rms_norm _fused_rms_norm", "input normalized_shape weight eps", "eps", "eps", OpenArgument::Default::kEpsilon},
    {"nan_to_num nan_to_num_", "input nan posinf neginf", "posinf", "posinf", OpenArgument::Default::kLargest},
    {"nan_to_num nan_to_num_", "input nan posinf neginf", "neginf", "neginf", OpenArgument::Default::kLowest},
    {"linalg_pinv pinv", "input atol rtol", "rtol", "atol rtol rcond", OpenArgument::Default::kEpsilonTimesSize},
    {"linalg_matrix_rank matrix_rank", "input atol rtol", "rtol", "atol rtol tol",
     OpenArgument::Default::kEpsilonTimesSize},
    {"linalg_lstsq lstsq", "input b rcond", "rcond", "rcond", OpenArgument::Default::kEpsilonTimesSize},
};

using Families = std::unordered_multimap<std::string_view, const OpFamily*>;

const Families& families_by_name() {
  static const Families& index = *[] {
    auto* families = new Families;
    for (const OpFamily& family : kFamilies) {
      each_word(family.names, [&](std::string_view name) { families->emplace(name, &family); });
    }
    return families;
  }();
  return index;
}

bool is_word_of(std::string_view words, std::string_view word) {
  bool is_word = false;
  each_word(words, [&](std::string_view candidate) { is_word = is_word || candidate == word; });
  return is_word;
}

size_t place_of_word(std::string_view words, std::string_view word) {
  size_t count = 0, place = 0;
  each_word(words, [&](std::string_view candidate) {
    if (candidate == word) place = count;
    ++count;
  });
  return place;
}

bool is_true(const Value* value, bool otherwise) {
  if (!value || value->is<None>()) return otherwise;
  if (const auto* flag = value->get_if<bool>()) return *flag;
  if (const auto* real = value->get_if<double>()) return *real > 0;
  if (const auto* integer = value->get_if<int64_t>()) return *integer > 0;
  return true;  // a tensor, say: its value is not read for this
}

}  // namespace

bool is_torchs_own(std::string_view op_name) {
  for (const std::string_view of_torch : {"aten::", "torch.ops.aten.", "profiler::", "torch.ops.profiler."}) {
    if (op_name.starts_with(of_torch)) return true;
  }
  return op_name.starts_with("torch.") && !op_name.starts_with("torch.ops.");
}

std::span<const OpFamily> op_families() {
  return kFamilies;
}

std::string_view trait_name(OpTrait trait) {
  switch (trait) {
    case kDrawsRandomNumbers:
      return "draws_random_numbers";
    case kDrawsInTraining:
      return "draws_random_numbers_in_training";
    case kUninitializedResult:
      return "uninitialized_result";
    case kShowsStorage:
      return "shows_a_storage";
    case kShowsUnwrittenMemory:
      return "shows_unwritten_memory";
    case kChangesInPlace:
      return "changes_in_place";
    case kGivesData:
      return "gives_data";
    case kWorkspaceResult:
      return "workspace_result";
    case kOpenResult:
      return "open_result";
    case kTakesWorkspace:
      return "takes_a_workspace";
    case kResultOnCpu:
      return "result_on_the_CPU";
    case kBackendPicksStrides:
      return "backend_picks_strides";
    case kAsksAboutDevice:
      return "asks_about_the_device";
    case kUnorderedResult:
      return "unordered_result";
    case kSignAmbiguous:
      return "sign_is_ambiguous";
    case kReturnsIndices:
      return "returns_indices";
    case kNamesEachOnce:
      return "names_each_element_once";
    case kNamesEarlier:
      return "names_earlier_elements";
    case kOrdersOnRequest:
      return "orders_on_request";
    case kMixesElements:
      return "mixes_elements";
    case kSumsProducts:
      return "sums_products";
    case kByCudnn:
      return "by_cudnn";
    case kApproximatedByCudnn:
      return "approximated_by_cudnn";
    case kHasFirstDtype:
      return "has_the_first_dtype";
    case kForwardMode:
      return "forward_mode";
    case kLikeFactory:
      return "factory_like_a_tensor";
    case kReadsValue:
      return "reads_a_value";
    case kChangesMemory:
      return "changes_memory";
    case kShowsElements:
      return "shows_elements";
    case kUndeclaredView:
      return "undeclared_view";
    case kTakesCpuTensors:
      return "takes_CPU_tensors";
    case kDeviceKernelOfComposite:
      return "device_kernel_of_a_composite_operator";
    case kWritesFirstArgument:
      return "writes_the_first_argument";
    case kStepsByDtype:
      return "steps_by_the_dtype";
    case kBetweenTwoRanks:
      return "between_two_ranks";
    case kGivesAllRanksTheSame:
      return "gives_all_ranks_the_same";
    case kJumps:
      return "jumps";
    case kGivesIntegers:
      return "gives_integers";
    case kDivides:
      return "divides";
    case kAddsTerm:
      return "adds_a_term";
    case kStepsParameters:
      return "steps_parameters";
    case kExponentiates:
      return "exponentiates";
    case kGradientJumps:
      return "gradient_jumps";
    case kNormalizes:
      return "normalizes";
    case kNormalizesBatch:
      return "normalizes_the_batch";
    case kMultiplies:
      return "multiplies";
    case kAddsProduct:
      return "adds_a_product";
    case kDistance:
      return "gives_a_distance";
    case kSelects:
      return "selects";
    case kNeedsNoRounding:
      return "needs_no_rounding";
    case kMoves:
      return "moves";
    case kReadsMetadata:
      return "reads_metadata";
    case kOpensFile:
      return "opens_a_file";
    case kKeepsNumbers:
      return "keeps_numbers";
    case kTakesPositive:
      return "takes_positive_numbers";
    case kTakesDivisor:
      return "takes_a_divisor";
    case kTakesIndices:
      return "takes_indices";
    case kNeedsCpuTensors:
      return "needs_CPU_tensors";
    case kHasDefaultByDtype:
      return "has_a_default_by_dtype";
    case kReadsStorageOffset:
      return "reads_storage_offset";
    case kRoundsNearOne:
      return "rounds_near_one";
    case kGradientReadsResult:
      return "gradient_reads_the_result";
    case kRunsUnasked:
      return "runs_unasked";
    case kOnDefaultDevice:
      return "on_the_default_device";
  }
  return "";
}

OpTrait trait_from_name(std::string_view name) {
  for (const OpFamily& family : kFamilies) {
    if (trait_name(family.trait) == name) return family.trait;
  }
  throw Error("'" + std::string(name) + "' is no trait of operators");
}

const OpFamily* family_of(std::string_view base_name, OpTrait trait) {
  const auto [first, last] = families_by_name().equal_range(base_name);
  const auto family = std::find_if(first, last, [&](const auto& row) { return row.second->trait == trait; });
  return family == last ? nullptr : family->second;
}

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

std::string capital_base_name(std::string_view op_name) {
  std::string capitals(base_name(op_name));
  for (char& c : capitals) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return capitals;
}

bool is_metadata_op(std::string_view op_name) {
  if (!is_torchs_own(op_name)) return false;
  constexpr std::string_view kSetter = ".__set__";  // torch.Tensor.grad.__set__ is about `grad`
  if (op_name.ends_with(kSetter)) op_name.remove_suffix(kSetter.size());
  return has_trait(base_name(op_name), kReadsMetadata);
}

bool multiplies_in_tf32(std::string_view base_name, Tf32Flags flags) {
  return has_trait(base_name, kByCudnn) ? flags.cudnn : flags.matmul && has_trait(base_name, kSumsProducts);
}

bool draws_random_numbers(std::string_view base_name, const Value& args, const Value& kwargs) {
  if (has_trait(base_name, kDrawsRandomNumbers)) return true;
  if (!has_trait(base_name, kDrawsInTraining)) return false;
  for (const DrawsWhen& rule : kDrawsWhen) {
    if (!is_word_of(rule.names, base_name)) continue;
    return std::all_of(std::begin(rule.needs), std::end(rule.needs), [&](const auto& needed) {
      return needed.name.empty() || is_true(argument_of(rule.parameters, needed.name, args, kwargs), needed.otherwise);
    });
  }
  return true;
}

std::vector<OpenArgument> open_arguments(std::string_view op_name, const Value& args, const Value& kwargs) {
  std::vector<OpenArgument> open;
  const std::string_view base = base_name(op_name);
  if (!has_trait(base, kHasDefaultByDtype) || !is_torchs_own(op_name)) return open;
  for (const DefaultByDtype& rule : kDefaultsByDtype) {
    if (!is_word_of(rule.names, base)) continue;
    bool is_given = false;
    each_word(rule.unless, [&](std::string_view name) {
      const Value* value = argument_of(rule.parameters, name, args, kwargs);
      is_given = is_given || (value && !value->is<None>());
    });
    if (!is_given) open.push_back({rule.parameter, place_of_word(rule.parameters, rule.parameter), rule.value});
  }
  return open;
}

bool returns_uninitialized(std::string_view base_name) {
  return has_trait(base_name, kUninitializedResult);
}

int workspace_of(std::string_view base_name) {
  const OpFamily* family = family_of(base_name, kWorkspaceResult);
  return family ? family->place : -1;
}

bool is_open_result(std::string_view base_name, int place, const Value& args, const Value& kwargs) {
  const OpFamily* const family = family_of(base_name, kOpenResult);
  if (family && place >= family->place) return true;
  for (const OnRequest& rule : kOnRequest) {
    if (!is_word_of(rule.names, base_name)) continue;
    return std::any_of(std::begin(rule.results), std::end(rule.results), [&](const auto& result) {
      return result.place == place && !is_true(argument_of(rule.parameters, result.parameter, args, kwargs), false);
    });
  }
  return false;
}

bool rounds_to_integers(std::string_view base_name, const Value& kwargs) {
  if (has_trait(base_name, kGivesIntegers)) return true;
  const Value* mode = has_trait(base_name, kDivides) ? find_key(kwargs, "rounding_mode") : nullptr;
  return mode && mode->is<std::string>();
}

bool backend_picks_strides(std::string_view base_name) {
  return has_trait(base_name, kBackendPicksStrides) || returns_uninitialized(base_name);
}

bool asks_about_device(std::string_view base_name) {
  return has_trait(base_name, kAsksAboutDevice);
}

bool returns_unordered(std::string_view base_name) {
  return has_trait(base_name, kUnorderedResult);
}

bool is_sign_ambiguous(std::string_view base_name) {
  return has_trait(base_name, kSignAmbiguous);
}

bool returns_indices(std::string_view base_name) {
  return has_trait(base_name, kReturnsIndices);
}

bool is_collective(std::string_view name) {
  constexpr std::string_view kSpaces =
      "c10d _c10d_functional c10d_functional _c10d_functional_autograd _dtensor symm_mem";
  constexpr std::string_view kPacket = "torch.ops.";
  if (name.starts_with("torch.distributed.")) return true;
  if (name.starts_with(kPacket)) {
    name.remove_prefix(kPacket.size());
    return is_word_of(kSpaces, name.substr(0, name.find('.')));
  }
  return is_word_of(kSpaces, name.substr(0, name.find("::")));
}

bool is_foreach(std::string_view base_name) {
  return base_name.starts_with("_foreach_");
}

bool makes_variable(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || !op.schema().argumentIndexWithName("pin_memory")) return false;
  return !op.schema().argumentIndexWithName("self") || has_trait(base_name(op.operator_name().name), kLikeFactory);
}

int64_t reduced_elements(std::string_view base_name, const std::vector<at::Tensor>& inputs, const at::Tensor& result) {
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
  if (has_trait(base_name, kSumsProducts)) reduced = std::max(reduced, std::sqrt(largest * second / out));
  return static_cast<int64_t>(std::clamp(reduced, 1.0, largest));
}

}  // namespace op_tools
