#include "hooks/attention_form.h"

#include <string>

#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"

namespace op_tools {
namespace {

struct Attention {
  std::string_view names;         // base names
  std::string_view parameters;    // in order
  std::string_view mask = {};     // of these; empty: it has none
  bool counts_from_last = false;  // its causal order, where there are more keys than queries
};

constexpr Attention kAttentions[] = {
    {"scaled_dot_product_attention _scaled_dot_product_attention_math", "query key value attn_mask dropout_p is_causal",
     "attn_mask"},
    {"_scaled_dot_product_flash_attention_for_cpu", "query key value dropout_p is_causal attn_mask", "attn_mask"},
    {"_scaled_dot_product_efficient_attention", "query key value attn_bias compute_log_sumexp dropout_p is_causal",
     "attn_bias"},
    {"_scaled_dot_product_cudnn_attention", "query key value attn_bias compute_log_sumexp dropout_p is_causal",
     "attn_bias", true},
    {"_scaled_dot_product_fused_attention_overrideable", "query key value attn_bias dropout_p is_causal", "attn_bias"},
};

const Attention* attention(std::string_view base) {
  const Attention* match = nullptr;
  for (const Attention& row : kAttentions) {
    each_word(row.names, [&](std::string_view name) {
      if (name == base) match = &row;
    });
  }
  return match;
}

}  // namespace

std::optional<AttentionForm> attention_form(std::string_view op_name, const Value& args, const Value& kwargs) {
  if (!is_torchs_own(op_name)) return std::nullopt;
  const Attention* row = attention(base_name(op_name));
  if (!row) return std::nullopt;
  const auto tensor = [&](std::string_view name) {
    const Value* value = name.empty() ? nullptr : argument_of(row->parameters, name, args, kwargs);
    const auto* argument = value ? value->get_if<at::Tensor>() : nullptr;
    return argument ? *argument : at::Tensor();
  };
  const at::Tensor query = tensor("query");
  const Value* causal = argument_of(row->parameters, "is_causal", args, kwargs);
  const auto* is_causal = causal ? causal->get_if<bool>() : nullptr;
  AttentionForm form{query, tensor("key"),   tensor("value"), tensor(row->mask), is_causal && *is_causal,
                     {},    row->parameters, row->mask};
  const auto without = [&](std::string_view why) {
    form.why_not = why;
    return form;
  };
  for (const at::Tensor& argument : {query, form.key, form.value}) {
    if (!argument.defined() || argument.layout() != at::kStrided || argument.is_nested() || argument.dim() < 2) {
      return without("its keys cannot be told");
    }
  }
  const int64_t keys = form.key.size(-2);
  if (keys == 0 || form.value.size(-2) != keys) return without("its keys cannot be told");
  if (form.key.is_same(query) || form.value.is_same(query)) return without("its keys are its queries, too");
  if (form.is_causal && (form.mask.defined() || row->counts_from_last)) {
    return without("its causal order is not known");
  }
  if (form.mask.defined()) {
    // A mask of a single column is that of every key.
    if (form.mask.dim() < 2 || form.mask.size(-1) != keys) return without("its mask has no column for each key");
  }
  if (form.is_causal && query.size(-2) > keys) return without("its queries are more than its keys");
  return form;
}

}  // namespace op_tools
