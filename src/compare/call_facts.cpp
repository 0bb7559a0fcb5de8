#include "compare/call_facts.h"

#include <algorithm>

#include "hooks/op_traits.h"

namespace op_tools {
namespace {

// Numbers of one device make numbers there: where no argument names another device and the operator is no copy. Of
// another library's operators nothing is known.
bool is_stray(const CallFacts& facts, const at::Tensor& result, const std::vector<at::Tensor>& inputs) {
  const std::string_view base = base_name(facts.name);
  if (facts.device.names_device || !is_torchs_own(facts.name) || !result.is_floating_point()) return false;
  if (has_trait(base, OpTrait::kMoves) || has_trait(base, OpTrait::kGivesData)) return false;
  // __deepcopy__ is given what was copied before it as well.
  const bool is_of_first = has_trait(base, OpTrait::kKeepsNumbers) && !inputs.empty() && inputs[0].defined();
  if (is_of_first && inputs[0].device() == result.device()) return false;
  std::optional<c10::Device> device;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || (input.dim() == 0 && inputs.size() > 1)) continue;  // numbers go with any device
    if (device && *device != input.device()) return false;
    device = input.device();
  }
  return device && !device->is_cpu() && *device != result.device();
}

}  // namespace

CallFacts facts_of(const ReplayableCall& call, std::string_view name) {
  CallFacts facts;
  facts.name = name;
  facts.device.alone = call.all_on_cpu();
  facts.device.autocast = call.autocast();
  facts.device.names_device = call.names_device();
  facts.device.several = call.is_on_several_devices();
  facts.device.absent = call.names_absent_device();
  facts.pass.in_transform = call.in_transform();
  const Values& in = *sequence_items(call.inputs().value);
  facts.args = in[0];
  facts.kwargs = in[1];
  facts.before = call.tensors();
  facts.memory.written_inputs = call.written_inputs();
  facts.memory.overlapping = call.overlapping_inputs();
  return facts;
}

void note_result_devices(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                         CallFacts* facts) {
  const auto stray = std::find_if(results.begin(), results.end(),
                                  [&](const at::Tensor& result) { return is_stray(*facts, result, inputs); });
  facts->device.stray = stray == results.end() ? std::string() : stray->device().str();
  for (const at::Tensor& result : results) {
    const auto elsewhere = [&](const at::Tensor& input) { return input.device() != result.device(); };
    if (std::any_of(inputs.begin(), inputs.end(), elsewhere)) facts->device.names_device = true;
  }
}

}  // namespace op_tools
