#include "hooks/tool.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/read_options.h"

namespace op_tools {
namespace {

// The option's value of a Value; nothing when it is of a type that no option has.
std::optional<OptionValue> option_value(const Value& value) {
  if (const bool* flag = value.get_if<bool>()) return *flag;
  if (const int64_t* number = value.get_if<int64_t>()) return *number;
  if (const double* number = value.get_if<double>()) return *number;
  if (const std::string* text = value.get_if<std::string>()) return *text;
  if (const Bytes* path = value.get_if<Bytes>()) return path->bytes;  // a path that is no UTF-8
  const Values* items = sequence_items(value);
  if (!items) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Value& item : *items) {
    const int64_t* number = item.get_if<int64_t>();
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// Addresses of elements stay.
struct Register {
  std::mutex mutex;
  std::list<ToolKind> kinds;

  static Register& get() {
    static Register* all = [] {
      auto* tools = new Register;  // leaked: tools may end while the process exits
      for (ToolKind& kind : own_tools()) tools->kinds.push_back(std::move(kind));
      return tools;
    }();
    return *all;
  }
};

}  // namespace

void read_settings(const Value& settings, OptionSet& options) {
  const auto* dict = settings.get_if<Dict>();
  if (!dict) throw Error("the settings of a tool are a dict, not " + describe(settings));
  std::set<std::string, std::less<>> names;
  options.for_each([&](OptionBase& option) {
    names.insert(option.name());
    const Value* value = find_key(settings, option.name());
    if (!value || value->is<None>()) return;
    const auto typed = option_value(*value);
    if (!typed || !option.take(*typed)) {
      throw Error(option.name() + "=: " + describe(*value) + " is not " + option.wanted());
    }
  });
  for (const auto& [key, value] : *dict->items) {
    const std::string* name = key.get_if<std::string>();
    if (!name || !names.count(*name)) throw Error(describe(key) + " is no option of this tool");
  }
}

std::vector<const ToolKind*> tool_kinds() {
  Register& tools = Register::get();
  const std::lock_guard<std::mutex> lock(tools.mutex);
  std::vector<const ToolKind*> kinds;
  for (const ToolKind& kind : tools.kinds) kinds.push_back(&kind);
  return kinds;
}

const ToolKind& find_tool(std::string_view name) {
  std::string known;
  for (const ToolKind* kind : tool_kinds()) {
    if (kind->name == name || kind->feature == name) return *kind;
    known.append(known.empty() ? "" : ", ").append(kind->name);
  }
  throw Error("there is no tool '" + std::string(name) + "'; there are " + known);
}

void register_tool(ToolKind kind) {
  Register& tools = Register::get();
  const std::lock_guard<std::mutex> lock(tools.mutex);
  for (const ToolKind& other : tools.kinds) {
    if (other.name == kind.name || other.feature == kind.feature || other.flag == kind.flag) {
      throw Error("register_tool(): the name, the feature or the flag of " + kind.name + " is that of " + other.name);
    }
  }
  tools.kinds.push_back(std::move(kind));
}

std::vector<Variable> known_variables() {
  std::vector<Variable> all = process_variables();
  const auto add = [&](Variable variable) {
    const bool is_known =
        std::any_of(all.begin(), all.end(), [&](const Variable& known) { return known.name == variable.name; });
    if (!variable.name.empty() && !is_known) all.push_back(std::move(variable));
  };
  const auto add_options = [&](ToolOptions& options) {
    for (Variable& variable : options.further_variables()) add(std::move(variable));
    options.for_each([&](OptionBase& option) { add({option.variable(), option.describe().text.help}); });
  };
  for (const ToolKind* kind : tool_kinds()) add_options(*kind->make_options());
  HookOptions of_hooks;
  add_options(of_hooks);
  return all;
}

std::vector<std::string> unread_variables() {
  constexpr std::string_view kOurs = "OP_";
  std::vector<std::string> unread;
  auto in_environment = environment_containing(kOurs);
  std::erase_if(in_environment, [&](const auto& variable) { return !variable.first.starts_with(kOurs); });
  if (in_environment.empty()) return unread;
  const std::vector<Variable> known = known_variables();
  const auto word_behind = [&](std::string_view variable) {  // CAPTURE of OP_CAPTURE_LIST
    return variable.starts_with(kOurs) ? variable.substr(kOurs.size(), variable.find('_', kOurs.size()) - kOurs.size())
                                       : std::string_view();
  };
  for (const auto& variable_and_value : in_environment) {
    const std::string& present = variable_and_value.first;
    const auto reads = [&](const Variable& variable) {
      return variable.name == present || (variable.per_operator && present.ends_with("_" + variable.name));
    };
    const auto begins_alike = [&](const Variable& variable) {
      return word_behind(variable.name) == word_behind(present);
    };
    if (std::none_of(known.begin(), known.end(), reads) && std::any_of(known.begin(), known.end(), begins_alike)) {
      unread.push_back(present);
    }
  }
  return unread;
}

void warn_of_unread_variables() {
  static std::once_flag said;
  std::call_once(said, [] {
    for (const std::string& name : unread_variables()) {
      log::warn(name + ": no tool reads a variable of this name; op-tools doctor looks for the name that was meant");
    }
  });
}

void check_settings(ToolOptions& options, const Value& settings) {
  read_settings(settings, options);
  options.resolve_all();
  options.for_scope();
}

std::vector<std::string> refused_variables() {
  std::vector<std::string> refused;
  const auto note = [&](const auto& read) {
    try {
      read();
    } catch (const Error& error) {
      if (std::find(refused.begin(), refused.end(), error.what()) == refused.end()) refused.emplace_back(error.what());
    }
  };
  note([] { log::reload_level(); });
  note([] { distributed_rank(); });
  note([] { launched_ranks(); });
  const auto add_options = [&](ToolOptions& options) {
    options.for_each([&](OptionBase& option) { note([&] { option.resolve(); }); });
    note([&] { options.resolve_all(); });
    note([&] { options.for_scope(); });
  };
  for (const ToolKind* kind : tool_kinds()) add_options(*kind->make_options());
  HookOptions of_hooks;
  add_options(of_hooks);
  return refused;
}

}  // namespace op_tools
