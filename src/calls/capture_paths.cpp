#include "calls/capture_paths.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace op_tools {
namespace {

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

}  // namespace

std::string operator_folder(const std::string& op) {
  std::string name;
  for (size_t i = 0; i < op.size(); ++i) {
    const bool scope = op.compare(i, 2, "::") == 0;
    if (scope) ++i;
    const bool plain = !scope && op[i] != '/' && !is_control(op[i]);
    name += plain ? op[i] : '.';
  }
  if (name.find_first_not_of('.') == std::string::npos) name += "op";  // no "", ".", ".."

  // File systems end at 255 bytes; two long names stay two folders by the hash of the whole
  // (FNV-1a).
  constexpr size_t kLongest = 200, kCut = 180;
  if (name.size() <= kLongest) return name;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : op) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  size_t end = kCut;
  while ((static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
  char digits[17] = {};
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return name.substr(0, end) + "-" + digits;
}

std::string file_name(CallFile file, uint32_t pass) {
  const std::string middle = pass == 0 ? "" : "." + std::to_string(pass + 1);
  switch (file) {
    case CallFile::kInput:
      return "input" + middle + ".pth";
    case CallFile::kOutput:
      return "output" + middle + ".pth";
    case CallFile::kGradInputs:
      return "grad_inputs" + middle + ".pth";
    case CallFile::kGradOutputs:
      return "grad_outputs" + middle + ".pth";
    case CallFile::kMeta:
      return "meta" + middle + ".json";
  }
  throw Error("unknown file of a call");
}

std::string call_folder(const CallKey& key) {
  const std::string call = operator_folder(key.op) + "/" + std::to_string(key.id);
  return key.side.empty() ? call : call + "/" + operator_folder(key.side);
}

bool is_below(std::string_view name) {
  if (name.empty() || std::any_of(name.begin(), name.end(), is_control)) return false;
  for (size_t begin = 0; begin < name.size();) {
    const std::string_view part = name.substr(begin, name.find('/', begin) - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin += part.size() + 1;
  }
  return true;
}

std::string visible(std::string_view name) {
  std::string text;
  for (const char c : name) {
    char escaped[5] = {c};
    if (is_control(c)) std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
    text += escaped;
  }
  return text;
}

std::string tensor_file(std::string_view content) {
  return std::string(kTensorFolder) + "/" + std::string(content) + ".pth";
}

void fail(const std::string& path, const char* problem, int error) {
  throw Error(path + ": " + problem + ": " + std::strerror(error));
}

}  // namespace op_tools
