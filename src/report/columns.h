// The columns of a tool's rows, declared once: name, where the value comes from, a line of help. The titles of a CSV
// file, the cells of files, the Dicts of report() and Python's row classes come from this list.
//
//   const Columns<ToyRow>& ToyRow::columns() {
//     static const Columns<ToyRow> all{"ToyRow", "Calls of an operator.", {
//         {"op", &ToyRow::op, "the operator"},
//         {"calls", &ToyRow::calls, "made so far"},
//     }};
//     return all;
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/value.h"

namespace op_tools {

struct ColumnDescription {
  std::string name;
  std::string type;  // as Python writes it: "int", "list[int] | None"
  std::string help;
};

struct RowDescription {
  std::string name;  // of the class in Python
  std::string help;
  std::vector<ColumnDescription> columns;
};

// A cell as a Value, and its type's name. Strings that may be missing are std::optional.
template <class T>
struct CellType {
  static std::string name() {
    if constexpr (std::is_same_v<T, bool>) return "bool";
    if constexpr (std::is_integral_v<T>) return "int";
    if constexpr (std::is_floating_point_v<T>) return "float";
    return "str";
  }
  static Value value(const T& cell) {
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
      return cell;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(cell);
    } else {
      return std::string(cell);
    }
  }
};
template <class T>
struct CellType<std::optional<T>> {
  static std::string name() { return CellType<T>::name() + " | None"; }
  static Value value(const std::optional<T>& cell) { return cell ? CellType<T>::value(*cell) : Value(); }
};
template <class T>
struct CellType<std::vector<T>> {
  static std::string name() { return "list[" + CellType<T>::name() + "]"; }
  static Value value(const std::vector<T>& cells) {
    Values list;
    for (const T& cell : cells) list.push_back(CellType<T>::value(cell));
    return make_list(std::move(list));
  }
};

template <class T>
struct CellType<std::map<std::string, T>> {
  static std::string name() { return "dict[str, " + CellType<T>::name() + "]"; }
  static Value value(const std::map<std::string, T>& cells) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, cell] : cells) items.emplace_back(key, CellType<T>::value(cell));
    return make_dict(std::move(items));
  }
};
template <>
struct CellType<Value> {
  static std::string name() { return "Any"; }
  static const Value& value(const Value& cell) { return cell; }
};

template <class Row>
class Column {
 public:
  // `cell`: a member, or a function of the row.
  template <class Cell>
  Column(std::string name, Cell cell, std::string help) {
    using Result = std::decay_t<std::invoke_result_t<Cell, const Row&>>;
    description = {std::move(name), CellType<Result>::name(), std::move(help)};
    value = [cell](const Row& row) { return CellType<Result>::value(std::invoke(cell, row)); };
  }
  // `type`: where the C++ type does not tell it.
  template <class Cell>
  Column(std::string name, Cell cell, std::string help, std::string type)
      : Column(std::move(name), std::move(cell), std::move(help)) {
    description.type = std::move(type);
  }

  ColumnDescription description;
  std::function<Value(const Row&)> value;
};

template <class Row>
class Columns {
 public:
  Columns(std::string name, std::string help, std::initializer_list<Column<Row>> all)
      : name_(std::move(name)), help_(std::move(help)), all_(all) {}

  RowDescription describe() const {
    RowDescription row{name_, help_, {}};
    for (const Column<Row>& column : all_) row.columns.push_back(column.description);
    return row;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Column<Row>& column : all_) names.push_back(column.description.name);
    return names;
  }
  Value value(const Row& row) const {
    std::vector<std::pair<Value, Value>> items;
    for (const Column<Row>& column : all_) items.emplace_back(column.description.name, column.value(row));
    return make_dict(std::move(items));
  }
  Value values(const std::vector<Row>& rows) const {
    Values list;
    for (const Row& row : rows) list.push_back(value(row));
    return make_list(std::move(list));
  }

 private:
  std::string name_, help_;
  std::vector<Column<Row>> all_;
};

}  // namespace op_tools
