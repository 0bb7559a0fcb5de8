#include "base/text_table.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <sstream>

#include "base/printable.h"

namespace op_tools {
namespace {

constexpr size_t kGap = 2;         // between columns
constexpr size_t kNarrowest = 16;  // a cut column shows as much

// Characters, as UTF-8 counts them; a terminal shows nearly all of them in a single column.
size_t length_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string cut(const std::string& text, size_t width) {
  if (length_of(text) <= width) return text;
  // Bytes are characters here: only names of operators and files come to be cut.
  const size_t shown = width - 3;
  return text.substr(0, shown / 2) + "..." + text.substr(text.size() - (shown - shown / 2));
}

}  // namespace

std::string text_table(const std::vector<TableColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows_from_outside, size_t width) {
  std::vector<std::vector<std::string>> rows = rows_from_outside;  // a name with a line feed would be a line of its own
  for (auto& row : rows) {
    for (std::string& cell : row) cell = printable(cell);
  }
  std::vector<size_t> widths;
  for (const TableColumn& column : columns) widths.push_back(length_of(column.title));
  for (const auto& row : rows) {
    for (size_t i = 0; i < std::min(row.size(), columns.size()); ++i)
      widths[i] = std::max(widths[i], length_of(row[i]));
  }
  size_t total = columns.empty() ? 0 : kGap * (columns.size() - 1);
  for (const size_t width : widths) total += width;
  // The widest text column gives way to the next, then both do: the remaining width is shared evenly.
  const auto widest = [&] {
    size_t widest_column = columns.size();
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool can_give = !columns[i].is_number && widths[i] > kNarrowest;
      if (can_give && (widest_column == columns.size() || widths[i] > widths[widest_column])) widest_column = i;
    }
    return widest_column;
  };
  for (; total > width; --total) {
    const size_t gives = widest();
    if (gives == columns.size()) break;
    --widths[gives];
  }

  std::string table;
  auto add_line = [&](const auto& cell_of, size_t count) {
    std::string line;
    for (size_t i = 0; i < count; ++i) {
      const std::string cell = columns[i].is_number ? cell_of(i) : cut(cell_of(i), widths[i]);
      const std::string space(widths[i] - std::min(widths[i], length_of(cell)), ' ');
      if (i > 0) line.append(kGap, ' ');
      line += columns[i].is_number ? space + cell : cell + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    if (!table.empty()) table += '\n';
    table += line;
  };
  add_line([&](size_t i) { return columns[i].title; }, columns.size());
  for (const auto& row : rows) add_line([&](size_t i) { return row[i]; }, std::min(row.size(), columns.size()));
  return table;
}

std::string bytes_text(uint64_t bytes) {
  const char* const units[] = {"B", "KB", "MB", "GB", "TB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1000 && unit + 1 < std::size(units)) {
    amount /= 1000;
    ++unit;
  }
  std::ostringstream text;
  text.precision(unit == 0 ? 0 : 1);
  text << std::fixed << amount << ' ' << units[unit];
  return text.str();
}

std::string count_text(size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string formatted(const char* format, ...) {
  va_list parts, again;
  va_start(parts, format);
  va_copy(again, parts);
  char most[256];
  const int size = std::vsnprintf(most, sizeof(most), format, parts);
  va_end(parts);
  std::string text;
  if (size < static_cast<int>(sizeof(most))) {
    text.assign(most, static_cast<size_t>(std::max(size, 0)));
  } else {
    text.resize(static_cast<size_t>(size));
    std::vsnprintf(text.data(), text.size() + 1, format, again);
  }
  va_end(again);
  return text;
}

}  // namespace op_tools
