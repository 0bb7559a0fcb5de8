#include "hooks/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/host.h"
#include "hooks/dispatcher_frame.h"
#include "hooks/interceptor.h"
#include "hooks/op_traits.h"

namespace op_tools {
namespace {

constexpr std::string_view kGroupClass = "__torch__.torch.classes.c10d.ProcessGroup";
constexpr std::string_view kDefaultGroup = "default_pg";  // as init_process_group() describes it
constexpr std::string_view kGroupName = "group_name";     // of operators that take the group by its name

constexpr const char* kReduction = "reduce_op";
constexpr std::array kRoots{"root_rank", "src"};

bool is_group(const c10::Argument& argument) {
  return argument.name() == kGroupName || argument.type()->str() == kGroupClass;
}

// None: it has no such argument, or is no operator's call.
c10::IValue argument_of(OpCall& call, const char* name) {
  const auto* const frame = dynamic_cast<interceptor::OperatorFrame*>(&call.frame());
  const auto place = frame ? call.op->schema().argumentIndexWithName(name) : std::nullopt;
  return place ? frame->arguments().at(static_cast<size_t>(*place)) : c10::IValue();
}

}  // namespace

bool waits_for_collective(const OpCall& call) {
  return is_collective(call.name) && base_name(call.name) == "wait_tensor";
}

bool brings_later(OpCall& call) {
  if (!is_collective(call.name) || waits_for_collective(call) || call.phase == Phase::kBackward) return false;
  if (host().gathers_collectives()) return true;
  if (call.level == Level::kTorch) return !call.result().is<None>();  // a Work, or a tensor to wait for
  auto* const frame = dynamic_cast<interceptor::DispatcherFrame*>(&call.frame());
  return !frame || !frame->has_waited();
}

bool is_collective(const OpCall& call) {
  if (!call.op || !call.op->hasSchema()) return false;
  const auto& arguments = call.op->schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_group) &&
         !has_trait(base_name(call.name), OpTrait::kBetweenTwoRanks);
}

ProcessGroupOfCall process_group_of(OpCall& call) {
  const auto* const frame = dynamic_cast<interceptor::OperatorFrame*>(&call.frame());
  if (!frame) return {};
  const std::vector<c10::IValue> values = frame->arguments();
  const auto& arguments = call.op->schema().arguments();
  for (size_t i = 0; i < std::min(values.size(), arguments.size()); ++i) {
    if (!is_group(arguments[i])) continue;
    if (values[i].isString()) return {values[i].toStringRef(), std::nullopt};
    if (!values[i].isObject()) continue;
    const auto capsule = values[i].toObjectRef().getSlot(0).toCapsule();
    const auto* const group = static_cast<const c10d::ProcessGroup*>(capsule.get());
    ProcessGroupOfCall process_group{group->getGroupName() + ", " + std::to_string(group->getSize()) + " ranks",
                                     std::nullopt};
    if (group->getGroupDesc() == kDefaultGroup) process_group.rank = group->getRank();
    return process_group;
  }
  return {};
}

std::string reduction_of(OpCall& call) {
  const c10::IValue value = argument_of(call, kReduction);
  if (!value.isObject()) return {};
  const auto capsule = value.toObjectRef().getSlot(0).toCapsule();
  switch (static_cast<const c10d::ReduceOp*>(capsule.get())->op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::MIN:
      return "min";
    default:
      return {};
  }
}

std::string reduction_and_root_of(OpCall& call) {
  const c10::IValue named = argument_of(call, kReduction);
  std::string text = named.isString() ? named.toStringRef() : reduction_of(call);
  for (const char* name : kRoots) {
    const c10::IValue root = argument_of(call, name);
    if (root.isInt()) text.append(text.empty() ? "root " : ", root ").append(std::to_string(root.toInt()));
  }
  return text;
}

}  // namespace op_tools
