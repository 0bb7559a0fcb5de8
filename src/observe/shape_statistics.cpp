#include "observe/shape_statistics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace op_tools {
namespace {

class Hash {
 public:
  void mix(uint64_t value) { hash_ = (hash_ ^ value) * 0x9E3779B97F4A7C15u + (hash_ >> 29); }
  void mix(std::string_view text) { mix(static_cast<uint64_t>(std::hash<std::string_view>()(text))); }
  void mix(const std::vector<TensorShape>& tensors) {
    mix(static_cast<uint64_t>(tensors.size()));
    for (const TensorShape& tensor : tensors) {
      mix(static_cast<uint64_t>(tensor.dtype) + 1);
      mix(static_cast<uint64_t>(std::hash<c10::Device>()(tensor.device)));
      mix(static_cast<uint64_t>(tensor.shape.size()));
      for (const int64_t size : tensor.shape) mix(static_cast<uint64_t>(size));
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

uint64_t shapes_hash(const std::string& op, Phase phase, const std::vector<TensorShape>& inputs,
                     const std::vector<TensorShape>& outputs) {
  Hash hash;
  hash.mix(op);
  hash.mix(static_cast<uint64_t>(phase));
  hash.mix(inputs);
  hash.mix(outputs);
  return hash.value();
}

// The form that calls must share for their sizes to be put side by side.
using Form = std::vector<std::pair<c10::ScalarType, size_t>>;
Form form_of(const std::vector<TensorShape>& inputs, const std::vector<TensorShape>& outputs) {
  Form form{{c10::ScalarType::Undefined, inputs.size()}};
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TensorShape& tensor : *tensors) form.emplace_back(tensor.dtype, tensor.shape.size());
  }
  return form;
}

}  // namespace

void ShapeStatistics::add(std::string_view name, Phase phase, const std::string& line, std::vector<TensorShape> inputs,
                          std::vector<TensorShape> outputs) {
  const std::string op(name);
  Hash hash;
  hash.mix(shapes_hash(op, phase, inputs, outputs));
  hash.mix(line);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [first, last] = kinds_.equal_range(hash.value());
  for (auto shape = first; shape != last; ++shape) {
    Kind& kind = shape->second;
    if (kind.op == op && kind.phase == phase && kind.line == line && kind.inputs == inputs && kind.outputs == outputs) {
      ++kind.calls;
      return;
    }
  }
  if (kinds_.size() >= kMaxKinds) {
    ++left_out_;
    return;
  }
  kinds_.emplace(hash.value(), Kind{op, line, phase, std::move(inputs), std::move(outputs), 1, kinds_.size()});
}

std::vector<const ShapeStatistics::Kind*> ShapeStatistics::in_order_locked() const {
  std::vector<const Kind*> kinds;
  for (const auto& [hash, kind] : kinds_) kinds.push_back(&kind);
  std::sort(kinds.begin(), kinds.end(), [](const Kind* a, const Kind* b) { return a->order < b->order; });
  return kinds;
}

std::vector<CallShapes> ShapeStatistics::kinds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CallShapes> rows;
  std::unordered_multimap<uint64_t, size_t> places;
  for (const Kind* kind : in_order_locked()) {
    const uint64_t hash = shapes_hash(kind->op, kind->phase, kind->inputs, kind->outputs);
    const auto [first, last] = places.equal_range(hash);
    const auto same = std::find_if(first, last, [&](const auto& place) {
      const CallShapes& row = rows[place.second];
      return row.op == kind->op && row.phase == kind->phase && row.inputs == kind->inputs &&
             row.outputs == kind->outputs;
    });
    if (same == last) {
      places.emplace(hash, rows.size());
      rows.push_back({kind->op, kind->phase, kind->inputs, kind->outputs, 0, {}});
    }
    CallShapes& row = same == last ? rows.back() : rows[same->second];
    row.calls += kind->calls;
    if (!kind->line.empty() && row.lines.size() < kMaxLines) row.lines.push_back(kind->line);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const CallShapes& a, const CallShapes& b) { return a.calls > b.calls; });
  return rows;
}

