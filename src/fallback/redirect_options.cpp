#include "fallback/redirect_options.h"

#include <memory>
#include <regex>

#include "base/log.h"
#include "base/op_filter.h"
#include "base/read_options.h"

namespace op_tools {

namespace {

// DIPU's list names what its dispatch table holds, where add() arrives as add.out: an item "add.out" means every form
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

CastSettings cast_settings(const std::optional<std::string>& argument, std::string_view otherwise) {
  constexpr std::string_view kVariable = "OP_DTYPE_CAST_DICT";
  TextSetting text = text_setting(argument, "cast=", std::string(kVariable), otherwise);
  CastSettings settings{std::move(text.value), std::move(text.source), {}};
  if (argument) return settings;
  const std::string ending = "_" + std::string(kVariable);
  for (auto& [name, value] : environment_containing(ending)) {
    const bool ends =
        name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
    if (ends && !value.empty()) settings.by_op.emplace_back(name, value);
  }
  return settings;
}

ResolvedFallbackOptions resolve(const FallbackOptions& options) {
  ResolvedFallbackOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_FALLBACK");
  constexpr const char* kDipuList = "DIPU_FORCE_FALLBACK_OPS_LIST";
  const bool own_list = options.ops || environment("OP_FALLBACK_LIST");
  if (const auto list = environment(kDipuList); list && !own_list) {
    if (resolved.level == Level::kAten) {
      const TextSetting skip = text_setting(options.skip, "skip=", "OP_FALLBACK_DISABLE_LIST", "");
      resolved.filter = std::make_shared<OpFilter>(from_dipu_list(*list), skip.value, kDipuList, skip.source);
    } else {
      log::warn(std::string(kDipuList) +
                " names operators of the aten level and is not read at the torch level: use level=\"aten\"");
    }
  }
  resolved.on_missing = bool_setting(options.on_missing, "OP_FALLBACK_ON_MISSING");
  resolved.cast = cast_settings(options.cast, "");
  return resolved;
}

ResolvedDtypeCastOptions resolve(const DtypeCastOptions& options) {
  ResolvedDtypeCastOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_DTYPE_CAST");
  resolved.cast = cast_settings(options.cast, "torch.float16->torch.float32, torch.bfloat16->torch.float32");
  return resolved;
}

}  // namespace op_tools
