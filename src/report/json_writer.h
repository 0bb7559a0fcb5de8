// JSON as it is written down: no tree is built first, which is where most of the time for files of many calls went.
// Reading, and files that are written once, are nlohmann_json's.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

// The shortest text that reads back as the same number.
OP_TOOLS_API void append_number(std::string& out, double number);
OP_TOOLS_API void append_number(std::string& out, int64_t number);
// As JSON: a nonfinite number is a string ("nan"), and no double reads back as an integer. Returns the part that
// append_number() would have given.
OP_TOOLS_API std::string_view append_json_number(std::string& out, double number);

// Appends to a text of the caller's.
class OP_TOOLS_API JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  enum class Form : uint8_t { kOneLine, kLines };  // of an object or array: its members side by side, or each on a line

  // Begin an object or array: inside an object with its key, elsewhere without.
  void begin_object(Form form, std::string_view key = {}) {
    next(key);
    open('{', '}', form);
  }
  void begin_array(Form form, std::string_view key = {}) {
    next(key);
    open('[', ']', form);
  }
  void end();

  // A member of the open object (array: without key). Strings that are no UTF-8 are repaired; numbers that are not
  // finite are strings: "nan", "inf", "-inf". A Value as json_text() says.
  template <class T>
  void add(std::string_view key, const T& value) {
    next(key);
    if constexpr (std::is_same_v<T, Value>) {
      tree(value);
    } else if constexpr (std::is_same_v<T, bool>) {
      out_ += value ? "true" : "false";
    } else if constexpr (std::is_integral_v<T>) {
      append_number(out_, static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      append_json_number(out_, static_cast<double>(value));
    } else if constexpr (std::is_convertible_v<T, std::string_view>) {
      text(value);
    } else {
      numbers(value);
    }
  }
  template <class T>
  void add(const T& value) {
    add({}, value);
  }
  // Likewise, text that is JSON already.
  void add_json(std::string_view key, std::string_view json) {
    next(key);
    out_ += json;
  }

 private:
  struct Open {
    char end;
    Form form;
    bool any;
  };

  void open(char start, char end, Form form);
  void next(std::string_view key);  // the text before a member
  void new_line(size_t depth);
  void text(std::string_view text);
  void tree(const Value& value);
  void numbers(c10::ArrayRef<int64_t> numbers);

  std::string& out_;
  std::vector<Open> open_;
};

// A Value as JSON: numbers, strings, lists and dicts as they are, everything else as the string that describe() gives.
OP_TOOLS_API std::string json_text(const Value& value);

// And back: numbers, strings, booleans, lists and dicts. Throws Error when it is no JSON, or nested deeper than 100.
OP_TOOLS_API Value value_of_json(std::string_view text);

}  // namespace op_tools
