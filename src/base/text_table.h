// Tables and amounts as text for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

struct TableColumn {
  std::string title;
  bool is_number = false;  // numbers are aligned right, strings left
};

// A line of titles and a line per row, columns as wide as their widest cell. A table wider than `width` characters has
// its widest text columns cut, "..." in the middle of their cells: the ends of names tell operators apart. Rows shorter
// than the columns end early. No line break at the end.
OP_TOOLS_API std::string text_table(const std::vector<TableColumn>& columns,
                                    const std::vector<std::vector<std::string>>& rows, size_t width = 120);

// "0 B", "999 B", "1.0 KB", "12.3 GB": decimal units, with a single decimal.
OP_TOOLS_API std::string bytes_text(uint64_t bytes);

// "1 call", "2 calls".
OP_TOOLS_API std::string count_text(size_t count, const char* noun);

// The text that printf would print.
OP_TOOLS_API std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace op_tools
