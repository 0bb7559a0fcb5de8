#include "record/made_recording.h"

#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "base/error.h"

namespace op_tools {
namespace {

// Reads the members of a row.
class Row {
 public:
  Row(const Value& row, std::string where) : row_(row), where_(std::move(where)) {
    if (!row.is<Dict>()) throw Error(where_ + ": is no dict");
  }

  template <class T>
  const T* find(std::string_view key) const {
    const Value* const member = find_key(row_, key);
    if (member == nullptr || member->is<None>()) return nullptr;
    const T* const value = member->get_if<T>();
    if (value == nullptr) throw Error(where_ + ": '" + std::string(key) + "' is " + describe(*member));
    return value;
  }
  std::string text(std::string_view key) const {
    const auto* const text = find<std::string>(key);
    return text ? *text : std::string();
  }
  int64_t integer(std::string_view key, int64_t otherwise, int64_t least, int64_t most) const {
    const auto* const integer = find<int64_t>(key);
    const int64_t number = integer ? *integer : otherwise;
    if (integer && (number < least || number > most)) {
      throw Error(where_ + ": '" + std::string(key) + "' is " + std::to_string(number) + ", expected " +
                  std::to_string(least) + " to " + std::to_string(most));
    }
    return number;
  }
  bool flag(std::string_view key, bool otherwise) const {
    const auto* const flag = find<bool>(key);
    return flag ? *flag : otherwise;
  }
  double number(std::string_view key, double otherwise) const {
    const Value* const member = find_key(row_, key);
    if (member == nullptr || member->is<None>()) return otherwise;
    return as_number(*member, key);
  }
  std::vector<Value> items(std::string_view key) const {
    const Value* const member = find_key(row_, key);
    if (member == nullptr || member->is<None>()) return {};
    const Values* const items = sequence_items(*member);
    if (items == nullptr) throw Error(where_ + ": '" + std::string(key) + "' is no list");
    return *items;
  }
  double as_number(const Value& value, std::string_view key) const {
    if (const auto* const real = value.get_if<double>()) return *real;
    if (const auto* const integer = value.get_if<int64_t>()) return static_cast<double>(*integer);
    if (const auto* const truth = value.get_if<bool>()) return *truth;
    if (const auto* const word = value.get_if<std::string>()) {  // JSON's form of nonfinite numbers
      if (*word == "nan") return std::numeric_limits<double>::quiet_NaN();
      if (*word == "inf") return std::numeric_limits<double>::infinity();
      if (*word == "-inf") return -std::numeric_limits<double>::infinity();
    }
    throw Error(where_ + ": '" + std::string(key) + "' is " + describe(value));
  }
  std::vector<int64_t> sizes(std::string_view key) const {
    std::vector<int64_t> sizes;
    for (const Value& item : items(key)) {
      const auto* const size = item.get_if<int64_t>();
      if (size == nullptr || *size < 0) throw Error(where_ + ": '" + std::string(key) + "' has " + describe(item));
      sizes.push_back(*size);
    }
    return sizes;
  }
  const std::string& where() const { return where_; }

 private:
  const Value& row_;
  const std::string where_;
};

class Maker {
 public:
  explicit Maker(const Value& rows) : rows_(rows, "recording") {
    string_number("");
    list_number({});
  }

  Recording make() {
    recording_.path = rows_.text("path");
    recording_.complete = rows_.flag("complete", true);
    const auto* const header = rows_.find<Dict>("header");
    recording_.header = header ? Value(*header) : make_dict({});
    const std::vector<Value> values = rows_.items("values"), calls = rows_.items("calls");
    for (size_t i = 0; i < values.size(); ++i) {
      add_value(Row(values[i], "values[" + std::to_string(i) + "]"), static_cast<int64_t>(calls.size()));
    }
    for (size_t i = 0; i < calls.size(); ++i) add_call(Row(calls[i], "calls[" + std::to_string(i) + "]"));
    return std::move(recording_);
  }

 private:
  uint32_t string_number(const std::string& text) {
    const auto [entry, fresh] = strings_.emplace(text, recording_.strings.size());
    if (fresh) recording_.strings.push_back(text);
    return entry->second;
  }
  uint32_t list_number(const std::vector<int64_t>& list) {
    const auto [entry, fresh] = lists_.emplace(list, recording_.lists.size());
    if (fresh) recording_.lists.push_back(list);
    return entry->second;
  }

  void add_value(const Row& row, int64_t calls);
  void add_call(const Row& row);
  void add_uses(const Row& row, const char* key);

