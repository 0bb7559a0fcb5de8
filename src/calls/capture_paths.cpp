#include "calls/capture_paths.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace op_tools {
namespace {

// The folder of an operator: its name, fit for every file system.
std::string folder_name(const std::string& op) {
  std::string name;
  for (size_t i = 0; i < op.size(); ++i) {
    const bool scope = op.compare(i, 2, "::") == 0;
    if (scope) ++i;
    const bool plain = !scope && op[i] != '/' && static_cast<unsigned char>(op[i]) >= 0x20;
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

}  // namespace

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
  const std::string call = folder_name(key.op) + "/" + std::to_string(key.id);
  return key.side.empty() ? call : call + "/" + key.side;
}

std::string tensor_file(std::string_view content) {
  return std::string(kTensorFolder) + "/" + std::string(content) + ".pth";
}

void fail(const std::string& path, const char* what, int error) {
  throw Error(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace op_tools
