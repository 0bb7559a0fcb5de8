// The folder in which a run of a tool leaves its files: <output_dir>/<tool>/<rank>/<timestamp>, for example
// ./op_capture_result/0/2024-08-06--11-41. <timestamp> is local time; when that folder exists already (another run in
// the same minute) "-2", "-3", ... is appended: a folder belongs to a single scope of a single process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools {

// From the working folder; as it is where the process has none.
OP_TOOLS_API std::string absolute_path(const std::string& path);
// For messages: relative where it lies in the working folder.
OP_TOOLS_API std::string shown_path(const std::string& path);

// Makes it and returns its path. Throws Error with path and system message.
OP_TOOLS_API std::string claim_run_folder(const std::string& output_dir, std::string_view name, int64_t rank);

// Makes a folder where it is missing (make_folders: those above it too). Throws Error with path and system message.
OP_TOOLS_API void make_folder(const std::string& path);
OP_TOOLS_API void make_folders(const std::string& path);

// Makes an empty file, in place of a file or a symbolic link of that name: what is written to it afterwards is not
// written to somebody else's file. False: it cannot be made (errno).
OP_TOOLS_API bool make_file(const std::string& path);

}  // namespace op_tools