std::vector<DynamicDim> ShapeStatistics::varying() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::tuple<std::string, Phase, std::string, Form>, std::vector<const Kind*>> groups;
  for (const Kind* kind : in_order_locked()) {
    groups[{kind->op, kind->phase, kind->line, form_of(kind->inputs, kind->outputs)}].push_back(kind);
  }
  std::vector<DynamicDim> dims;
  for (const auto& [key, kinds] : groups) {
    if (kinds.size() < 2) continue;
    uint64_t calls = 0;
    for (const Kind* kind : kinds) calls += kind->calls;
    for (const auto tensors : {&Kind::inputs, &Kind::outputs}) {
      for (size_t tensor = 0; tensor < (kinds.front()->*tensors).size(); ++tensor) {
        const size_t dimensions = (kinds.front()->*tensors)[tensor].shape.size();
        for (size_t dimension = 0; dimension < dimensions; ++dimension) {
          std::set<int64_t> sizes;
          for (const Kind* kind : kinds) sizes.insert((kind->*tensors)[tensor].shape[dimension]);
          if (sizes.size() < 2) continue;
          const auto& [op, phase, line, form] = key;
          dims.push_back(
              {op, phase, line, tensors == &Kind::outputs, tensor, dimension, {sizes.begin(), sizes.end()}, calls});
        }
      }
    }
  }
  return dims;
}

uint64_t ShapeStatistics::left_out() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return left_out_;
}

const Columns<TensorShape>& tensor_shape_columns() {
  static const Columns<TensorShape> all{
      "TensorShape",
      "A tensor of a call.",
      {
          {"shape",
           [](const TensorShape& shape) { return std::vector<int64_t>(shape.shape.begin(), shape.shape.end()); },
           "its sizes"},
          {"dtype", [](const TensorShape& shape) { return torch_name(shape.dtype); }, "as in torch.float32"},
          {"device", [](const TensorShape& shape) { return shape.device.str(); }, "as in cuda:0"},
      }};
  return all;
}

const Columns<CallShapes>& CallShapes::columns() {
  static const Columns<CallShapes> all{
      "ObserveRow",
      "Calls of an operator with the same shapes, dtypes and devices.",
      {
          {"op", &CallShapes::op, "the operator"},
          {"phase", [](const CallShapes& row) { return to_string(row.phase); }, "forward or backward"},
          {"inputs", [](const CallShapes& row) { return tensor_shape_columns().values(row.inputs); },
           "backward at level torch: the gradients of the outputs", "list[TensorShape]"},
          {"outputs", [](const CallShapes& row) { return tensor_shape_columns().values(row.outputs); }, "its tensors",
           "list[TensorShape]"},
          {"calls", &CallShapes::calls, "that were alike"},
          {"lines", &CallShapes::lines, "of the program, that made them: the first eight"},
      }};
  return all;
}

const Columns<DynamicDim>& DynamicDim::columns() {
  static const Columns<DynamicDim> all{
      "DynamicDim",
      "A dimension that had several sizes in calls from the same line of the program: a dynamic shape.",
      {
          {"op", &DynamicDim::op, "the operator"},
          {"phase", [](const DynamicDim& dim) { return to_string(dim.phase); }, "forward or backward"},
          {"line", [](const DynamicDim& dim) { return dim.line.empty() ? std::nullopt : std::optional(dim.line); },
           "of the program"},
          {"of", [](const DynamicDim& dim) { return dim.is_output ? "output" : "input"; }, "input or output"},
          {"tensor", &DynamicDim::tensor, "which of the inputs, or outputs"},
          {"dimension", &DynamicDim::dimension, "of the tensor"},
          {"sizes", &DynamicDim::sizes, "rising"},
          {"calls", &DynamicDim::calls, "that were put together"},
      }};
  return all;
}

}  // namespace op_tools
