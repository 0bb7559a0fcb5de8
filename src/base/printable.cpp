#include "base/printable.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

namespace op_tools {
namespace {

// Controls of C1; marks, embeddings, overrides and isolates of direction; separators of lines; invisible characters.
constexpr std::array<std::pair<uint32_t, uint32_t>, 8> kHidden = {{{0x7F, 0xA0},
                                                                   {0xAD, 0xAD},
                                                                   {0x61C, 0x61C},
                                                                   {0x200B, 0x200F},
                                                                   {0x2028, 0x202E},
                                                                   {0x2060, 0x206F},
                                                                   {0xFEFF, 0xFEFF},
                                                                   {0xE0000, 0xE0FFF}}};

struct Character {
  uint32_t code;
  size_t bytes;
};

// The character at the beginning; nullopt: a byte that is no UTF-8.
std::optional<Character> first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return Character{lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return std::nullopt;
  uint32_t code = lead & (0xFFU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool is_longer_than_needed = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (is_longer_than_needed || is_surrogate || code > 0x10FFFF) return std::nullopt;
  return Character{code, bytes};
}

bool is_hidden(uint32_t code) {
  if (code < 0x20) return true;
  for (const auto& [first, last] : kHidden) {
    if (code >= first && code <= last) return true;
  }
  return false;
}

std::string spelled(uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  std::array<char, 12> text{};
  const char* const format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(text.data(), text.size(), format, code);
  return text.data();
}

}  // namespace

std::string printable(std::string_view text, std::string_view keep) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto character = first_of(text.substr(at));
    const size_t bytes = character ? character->bytes : 1;
    const std::string_view part = text.substr(at, bytes);
    if (!character) {
      shown += spelled(static_cast<unsigned char>(part[0]));
    } else if (is_hidden(character->code) && (bytes > 1 || keep.find(part[0]) == std::string_view::npos)) {
      shown += spelled(character->code);
    } else {
      shown += part;
    }
    at += bytes;
  }
  return shown;
}

}  // namespace op_tools
