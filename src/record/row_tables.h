// The rows of a recording that were not written yet, and the numbers of all strings and lists that were: the contents
// that a file of a recording is given, part by part. One thread at a time.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "record/recording.h"
#include "record/row_prints.h"

namespace op_tools {

class RowTables {
 public:
  StringNumber string(std::string_view text);
  // The same for a string that lives until the process ends: known by its address.
  StringNumber lasting_string(const std::string& text);
  // "written args[0]" of "args[0]".
  StringNumber written_place(StringNumber place);
  ListNumber list(c10::ArrayRef<int64_t> numbers);
  std::string_view text(StringNumber number) const { return texts_[number]; }

  uint32_t add_value(const RecordedValue& value);
  // Of a value that is not written yet; nullptr: it is.
  RecordedValue* value(uint32_t number) {
    return number < values_written_ ? nullptr : &pending_.values[number - values_written_];
  }
  // Of a value: numbers of rows count from the recording's begin.
  void add_rows(uint32_t value, const std::vector<RowPrints>& all);
  // first_use, inputs and outputs are those of `uses`.
  void add_call(RecordedCall call, const std::vector<RecordedUse>& uses, size_t inputs);
  uint32_t next_call() const { return calls_written_ + static_cast<uint32_t>(pending_.calls.size()); }

  // Rows only: numbers count from the recording's begin.
  const Recording& pending() const { return pending_; }
  size_t pending_bytes() const;
  void written();  // pending rows are in the file

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    size_t operator()(c10::ArrayRef<int64_t> numbers) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::string_view text, std::string_view other) const { return text == other; }
    bool operator()(c10::ArrayRef<int64_t> numbers, c10::ArrayRef<int64_t> other) const {
      return numbers.equals(other);
    }
  };

  std::unordered_map<std::string, StringNumber, Hash, Equal> strings_{{"", 0}};
  std::unordered_map<const std::string*, StringNumber> lasting_;
  std::unordered_map<StringNumber, StringNumber> written_;
  std::vector<std::string_view> texts_{""};  // of strings_
  std::unordered_map<std::vector<int64_t>, ListNumber, Hash, Equal> lists_{{{}, 0}};
  Recording pending_;
  uint32_t values_written_ = 0, uses_written_ = 0, calls_written_ = 0;
};

}  // namespace op_tools
