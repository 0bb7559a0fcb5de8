#include "toy_hook.h"

#include <vector>

const op_tools::Columns<ToyRow>& ToyRow::columns() {
  static const op_tools::Columns<ToyRow> all{"ToyRow",
                                             "Calls of an operator.",
                                             {
                                                 {"op", &ToyRow::op, "the operator"},
                                                 {"calls", &ToyRow::calls, "made while the tool was on"},
                                             }};
  return all;
}

void ToyHook::after(op_tools::OpCall& call, op_tools::HookState*) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[std::string(call.name)];
}

op_tools::Value ToyHook::report() const {
  std::vector<ToyRow> rows;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [op, calls] : calls_) {
    if (calls >= options_.min_calls) rows.push_back({op, calls});
  }
  return op_tools::make_dict({{"rows", ToyRow::columns().values(rows)}});
}

// Registers the tool when the library is loaded. In op_tools' own library: a line in src/tool_register.cpp instead.
static const op_tools::ToolRegistration registration(op_tools::tool_kind<ToyHook>());
