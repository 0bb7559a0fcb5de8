#include "calls/call_files.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <mutex>
#include <sstream>

namespace op_tools {

Value call_file(const std::string& name, uint64_t id, Value args, Value kwargs,
                std::vector<std::pair<Value, Value>> more) {
  std::vector<std::pair<Value, Value>> items;
  items.reserve(4 + more.size());
  items.emplace_back("name", name);
  items.emplace_back("args", std::move(args));
  items.emplace_back("kwargs", std::move(kwargs));
  items.emplace_back("id", static_cast<int64_t>(id));
  for (auto& item : more) items.push_back(std::move(item));
  return make_dict(std::move(items));
}

const std::string& schema_text(const c10::OperatorHandle* op, std::string_view name) {
  static const auto* const none = new std::string;
  if (!op || !op->hasSchema()) return *none;
  struct Text {
    const c10::FunctionSchema* of = nullptr;  // an operator of that name may go and another one come
    const std::string* text = nullptr;        // never freed: another thread may still read it
  };
  static auto* const mutex = new std::mutex;
  static auto* const by_name = new std::map<std::string, Text, std::less<>>;
  const c10::FunctionSchema& schema = op->schema();
  std::lock_guard<std::mutex> lock(*mutex);
  auto known = by_name->find(name);
  if (known == by_name->end()) known = by_name->emplace(std::string(name), Text{}).first;
  if (known->second.of != &schema) {
    std::ostringstream text;
    text << schema;
    known->second = {&schema, new std::string(text.str())};
  }
  return *known->second.text;
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

}  // namespace op_tools