  const Row rows_;
  Recording recording_;
  std::map<std::string, uint32_t> strings_;
  std::map<std::vector<int64_t>, uint32_t> lists_;
};

constexpr int64_t kMost32 = kNoCall - 1;
constexpr int64_t kMost64 = std::numeric_limits<int64_t>::max();

void Maker::add_value(const Row& row, int64_t calls) {
  RecordedValue value;
  value.origin = static_cast<Origin>(row.integer("origin", 0, 0, static_cast<int64_t>(Origin::kInput)));
  if (const std::string dtype = row.text("dtype"); !dtype.empty()) {
    const auto known = dtype_from_name(dtype);
    if (!known) throw Error(row.where() + ": there is no dtype '" + dtype + "'");
    value.dtype = *known;
  }
  value.known = row.flag("known", true);
  value.written = static_cast<WrittenPart>(row.integer("written", 0, 0, static_cast<int64_t>(WrittenPart::kUnknown)));
  if (value.origin == Origin::kCall) value.producer = static_cast<uint32_t>(row.integer("producer", 0, 0, calls - 1));
  value.output = static_cast<uint32_t>(row.integer("output", 0, 0, kMost32));
  value.name = string_number(row.text("name"));
  value.device = string_number(row.text("device"));
  value.shape = list_number(row.sizes("shape"));
  value.stride = list_number(row.sizes("stride"));
  if (const std::string hash = row.text("hash"); !hash.empty()) {
    size_t read = 0;
    try {
      value.hash = std::stoull(hash, &read, 16);
    } catch (const std::logic_error&) {
      read = 0;
    }
    if (read != hash.size()) throw Error(row.where() + ": 'hash' is '" + hash + "', expected hexadecimal digits");
  }
  value.nan = row.integer("nan", 0, -1, kMost64);
  value.inf = row.integer("inf", 0, -1, kMost64);
  value.zero = row.integer("zero", 0, -1, kMost64);
  value.min = row.number("min", 0);
  value.max = row.number("max", 0);
  value.mean = row.number("mean", 0);
  value.norm = row.number("norm", 0);
  const std::vector<Value> projections = row.items("projections");
  for (size_t i = 0; i < kProjections; ++i) {
    value.projections[i] = i < projections.size() ? row.as_number(projections[i], "projections")
                                                  : std::numeric_limits<double>::quiet_NaN();
  }
  recording_.values.push_back(value);
}

void Maker::add_uses(const Row& row, const char* key) {
  for (const Value& use : row.items(key)) {
    const Values* const parts = sequence_items(use);
    const auto* const place = parts && parts->size() == 2 ? (*parts)[0].get_if<std::string>() : nullptr;
    const auto* const value = place ? (*parts)[1].get_if<int64_t>() : nullptr;
    if (value == nullptr || *value < 0 || static_cast<size_t>(*value) >= recording_.values.size()) {
      throw Error(row.where() + ": '" + key + "' has " + describe(use) + ", expected (place, number of a value)");
    }
    recording_.uses.push_back({string_number(*place), static_cast<uint32_t>(*value)});
  }
}

void Maker::add_call(const Row& row) {
  RecordedCall call;
  call.id = static_cast<uint64_t>(row.integer("id", static_cast<int64_t>(recording_.calls.size()) + 1, 0, kMost64));
  call.forward_id = static_cast<uint64_t>(row.integer("forward_id", 0, 0, kMost64));
  call.step = row.integer("step", 0, std::numeric_limits<int64_t>::min(), kMost64);
  call.op = string_number(row.text("op"));
  call.module = string_number(row.text("module"));
  call.line = string_number(row.text("line"));
  call.error = string_number(row.text("error"));
  call.scalars = string_number(row.text("scalars"));
  call.random = string_number(row.text("random"));
  call.thread = static_cast<uint32_t>(row.integer("thread", 0, 0, kMost32));
  call.module_call = static_cast<uint32_t>(row.integer("module_call", 0, 0, kMost32));
  call.pass = static_cast<uint32_t>(row.integer("pass", 0, 0, kMost32));
  call.level = row.text("level") == "aten" ? Level::kAten : Level::kTorch;
  call.phase = row.text("phase") == "backward" ? Phase::kBackward : Phase::kForward;
  call.grad_enabled = row.flag("grad_enabled", true);
  call.first_use = static_cast<uint32_t>(recording_.uses.size());
  add_uses(row, "inputs");
  call.inputs = static_cast<uint32_t>(recording_.uses.size()) - call.first_use;
  add_uses(row, "outputs");
  call.outputs = static_cast<uint32_t>(recording_.uses.size()) - call.first_use - call.inputs;
  recording_.calls.push_back(call);
}

}  // namespace

Recording make_recording(const Value& rows) {
  return Maker(rows).make();
}

}  // namespace op_tools
