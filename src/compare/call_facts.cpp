#include "compare/call_facts.h"

namespace op_tools {

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

}  // namespace op_tools
