// Rows that a tool keeps in memory for report(), as plain bytes in blocks of their own memory: a few hundred bytes a
// row, and nothing of a row stays between the program's own blocks. A small allocation that stays in the
// place of a large block which was freed keeps the C library from using that place again: the process would grow by the
// program's own tensors with each call. One thread at a time.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "report/row_file.h"
#include "tensor/value.h"

namespace op_tools {

class OP_TOOLS_API PackedRows final : public RowSink {
 public:
  void put(std::string_view column, const Cell& cell) override;
  void end_row();

  size_t size() const { return rows_; }
  size_t bytes() const;   // of memory
  Values values() const;  // a Dict for each row

 private:
  struct Block {
    c10::DataPtr memory;
    size_t used = 0;
  };

  std::vector<std::string> columns_;  // by number, in the order of their first cells
  size_t next_column_ = 0;            // most rows have the cells of their predecessor
  std::string row_;                   // that is being put together
  std::vector<Block> blocks_;
  size_t rows_ = 0;
};

}  // namespace op_tools
