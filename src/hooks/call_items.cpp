#include "hooks/call_items.h"

#include <algorithm>
#include <string_view>

#include "hooks/backward_pass.h"

namespace op_tools {
namespace {

// FNV-1a: the same in every process and version, which std::hash is not. A part ends with a byte that no text has.
uint64_t hashed(uint64_t hash, std::string_view part) {
  constexpr uint64_t kPrime = 0x100000001b3;
  for (const char letter : part) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  return (hash ^ 0xff) * kPrime;
}

uint64_t item_of_op(std::string_view op, Phase phase) {
  constexpr uint64_t kBasis = 0xcbf29ce484222325;
  return hashed(hashed(kBasis, op), to_string(phase));
}

}  // namespace

uint64_t item_in_order(std::string_view op, Phase phase, int64_t occurrence) {
  return hashed(hashed(item_of_op(op, phase), "in order"), std::to_string(occurrence));
}

CallItem CallItems::next(OpCall& call, int64_t step) {
  CallItem item{std::string(call.name), call.module(), call.line(), phase_of(call)};
  item.hashes[0] = item_of_op(item.op, item.phase);
  item.hashes[1] = hashed(hashed(item.hashes[0], item.module), item.line);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (step != step_) counts_.clear();
  step_ = step;
  item.occurrence = counts_[item.hashes[1]]++;
  item.hashes[2] = hashed(item.hashes[1], std::to_string(item.occurrence));
  item.in_order = item_in_order(item.op, item.phase, counts_[item.hashes[0]]++);
  return item;
}

bool CallItem::is_in(const CallList& list) const {
  if (list.count(in_order) > 0) return true;
  return std::any_of(hashes.begin(), hashes.end(), [&](uint64_t hash) { return list.count(hash) > 0; });
}

}  // namespace op_tools
