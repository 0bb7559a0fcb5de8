// Symbolic links in folders of results, which may be somebody else's: a link there could name any file of the reader.
#pragma once

#include <cstdint>
#include <string_view>

namespace op_tools {

// Of the last name of a path: the user's own path may be a link, files below it may not.
enum class Links : uint8_t { kFollowed, kRefused };

inline constexpr std::string_view kIsLink = ": is a symbolic link, and not followed; name its target";

}  // namespace op_tools
