#include "hooks/batch_form.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"

namespace op_tools {
namespace {

constexpr int64_t kNoDefault = std::numeric_limits<int64_t>::min();
constexpr size_t kAll = BatchForm::kAllResults;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();  // as many dimensions no tensor has

// A family of operators with a batch in the first dimension.
struct Family {
  std::string_view names;                 // base names; a full name: of a Python function whose parameters differ
  std::string_view parameters;            // in order
  std::string_view rows;                  // those of them whose tensors have the batch
  int64_t least = 2;                      // dimensions of the first of these: with fewer there is no batch
  std::string_view fitting = {};          // have it where they have as many dimensions, and as many rows
  std::string_view along = {};            // the dimensions that are reduced or normalised: not the first
  int64_t along_default = kNoDefault;     // where the call does not give them; kNoDefault: all, so there is no batch
  std::string_view last_dimensions = {};  // a list as long as the last dimensions that are normalised
  size_t results = kAll;
};

constexpr Family kTable[] = {
    // --- Products
    {"linear", "input weight bias", "input"},
    {"mm mv", "input mat2", "input"},
    {"addmm", "input mat1 mat2", "mat1", 2, "input"},
    {"bmm", "input mat2", "input mat2", 3},
    {"baddbmm", "input batch1 batch2", "batch1 batch2", 3, "input"},
    // --- Convolutions and pooling: without a batch they have a dimension less
    {"conv1d conv_transpose1d", "input weight bias", "input", 3},
    {"conv2d conv_transpose2d", "input weight bias", "input", 4},
    {"conv3d conv_transpose3d", "input weight bias", "input", 5},
    {"convolution _convolution mkldnn_convolution cudnn_convolution", "input weight bias", "input", 3},
    {"max_pool1d avg_pool1d adaptive_avg_pool1d", "input", "input", 3},
    {"max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d", "input", "input", 4},
    {"max_pool3d max_pool3d_with_indices avg_pool3d adaptive_avg_pool3d _adaptive_avg_pool3d", "input", "input", 5},
    {"interpolate upsample_nearest1d upsample_nearest2d upsample_bilinear2d", "input", "input", 3},
    // --- Along other dimensions
    {"softmax log_softmax softmin _softmax _log_softmax", "input dim", "input", 2, "", "dim"},
    {"_softmax_backward_data _log_softmax_backward_data", "grad_output output dim", "grad_output output", 2, "", "dim"},
    {"sum mean amax amin argmax argmin prod std var logsumexp cumsum cumprod any all max min median", "input dim",
     "input", 2, "", "dim"},
    {"sort", "input dim", "input", 2, "", "dim", -1},
    {"topk", "input k dim", "input", 2, "", "dim", -1},
    {"normalize", "input p dim eps", "input", 2, "", "dim", 1},
    {"layer_norm native_layer_norm", "input normalized_shape weight bias eps", "input", 2, "", "", kNoDefault,
     "normalized_shape"},
    {"rms_norm _fused_rms_norm", "input normalized_shape weight eps", "input", 2, "", "", kNoDefault,
     "normalized_shape"},
    {"native_layer_norm_backward", "grad_out input normalized_shape mean rstd weight bias", "grad_out input mean rstd",
     2, "", "", kNoDefault, "normalized_shape", 1},
    {"torch.nn.functional.group_norm torch.group_norm aten::group_norm", "input num_groups weight bias", "input"},
    {"local_response_norm", "input", "input", 3},
    // --- Lookups, by the first dimension of the indices
    {"torch.nn.functional.embedding", "input weight", "input", 1},
    {"torch.embedding aten::embedding", "weight indices", "indices", 1},
    // --- Attention
    {"scaled_dot_product_attention _scaled_dot_product_attention_math", "query key value attn_mask", "query key value",
     3, "attn_mask", "", kNoDefault, "", 1},
    {"_scaled_dot_product_flash_attention", "query key value", "query key value", 4, "", "", kNoDefault, "", 1},
    {"_scaled_dot_product_flash_attention_for_cpu", "query key value dropout_p is_causal attn_mask", "query key value",
     4, "attn_mask", "", kNoDefault, "", 1},
    {"_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
     "_scaled_dot_product_fused_attention_overrideable",
     "query key value attn_bias", "query key value", 4, "attn_bias", "", kNoDefault, "", 1},
};

constexpr std::string_view kUnknown = "it is not known which dimension of the operator is the batch";

const Family* family(std::string_view op_name) {
  static const auto& by_name = *[] {
    auto* families = new std::unordered_map<std::string_view, const Family*>;  // NOLINT: read until the process is gone
    for (const Family& row : kTable) {
      each_word(row.names, [&](std::string_view name) { families->emplace(name, &row); });
    }
    return families;
  }();
  const std::string_view without_overload = op_name.substr(0, op_name.find('.', op_name.find("::") + 1));
  for (const std::string_view name :
       {op_name, op_name.starts_with("aten::") ? without_overload : op_name, base_name(op_name)}) {
    if (const auto entry = by_name.find(name); entry != by_name.end()) return entry->second;
  }
  return nullptr;
}

bool is_tagged(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  return op && op->hasTag(at::Tag::pointwise);
}

// Torch's own word. Of a function it holds where all overloads of the operator of that name have it.
bool is_pointwise(std::string_view op_name) {
  if (op_name.starts_with("aten::")) {
    const size_t dot = op_name.find('.');
    const bool has_overload = dot != std::string_view::npos;
    return is_tagged({std::string(op_name.substr(0, dot)), std::string(has_overload ? op_name.substr(dot + 1) : "")});
  }
  static const auto& by_base = *[] {
    auto* tagged = new std::unordered_map<std::string, bool>;  // NOLINT: as above
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!name.name.starts_with("aten::") || name.overload_name.ends_with("out")) continue;
      const auto [entry, is_new] = tagged->try_emplace(name.name.substr(6), true);
      entry->second = entry->second && is_tagged(name);
    }
    return tagged;
  }();
  const auto entry = by_base.find(std::string(base_name(op_name)));
  return entry != by_base.end() && entry->second;
}

