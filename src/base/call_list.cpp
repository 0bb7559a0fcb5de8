#include "base/call_list.h"

#include <charconv>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/read_options.h"

namespace op_tools {

CallList read_call_list(const std::string& path, const std::string& source) {
  std::ifstream file(path);
  if (!file) refuse(source, path, "give a file with a list of calls");
  CallList items;
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    uint64_t item = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), item, 16);
    if (failure != std::errc() || end != text.data() + text.size() || text.size() != 16) {
      throw Error(source + ": " + path + " holds '" + std::string(text.substr(0, 40)) +
                  "', which is no item of 16 hexadecimal digits");
    }
    items.insert(item);
  }
  if (file.bad()) throw Error(source + ": " + path + " cannot be read");
  return items;
}

std::string item_text(uint64_t item) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, item >>= 4) *digit = kDigits[item & 15];
  return text;
}

}  // namespace op_tools
