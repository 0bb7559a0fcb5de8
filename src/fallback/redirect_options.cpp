#include "fallback/redirect_options.h"

#include <memory>
#include <regex>

#include "base/log.h"
#include "base/op_filter.h"
#include "base/read_options.h"
#include "fallback/cast_rules.h"

namespace op_tools {

namespace {

constexpr const char* kDipuList = "DIPU_FORCE_FALLBACK_OPS_LIST";
constexpr const char* kCastVariable = "OP_DTYPE_CAST_DICT";

// DIPU's list has the names of its dispatch table, where add() arrives as add.out: an item "add.out" means every form
// of add, "add.Scalar_out" every form of add.Scalar. Other items are expressions as everywhere.
std::string from_dipu_list(std::string_view list) {
  std::string filter;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string item(trimmed(list.substr(0, comma)));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    if (item.empty()) continue;
    static const std::regex out_form(R"((\w+)\.(?:(\w+)_)?out)");
    std::smatch parts;
    if (!filter.empty()) filter += ", ";
    if (std::regex_match(item, parts, out_form)) {
      const std::string overload = parts[2].matched ? "\\." + parts[2].str() : "";
      filter += item + "|" + parts[1].str() + "_?" + overload;
    } else {
      filter += item;
    }
  }
  return filter;
}

}  // namespace

CastSettings cast_settings(const Option<std::string>& cast) {
  CastSettings settings{cast.get(), cast.source(), {}};
  if (cast.is_argument()) return settings;
  const std::string ending = std::string("_") + kCastVariable;
  for (auto& [name, value] : environment_containing(ending)) {
    if (name.size() > ending.size() && name.ends_with(ending) && !value.empty()) {
      settings.by_op.emplace_back(name, value);
    }
  }
  return settings;
}

// The hook lists all calls, so it sees all of them, and chooses by itself which it runs elsewhere.
ResolvedOptions RedirectOptions::for_scope() const {
  ResolvedOptions resolved = ToolOptions::for_scope();
  if (!list_calls.get().empty()) resolved.calls = nullptr;
  return resolved;
}

std::shared_ptr<const CallList> RedirectOptions::moved_calls() const {
  if (list_calls.get().empty() || calls.get().empty()) return nullptr;
  return std::make_shared<CallList>(read_call_list(calls.get(), calls.source()));
}

// At the aten level, DIPU's list stands in for `ops`.
ResolvedOptions FallbackOptions::for_scope() const {
  ResolvedOptions resolved = RedirectOptions::for_scope();
  const auto list = environment(kDipuList);
  if (!list || ops.is_set()) return resolved;
  if (level == Level::kAten) {
    resolved.filter = std::make_shared<OpFilter>(from_dipu_list(*list), skip.get(), kDipuList, skip.source());
  } else {
    log::warn(std::string(kDipuList) +
              " names operators of the aten level and is not read at the torch level: use level=\"aten\"");
  }
  return resolved;
}

void FallbackOptions::resolve_all() {
  ToolOptions::resolve_all();
  const CastRules rules(cast_settings(cast));  // an Error names argument or variable
}

void DtypeCastOptions::resolve_all() {
  ToolOptions::resolve_all();
  const CastRules rules(cast_settings(cast));
}

std::vector<Variable> FallbackOptions::further_variables() const {
  return {{kCastVariable, "OpFallback's and OpDtypeCast's cast=", true},
          {kDipuList, "level aten: operators to run on the CPU, as DIPU names them"}};
}

std::vector<Variable> DtypeCastOptions::further_variables() const {
  return {{kCastVariable, "OpFallback's and OpDtypeCast's cast=", true}};
}

}  // namespace op_tools