bool can_be_taken_apart(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor._is_zerotensor() && !tensor.is_nested();
}

class Form {
 public:
  Form(const std::vector<at::Tensor>& tensors) : tensors_(tensors) { form_.of.assign(tensors.size(), false); }

  BatchForm without(std::string_view why) {
    form_.why_not = why;
    return form_;
  }

  // Of all places at which the tensor stands.
  void mark(const at::Tensor& tensor) {
    ++marked_;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].is_same(tensor)) form_.of[i] = true;
    }
  }

  // `least`: with fewer dimensions the second has no rows.
  BatchForm with_rows(int64_t rows, size_t results, const std::vector<bool>& written, int64_t least = kNever) {
    form_.rows = rows;
    form_.results = results;
    form_.sequence = second_dimension(least);
    size_t places = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      places += form_.of[i];
      if (form_.of[i] && !can_be_taken_apart(tensors_[i])) return without("a tensor has no rows that can be taken");
      if (!form_.of[i] && i < written.size() && written[i]) return without("the call writes what belongs to all rows");
    }
    if (rows == 0) return without("the batch is empty");
    if (places != marked_) return without("a tensor is both the batch and another argument");
    return form_;
  }

 private:
  // Its size, the same in all tensors that have the batch; 0: it has no rows.
  int64_t second_dimension(int64_t least) const {
    int64_t size = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!form_.of[i]) continue;
      if (tensors_[i].dim() < least || (size != 0 && tensors_[i].size(1) != size)) return 0;
      size = tensors_[i].size(1);
    }
    return size;
  }

  const std::vector<at::Tensor>& tensors_;
  BatchForm form_;
  size_t marked_ = 0;  // arguments
};

BatchForm pointwise_form(const std::vector<at::Tensor>& tensors, const std::vector<bool>& written) {
  Form form(tensors);
  int64_t dims = 0, rows = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!can_be_taken_apart(tensor)) return form.without("a tensor has no rows that can be taken");
    dims = std::max(dims, tensor.dim());
  }
  if (dims == 0) return form.without("it has no rows: it is a number");
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() != dims) continue;
    // A dimension of size 1 stands for every row, unless there is no other.
    if (rows <= 1) rows = tensor.size(0);
  }
  // What belongs to all rows has no second dimension, or a single place in it.
  bool has_sequence = dims > 2;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() == dims && tensor.size(0) == rows) {
      form.mark(tensor);
    } else if (const int64_t from_end = dims - 2; has_sequence && tensor.dim() > from_end) {
      has_sequence = tensor.size(tensor.dim() - 1 - from_end) == 1;
    }
  }
  return form.with_rows(rows, kAll, written, has_sequence ? 3 : kNever);
}

// The dimensions among `dim`, from 0; nullopt: not given as numbers.
std::optional<std::vector<int64_t>> dimensions(const Value* value, int64_t otherwise, int64_t dims) {
  std::vector<int64_t> along;
  if (!value || value->is<None>()) {
    if (otherwise == kNoDefault) return std::nullopt;
    along.push_back(otherwise);
  } else if (const auto* single = value->get_if<int64_t>()) {
    along.push_back(*single);
  } else if (const auto* size = value->get_if<Size>()) {
    along = size->sizes;
  } else if (const Values* items = sequence_items(*value)) {
    for (const Value& item : *items) {
      const auto* number = item.get_if<int64_t>();
      if (!number) return std::nullopt;
      along.push_back(*number);
    }
  } else {
    return std::nullopt;
  }
  if (along.empty()) return std::nullopt;
  for (int64_t& dim : along) dim += dim < 0 ? dims : 0;
  return along;
}

