#include "calls/schema_text.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <mutex>
#include <sstream>

#include "base/fork_guard.h"

namespace op_tools {
namespace {

std::mutex& texts_mutex() {
  static auto* const mutex = [] {
    keep_free_in_children([]() -> std::mutex& { return texts_mutex(); });
    return new std::mutex;
  }();
  return *mutex;
}

}  // namespace

const std::string& schema_text(const c10::OperatorHandle* op, std::string_view name) {
  static const auto* const none = new std::string;
  if (!op || !op->hasSchema()) return *none;
  struct Text {
    const c10::FunctionSchema* of = nullptr;  // an operator of that name may go and another come
    const std::string* text = nullptr;        // never freed: another thread may still read it
  };
  static auto* const by_name = new std::map<std::string, Text, std::less<>>;
  const c10::FunctionSchema& schema = op->schema();
  std::lock_guard<std::mutex> lock(texts_mutex());
  auto known = by_name->find(name);
  if (known == by_name->end()) known = by_name->emplace(std::string(name), Text{}).first;
  if (known->second.of != &schema) {
    std::ostringstream text;
    text << schema;
    known->second = {&schema, new std::string(text.str())};
  }
  return *known->second.text;
}

}  // namespace op_tools
