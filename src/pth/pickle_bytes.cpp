#include "pth/pickle_bytes.h"

#include <cstring>
#include <limits>

#include "base/error.h"

namespace op_tools {

PickleBytes::PickleBytes() {
  out_.reserve(1024);
  ops("\x80\x02");
}

void PickleBytes::number(int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
    op('K');
    raw(static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= std::numeric_limits<uint16_t>::max()) {
    op('M');
    raw(static_cast<uint16_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    op('J');
    raw(static_cast<int32_t>(value));
  } else {
    ops("\x8a\x08");
    raw(value);
  }
}

void PickleBytes::number(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  op('G');
  raw(__builtin_bswap64(bits));
}

void PickleBytes::text(std::string_view text) {
  if (text.size() > std::numeric_limits<uint32_t>::max())
    throw Error("a text of over 4 GiB cannot be written to a .pth file");
  op('X');
  raw(static_cast<uint32_t>(text.size()));
  out_ += text;
}

void PickleBytes::global(std::string_view module, std::string_view name) {
  op('c');
  out_ += module;
  op('\n');
  out_ += name;
  op('\n');
}

void PickleBytes::known_global(std::string_view module, std::string_view name) {
  if (recall_known(name)) return;
  global(module, name);
  known_.emplace_back(name.data(), memoize());
}

void PickleBytes::known_text(std::string_view constant) {
  if (recall_known(constant)) return;
  text(constant);
  known_.emplace_back(constant.data(), memoize());
}

bool PickleBytes::recall_known(std::string_view constant) {
  for (const auto& [address, memo] : known_) {
    if (address != constant.data()) continue;
    recall(memo);
    return true;
  }
  return false;
}

uint32_t PickleBytes::memoize() {
  if (memo_count_ <= std::numeric_limits<uint8_t>::max()) {
    op('q');
    raw(static_cast<uint8_t>(memo_count_));
  } else {
    op('r');
    raw(memo_count_);
  }
  return memo_count_++;
}

void PickleBytes::recall(uint32_t memo) {
  if (memo <= std::numeric_limits<uint8_t>::max()) {
    op('h');
    raw(static_cast<uint8_t>(memo));
  } else {
    op('j');
    raw(memo);
  }
}

}  // namespace op_tools
