#include "record/row_tables.h"

#include <c10/util/hash.h>

#include <utility>

namespace op_tools {

size_t RowTables::Hash::operator()(c10::ArrayRef<int64_t> numbers) const {
  size_t hash = numbers.size();
  for (const int64_t number : numbers) hash = c10::hash_combine(hash, static_cast<size_t>(number));
  return hash;
}

// Of an object that comes again; `next`: it is new.
template <class Key, class View>
uint32_t RowTables::number_of(Passing<Key>& passing, View view, uint32_t next) {
  if (const auto entry = passing.young.find(view); entry != passing.young.end()) return entry->second;
  if (passing.young.size() >= kKnown) passing.old = std::exchange(passing.young, {});
  const auto entry = passing.old.find(view);
  const uint32_t number = entry == passing.old.end() ? next : entry->second;
  passing.young.emplace(Key(view.begin(), view.end()), number);
  return number;
}

StringNumber RowTables::add_string(std::string_view text) {
  pending_.strings.emplace_back(text);
  return next_string_++;
}

StringNumber RowTables::string(std::string_view text) {
  if (text.empty()) return 0;
  const auto entry = strings_.find(text);
  if (entry != strings_.end()) return entry->second;
  const auto added = strings_.emplace(text, add_string(text)).first;
  texts_.emplace(added->second, added->first);
  return added->second;
}

StringNumber RowTables::passing_string(std::string_view text) {
  if (text.empty()) return 0;
  const StringNumber number = number_of(passing_, text, next_string_);
  return number == next_string_ ? add_string(text) : number;
}

StringNumber RowTables::lasting_string(const std::string& text) {
  const auto [place, is_new] = lasting_.try_emplace(&text, 0);
  if (is_new) place->second = string(text);
  return place->second;
}

bool RowTables::names_running_statistic(StringNumber place) const {
  const std::string_view text = texts_.at(place);
  return text.ends_with(".running_mean") || text.ends_with(".running_var");
}

StringNumber RowTables::written_place(StringNumber place) {
  const auto [written, is_new] = written_.try_emplace(place, 0);
  if (is_new) written->second = string(std::string(kWrittenPlace).append(texts_.at(place)));
  return written->second;
}

ListNumber RowTables::list(c10::ArrayRef<int64_t> numbers) {
  if (numbers.empty()) return 0;
  const ListNumber number = number_of(lists_, numbers, next_list_);
  if (number != next_list_) return number;
  pending_.lists.push_back(numbers.vec());
  return next_list_++;
}

uint32_t RowTables::add_value(const RecordedValue& value) {
  pending_.values.push_back(value);
  return values_written_ + static_cast<uint32_t>(pending_.values.size() - 1);
}

void RowTables::add_call(RecordedCall call, const std::vector<RecordedUse>& uses, size_t inputs) {
  call.first_use = uses_written_ + static_cast<uint32_t>(pending_.uses.size());
  call.inputs = static_cast<uint32_t>(inputs);
  call.outputs = static_cast<uint32_t>(uses.size() - inputs);
  pending_.uses.insert(pending_.uses.end(), uses.begin(), uses.end());
  pending_.calls.push_back(call);
}

void RowTables::add_rows(uint32_t value, const std::vector<RowPrints>& all) {
  for (const RowPrints& rows : all) {
    pending_.rows.push_back(rows.rows);
    pending_.rows.back().value = value;
    pending_.prints.insert(pending_.prints.end(), rows.prints.begin(), rows.prints.end());
  }
}

size_t RowTables::pending_bytes() const {
  return pending_.values.size() * sizeof(RecordedValue) + pending_.uses.size() * sizeof(RecordedUse) +
         pending_.calls.size() * sizeof(RecordedCall) + pending_.prints.size() * sizeof(RowPrint);
}

void RowTables::written() {
  values_written_ += static_cast<uint32_t>(pending_.values.size());
  uses_written_ += static_cast<uint32_t>(pending_.uses.size());
  calls_written_ += static_cast<uint32_t>(pending_.calls.size());
  pending_.strings.clear();
  pending_.lists.clear();
  pending_.values.clear();
  pending_.uses.clear();
  pending_.calls.clear();
  pending_.rows.clear();
  pending_.prints.clear();
}

}  // namespace op_tools
