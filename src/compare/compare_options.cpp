#include "compare/compare_options.h"

#include "base/error.h"
#include "compare/metrics/tolerance.h"

namespace op_tools {

const Choices& compare_methods() {
  static const auto* names = new Choices{"relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute"};
  return *names;
}

std::string_view to_string(CompareMethod method) {
  return compare_methods()[static_cast<size_t>(method)];
}

CompareMethod method_from_string(std::string_view source, std::string_view text) {
  return static_cast<CompareMethod>(choice_from_text(source, text, compare_methods()));
}

void CompareOptions::resolve_all() {
  ToolOptions::resolve_all();
  ToleranceTable::from_environment();  // an Error names the variable
  if (async && raise_on_failure) {
    throw Error("async_=True: the failure is known after the program has gone on; leave it out with raise_on_failure");
  }
}

std::vector<Variable> CompareOptions::further_variables() const {
  std::vector<Variable> variables;
  for (const char* dtype : {"", "_FLOAT16", "_BFLOAT16", "_FLOAT32", "_FLOAT64"}) {
    variables.push_back({std::string("AUTOCOMPARE_ERROR_TOLERANCE") + dtype,
                         "tolerances of method allclose, absolute and relative: 1e-5,1e-3", true});
  }
  return variables;
}

}  // namespace op_tools
