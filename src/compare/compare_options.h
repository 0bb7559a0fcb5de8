// Options of OpAutoCompare (base/options.h has those of all tools).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

// How a result is judged: docs/autocompare.md.
enum class CompareMethod : uint8_t { kRelative, kAllclose, kBitwise, kUlp, kMsprobeQuick, kMsprobeAbsolute };
OP_TOOLS_API const Choices& compare_methods();  // "relative", "msprobe-quick", ...
OP_TOOLS_API std::string_view to_string(CompareMethod method);
// Error that names `source` when the text is no method.
OP_TOOLS_API CompareMethod method_from_string(std::string_view source, std::string_view text);

struct OP_TOOLS_API CompareOptions : ToolOptions {
  CompareOptions() : ToolOptions("OP_AUTOCOMPARE") {}

  Option<CompareMethod> method{
      this, CompareMethod::kRelative, {"method", "OP_AUTOCOMPARE_METHOD", "how a result is judged"}, compare_methods()};
  Option<bool> golden{this, true, {"golden", "", "run in float64 too, where that decides"}};
  Option<bool> nan_equal{this, true, {"nan_equal", "", "NaN agrees with NaN"}};
  Option<bool> strides{this, true, {"strides", "", "other strides than the CPU's are a failure"}};
  Option<bool> gradients{this, true, {"gradients", "", "level torch: judge input gradients"}};
  Option<int64_t> first_n_per_signature{
      this,
      kNoLimit,
      {"first_n_per_signature", "", "judge only the first N calls per operator, shapes and dtypes"},
      at_least(1)};
  Option<int64_t> every_nth{
      this, 1, {"every_nth", "", "of those judge only every Nth, beginning with the first"}, at_least(1)};
  Option<bool> async{this, false, {"async_", "", "judge on other threads while the device goes on"}};
  Option<int64_t> workers{this, 2, {"workers", "", "threads of `async_`"}, {1, 64}};
  Option<int64_t> max_pending_mb{this,
                                 1024,
                                 {"max_pending_mb", "OP_TOOLS_MAX_PENDING_MB",
                                  "MB of memory that may wait to be judged; when it is full the program judges itself"},
                                 {1, kMaxNumber >> 20}};
  Option<bool> raise_on_failure{
      this, false, {"raise_on_failure", "", "raise at the first failure: a RuntimeError that names the user's line"}};
  Option<int64_t> max_saved{
      this, 2, {"max_saved", "", "failed calls saved per operator, shapes and dtypes"}, at_least(0)};
  Option<int64_t> max_saved_mb{
      this, 4096, {"max_saved_mb", "", "MB of all saved calls together"}, {0, kMaxNumber >> 20}};

  void resolve_all() override;
  std::vector<Variable> further_variables() const override;
};
using ResolvedCompareOptions = Resolved<CompareOptions>;

}  // namespace op_tools
