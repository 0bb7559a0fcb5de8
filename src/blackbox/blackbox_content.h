// The content of a file of OpBlackBox: of this process or of another, which may be dead, or write to it right now.
// Nothing in a file is trusted: it may be of another program, cut off or damaged. Errors name the file. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "report/columns.h"

namespace op_tools {

struct BlackBoxRow {
  std::string state;  // "open": it had begun and not ended; "ended"; "failed": the operator raised
  std::string op, phase, module, line;
  std::string inputs;  // "?": others have been written to the place since
  int64_t step = 0;
  int64_t id = 0;
  int64_t thread = 0;
  double begun = 0;          // seconds since 1970
  std::optional<double> ms;  // of calls that ended
  std::string stored;        // what the file has of its inputs
  std::string stream;
  bool done = false;
  std::string group;  // of a collective
  int64_t number = 0;
  std::string reduction;  // and root
  OP_TOOLS_API static const Columns<BlackBoxRow>& columns();
};

struct BlackBoxContent {
  int64_t pid = 0, rank = 0;
  int64_t parent = 0;  // the process that this one was forked from; 0: one without the tool
  std::string host, program;
  double started = 0;  // seconds since 1970
  bool closed = false;
  uint64_t left_out = 0, names_lost = 0;
  uint64_t damaged = 0;           // calls, and parts with calls, that another content stands in the place of
  std::optional<double> copied;   // when this copy was made, in seconds since 1970; nothing: the file of the process
  std::vector<BlackBoxRow> rows;  // in the order in which the calls began
};

OP_TOOLS_API BlackBoxContent read_black_box(const std::string& path);
// Of bytes that are in memory, where `path` is for messages.
BlackBoxContent read_black_box(std::string_view bytes, const std::string& path);

// Writes the calls whose inputs the file has as saved calls to <folder>/<operator>/<number>. The calls' folders, in the
// order in which the calls began, those that never ended last.
OP_TOOLS_API std::vector<std::string> save_kept_calls(const std::string& path, const std::string& folder);

}  // namespace op_tools
