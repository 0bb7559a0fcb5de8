// OpToy counts the calls of each operator: the smallest tool. Copy this folder, rename it, and change it.
#pragma once

#include <op_tools/op_tools.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

// Its options, besides those of every tool: a line each.
struct ToyOptions : op_tools::ToolOptions {
  ToyOptions() : ToolOptions("OP_TOY") {}
  op_tools::Option<int64_t> min_calls{
      this, 1, {"min_calls", "OP_TOY_MIN_CALLS", "report only operators with at least N calls"}, op_tools::at_least(1)};
};

// A row of its result.
struct ToyRow {
  std::string op;
  int64_t calls = 0;
  static const op_tools::Columns<ToyRow>& columns();
};

// An object serves all threads: its counts are guarded.
class ToyHook final : public op_tools::Hook {
 public:
  using Options = ToyOptions;
  using Row = ToyRow;
  static constexpr op_tools::ToolNames kNames{"OpToy", "count_calls", "toy"};

  explicit ToyHook(const op_tools::Resolved<ToyOptions>& options) : options_(options) {}

  std::string_view name() const override { return kNames.tool; }
  void after(op_tools::OpCall& call, op_tools::HookState* state) override;
  op_tools::Value report() const override;

 private:
  const op_tools::Resolved<ToyOptions> options_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t, std::less<>> calls_;
};
