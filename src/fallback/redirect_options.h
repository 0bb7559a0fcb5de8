// Options of OpFallback and OpDtypeCast (base/options.h has those of all tools).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/call_list.h"
#include "base/export.h"
#include "base/options.h"

namespace op_tools {

// Dtypes to compute in instead of others, "torch.float16->torch.float32,torch.bfloat16->torch.float32": for the tools
// that run operators elsewhere (fallback, dtype cast) or again (compare). Read by CastRules (fallback/cast_rules.h).
struct CastSettings {
  std::string dict;    // for all operators
  std::string source;  // the argument or variable it came from, for messages
  std::vector<std::pair<std::string, std::string>>
      by_op;  // <OP>_OP_DTYPE_CAST_DICT and its value: instead, for an operator
};
// An argument also silences the variables for single operators.
OP_TOOLS_API CastSettings cast_settings(const Option<std::string>& cast);

// The common options of OpFallback and OpDtypeCast.
struct OP_TOOLS_API RedirectOptions : ToolOptions {
  Option<std::string> list_calls{
      this,
      "",
      {"list_calls", prefix + "_LIST_CALLS",
       "write the calls that could run elsewhere into this file, with the rank at the end of its name, and run none "
       "elsewhere but those of only_calls",
       "path", "nothing"}};

  ResolvedOptions for_scope() const override;
  std::shared_ptr<const CallList> moved_calls() const;  // of only_calls, beside list_calls; nullptr: none

 protected:
  using ToolOptions::ToolOptions;
};

// Where OpFallback runs operators. kSame: on their own device, on copies of their tensors, with the device idle before
// and after. A fault that this heals is no wrong kernel, but a race, a layout or a stale read.
enum class FallbackTarget : uint8_t { kCpu, kSame };

struct OP_TOOLS_API FallbackOptions : RedirectOptions {
  FallbackOptions() : RedirectOptions("OP_FALLBACK") {}

  Option<FallbackTarget> target{
      this,
      FallbackTarget::kCpu,
      {"target", "OP_FALLBACK_TARGET",
       "`cpu`, or `same`: the tensors' own device, on copies of them, waiting for it before and after"},
      {"cpu", "same"}};

  Option<bool> on_missing{this,
                          false,
                          {"on_missing", "OP_FALLBACK_ON_MISSING",
                           "run on the device first, and on the CPU only operators that the device does not implement "
                           "(NotImplementedError)"}};
  Option<std::string> cast{
      this,
      "",
      {"cast", "OP_DTYPE_CAST_DICT",
       "dtypes to compute in instead of others; results come back in the dtypes that they would have had", "dtypes"}};

  void resolve_all() override;
  ResolvedOptions for_scope() const override;
  std::vector<Variable> further_variables() const override;
};
using ResolvedFallbackOptions = Resolved<FallbackOptions>;

struct OP_TOOLS_API DtypeCastOptions : RedirectOptions {
  DtypeCastOptions() : RedirectOptions("OP_DTYPE_CAST") {}

  Option<std::string> cast{this,
                           "torch.float16->torch.float32, torch.bfloat16->torch.float32",
                           {"cast", "OP_DTYPE_CAST_DICT", "dtypes to compute in instead of others", "dtypes",
                            "float16 and bfloat16 to float32"}};

  void resolve_all() override;
  std::vector<Variable> further_variables() const override;
};
using ResolvedDtypeCastOptions = Resolved<DtypeCastOptions>;

}  // namespace op_tools
