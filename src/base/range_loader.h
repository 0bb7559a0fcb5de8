// Files of a remote store: a local file has the size and the name of the remote file, and bytes are loaded into it when
// they are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/export.h"

namespace op_tools {

// Writes bytes [begin, end) of the remote file into the local file at `path`, unless they are there. Throws Error where
// they cannot be loaded. Any thread that reads a file calls it.
using RangeLoader = std::function<void(const std::string& path, uint64_t begin, uint64_t end)>;

// The loader of all files below `folder`, an absolute path; the process has a single folder of remote files. An empty
// loader takes it away. Set it before a thread reads.
OP_TOOLS_API void set_range_loader(std::string folder, RangeLoader loader);

// Every reader calls this before it reads bytes [begin, end) of the file at `path`. Costs a comparison of strings.
void load_range(const std::string& path, uint64_t begin, uint64_t end);

}  // namespace op_tools
