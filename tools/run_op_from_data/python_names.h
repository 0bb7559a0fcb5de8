// How names of Python functions map to aten operators where the two differ: a single table, read by
// resolve.cpp. Calls whose names and parameters agree (most of them) need no row. See the top of
// the table for its small language.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/value.h"

namespace op_tools::replay {

using Keywords = std::vector<std::pair<std::string, Value>>;

struct NameRule {
  std::string_view name;        // torch.nn.functional.cross_entropy
  std::string_view parameters;  // of the Python function
  std::string_view target;      // aten::cross_entropy_loss
  std::string_view arguments;   // of the target, in terms of the parameters
};

// The rules for a name, in the order in which they are to be tried; empty for most names.
std::vector<const NameRule*> rules_for(std::string_view name);

// The arguments of the rule's target; nullopt when the call does not fit the rule.
std::optional<Keywords> apply(const NameRule& rule, const Values& args, const Keywords& keywords);

}  // namespace op_tools::replay
