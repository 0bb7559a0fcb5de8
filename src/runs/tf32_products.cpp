#include "runs/tf32_products.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "hooks/module_path.h"
#include "runs/call_keys.h"

namespace op_tools {
namespace {

bool is_set(const Value& flags, std::string_view name) {
  const Value* const flag = find_key(flags, name);
  const bool* const value = flag ? flag->get_if<bool>() : nullptr;
  return value != nullptr && *value;
}

// Modules whose products are cuDNN's, by words in the names of their classes.
bool is_by_cudnn(std::string_view module_class) {
  constexpr std::array<std::string_view, 4> kWords{"Conv", "LSTM", "GRU", "RNN"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return module_class.find(word) != std::string_view::npos; });
}

}  // namespace

Tf32Products::Tf32Products(const Recording& run) : run_(run) {
  const Value* const flags = find_key(run.header, "tf32");
  const bool is_on_cuda = std::any_of(run.values.begin(), run.values.end(), [&](const RecordedValue& value) {
    return run.string(value.device).starts_with("cuda");
  });
  if (flags == nullptr || !is_on_cuda) return;
  flags_ = {.cudnn = is_set(*flags, "cudnn"), .matmul = is_set(*flags, "matmul")};
}

bool Tf32Products::rounds(const RecordedCall& call) const {
  const std::string_view op = run_.string(call.op);
  if (!is_module_call(op)) return multiplies_in_tf32(base_name(op), flags_);
  return is_by_cudnn(op) ? flags_.cudnn : flags_.matmul;
}

bool Tf32Products::rounds_any() const {
  if (!flags_.cudnn && !flags_.matmul) return false;
  return std::any_of(run_.calls.begin(), run_.calls.end(), [this](const RecordedCall& call) { return rounds(call); });
}

}  // namespace op_tools
