// The parts of rows for the arguments of an operator's calls, or of its results, besides the values of their tensors:
// determined once, known by ArgumentKey from then on. One thread at a time.
#pragma once

#include <c10/util/SmallVector.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "record/recording.h"

namespace op_tools {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

struct CallForm {
  StringNumber scalars = 0;
  c10::SmallVector<StringNumber, 4> places;  // of the tensors
};

class CallForms {
 public:
  // Valid until the next add(). nullptr: not known.
  const CallForm* find(std::string_view key) {
    if (last_ && last_->first == key) return &last_->second;
    const auto entry = forms_.find(key);
    if (entry == forms_.end()) return nullptr;
    last_ = &*entry;
    return &last_->second;
  }
  void add(std::string_view key, CallForm form) {
    if (key.size() > kLongest) return;           // a list of data: each call has another, and memory is limited
    if (forms_.size() >= kMost) forms_.clear();  // numbers that are others in each call
    last_ = &*forms_.insert_or_assign(std::string(key), std::move(form)).first;
  }

 private:
  static constexpr size_t kMost = 256, kLongest = 2048;
  using Forms = std::unordered_map<std::string, CallForm, StringHash, std::equal_to<>>;
  Forms forms_;
  Forms::const_pointer last_ = nullptr;
};

}  // namespace op_tools
