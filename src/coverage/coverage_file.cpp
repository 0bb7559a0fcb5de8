#include "coverage/coverage_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
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

  const std::string path = folder + "/coverage.json";
  run_in_time(path, time_limit, [path, text = std::move(text)] { replace_file(path, text); });
}

}  // namespace op_tools
