#include "coverage/coverage_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/disk_time.h"
#include "base/error.h"
#include "base/run_folder.h"
#include "coverage/coverage_text.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

void add_texts(std::string_view key, const std::vector<std::string>& texts, JsonWriter& json) {
  json.begin_array(JsonWriter::Form::kOneLine, key);
  for (const std::string& text : texts) json.add(text);
  json.end();
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::ofstream out;
  if (make_file(part)) out.open(part, std::ios::binary);
  out << text;
  out.close();
  if (!out || std::rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(part.c_str());
    throw Error(path + ": cannot be written: " + std::strerror(error));
  }
}

std::map<std::string, uint64_t> rows_from(const Value& value) {
  constexpr const char* kNoNumbers = "the numbers of its rows are no numbers";
  const Dict* dict = value.get_if<Dict>();
  if (!dict) throw Error(kNoNumbers);
  std::map<std::string, uint64_t> rows;
  for (const auto& [name, item] : *dict->items) {
    const auto* count = item.get_if<int64_t>();
    if (!count || *count < 0) throw Error(kNoNumbers);
    rows[*name.get_if<std::string>()] = static_cast<uint64_t>(*count);
  }
  return rows;
}

ReadAccount account_from(const Value& file) {
  if (!file.get_if<Dict>()) throw Error("is no account of a run");
  ReadAccount read;
  std::vector<std::pair<Value, Value>> fields;
  const Value known = to_value(read.account);
  for (const auto& [key, unused] : *known.get_if<Dict>()->items) {
    if (const Value* field = find_key(file, *key.get_if<std::string>())) fields.emplace_back(key, *field);
  }
  set_fields(make_dict(std::move(fields)), read.account);
  if (const Value* tool = find_key(file, "tool"); tool && tool->get_if<std::string>()) {
    read.facts.tool = *tool->get_if<std::string>();
  }
  if (const Value* ranks = find_key(file, "ranks"); ranks && ranks->get_if<int64_t>()) {
    read.facts.ranks = *ranks->get_if<int64_t>();
  }
  if (const Value* rows = find_key(file, "rows")) read.facts.rows = rows_from(*rows);
  return read;
}

}  // namespace

void write_coverage(const std::string& folder, const Coverage& account, const RunFacts& facts,
                    std::chrono::seconds time_limit) {
  std::string text;
  JsonWriter json(text);
  json.begin_object(JsonWriter::Form::kLines);
  const Value fields = to_value(account);
  for (const auto& [name, value] : *fields.get_if<Dict>()->items) json.add(*name.get_if<std::string>(), value);
  std::vector<std::string> tokens;
  for (const Gap gap : gaps(account)) tokens.emplace_back(token_of(gap).name);
  add_texts("gaps", tokens, json);
  add_texts("reasons", reasons(account), json);
  json.add("tool", std::string_view(facts.tool));
  json.add("ranks", facts.ranks);
  std::vector<std::pair<Value, Value>> rows;
  for (const auto& [file, count] : facts.rows) rows.emplace_back(file, static_cast<int64_t>(count));
  json.add("rows", make_dict(std::move(rows)));
  json.add("program", facts.program);
  json.end();
  text += '\n';

  const std::string path = folder + "/" + kCoverageFile;
  run_in_time(path, time_limit, [path, text = std::move(text)] { replace_file(path, text); });
}

std::optional<ReadAccount> read_coverage(const std::string& folder) {
  const std::string path = folder + "/" + kCoverageFile;
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    if (!file) throw Error(std::strerror(errno));
    return account_from(value_of_json(text));
  } catch (const Error& error) {
    throw Error(path + ": is damaged: " + error.what());
  }
}

}  // namespace op_tools
