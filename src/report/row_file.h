// A table on disk that grows row by row: CSV or JSON lines. The rows of a tool's report() and those in its files are
// the same Dicts. One thread at a time; buffered, and as patient with a slow disk as AppendedFile.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/appended_file.h"
#include "base/export.h"
#include "report/json_writer.h"
#include "tensor/value.h"

namespace op_tools {

// Takes rows cell by cell: no tree of values is built for cells that go straight into a file.
class OP_TOOLS_API RowSink {
 public:
  using Cell = std::variant<std::string_view, int64_t, double, bool, c10::ArrayRef<int64_t>>;
  virtual ~RowSink() = default;
  virtual void put(std::string_view column, const Cell& cell) = 0;
};

// A row as a Dict.
class OP_TOOLS_API RowValues final : public RowSink {
 public:
  void put(std::string_view column, const Cell& cell) override;
  std::vector<std::pair<Value, Value>> items;
};

class OP_TOOLS_API RowFile final : public RowSink {
 public:
  // CSV (RFC 4180, with a line of titles) where `columns` are given, JSON lines where there are none. Replaces a file
  // of that name. Every method throws Error with path and system message.
  explicit RowFile(std::string path, std::vector<std::string> columns = {});
  RowFile(const RowFile&) = delete;  // it refers to itself
  RowFile& operator=(const RowFile&) = delete;

  ~RowFile() override;

  // A Dict with string keys. CSV: the cells under the columns' names, empty where absent or None, lists and dicts as
  // JSON. JSON lines: all of it; NaN and infinities, which JSON has no form for, as strings ("nan", "inf", "-inf").
  void add(const Value& row);
  // The same row by row and cell by cell, then end_row(). CSV: in the order of the columns, of which some may be left
  // out.
  void put(std::string_view column, const Cell& cell) override;
  void end_row();
  // CSV only, for rows by the million: a cell for each column, in their order.
  void add_cells(c10::ArrayRef<Cell> cells);
  // A cell of both files of a table, CSV and JSON lines: put() of each, with the same text.
  static void put(RowFile& csv, RowFile& lines, std::string_view column, const Cell& cell);
  void hand_over();  // added rows are what a process that is killed leaves, but for a slow disk
  void flush();      // added rows are in the file after this
  // False: the file is as large as OP_TOOLS_MAX_ROWS_GB lets it be, and rows that may be left out should be. Says so
  // once.
  bool has_room();
  const std::string& path() const { return file_.path(); }

 private:
  void next_column(std::string_view column);
  void begin_line();
  void write_line();

  const std::vector<std::string> columns_;
  AppendedFile file_;
  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;  // of all lines
  uint64_t rows_ = 0;   // without the line of titles
  bool is_full_said_ = false;
  std::string lines_;  // that the file does not have yet
  std::string line_;
  JsonWriter json_{line_};  // of the row that is being put together
  size_t cells_ = 0;        // likewise: CSV cells that are in the line
};

// The rows of the files of a folder, by their names, as they were when each was flushed last: the account of a run says
// how many, so that a file that lost some is known. It forgets them. Any thread.
OP_TOOLS_API std::map<std::string, uint64_t> take_row_counts(const std::string& folder);
// A RowFile notes its own; OpCapture the calls of each operator, in place of a file. Any thread.
OP_TOOLS_API void note_row_count(const std::string& path, uint64_t rows);

// A table as CSV and as JSON lines at once.
class OP_TOOLS_API RowFiles final : public RowSink {
 public:
  RowFiles(RowFile& csv, RowFile& lines) : csv_(csv), lines_(lines) {}
  void put(std::string_view column, const Cell& cell) override { RowFile::put(csv_, lines_, column, cell); }
  void end_row() {
    csv_.end_row();
    lines_.end_row();
  }

 private:
  RowFile& csv_;
  RowFile& lines_;
};

}  // namespace op_tools
