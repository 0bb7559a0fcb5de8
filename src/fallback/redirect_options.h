// Settings of OpFallback and OpDtypeCast (base/options.h has what all tools share).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

// Dtypes to compute in instead of others, "torch.float16->torch.float32,torch.bfloat16->torch.float32": for the tools
// that run operators elsewhere (fallback, dtype cast) or again (compare). Read by CastRules (fallback/cast_rules.h).
struct CastSettings {
  std::string dict;                                        // for all operators
  std::string source;                                      // the argument or variable it came from, for messages
  std::vector<std::pair<std::string, std::string>> by_op;  // <OP>_OP_DTYPE_CAST_DICT and its value: instead, for one
};
// `argument`: wins over OP_DTYPE_CAST_DICT, which wins over `otherwise`. An argument also silences the variables for
// single operators.
OP_TOOLS_API CastSettings cast_settings(const std::optional<std::string>& argument, std::string_view otherwise);

struct FallbackOptions : ToolOptions {  // at the aten level, DIPU_FORCE_FALLBACK_OPS_LIST stands in for `ops`
  std::optional<bool> on_missing;       // only what the device does not implement; OP_FALLBACK_ON_MISSING
  std::optional<std::string> cast;      // OP_DTYPE_CAST_DICT; no cast without it
};
struct ResolvedFallbackOptions : ResolvedOptions {
  bool on_missing = false;
  CastSettings cast;
};
OP_TOOLS_API ResolvedFallbackOptions resolve(const FallbackOptions& options);

struct DtypeCastOptions : ToolOptions {
  std::optional<std::string> cast;  // OP_DTYPE_CAST_DICT; float16 and bfloat16 to float32 without it
};
struct ResolvedDtypeCastOptions : ResolvedOptions {
  CastSettings cast;
};
OP_TOOLS_API ResolvedDtypeCastOptions resolve(const DtypeCastOptions& options);

}  // namespace op_tools
