// Names of folders and files of captured calls, in a single place for those who write and those who read them. Plain
// functions; nothing is shared between threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "calls/call_store.h"

namespace op_tools {

constexpr std::string_view kTemporary = ".tmp";  // at the end of a file that is being written
constexpr const char* kContainerName = "calls.zip";
// Below a run's folder (in a container: before an entry's name): bytes of tensors that calls share, a file each.
constexpr std::string_view kTensorFolder = "tensors";

std::string file_name(CallFile file, uint32_t pass);
// "torch.Tensor.mul", of an operator or a side: its name, fit for every file system.
std::string operator_folder(const std::string& op);
// "torch.Tensor.mul/9", with the side as a folder below it where the key has a side.
std::string call_folder(const CallKey& key);

// Whether a name that a file brought along ("torch.Tensor.mul/9/input.pth") lies below the folder that it is put in: no
// part is empty, "." or "..", and there are no control characters, which end paths (NUL) and drive terminals. A slash
// at the end is a folder's.
bool is_below(std::string_view name);
// Control characters as \\x1b: for messages about such names.
std::string visible(std::string_view name);

// The file of bytes that calls share, by the name of their content (32 hexadecimal digits):
// "tensors/<name>.pth".
std::string tensor_file(std::string_view content);

// Throws Error "path: failure: the system's text".
[[noreturn]] void fail(const std::string& path, const char* problem, int error);

}  // namespace op_tools
