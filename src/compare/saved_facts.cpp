#include "compare/saved_facts.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace op_tools {
namespace {

using Items = std::vector<std::pair<Value, Value>>;

Value to_value(bool field) {
  return field;
}
Value to_value(int64_t field) {
  return field;
}
Value to_value(CompareMethod field) {
  return std::string(to_string(field));
}
Value to_value(const std::optional<c10::ScalarType>& field) {
  return field ? Value(*field) : Value();
}
template <class Element>
Value to_value(const std::vector<Element>& field) {
  Values items;
  for (const Element& element : field) items.push_back(to_value(element));
  return make_list(std::move(items));
}

template <class Type>
const Type& expect(const Value& value) {
  const auto* field = value.get_if<Type>();
  if (!field) throw Error("is " + describe(value));
  return *field;
}
void from_value(const Value& value, bool& field) {
  field = expect<bool>(value);
}
void from_value(const Value& value, int64_t& field) {
  field = expect<int64_t>(value);
}
void from_value(const Value& value, CompareMethod& field) {
  field = method_from_string("'method'", expect<std::string>(value));
}
void from_value(const Value& value, std::optional<c10::ScalarType>& field) {
  field.reset();
  if (!value.is<None>()) field = expect<c10::ScalarType>(value);
}
template <class Element>
void from_value(const Value& value, std::vector<Element>& field) {
  const Values* items = sequence_items(value);
  if (!items) throw Error("is " + describe(value) + ", expected a list");
  field.clear();
  for (const Value& item : *items) {
    Element element{};
    from_value(item, element);
    field.push_back(std::move(element));
  }
}

struct FieldWriter {
  Items items;
  template <class Field>
  void operator()(const char* name, const Field& field) {
    items.emplace_back(name, to_value(field));
  }
  // A field that older files lack.
  template <class Field>
  void later(const char* name, const Field& field) {
    (*this)(name, field);
  }
};

struct FieldReader {
  const char* const dict_name;
  const Value& dict;
  template <class Field>
  void operator()(const char* name, Field& field) const {
    const Value* value = find_key(dict, name);
    if (!value) throw Error(std::string("'") + dict_name + "' has no '" + name + "'");
    try {
      from_value(*value, field);
    } catch (const Error& error) {
      throw Error(std::string("'") + name + "' in '" + dict_name + "' " + error.what());
    }
  }
  template <class Field>
  void later(const char* name, Field& field) const {
    if (find_key(dict, name)) (*this)(name, field);
  }
};

template <class Fields, class Facts>
void each_field_of_facts(Fields& field, Facts& facts) {
  field("method", facts.options.method);
  field("golden", facts.options.golden);
  field("nan_equal", facts.options.nan_equal);
  field("strides", facts.options.strides);
  field("alone", facts.device.alone);
  field("autocast", facts.device.autocast);
  field.later("tf32", facts.device.tf32);
  field.later("approximated", facts.device.approximated);
  field("names_device", facts.device.names_device);
  field("random", facts.random.drawn);
  field("repeatable", facts.random.repeatable);
  field("goes_backward", facts.pass.goes_backward);
  field("in_backward", facts.pass.in_backward);
  field("in_transform", facts.pass.in_transform);
  field.later("of_graph", facts.pass.of_graph);
  field.later("has_unwritten_memory", facts.pass.graph.has_unwritten_memory);
  field.later("adds_product", facts.pass.graph.adds_product);
  field("written_inputs", facts.memory.written_inputs);
}

template <class Fields, class Run>
void each_field_of_memory(Fields& field, Run& run) {
  field("written", run.written);
  field("aliases", run.aliases);
  field("strides", run.strides);
  field.later("shared", run.shared);
}

}  // namespace

Value facts_value(const CallFacts& facts) {
  FieldWriter writer;
  each_field_of_facts(writer, facts);
  return make_dict(std::move(writer.items));
}

Value memory_value(const RunOutcome& run, const std::string& written_beside) {
  FieldWriter writer;
  each_field_of_memory(writer, run);
  writer.items.emplace_back("beside", written_beside);
  return make_dict(std::move(writer.items));
}

void read_facts(const Value& value, CallFacts& facts) {
  const FieldReader reader{"judged", value};
  each_field_of_facts(reader, facts);
}

void read_memory(const Value& value, RunOutcome& run) {
  const FieldReader reader{"memory", value};
  each_field_of_memory(reader, run);
}

std::string read_written_beside(const Value& memory) {
  const Value* value = find_key(memory, "beside");
  return value ? expect<std::string>(*value) : std::string();
}

}  // namespace op_tools
