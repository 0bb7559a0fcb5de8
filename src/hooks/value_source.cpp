#include "hooks/value_source.h"

#include <string>

#include "hooks/collectives.h"
#include "hooks/op_traits.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

ResultSource ResultSource::of(const OpCall& call) {
  const std::string_view base = base_name(call.name);
  // At the aten level a factory of data is an operator that copies: its values were there before.
  const bool gives_data = call.level == Level::kTorch && has_trait(base, OpTrait::kGivesData);
  return {returns_uninitialized(base), gives_data, is_collective(call.name),
          !is_metadata_op(call.name) && !asks_about_device(base)};
}

ValueSource ResultSource::of_results(OpCall& call) const {
  if (uninitialized || (collective && call.error.empty() && brings_later(call))) return ValueSource::kUnknown;
  return gives_data || collective ? ValueSource::kGiven : ValueSource::kMade;
}

bool lifts_data(const OpCall& call) {
  return call.level == Level::kAten && has_trait(base_name(call.name), OpTrait::kGivesData);
}

bool has_unseen_values(const at::Tensor& tensor) {
  std::string type;
  if (!tensor.defined() || tensor.is_meta() || tensor._is_zerotensor()) return false;
  if (!tensor.is_floating_point() && !tensor.is_complex()) return false;
  if (tensor.is_nested()) return true;
  return tensor.numel() > 0 && (tensor.layout() != at::kStrided || !why_not_plain(tensor, &type).empty());
}

}  // namespace op_tools
