// The rows of a comparison for files, tables and Python: a pair of calls, and the findings. Pure functions,
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "report/columns.h"
#include "runs/alignment.h"
#include "runs/divergence.h"
#include "tensor/value.h"

namespace op_tools {

struct RunRow {
  int64_t row = 0, rank = 0, step = 0;
  std::string verdict, finding, phase, level;
  std::string op, module, line;        // of A; of B where only B has the call
  std::string op_b, module_b, line_b;  // of B
  std::optional<int64_t> id_a, id_b;
  int64_t calls_a = 0, calls_b = 0;
  std::vector<std::string> other;
  double input_difference = 0, output_difference = 0, limit = 0;
  std::optional<double> noise;
  Value tensor_a, tensor_b;  // a Dict
  std::optional<int64_t> source, via;

  OP_TOOLS_API static const Columns<RunRow>& columns();
};

OP_TOOLS_API RunRow run_row(const Recording& a, const Recording& b, const Alignment& alignment,
                            const Divergence& divergence, uint32_t number, bool has_noise);

// Operators whose number of calls differs: name and phase, calls in A, in B; the largest difference first.
struct OpCounts {
  std::string op, phase;
  int64_t a = 0, b = 0;
};
OP_TOOLS_API std::vector<OpCounts> different_counts(const Recording& a, const Recording& b);

}  // namespace op_tools
