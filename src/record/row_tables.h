// The rows of a recording that were not written yet, and the numbers of all strings and lists that were: the contents
// that a file of a recording is given, part by part. One thread at a time.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
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
  // Of calls, values and uses each: their numbers have 32 bits, and what waits to be written needs some, too.
  static constexpr uint32_t kMostRows = UINT32_MAX - (uint32_t{1} << 26);
  // Of strings that pass, and of lists: at least so many of the last ones are known, twice as many at most. A string
  // that comes back after them is written again, and has another number.
  static constexpr size_t kKnown = 1 << 16;

  explicit RowTables(uint32_t rows_before = 0)
      : values_written_(rows_before), uses_written_(rows_before), calls_written_(rows_before) {}

  StringNumber string(std::string_view text);
  // The same for a string of which a program makes ever more, as scalars that change with each step are.
  StringNumber passing_string(std::string_view text);
  // The same for a string that lives until the process ends: known by its address.
  StringNumber lasting_string(const std::string& text);
  // "self.running_mean": of a module that normalizes batches.
  bool names_running_statistic(StringNumber place) const;
  // "written args[0]" of "args[0]".
  StringNumber written_place(StringNumber place);
  ListNumber list(c10::ArrayRef<int64_t> numbers);

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
  // No row may be added: the recording has kMostRows of a kind.
  bool is_full() const { return std::max({values_written_, uses_written_, calls_written_}) >= kMostRows; }

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

  // The younger half of what is known, and the older.
  template <class Key>
  struct Passing {
    std::unordered_map<Key, uint32_t, Hash, Equal> young, old;
  };
  template <class Key, class View>
  static uint32_t number_of(Passing<Key>& passing, View view, uint32_t next);
  StringNumber add_string(std::string_view text);

  std::unordered_map<std::string, StringNumber, Hash, Equal> strings_;
  Passing<std::string> passing_;
  std::unordered_map<const std::string*, StringNumber> lasting_;
  std::unordered_map<StringNumber, StringNumber> written_;
  std::unordered_map<StringNumber, std::string_view> texts_;  // of strings_
  Passing<std::vector<int64_t>> lists_;
  StringNumber next_string_ = 1;
  ListNumber next_list_ = 1;
  Recording pending_;
  uint32_t values_written_ = 0, uses_written_ = 0, calls_written_ = 0;
};

}  // namespace op_tools
