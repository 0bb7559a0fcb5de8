// JSON as it is written down: no tree of values is built first, which is what most of the writer thread's time went to.
// Reading, and whatever is not written a million times, is nlohmann_json's.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace op_tools {

class JsonText {
 public:
  enum class Form : uint8_t { kOneLine, kLines };  // of an object or array: its members side by side, or one a line

  // Begin an object or array: inside an object with its key, elsewhere without.
  void begin_object(Form form, std::string_view key = {}) { begin('{', '}', form, key); }
  void begin_array(Form form, std::string_view key = {}) { begin('[', ']', form, key); }
  void end();

  // A member of the open object (array: without key).
  template <class T>
  void add(std::string_view key, const T& value) {
    next(key);
    if constexpr (std::is_same_v<T, bool>) {
      out_ += value ? "true" : "false";
    } else if constexpr (std::is_integral_v<T>) {
      number(static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      number(static_cast<double>(value));
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

  std::string take() && { return std::move(out_); }

 private:
  struct Open {
    char end;
    Form form;
    bool any;
  };

  void begin(char start, char end, Form form, std::string_view key);
  void next(std::string_view key);  // what stands before a member
  void new_line(size_t depth);
  void text(std::string_view text);
  void number(int64_t number);
  void number(double number);  // not finite: null
  void numbers(c10::ArrayRef<int64_t> numbers);

  std::string out_;
  std::vector<Open> open_;
};

}  // namespace op_tools
