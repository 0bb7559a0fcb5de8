// How captured calls lie on disk (call_store.h).
#pragma once

#include <cstdint>

namespace op_tools {

enum class CaptureFormat : uint8_t { kFolders, kContainer };  // a folder per call; a single file for many small calls

}  // namespace op_tools
