// The findings of OpOverflowCheck, and their report: a row of the file, a line for each producer, the closing line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"
#include "hooks/call_info.h"
#include "report/columns.h"
#include "tensor/tensor_meta.h"
#include "tensor/value.h"

namespace op_tools {

struct OverflowResult {
  struct Finding {
    bool producer = false;
    bool expected = false;  // in backward, with allow_in_backward_with_scaler
    CallInfo call;          // its phase: backward at the aten level, too
    // Of the tensors of the result, then of inputs that the call wrote without returning them; in backward at level
    // torch: of the input gradients.
    size_t output = 0;
    TensorShape tensor;
    // Unknown (-1) when the program had overwritten the tensor before the window was read.
    int64_t nan = -1, pos_inf = -1, neg_inf = -1;
    std::vector<int64_t> first;
    std::string saved;      // folder of the producer's call, for run_op_from_data; empty: not saved
    std::string not_saved;  // why a producer was not saved

    static const Columns<Finding>& columns();
  };
  std::vector<Finding> findings;  // in the order of the calls, at most `max_findings`
  uint64_t producers = 0, propagators = 0, expected = 0;
  uint64_t came_in = 0;  // values that no call made which was looked at: tensors with NaN or +inf
  uint64_t calls = 0;    // that were asked
  std::string root;      // the folder; empty when no call came to it
  std::string failure;   // why the files could not be written; empty: they were
  bool ok() const { return producers == 0 && came_in == 0; }
};

Value to_value(const OverflowResult& result);
// "aten::exp forward made 3 inf in output 0 ...", of a producer.
std::string sentence_of(const OverflowResult::Finding& finding);
std::string closing_line(const OverflowResult& result);

}  // namespace op_tools
