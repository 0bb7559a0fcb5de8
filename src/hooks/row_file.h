// A table on disk that grows row by row: CSV or JSON lines. The rows of a tool's report() and those in its files are
// the same Dicts. One thread at a time; buffered.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hooks/export.h"
#include "hooks/value.h"

namespace op_tools {

class OP_TOOLS_API RowFile {
 public:
  // CSV (RFC 4180, with a line of titles) where `columns` are given, JSON lines where there are none. Replaces a file
  // of that name. Every method throws Error with path and system message.
  explicit RowFile(std::string path, std::vector<std::string> columns = {});

  // A Dict with string keys. CSV: the cells under the columns' names, empty where absent or None, lists and dicts as
  // JSON. JSON lines: all of it; NaN and infinities, which JSON has no form for, as texts ("nan", "inf", "-inf").
  void add(const Value& row);
  // CSV only, for rows by the million: one cell for each column, in their order.
  using Cell = std::variant<std::string_view, int64_t, double>;
  void add_cells(c10::ArrayRef<Cell> cells);
  void flush();  // what was added is in the file after this
  const std::string& path() const { return path_; }

 private:
  void write_line();
  void check();

  const std::string path_;
  const std::vector<std::string> columns_;
  std::ofstream out_;
  std::string line_;
};

}  // namespace op_tools
