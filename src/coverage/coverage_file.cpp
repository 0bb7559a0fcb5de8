#include "coverage/coverage_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

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

void write_coverage(const std::string& folder, const Coverage& account, const Value& program,
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
  json.add("program", program);
  json.end();
  text += '\n';

  const std::string path = folder + "/coverage.json";
  const auto written = std::make_shared<std::promise<void>>();
  std::future<void> end = written->get_future();
  // On a mount whose server is gone, nobody can take a thread back from the system.
  std::thread([written, path, text = std::move(text)] {
    try {
      replace_file(path, text);
      written->set_value();
    } catch (...) {
      written->set_exception(std::current_exception());
    }
  }).detach();
  if (end.wait_for(time_limit) != std::future_status::ready) {
    throw Error(path + ": was not written within " + std::to_string(time_limit.count()) + " s");
  }
  end.get();
}

}  // namespace op_tools
