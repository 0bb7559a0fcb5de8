// Which operators are called, with which shapes and dtypes, how often; and the variation: the dimensions that a
// line of the program has with more than one size. Thread-safe. Its size grows with the number of different calls, up
// to a limit.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hooks/op_call.h"
#include "report/columns.h"
#include "tensor/tensor_meta.h"

namespace op_tools {

const Columns<TensorShape>& tensor_shape_columns();

// Calls that are alike in operator, phase, shapes, dtypes and devices.
struct CallShapes {
  std::string op;
  Phase phase = Phase::kForward;
  std::vector<TensorShape> inputs, outputs;
  uint64_t calls = 0;
  std::vector<std::string> lines;  // the first kMaxLines lines of the program that made them

  static const Columns<CallShapes>& columns();
};

// A dimension that had more than one size in the calls of an operator from a single line of the program (of all lines
// that are not known together: backward at the aten level). Only calls whose tensors agree in number, dtypes and
// numbers of dimensions are put together.
struct DynamicDim {
  std::string op;
  Phase phase = Phase::kForward;
  std::string line;  // empty: not known
  bool is_output = false;
  size_t tensor = 0, dimension = 0;
  std::vector<int64_t> sizes;  // ascending
  uint64_t calls = 0;

  static const Columns<DynamicDim>& columns();
};

class ShapeStatistics {
 public:
  static constexpr size_t kMaxKinds = 100'000, kMaxLines = 8;

  void add(std::string_view name, Phase phase, const std::string& line, std::vector<TensorShape> inputs,
           std::vector<TensorShape> outputs);

  std::vector<CallShapes> kinds() const;    // most calls first
  std::vector<DynamicDim> varying() const;  // by operator, phase, line
  uint64_t left_out() const;                // calls of further kinds, when the limit was reached

 private:
  // As CallShapes, from a single line.
  struct Kind {
    std::string op, line;
    Phase phase;
    std::vector<TensorShape> inputs, outputs;
    uint64_t calls, order;
  };
  std::vector<const Kind*> in_order_locked() const;

  mutable std::mutex mutex_;
  std::unordered_multimap<uint64_t, Kind> kinds_;
  uint64_t left_out_ = 0;
};

}  // namespace op_tools
