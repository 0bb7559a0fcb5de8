#include "record/json_lines.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "record/made_recording.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

using Form = JsonWriter::Form;

std::string hexadecimal(uint64_t number) {
  std::string digits;
  for (; number != 0; number >>= 4) digits.insert(digits.begin(), "0123456789abcdef"[number & 15]);
  return digits;
}

void add_value(JsonWriter& line, const Recording& run, const RecordedValue& value) {
  line.add("origin", static_cast<int64_t>(value.origin));
  if (value.origin == Origin::kCall) line.add("producer", value.producer);
  line.add("output", value.output);
  line.add("name", run.string(value.name));
  if (value.dtype != c10::ScalarType::Undefined) line.add("dtype", torch_name(value.dtype));
  line.add("device", run.string(value.device));
  line.add("shape", run.list(value.shape));
  line.add("stride", run.list(value.stride));
  line.add("known", value.known);
  if (value.written != WrittenPart::kNotWatched) line.add("written", static_cast<int64_t>(value.written));
  line.add("hash", hexadecimal(value.hash));
  for (const auto& [name, number] : {std::pair("nan", value.nan), {"inf", value.inf}, {"zero", value.zero}}) {
    line.add(name, number);
  }
  for (const auto& [name, number] :
       {std::pair("min", value.min), {"max", value.max}, {"mean", value.mean}, {"norm", value.norm}}) {
    line.add(name, number);
  }
  line.begin_array(Form::kOneLine, "projections");
  for (const double projection : value.projections) line.add(projection);
  line.end();
}

void add_uses(JsonWriter& line, const Recording& run, std::string_view key, c10::ArrayRef<RecordedUse> uses) {
  line.begin_array(Form::kOneLine, key);
  for (const RecordedUse& use : uses) {
    line.begin_array(Form::kOneLine);
    line.add(run.string(use.place));
    line.add(use.value);
    line.end();
  }
  line.end();
}

void add_call(JsonWriter& line, const Recording& run, const RecordedCall& call) {
  line.add("id", call.id);
  line.add("forward_id", call.forward_id);
  line.add("step", call.step);
  for (const auto& [name, text] : {std::pair("op", call.op),
                                   {"module", call.module},
                                   {"line", call.line},
                                   {"error", call.error},
                                   {"scalars", call.scalars},
                                   {"random", call.random}}) {
    line.add(name, run.string(text));
  }
  line.add("thread", call.thread);
  line.add("module_call", call.module_call);
  line.add("pass", call.pass);
  line.add("level", std::string_view(to_string(call.level)));
  line.add("phase", std::string_view(to_string(call.phase)));
  line.add("grad_enabled", call.grad_enabled);
  add_uses(line, run, "inputs", run.inputs(call));
  add_uses(line, run, "outputs", run.outputs(call));
}

template <class Add>
void write_line(std::ofstream& file, std::string_view kind, Add&& add) {
  std::string text;
  JsonWriter line(text);
  line.begin_object(Form::kOneLine);
  line.add("kind", kind);
  add(line);
  line.end();
  file << text << '\n';
}

[[noreturn]] void fail(const std::string& path, std::string_view problem) {
  throw Error(path + ": " + std::string(problem) + ": " + std::strerror(errno));
}

}  // namespace

void write_json_lines(const Recording& run, const std::string& path) {
  std::ofstream file(path, std::ios::trunc);
  if (!file) fail(path, "cannot make the file");
  write_line(file, "header", [&](JsonWriter& line) { line.add("header", run.header); });
  for (const RecordedValue& value : run.values) {
    write_line(file, "value", [&](JsonWriter& line) { add_value(line, run, value); });
  }
  for (const RecordedCall& call : run.calls) {
    write_line(file, "call", [&](JsonWriter& line) { add_call(line, run, call); });
  }
  if (run.complete) write_line(file, "end", [](JsonWriter&) {});
  if (!file.flush()) fail(path, "cannot be written");
}

Recording read_json_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(path, "cannot be read");
  Values values, calls;
  Value header = make_dict({});
  bool complete = false;
  std::string text;
  for (size_t number = 1; std::getline(file, text); ++number) {
    if (file.eof()) break;  // no end of a line: it is cut off
    try {
      Value row = value_of_json(text);
      const Value* const kind = row.is<Dict>() ? find_key(row, "kind") : nullptr;
      const auto* const name = kind ? kind->get_if<std::string>() : nullptr;
      const std::string_view row_kind = name ? std::string_view(*name) : std::string_view();
      if (row_kind == "value") {
        values.push_back(std::move(row));
      } else if (row_kind == "call") {
        calls.push_back(std::move(row));
      } else if (const Value* const facts = row_kind == "header" ? find_key(row, "header") : nullptr) {
        const Value* const format = facts->is<Dict>() ? find_key(*facts, "format") : nullptr;
        const auto* const number_of_format = format ? format->get_if<int64_t>() : nullptr;
        if (number_of_format && *number_of_format != kRecordingFormat) {
          throw Error("is of another version of op_tools: its hashes are of another kind");
        }
        header = *facts;
      } else if (row_kind == "end") {
        complete = true;
      } else {
        throw Error("is no line of a recording");
      }
    } catch (const Error& error) {
      throw Error(path + ": line " + std::to_string(number) + ": " + error.what());
    }
  }
  try {
    return make_recording(make_dict({{"path", path},
                                     {"complete", complete},
                                     {"header", std::move(header)},
                                     {"values", make_list(std::move(values))},
                                     {"calls", make_list(std::move(calls))}}));
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
}

}  // namespace op_tools
