// Options of OpOverflowCheck (base/options.h has those of all tools).
#pragma once

#include <cstdint>
#include <string>

#include "base/op_filter.h"
#include "base/options.h"

namespace op_tools {

struct OverflowOptions : ToolOptions {
  OverflowOptions() : ToolOptions("OP_OVERFLOW_CHECK") {}

  // Logarithms of zero by design.
  static constexpr const char* kLogarithmsOfZero = "_ctc_loss";

  Option<bool> inf{this, true, {"inf", "", "infinities count as well as NaN"}};
  Option<int64_t> every{this,
                        64,
                        {"every", "", "on a device: calls that are judged together; on the CPU each is judged at once"},
                        at_least(1)};
  Option<std::string> allow{
      this,
      kLogarithmsOfZero,
      {"allow", "", "operators whose -inf is intended though the call is not given it, as a filter list", "names",
       "the logarithms inside `ctc_loss`"}};
  Option<bool> allow_in_backward_with_scaler{
      this,
      false,
      {"allow_in_backward_with_scaler", "",
       "values that backward makes are expected: a loss scaler looks for them and skips the step"}};
  Option<int64_t> max_saved{
      this,
      2,
      {"max_saved", "", "producers saved for run_op_from_data, of each operator, forward and backward each"},
      at_least(0)};
  Option<int64_t> max_saved_mb{
      this, 1024, {"max_saved_mb", "", "MB of all saved calls together"}, {0, kMaxNumber >> 20}};
  Option<bool> immediate{this, false, {"immediate", "", "raise in the program at the first producer, with its line"}};

  void resolve_all() override {
    ToolOptions::resolve_all();
    const OpFilter allowing(allow.get(), "", allow.source(), "");  // an Error names argument or variable
  }
};
using ResolvedOverflowOptions = Resolved<OverflowOptions>;

}  // namespace op_tools