int64_t length(const Value* value) {
  if (!value) return -1;
  if (value->is<int64_t>()) return 1;
  if (const auto* size = value->get_if<Size>()) return static_cast<int64_t>(size->sizes.size());
  const Values* items = sequence_items(*value);
  return items ? static_cast<int64_t>(items->size()) : -1;
}

BatchForm matmul_form(const Value& args, const Value& kwargs, const std::vector<at::Tensor>& tensors,
                      const std::vector<bool>& written) {
  Form form(tensors);
  const Value* values[] = {argument_of("input other", "input", args, kwargs),
                           argument_of("input other", "other", args, kwargs)};
  if (!values[0] || !values[1] || !values[0]->is<at::Tensor>() || !values[1]->is<at::Tensor>()) {
    return form.without(kUnknown);
  }
  const at::Tensor &left = *values[0]->get_if<at::Tensor>(), &right = *values[1]->get_if<at::Tensor>();
  const bool is_of_left = left.dim() >= 2 && (right.dim() <= 2 || left.dim() > right.dim());
  const bool is_of_right = right.dim() >= 3 && right.dim() > left.dim();
  if (!is_of_left && !is_of_right && left.dim() < 3) return form.without("it has no batch: it is a product of vectors");
  if (is_of_left || is_of_right) {
    form.mark(is_of_left ? left : right);
    const bool has_sequence = is_of_left && right.dim() <= 2;
    return form.with_rows((is_of_left ? left : right).size(0), kAll, written, has_sequence ? 3 : kNever);
  }
  const int64_t rows = std::max(left.size(0), right.size(0));
  for (const at::Tensor& tensor : {left, right}) {
    if (tensor.size(0) == rows) form.mark(tensor);
  }
  return form.with_rows(rows, kAll, written);
}

}  // namespace

BatchForm batch_form(std::string_view op_name, const Value& args, const Value& kwargs,
                     const std::vector<at::Tensor>& tensors, const std::vector<bool>& written) {
  Form form(tensors);
  if (!is_torchs_own(op_name)) return form.without(kUnknown);
  const std::string_view base = base_name(op_name);
  if (base == "matmul" || base == "__matmul__") return matmul_form(args, kwargs, tensors, written);
  const Family* row = family(op_name);
  if (!row) return is_pointwise(op_name) ? pointwise_form(tensors, written) : form.without(kUnknown);
  const at::Tensor* first = nullptr;
  bool fits = true;
  each_word(row->rows, [&](std::string_view name) {
    const Value* value = argument_of(row->parameters, name, args, kwargs);
    const auto* tensor = value ? value->get_if<at::Tensor>() : nullptr;
    if (!first) first = tensor;
    fits = fits && tensor && can_be_taken_apart(*tensor) && tensor->dim() > 0 && tensor->size(0) == first->size(0);
    if (fits) form.mark(*tensor);
  });
  if (!first || !fits) return form.without("its arguments have no common batch");
  if (first->dim() < row->least) return form.without("it has no batch: its input has no dimension for it");
  const int64_t rows = first->size(0);
  each_word(row->fitting, [&](std::string_view name) {
    const Value* value = argument_of(row->parameters, name, args, kwargs);
    const auto* tensor = value ? value->get_if<at::Tensor>() : nullptr;
    if (tensor && tensor->defined() && tensor->dim() == first->dim() && tensor->size(0) == rows) form.mark(*tensor);
  });
  // Of these every dimension in front of those that they go along has rows.
  int64_t least_with_sequence = kNever;
  if (base == "linear" || !row->along.empty() || !row->last_dimensions.empty()) least_with_sequence = 3;
  if (base == "embedding") least_with_sequence = 2;
  if (!row->along.empty()) {
    const Value* value = argument_of(row->parameters, row->along, args, kwargs);
    const auto along = dimensions(value, row->along_default, first->dim());
    if (!along) return form.without("it goes along all dimensions");
    if (std::find(along->begin(), along->end(), 0) != along->end())
      return form.without("it goes along the first dimension");
    if (std::find(along->begin(), along->end(), 1) != along->end()) least_with_sequence = kNever;
  }
  if (!row->last_dimensions.empty()) {
    const int64_t last = length(argument_of(row->parameters, row->last_dimensions, args, kwargs));
    if (last < 0 || last >= first->dim()) return form.without("it goes along the first dimension");
    if (last == first->dim() - 1) least_with_sequence = kNever;
  }
  return form.with_rows(rows, row->results, written, least_with_sequence);
}

}  // namespace op_tools
